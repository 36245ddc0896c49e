// LogReader: queries over a sample log, live in this process (SampleLog::reader) or a directory of
// any state (open_for_inspection). Never writes to the log.
//
// open_for_inspection works while a worker owns the directory: it links the table files and copies
// manifest and write-ahead log into a scratch folder below the directory, retries when the worker
// changed the set meanwhile, and opens that copy. It asks nothing of the worker, takes no lock, and
// shows every sample that was acknowledged before the call.
//
// Thread: any; a SampleCursor belongs to one thread at a time.
// Lifetime: the scratch folder goes with the last reader or cursor.
// Errors: kNotFound (no log there), kDataLoss (damage, named), kUnavailable (a busy worker changed
// the files on every try).
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/records.h"
#include "protocol/status.h"
#include "rollout/sample_log/log_types.h"

namespace warproll {

class Store;

// All given conditions must hold. Results come in ascending seq (with a time range: by minute of
// sealing, then seq).
struct SampleQuery {
  uint64_t from_seq = 1;
  uint64_t to_seq = std::numeric_limits<uint64_t>::max();
  std::optional<std::string> task_id;
  std::optional<std::string> group_id;
  std::optional<uint64_t> weight_version;  // among the record's version_digests
  std::optional<int64_t> from_ns;          // sealed at or after, Unix time
  std::optional<int64_t> to_ns;            // sealed before
};

// Walks the answer of a query. Holds no database iterator between calls, so it pins no files.
class SampleCursor {
 public:
  ~SampleCursor();
  SampleCursor(SampleCursor&&) noexcept;
  SampleCursor& operator=(SampleCursor&&) noexcept;

  // The next sample's bytes, verified; nothing at the end. After an error the next call goes on
  // with the sample behind the damaged one.
  Result<std::optional<StoredRecord>> next();
  // Only the seq; reads the index, not the sample.
  Result<std::optional<uint64_t>> next_seq();

 private:
  friend class LogReader;
  struct Impl;
  explicit SampleCursor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class LogReader {
 public:
  static Result<std::shared_ptr<LogReader>> open_for_inspection(const std::string& directory);
  explicit LogReader(std::shared_ptr<Store> store);
  ~LogReader();

  [[nodiscard]] Result<LogInfo> info() const;
  [[nodiscard]] Result<StoredRecord> read(uint64_t seq) const;
  [[nodiscard]] SampleCursor query(SampleQuery query) const;
  [[nodiscard]] Result<bool> is_sealed(const std::string& task_id, int32_t sample_index) const;
  [[nodiscard]] Result<std::vector<OutboxEntry>> outbox(uint64_t from_seq,
                                                        size_t max_entries) const;
  [[nodiscard]] Result<std::vector<DeadLetter>> dead_letters() const;
  [[nodiscard]] Result<std::vector<GapRange>> gaps() const;
  [[nodiscard]] Result<Accounting> accounting() const;

 private:
  std::shared_ptr<Store> store_;
};

// The trajectory inside a stored record (decode + tensors put back).
Result<Trajectory> decode_stored(const StoredRecord& stored);

}  // namespace warproll
