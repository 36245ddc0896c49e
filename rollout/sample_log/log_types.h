// Plain values of the sample log, shared by its writer, its readers and its checks.
// Thread: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "protocol/messages.h"
#include "protocol/records.h"

namespace warproll {

// When append() reports success.
//   each:  after an fsync of its own.         Survives power loss.
//   group: after an fsync shared by a batch.  Survives power loss.
//   os:    when the kernel has the bytes.     Survives SIGKILL, not power loss; no seq is reused
//          even then, because seqs are reserved in blocks in the synced high-water file.
enum class Durability : uint8_t { kEach, kGroup, kOs };
std::string_view to_string(Durability durability);  // "each" ...
Result<Durability> durability_from(std::string_view text);

// One stored sample as the bytes that were written, checksum already verified.
struct StoredRecord {
  uint64_t seq = 0;
  int64_t sealed_ns = 0;           // Unix time
  std::vector<std::byte> record;   // canonical Cap'n Proto bytes: what Data::record carries
  std::vector<std::byte> tensors;  // routed experts: what Data::tensors carries, may be empty
  bool operator==(const StoredRecord&) const = default;
};

// Sealed, not yet committed by the trainer.
struct OutboxEntry {
  uint64_t seq = 0;
  uint64_t bytes = 0;         // record + tensors
  uint32_t attempts = 0;      // times handed to the socket
  int64_t first_sent_ns = 0;  // Unix time, 0 = never
  bool operator==(const OutboxEntry&) const = default;
};

// Seqs [from, to] that will never be delivered.
struct GapRange {
  uint64_t from = 0;
  uint64_t to = 0;
  std::string reason;
  bool operator==(const GapRange&) const = default;
};

// A sample the trainer refused for good. Its bytes stay in the log; retention skips it.
struct DeadLetter {
  uint64_t seq = 0;
  NackCode code = NackCode::kMalformed;
  std::string reason;
  int64_t unix_ns = 0;
  bool operator==(const DeadLetter&) const = default;
};

// S9: every seq ever given out is in exactly one place.
struct Accounting {
  uint64_t produced = 0;   // seqs given out, = last_seq
  uint64_t committed = 0;  // at or below commit_upto, neither dead letter nor gap
  uint64_t outbox = 0;     // counted in the outbox family
  uint64_t dead_letters = 0;
  uint64_t gaps = 0;  // seqs, not ranges
  [[nodiscard]] bool holds() const { return produced == committed + outbox + dead_letters + gaps; }
  [[nodiscard]] std::string to_string() const;
  bool operator==(const Accounting&) const = default;
};

// What `meta` says of a log directory.
struct LogInfo {
  uint32_t format_version = 0;
  ProducerId producer_id{};  // made once per directory
  uint64_t epoch = 0;        // number of times the directory was opened for writing
  uint64_t last_seq = 0;     // 0 = no sample yet
  uint64_t commit_upto = 0;
  std::string lineage_id;      // of commit_upto; empty = never welcomed by a trainer
  uint64_t retained_from = 1;  // samples below were removed by retention (dead letters stay)
  bool operator==(const LogInfo&) const = default;
};

// Which committed samples to keep. 0 = no limit of that kind; a sample goes when any limit is
// exceeded. Samples above commit_upto and dead letters are never removed.
struct RetentionPolicy {
  uint64_t keep_samples = 0;
  uint64_t keep_bytes = 0;
  uint64_t keep_age_s = 0;
};
struct RetentionResult {
  uint64_t removed_samples = 0;
  uint64_t removed_bytes = 0;
  uint64_t retained_from = 1;
};

}  // namespace warproll
