#include "rollout/sample_log/store.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/listener.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace warproll {
namespace {

constexpr std::array<const char*, kNumFamilies> kFamilyNames = {
    "default", "samples", "tensors",
    "outbox",  "index",   "dead_letters"};  // meta is RocksDB's default
constexpr size_t kBlockCacheBytes = 32 << 20;
constexpr uint64_t kMaxWalBytes = 128 << 20;  // an inspecting reader copies at most so much

// RocksDB's own log goes through here: its default one aborts the process on a full disk.
class WarningLogger : public rocksdb::Logger {
 public:
  explicit WarningLogger(std::function<void(const std::string&)> sink)
      : Logger(rocksdb::InfoLogLevel::WARN_LEVEL), sink_(std::move(sink)) {}
  using Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    if (!sink_) return;
    char text[1024];
    const int length = std::vsnprintf(text, sizeof(text), format, arguments);
    if (length > 0) sink_(text);
  }
  void Logv(const rocksdb::InfoLogLevel level, const char* format, va_list arguments) override {
    if (level < GetInfoLogLevel() || level == rocksdb::InfoLogLevel::HEADER_LEVEL) return;
    Logv(format, arguments);
  }

 private:
  std::function<void(const std::string&)> sink_;
};

rocksdb::ColumnFamilyOptions family_options(const std::shared_ptr<rocksdb::Cache>& cache,
                                            uint64_t write_buffer_bytes) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.block_size = 16 << 10;
  rocksdb::ColumnFamilyOptions options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.write_buffer_size = write_buffer_bytes;
  // Keys come in order, so compaction only moves files; sealed records are compressed, if at all, by us.
  options.compression = rocksdb::kNoCompression;
  options.target_file_size_base = 64 << 20;
  options.max_bytes_for_level_base = 1 << 30;
  options.ttl = 0;
  options.periodic_compaction_seconds = 0;
  return options;
}

std::vector<rocksdb::ColumnFamilyDescriptor> all_families(const StoreOptions& store) {
  const auto cache = rocksdb::NewLRUCache(kBlockCacheBytes);
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (const char* name : kFamilyNames)
    families.emplace_back(name, family_options(cache, store.write_buffer_bytes));
  return families;
}

rocksdb::DBOptions db_options(const StoreOptions& store) {
  rocksdb::DBOptions options;
  if (store.env != nullptr) options.env = store.env;
  options.create_if_missing = store.mode == StoreMode::kCreate;
  options.create_missing_column_families =
      store.mode == StoreMode::kCreate || store.mode == StoreMode::kRebuilt;
  options.error_if_exists = store.mode == StoreMode::kCreate;
  options.info_log = std::make_shared<WarningLogger>(store.on_warning);
  // The default mode opens "ok" after one flipped bit, without everything behind it.
  const bool salvage = store.mode == StoreMode::kSalvage || store.mode == StoreMode::kRebuilt;
  options.wal_recovery_mode = salvage ? rocksdb::WALRecoveryMode::kSkipAnyCorruptedRecords
                                      : rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  // All families are flushed as one: whatever file is lost, a sample and its index go together.
  options.atomic_flush = true;
  options.paranoid_checks = true;
  options.max_total_wal_size = kMaxWalBytes;
  options.max_open_files = 256;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

}  // namespace

struct Store::Listener : rocksdb::EventListener {
  void OnStallConditionsChanged(const rocksdb::WriteStallInfo& info) override {
    if (info.condition.cur != rocksdb::WriteStallCondition::kNormal) ++stalls;
  }
  std::atomic<uint64_t> stalls{0};
};

Status from_rocksdb(const rocksdb::Status& status, const std::string& what) {
  if (status.ok()) return ok_status();
  StatusCode code = StatusCode::kUnavailable;
  if (status.IsNoSpace()) code = StatusCode::kResourceExhausted;
  if (status.IsCorruption() || status.IsPathNotFound()) code = StatusCode::kDataLoss;
  if (status.IsNotFound()) code = StatusCode::kNotFound;
  if (status.IsInvalidArgument() || status.IsNotSupported()) code = StatusCode::kFailedPrecondition;
  return {code, what + ": " + status.ToString()};
}

Store::Store(StoreOptions options)
    : options_(std::move(options)), listener_(std::make_shared<Listener>()) {}
Store::~Store() { close_db(); }

Result<std::shared_ptr<Store>> Store::open(StoreOptions options) {
  std::shared_ptr<Store> store(new Store(std::move(options)));
  WARPROLL_TRY(store->open_db());
  // A reopen finds what the first open made.
  if (store->options_.mode == StoreMode::kCreate) store->options_.mode = StoreMode::kWrite;
  return store;
}

