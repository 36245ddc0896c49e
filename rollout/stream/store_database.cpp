#include "rollout/stream/store_database.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <vector>

namespace warproll {
namespace {

constexpr std::chrono::milliseconds kResumePause(500);
constexpr uint64_t kReopenFreeBytes = 8 << 20;  // an open makes files: less is still a full disk

// Small families share RocksDB's default one, told apart by their first byte: every column family
// costs open time and a memtable. Those of large values have their own.
struct Place {
  size_t column;
  char prefix;  // 0 = none
  const char* name;
};
constexpr std::array kColumnNames = {"default", "taken", "tensors"};
constexpr std::array<Place, 9> kPlaces = {{{0, 'm', "meta"},
                                           {1, 0, "taken"},
                                           {2, 0, "tensors"},
                                           {0, 's', "seqs"},
                                           {0, 'p', "pairs"},
                                           {0, 'w', "producers"},
                                           {0, 'g', "gaps"},
                                           {0, 'q', "quarantine"},
                                           {0, 'k', "marks"}}};

const Place& place_of(StoreFamily family) { return kPlaces[static_cast<size_t>(family)]; }
const char* name_of(StoreFamily family) { return place_of(family).name; }
std::string full_key(StoreFamily family, std::string_view key) {
  std::string full;
  if (const char prefix = place_of(family).prefix; prefix != 0) full.push_back(prefix);
  return full.append(key);
}
rocksdb::Slice slice(std::string_view bytes) { return {bytes.data(), bytes.size()}; }

// RocksDB's own info log aborts the process on a full disk (streaming.md, fact 2).
class DiscardingLogger final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

Status from_rocksdb(const rocksdb::Status& status, const std::string& doing) {
  if (status.ok()) return ok_status();
  StatusCode code = StatusCode::kInternal;
  if (status.IsNoSpace()) code = StatusCode::kResourceExhausted;
  if (status.IsBusy()) code = StatusCode::kUnavailable;
  if (status.IsCorruption()) code = StatusCode::kDataLoss;
  if (status.IsIOError() && status.ToString().find("lock") != std::string::npos) {
    code = StatusCode::kFailedPrecondition;
  }
  return {code, "trajectory store: " + doing + ": " + status.ToString()};
}

rocksdb::Options database_options() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.info_log = std::make_shared<DiscardingLogger>();
  // The default mode opens OK after one flipped bit with half of the samples gone (fact 3).
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  options.max_background_jobs = 2;
  rocksdb::BlockBasedTableOptions table;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));  // most lookups find nothing
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

}  // namespace

struct StoreBatch::Impl {
  // Families by name until it is written: a batch exists without a database.
  struct Change {
    StoreFamily family;
    std::string key;  // full
    std::string value;
    bool erase = false;
  };
  std::vector<Change> changes;
};

StoreBatch::StoreBatch() : impl_(std::make_unique<Impl>()) {}
StoreBatch::StoreBatch(const StoreBatch& other) : impl_(std::make_unique<Impl>(*other.impl_)) {}
StoreBatch::~StoreBatch() = default;
void StoreBatch::put(StoreFamily family, std::string_view key, std::string_view value) {
  impl_->changes.push_back({family, full_key(family, key), std::string(value), false});
}
void StoreBatch::erase(StoreFamily family, std::string_view key) {
  impl_->changes.push_back({family, full_key(family, key), std::string(), true});
}
bool StoreBatch::empty() const { return impl_->changes.empty(); }
void StoreBatch::clear() { impl_->changes.clear(); }

struct StoreDatabase::Impl {
  std::string directory;
  std::unique_ptr<rocksdb::DB> db;  // null: a reopen failed, the next write tries again
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  Status write_failure;  // of the last write; ok = it did not fail
  std::chrono::steady_clock::time_point resume_at;

  ~Impl() { close(); }
  [[nodiscard]] rocksdb::ColumnFamilyHandle* handle(StoreFamily family) const {
    return handles[place_of(family).column];
  }
  [[nodiscard]] Status require_open() const {
    return db ? ok_status() : resource_exhausted("trajectory store: closed since the disk is full");
  }
  void close() {
    if (!db) return;
    for (auto* handle : handles) (void)db->DestroyColumnFamilyHandle(handle);
    handles.clear();
    (void)db->Close();  // everything acknowledged is in the WAL already
    db.reset();
  }
  Status open() {
    const rocksdb::Options options = database_options();
    std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
    for (const char* name : kColumnNames) descriptors.emplace_back(name, options);
    rocksdb::DB* raw = nullptr;
    WARPROLL_TRY(from_rocksdb(rocksdb::DB::Open(options, directory, descriptors, &handles, &raw),
                              "open of '" + directory + "'"));
    db.reset(raw);
    return ok_status();
  }
};

