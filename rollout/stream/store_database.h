// StoreDatabase: the RocksDB under a TrajectoryStore: families, settings, error mapping. It knows
// bytes and no meaning. Thread: one (RocksDB's own background threads apart).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "protocol/status.h"

namespace warproll {

enum class StoreFamily {
  kMeta,
  kTaken,       // take_index -> key fields, record
  kTensors,     // take_index -> tensors, absent when there are none
  kSeqs,        // (producer, seq) -> content hash, of every sample received
  kPairs,       // (task, sample_index) -> take_index
  kProducers,   // producer -> epoch, watermark
  kGaps,        // (producer, from) -> to, reason
  kQuarantine,  // (producer, seq, content hash) -> reason, record
  kMarks,       // name -> Mark
};

// Changes that become durable together or not at all.
class StoreBatch {
 public:
  StoreBatch();
  StoreBatch(const StoreBatch& other);
  ~StoreBatch();
  StoreBatch& operator=(const StoreBatch&) = delete;

  void put(StoreFamily family, std::string_view key, std::string_view value);
  void erase(StoreFamily family, std::string_view key);
  [[nodiscard]] bool empty() const;
  void clear();

 private:
  friend class StoreDatabase;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class StoreDatabase {
 public:
  static Result<std::unique_ptr<StoreDatabase>> open(const std::string& directory);
  ~StoreDatabase();
  StoreDatabase(const StoreDatabase&) = delete;
  StoreDatabase& operator=(const StoreDatabase&) = delete;

  // Empty = not there (no family stores empty values).
  [[nodiscard]] Result<std::string> get(StoreFamily family, std::string_view key) const;
  // In key order from `from` on, until `visit` returns false or fails.
  using Visit = std::function<Result<bool>(std::string_view key, std::string_view value)>;
  Status scan(StoreFamily family, std::string_view from, const Visit& visit) const;
  // Of kTaken or kTensors; empty = the family is empty.
  [[nodiscard]] Result<std::string> last_key(StoreFamily family) const;
  // A full disk is kResourceExhausted; the same batch may be written again.
  Status write(const StoreBatch& batch, bool sync);

 private:
  struct Impl;
  Status resume_after_failure();
  explicit StoreDatabase(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace warproll