Result<std::shared_ptr<Store>> Store::open_copy(const std::string& directory, StoreMode mode) {
  ScratchFolder scratch(new_scratch_folder(directory));
  WARPROLL_TRY(snapshot_log_files(directory, scratch.path()));
  std::shared_ptr<Store> store(
      new Store({.directory = scratch.path(), .mode = mode, .on_warning = {}}));
  store->scratch_ = std::move(scratch);
  WARPROLL_TRY(store->open_db());
  return store;
}

Result<std::shared_ptr<Store>> Store::open_rebuilt_copy(const std::string& directory) {
  ScratchFolder scratch(new_scratch_folder(directory));
  WARPROLL_TRY(link_remaining_files(directory, scratch.path()));
  std::shared_ptr<Store> store(
      new Store({.directory = scratch.path(), .mode = StoreMode::kRebuilt, .on_warning = {}}));
  store->scratch_ = std::move(scratch);
  const rocksdb::Status status = rocksdb::RepairDB(store->directory(), db_options(store->options_),
                                                   all_families(store->options_));
  WARPROLL_TRY(from_rocksdb(status, "sample log " + directory + ": rebuilding the manifest"));
  WARPROLL_TRY(store->open_db());
  return store;
}

Status Store::open_db() {
  const std::vector<rocksdb::ColumnFamilyDescriptor> families = all_families(options_);
  rocksdb::DBOptions options = db_options(options_);
  options.listeners.push_back(listener_);
  const bool read_only =
      options_.mode == StoreMode::kReadOnly || options_.mode == StoreMode::kSalvage;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status =
      read_only ? rocksdb::DB::OpenForReadOnly(options, options_.directory, families, &handles, &db)
                : rocksdb::DB::Open(options, options_.directory, families, &handles, &db);
  if (!status.ok()) return from_rocksdb(status, "sample log " + options_.directory);
  db_.reset(db);
  std::copy(handles.begin(), handles.end(), handles_.begin());
  return ok_status();
}

void Store::close_db() {
  if (!db_) return;
  for (auto* handle : handles_) db_->DestroyColumnFamilyHandle(handle);
  handles_.fill(nullptr);
  db_->Close().PermitUncheckedError();  // what was acknowledged is in the synced log already
  db_.reset();
}

Status Store::close() {
  std::unique_lock lock(mutex_);
  close_db();
  return ok_status();
}

Store::Session Store::session() const {
  Session session;
  session.lock_ = std::shared_lock(mutex_);
  session.db_ = db_.get();
  session.handles_ = &handles_;
  return session;
}

Status Store::Session::require_open() const {
  return is_open() ? ok_status() : failed_precondition("the sample log is closed");
}

Status Store::write(rocksdb::WriteBatch* batch, bool sync) {
  const Session open = session();
  WARPROLL_TRY(open.require_open());
  rocksdb::WriteOptions options;
  options.sync = sync;
  return from_rocksdb(open.db().Write(options, batch), "sample log write");
}

Status Store::resume(bool close_first) {
  if (!close_first) {
    const Session open = session();
    WARPROLL_TRY(open.require_open());
    return from_rocksdb(open.db().Resume(), "sample log resume");
  }
  std::unique_lock lock(mutex_);
  close_db();
  return open_db();
}

uint64_t Store::write_stalls() const { return listener_->stalls; }

void put_sample(const Store::Session& session, const RecordSummary& summary, const Bytes& record,
                const Bytes& tensors, bool compress_records, rocksdb::WriteBatch* batch) {
  const auto put = [&](Family family, const std::string& key, const Bytes& raw) {
    Bytes packed;
    RecordHeader header{.raw_bytes = static_cast<uint32_t>(raw.size()),
                        .unix_ns = summary.sealed_ns};
    if (compress_records) header.codec = compress(raw, &packed);
    const Bytes& stored = header.codec == Codec::kNone ? raw : packed;
    header.stored_bytes = static_cast<uint32_t>(stored.size());
    const auto head = encode_header(header, key, stored);
    const rocksdb::Slice key_slice(key);
    const std::array<rocksdb::Slice, 2> value = {
        rocksdb::Slice(head.data(), head.size()),
        rocksdb::Slice(reinterpret_cast<const char*>(stored.data()), stored.size())};
    batch->Put(session.family(family), rocksdb::SliceParts(&key_slice, 1),
               rocksdb::SliceParts(value.data(), value.size()));
  };
  put(Family::kSamples, sample_key(summary.seq), record);
  if (!tensors.empty()) {
    put(Family::kTensors, tensor_key(summary.seq, kRoutedExpertsTensor), tensors);
  }
  const SeqInfo info{.bytes = record.size() + tensors.size(), .sealed_ns = summary.sealed_ns};
  for (const std::string& key : index_keys(summary)) {
    batch->Put(session.family(Family::kIndex), key,
               key[0] == kIndexSeq ? encode_seq_info(info) : std::string());
  }
}

}  // namespace warproll