StoreDatabase::StoreDatabase(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StoreDatabase::~StoreDatabase() = default;

Result<std::unique_ptr<StoreDatabase>> StoreDatabase::open(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return invalid_argument("trajectory store: cannot make directory '" + directory +
                            "': " + error.message());
  }
  auto impl = std::make_unique<Impl>();
  impl->directory = directory;
  WARPROLL_TRY(impl->open());
  return std::unique_ptr<StoreDatabase>(new StoreDatabase(std::move(impl)));
}

Result<std::string> StoreDatabase::get(StoreFamily family, std::string_view key) const {
  WARPROLL_TRY(impl_->require_open());
  std::string value;
  const rocksdb::Status status =
      impl_->db->Get({}, impl_->handle(family), full_key(family, key), &value);
  if (status.IsNotFound()) return std::string();
  WARPROLL_TRY(from_rocksdb(status, std::string("read of ") + name_of(family)));
  return value;
}

Status StoreDatabase::scan(StoreFamily family, std::string_view from, const Visit& visit) const {
  WARPROLL_TRY(impl_->require_open());
  const std::unique_ptr<rocksdb::Iterator> it(impl_->db->NewIterator({}, impl_->handle(family)));
  const char prefix = place_of(family).prefix;
  for (it->Seek(full_key(family, from)); it->Valid(); it->Next()) {
    std::string_view key = it->key().ToStringView();
    if (prefix != 0) {
      if (key.front() != prefix) break;
      key.remove_prefix(1);
    }
    WARPROLL_TRY_ASSIGN(more, visit(key, it->value().ToStringView()));
    if (!more) break;
  }
  return from_rocksdb(it->status(), std::string("scan of ") + name_of(family));
}

Result<std::string> StoreDatabase::last_key(StoreFamily family) const {
  WARPROLL_CHECK(place_of(family).prefix == 0, "last_key of a family that shares its column");
  WARPROLL_TRY(impl_->require_open());
  const std::unique_ptr<rocksdb::Iterator> it(impl_->db->NewIterator({}, impl_->handle(family)));
  it->SeekToLast();
  WARPROLL_TRY(from_rocksdb(it->status(), std::string("scan of ") + name_of(family)));
  return it->Valid() ? it->key().ToString() : std::string();
}

// RocksDB refuses every write after a failed one until it is told to go on. Its own recovery waits for
// more free space than a small disk ever has and answers Busy meanwhile; then closing and opening does it.
Status StoreDatabase::resume_after_failure() {
  if (impl_->write_failure.ok()) return ok_status();
  const auto now = std::chrono::steady_clock::now();
  if (now < impl_->resume_at) return impl_->write_failure;
  impl_->resume_at = now + kResumePause;
  if (!impl_->db || !impl_->db->Resume().ok()) {
    std::error_code error;
    const auto space = std::filesystem::space(impl_->directory, error);
    if (error || space.available < kReopenFreeBytes) return impl_->write_failure;
    impl_->close();
    WARPROLL_TRY(impl_->open());
  }
  impl_->write_failure = ok_status();
  return ok_status();
}

Status StoreDatabase::write(const StoreBatch& batch, bool sync) {
  WARPROLL_TRY(resume_after_failure());
  rocksdb::WriteBatch changes;
  for (const auto& change : batch.impl_->changes) {
    auto* handle = impl_->handle(change.family);
    WARPROLL_TRY(from_rocksdb(change.erase
                                  ? changes.Delete(handle, slice(change.key))
                                  : changes.Put(handle, slice(change.key), slice(change.value)),
                              std::string("write to ") + name_of(change.family)));
  }
  rocksdb::WriteOptions options;
  options.sync = sync;
  impl_->write_failure = from_rocksdb(impl_->db->Write(options, &changes), "write");
  if (!impl_->write_failure.ok()) {
    impl_->resume_at = std::chrono::steady_clock::now() + kResumePause;
  }
  return impl_->write_failure;
}

}  // namespace warproll
