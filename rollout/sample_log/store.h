// Store: the RocksDB of a sample log with its families, and what every reader of it needs.
// Internal to rollout/sample_log. RocksDB's types are only named here; its headers are in .cpp files.
//
// Session = the DB held open. reopen() and close() wait for all sessions, so sessions are short and
// no iterator or slice outlives its session.
//
// Thread: any. Lifetime: the DB closes with the last owner. Errors: Status.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "rollout/sample_log/file_snapshot.h"
#include "rollout/sample_log/log_keys.h"
#include "rollout/sample_log/log_types.h"

namespace rocksdb {
class ColumnFamilyHandle;
class DB;
class Env;
class Status;
class WriteBatch;
struct ReadOptions;
}  // namespace rocksdb

namespace warproll {

enum class Family : uint8_t { kMeta, kSamples, kTensors, kOutbox, kIndex, kDeadLetters };
inline constexpr size_t kNumFamilies = 6;

enum class StoreMode : uint8_t {
  kCreate,    // must not exist
  kWrite,     // must exist
  kReadOnly,  // of a directory nobody writes to
  kSalvage,   // read-only, skipping damaged write-ahead log records
  kRebuilt,   // of a scratch copy whose manifest was made anew: families without tables are missing
};

struct StoreOptions {
  std::string directory;
  StoreMode mode = StoreMode::kWrite;
  rocksdb::Env* env = nullptr;  // null = the default
  std::function<void(const std::string&)> on_warning;
  uint64_t write_buffer_bytes = 32 << 20;
};

// What `meta` and `dead_letters` say, as one consistent view.
struct LogState {
  LogInfo info;
  std::map<uint64_t, GapRange> gaps;  // by from; disjoint
  std::map<uint64_t, DeadLetter> dead_letters;
};

class Store {
 public:
  static Result<std::shared_ptr<Store>> open(StoreOptions options);
  // Read-only over a scratch copy, which goes with the Store.
  static Result<std::shared_ptr<Store>> open_copy(const std::string& directory, StoreMode mode);
  // The same over whatever files there are, with a manifest made anew from the tables.
  static Result<std::shared_ptr<Store>> open_rebuilt_copy(const std::string& directory);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  class Session {
   public:
    [[nodiscard]] bool is_open() const { return db_ != nullptr; }
    [[nodiscard]] Status require_open() const;
    [[nodiscard]] rocksdb::DB& db() const { return *db_; }
    [[nodiscard]] rocksdb::ColumnFamilyHandle* family(Family family) const {
      return (*handles_)[static_cast<size_t>(family)];
    }

   private:
    friend class Store;
    std::shared_lock<std::shared_mutex> lock_;
    rocksdb::DB* db_ = nullptr;
    const std::array<rocksdb::ColumnFamilyHandle*, kNumFamilies>* handles_ = nullptr;
  };
  [[nodiscard]] Session session() const;

  Status write(rocksdb::WriteBatch* batch, bool sync);
  // After a failed write: first RocksDB's own resume; with `close_first` a whole close and reopen.
  Status resume(bool close_first);
  // Closes the DB; later sessions are not open. Idempotent.
  Status close();

  [[nodiscard]] Result<StoredRecord> read(uint64_t seq) const;
  [[nodiscard]] Result<LogState> load_state() const;
  [[nodiscard]] Result<Accounting> accounting() const;
  [[nodiscard]] Result<std::vector<OutboxEntry>> outbox(uint64_t from_seq,
                                                        size_t max_entries) const;
  [[nodiscard]] Result<bool> is_sealed(const std::string& task_id, int32_t sample_index) const;
  // Seqs inside [retained_from, last_seq] that are neither in the index nor in a gap.
  [[nodiscard]] Result<std::vector<GapRange>> missing_seqs(const LogState& state) const;

  [[nodiscard]] const std::string& directory() const { return options_.directory; }
  [[nodiscard]] uint64_t write_stalls() const;

 private:
  explicit Store(StoreOptions options);
  Status open_db();
  void close_db();
  Result<LogState> load_state(const Session& session, const rocksdb::ReadOptions& read) const;

  struct Listener;
  StoreOptions options_;
  std::shared_ptr<Listener> listener_;
  ScratchFolder scratch_;

  // The one lock that is held across I/O: it keeps the DB from being closed under a reader.
  mutable std::shared_mutex mutex_;
  std::unique_ptr<rocksdb::DB> db_;
  std::array<rocksdb::ColumnFamilyHandle*, kNumFamilies> handles_{};
};

// RocksDB's status as ours: NoSpace -> kResourceExhausted, Corruption -> kDataLoss, other I/O ->
// kUnavailable.
Status from_rocksdb(const rocksdb::Status& status, const std::string& what);

// Adds one sample's samples, tensors and index entries to a batch. `record` and `tensors` are what
// read() will give back.
void put_sample(const Store::Session& session, const RecordSummary& summary, const Bytes& record,
                const Bytes& tensors, bool compress_records, rocksdb::WriteBatch* batch);

}  // namespace warproll
