#include "rollout/sample_log/open_log.h"

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <filesystem>
#include <random>

#include "rollout/sample_log/schema_text.h"

namespace warproll {
namespace {

namespace fs = std::filesystem;

ProducerId random_producer_id() {
  std::random_device device;
  ProducerId id{};
  for (auto& byte : id) byte = static_cast<uint8_t>(device());
  return id;
}

std::string seqs_text(const std::vector<GapRange>& ranges) {
  std::string text;
  for (size_t i = 0; i < ranges.size() && i < 4; ++i) {
    text +=
        (i == 0 ? "" : ", ") + std::to_string(ranges[i].from) + ".." + std::to_string(ranges[i].to);
  }
  return ranges.size() > 4 ? text + ", ..." : text;
}

// Nothing acknowledged may be missing: S2 and the high-water file.
Status check_recovered(const Store& store, const LogState& state, const HighWaterMark& mark) {
  if (mark.producer_id != state.info.producer_id) {
    return data_loss("the high-water file is of producer " + to_hex(mark.producer_id) +
                     ", the database of " + to_hex(state.info.producer_id));
  }
  const uint64_t acknowledged = std::max(mark.synced_seq, mark.os_seq);
  if (state.info.last_seq < acknowledged) {
    return data_loss("recovered up to seq " + std::to_string(state.info.last_seq) +
                     ", but up to seq " + std::to_string(acknowledged) + " was acknowledged");
  }
  WARPROLL_TRY_ASSIGN(missing, store.missing_seqs(state));
  if (!missing.empty()) return data_loss("seqs " + seqs_text(missing) + " are missing");
  return ok_status();
}

// Raises the epoch and settles seqs that may have been given out and lost with the power (durability
// os): they become a gap and are never used again.
Status begin_epoch(Store& store, HighWater& high_water, LogState* state) {
  HighWaterMark mark = high_water.mark();
  rocksdb::WriteBatch batch;
  {
    const Store::Session session = store.session();
    auto* meta = session.family(Family::kMeta);
    if (mark.reserved_seq > state->info.last_seq && !mark.same_boot) {
      const GapRange gap{.from = state->info.last_seq + 1,
                         .to = mark.reserved_seq,
                         .reason = "lost or never used: the machine went down (durability os)"};
      batch.Put(meta, gap_key(gap.from), encode_gap(gap));
      batch.Put(meta, kMetaNextSeq, be64(gap.to + 1));
      state->gaps.emplace(gap.from, gap);
      state->info.last_seq = gap.to;
    }
    state->info.epoch = std::max(state->info.epoch, mark.epoch) + 1;
    batch.Put(meta, kMetaEpoch, be64(state->info.epoch));
    // A crash between writing and pruning may leave delivered entries behind.
    batch.DeleteRange(session.family(Family::kOutbox), be64(0), be64(state->info.commit_upto + 1));
  }
  WARPROLL_TRY(store.write(&batch, true));
  mark.epoch = state->info.epoch;
  mark.synced_seq = state->info.last_seq;  // the write above synced all before it
  mark.reserved_seq = state->info.last_seq;
  WARPROLL_TRY(high_water.write_synced(mark));
  return high_water.write_os(state->info.last_seq);
}

// Links everything into before_open/, unless an earlier start left it there.
Status keep_files_before_open(const std::string& directory, const std::string& before) {
  std::error_code error;
  if (fs::exists(before, error)) return ok_status();
  const std::string tmp = before + ".tmp";
  WARPROLL_TRY(snapshot_log_files(directory, tmp));
  fs::rename(tmp, before, error);
  if (error) return unavailable("cannot rename " + tmp + ": " + error.message());
  return ok_status();
}

// A start that was killed before its first epoch has acknowledged nothing: its remains may go.
void remove_unborn_database(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> remains;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().filename() != "HOLDER") remains.push_back(entry.path());
  }
  for (const auto& path : remains) fs::remove_all(path, error);
}

