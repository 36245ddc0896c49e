// SampleLog: the durable, ordered record of every trajectory a worker seals. One directory per
// worker, RocksDB inside. A trajectory is sent only after it is in here (S1).
//
//   append() -> bounded queue -> writer thread: drain, number, encode -> one WriteBatch
//   (sample + tensors + outbox + index) -> durable -> high-water file -> callbacks
//   -> sealed listener
//
// Families: meta, samples (BE64 seq -> 32-byte header + Cap'n Proto), tensors (BE64 seq + BE16),
// outbox (BE64 seq -> bytes, attempts, first sent), index, dead_letters. docs/sample_log.md has the
// layout of every key and value and the reasons.
//
// Delivery state:   sealed -> outbox -> committed -> removed by retention
//                               |  ^------- rewind() after a trainer rollback
//                               +-> dead letter            removed, then wanted again -> gap
//
// Intake state:   open --(write failed | free space < min_free_bytes)--> paused
//                 paused --(retry ok)--> open
// While paused: queued samples stay in memory, append() waits for room until its deadline, reading,
// sending and committing go on.
//
// Thread: every method may be called from any thread. Callbacks run on the writer thread, in seq
// order, and must not call back into append() or close().
// Lifetime: close() (or the destructor) seals what is queued, then releases the directory.
// Errors: Status. kUnavailable = queue full, try again; kDataLoss = the directory is damaged, the
// message names `warproll log repair`.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "protocol/records.h"
#include "protocol/status.h"
#include "rollout/sample_log/log_types.h"

namespace rocksdb {
class Env;
}

namespace warproll {

class LogReader;

struct SampleLogOptions {
  std::string directory;  // made if missing
  Durability durability = Durability::kGroup;
  size_t queue_samples = 256;  // append() waits when so many are unwritten
  uint64_t batch_bytes = 4 << 20;
  uint32_t batch_wait_ms = 2;            // how long a batch waits for company (group, os)
  bool compress_records = false;         // zstd level 1, on the writer thread
  int32_t vocab_size = 0;                // for validate(); 0 = unknown
  uint64_t min_free_bytes = 1ull << 30;  // intake pauses below it, so that commits still fit
  uint64_t seq_block = 4096;             // durability os: seqs reserved at a time
  uint32_t retry_ms = 500;               // between two tries while paused
  uint32_t reopen_after_ms = 10'000;  // paused for so long with space free: close and reopen the DB
  uint32_t close_timeout_ms = 10'000;      // how long close() tries to write what is queued
  uint64_t write_buffer_bytes = 32 << 20;  // memory a family fills before it writes a table
  RetentionPolicy retention;
  // RocksDB's own messages, warnings and worse. Any thread. May be empty.
  std::function<void(const std::string& message)> on_warning;
  // Tests only: file system and free-space probe in place of the real ones.
  rocksdb::Env* env = nullptr;
  std::function<uint64_t()> free_bytes;
};

// What append() made of a trajectory.
struct Sealed {
  uint64_t seq = 0;
  uint64_t epoch = 0;
  std::string trajectory_id;
  int64_t sealed_ns = 0;
  uint64_t bytes = 0;  // record + tensors
};

enum class IntakeState : uint8_t { kOpen, kPaused, kClosed };
std::string_view to_string(IntakeState state);  // "open" ...

struct SampleLogStats {
  IntakeState intake = IntakeState::kOpen;
  std::string pause_reason;     // empty while open
  uint64_t queued_samples = 0;  // accepted by append(), not yet durable
  uint64_t sealed_samples = 0;  // by this process
  uint64_t sealed_bytes = 0;
  uint64_t batches = 0;
  uint64_t write_failures = 0;  // tries that failed or were held back for space
  uint64_t reopens = 0;         // of the DB, after failures
  uint64_t pauses = 0;          // times intake went to paused
  uint64_t write_stalls = 0;    // times RocksDB slowed or stopped writes
  uint64_t last_batch_us = 0;
  uint64_t max_batch_us = 0;
  uint64_t free_bytes = 0;  // as last probed
};

class SampleLog {
 public:
  using Clock = std::chrono::steady_clock;
  using Callback = std::function<void(Result<Sealed>)>;

