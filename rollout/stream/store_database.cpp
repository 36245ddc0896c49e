#include "rollout/stream/store_database.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <array>
#include <filesystem>
#include <vector>

namespace warproll {
namespace {

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
  std::unique_ptr<rocksdb::DB> db;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  [[nodiscard]] rocksdb::ColumnFamilyHandle* handle(StoreFamily family) const {
    return handles[place_of(family).column];
  }
};

StoreDatabase::StoreDatabase(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

StoreDatabase::~StoreDatabase() {
  for (auto* handle : impl_->handles) (void)impl_->db->DestroyColumnFamilyHandle(handle);
  (void)impl_->db->Close();  // everything acknowledged is in the WAL already
}

Result<std::unique_ptr<StoreDatabase>> StoreDatabase::open(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return invalid_argument("trajectory store: cannot make directory '" + directory +
                            "': " + error.message());
  }
  const rocksdb::Options options = database_options();
  std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
  for (const char* name : kColumnNames) descriptors.emplace_back(name, options);
  auto impl = std::make_unique<Impl>();
  rocksdb::DB* raw = nullptr;
  WARPROLL_TRY(
      from_rocksdb(rocksdb::DB::Open(options, directory, descriptors, &impl->handles, &raw),
                   "open of '" + directory + "'"));
  impl->db.reset(raw);
  return std::unique_ptr<StoreDatabase>(new StoreDatabase(std::move(impl)));
}

Result<std::string> StoreDatabase::get(StoreFamily family, std::string_view key) const {
  std::string value;
  const rocksdb::Status status =
      impl_->db->Get({}, impl_->handle(family), full_key(family, key), &value);
  if (status.IsNotFound()) return std::string();
  WARPROLL_TRY(from_rocksdb(status, std::string("read of ") + name_of(family)));
  return value;
}

Status StoreDatabase::scan(StoreFamily family, std::string_view from, const Visit& visit) const {
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
  const std::unique_ptr<rocksdb::Iterator> it(impl_->db->NewIterator({}, impl_->handle(family)));
  it->SeekToLast();
  WARPROLL_TRY(from_rocksdb(it->status(), std::string("scan of ") + name_of(family)));
  return it->Valid() ? it->key().ToString() : std::string();
}

Status StoreDatabase::write(const StoreBatch& batch, bool sync) {
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
  return from_rocksdb(impl_->db->Write(options, &changes), "write");
}

}  // namespace warproll