// Is there a log, none yet, or the remains of one?
Status prepare_directory(const SampleLogOptions& options, bool* fresh) {
  const fs::path directory = options.directory;
  std::error_code error;
  const bool has_db = fs::exists(directory / "CURRENT", error);
  const auto mark = HighWater::read(options.directory);
  *fresh = !has_db;
  if (mark.ok() && mark->epoch == 0) {
    remove_unborn_database(directory);
    *fresh = true;
    return ok_status();
  }
  if (has_db && !mark.ok()) return data_loss(mark.status().message());
  if (!has_db && mark.ok()) {
    return data_loss("CURRENT is missing, but seqs up to " + std::to_string(mark->synced_seq) +
                     " were acknowledged");
  }
  if (!has_db && mark.status().code() == StatusCode::kDataLoss) {
    return data_loss(mark.status().message());
  }
  return ok_status();
}

}  // namespace

Result<std::shared_ptr<Store>> create_log(const SampleLogOptions& options, const LogInfo& info) {
  WARPROLL_TRY(HighWater::create(options.directory, info.producer_id));
  WARPROLL_TRY_ASSIGN(store, Store::open({.directory = options.directory,
                                          .mode = StoreMode::kCreate,
                                          .env = options.env,
                                          .on_warning = options.on_warning,
                                          .write_buffer_bytes = options.write_buffer_bytes}));
  rocksdb::WriteBatch batch;
  {
    const Store::Session session = store->session();
    auto* meta = session.family(Family::kMeta);
    batch.Put(meta, kMetaFormat, be64(kLogFormatVersion));
    batch.Put(meta, kMetaSchema, kRecordSchemaText);
    batch.Put(meta, kMetaProducer,
              rocksdb::Slice(reinterpret_cast<const char*>(info.producer_id.data()),
                             info.producer_id.size()));
    batch.Put(meta, kMetaEpoch, be64(info.epoch));
    batch.Put(meta, kMetaNextSeq, be64(info.last_seq + 1));
    batch.Put(meta, kMetaCommitUpto, be64(info.commit_upto));
    batch.Put(meta, kMetaLineage, info.lineage_id);
    batch.Put(meta, kMetaRetainedFrom, be64(info.retained_from));
  }
  WARPROLL_TRY(store->write(&batch, true));
  return store;
}

namespace {

Result<OpenedLog> open_checked(const SampleLogOptions& options) {
  if (options.directory.empty()) return invalid_argument("sample log directory: empty");
  std::error_code error;
  fs::create_directories(options.directory, error);
  if (error) {
    return unavailable("cannot make sample log directory " + options.directory + ": " +
                       error.message());
  }
  WARPROLL_TRY_ASSIGN(lock, DirectoryLock::take(options.directory));
  remove_stale_scratch(options.directory);
  bool fresh = false;
  WARPROLL_TRY(prepare_directory(options, &fresh));
  const std::string before = options.directory + "/" + kBeforeOpenFolder;
  std::shared_ptr<Store> store;
  if (fresh) {
    LogInfo empty;
    empty.producer_id = random_producer_id();
    WARPROLL_TRY_ASSIGN(created, create_log(options, empty));
    store = std::move(created);
  } else {
    WARPROLL_TRY(keep_files_before_open(options.directory, before));
    auto opened = Store::open({.directory = options.directory,
                               .mode = StoreMode::kWrite,
                               .env = options.env,
                               .on_warning = options.on_warning,
                               .write_buffer_bytes = options.write_buffer_bytes});
    if (!opened.ok()) return opened.status();
    store = *std::move(opened);
  }
  WARPROLL_TRY_ASSIGN(high_water, HighWater::open(options.directory));
  WARPROLL_TRY_ASSIGN(state, store->load_state());
  WARPROLL_TRY(check_recovered(*store, state, high_water.mark()));
  WARPROLL_TRY(begin_epoch(*store, high_water, &state));
  fs::remove_all(before, error);
  return OpenedLog{std::move(lock), std::move(store), std::move(high_water), std::move(state)};
}

}  // namespace

Result<OpenedLog> open_log_directory(const SampleLogOptions& options) {
  auto opened = open_checked(options);
  if (opened.status().code() != StatusCode::kDataLoss) return opened;
  return data_loss("sample log " + options.directory + " is damaged: " + opened.status().message() +
                   "; see `warproll log verify` and `warproll log repair`");
}

}  // namespace warproll