  // kFailedPrecondition: another worker holds the directory (named, with its pid), or the format
  // version is unknown. kDataLoss: samples once acknowledged are not there.
  static Result<std::unique_ptr<SampleLog>> open(SampleLogOptions options);
  ~SampleLog();
  SampleLog(const SampleLog&) = delete;
  SampleLog& operator=(const SampleLog&) = delete;

  // --- intake ---
  // Takes seq, epoch, producer_id, trajectory_id and timings.sealed_ns out of the caller's hands.
  // Ok: `done` is called exactly once, after the sample is durable or was given up by close().
  // Not ok: `done` is never called. kInvalidArgument: validate() refused it. kUnavailable: the
  // queue stayed full until `deadline` (the message says why intake is paused).
  Status append(Trajectory trajectory, Clock::time_point deadline, Callback done);
  // The same, waiting for the outcome in a future.
  std::future<Result<Sealed>> append(Trajectory trajectory, Clock::time_point deadline);
  // Called after each durable batch with the highest seq now in the outbox. At most one listener;
  // when this returns, the previous one is not running and will not be called again.
  void set_sealed_listener(std::function<void(uint64_t last_seq)> listener);

  // S12: has this log sealed the sample (and retention not yet removed it)? Queued is not sealed.
  [[nodiscard]] Result<bool> is_sealed(const std::string& task_id, int32_t sample_index) const;

  // --- delivery (the publisher) ---
  // Outbox entries with seq >= from_seq, ascending, at most max_entries.
  [[nodiscard]] Result<std::vector<OutboxEntry>> read_outbox(uint64_t from_seq,
                                                             size_t max_entries) const;
  // The bytes of one sample. kNotFound: never sealed or removed; kDataLoss: checksum.
  [[nodiscard]] Result<StoredRecord> read(uint64_t seq) const;
  // Seqs in [from_seq, to_seq] that cannot be sent, ascending and disjoint: gaps and dead letters.
  [[nodiscard]] std::vector<GapRange> unsendable(uint64_t from_seq, uint64_t to_seq) const;
  // Counts an attempt for each; remembers the first time. Not synced.
  Status note_sent(const std::vector<uint64_t>& seqs);
  // The trainer's durable state holds everything up to `upto` (S3, S7): prunes the outbox. Lower
  // than known: no-op. kFailedPrecondition: another lineage, call rewind(). kInvalidArgument:
  // beyond last_seq. On a full disk it takes effect in memory and is written when space is back.
  Status mark_committed(uint64_t upto, const std::string& lineage_id);
  // A trainer of another lineage (or the first one) welcomed us with commit_upto: everything above
  // goes back to the outbox; what retention removed becomes gaps, which are returned.
  Result<std::vector<GapRange>> rewind(const std::string& lineage_id, uint64_t commit_upto);
  // S8: a permanent NACK. Moves the entry from the outbox to dead_letters, synced. Idempotent.
  Status dead_letter(uint64_t seq, NackCode code, const std::string& reason);
  // Removes what options.retention no longer keeps. Call now and then (after commits).
  Result<RetentionResult> apply_retention();

  // --- state ---
  [[nodiscard]] ProducerId producer_id() const;
  [[nodiscard]] uint64_t epoch() const;
  [[nodiscard]] uint64_t last_seq() const;  // highest durable seq, 0 = none
  [[nodiscard]] uint64_t commit_upto() const;
  [[nodiscard]] std::string lineage_id() const;
  [[nodiscard]] LogInfo info() const;
  [[nodiscard]] SampleLogStats stats() const;
  // Counts the outbox by scanning it; cheap enough for a metrics interval.
  [[nodiscard]] Result<Accounting> accounting() const;
  // Queries over the live log, in this process. Usable until close().
  [[nodiscard]] std::shared_ptr<LogReader> reader() const;

  // Refuses new samples, writes what is queued (at most close_timeout_ms; what could not be written
  // fails with kAborted), closes the DB. Idempotent. Ok when everything queued became durable.
  Status close();

 private:
  struct Impl;
  explicit SampleLog(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace warproll
