// repair_log_to: gathers what checks out from every way of reading the damaged directory.
#include <rocksdb/db.h>
#include <rocksdb/iterator.h>
#include <rocksdb/write_batch.h>

#include <filesystem>
#include <set>

#include "rollout/sample_log/high_water.h"
#include "rollout/sample_log/log_check.h"
#include "rollout/sample_log/log_reader.h"
#include "rollout/sample_log/open_log.h"
#include "rollout/sample_log/store.h"

namespace warproll {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBatchBytes = 4 << 20;

class Repair {
 public:
  Repair(std::string directory, std::string out) : directory_(directory), out_(out) {}

  Result<RepairReport> run(const LogProgress& progress) {
    open_sources();
    if (sources_.empty()) {
      return data_loss("sample log " + directory_ + ": nothing in it can be read (" +
                       (report_.notes.empty() ? "no files" : report_.notes.back()) + ")");
    }
    WARPROLL_TRY(choose_state());
    SampleLogOptions options;
    options.directory = out_;
    WARPROLL_TRY_ASSIGN(target, create_log(options, state_.info));
    target_ = std::move(target);
    for (const auto& source : sources_) WARPROLL_TRY(copy_samples(*source, progress));
    WARPROLL_TRY(flush());
    put_state();
    WARPROLL_TRY(flush());
    WARPROLL_TRY(target_->close());
    WARPROLL_TRY_ASSIGN(high_water, HighWater::open(out_));
    HighWaterMark mark = high_water.mark();
    mark.epoch = state_.info.epoch;
    mark.synced_seq = mark.reserved_seq = state_.info.last_seq;
    WARPROLL_TRY(high_water.write_synced(mark));
    return std::move(report_);
  }

 private:
  void add_source(const std::string& what, Result<std::shared_ptr<Store>> store) {
    if (store.ok()) {
      sources_.push_back(*std::move(store));
    } else {
      report_.notes.push_back(what + ": " + store.status().message());
    }
  }

  // The files as they were before a start that found damage come first.
  void open_sources() {
    std::vector<std::string> folders = {directory_};
    const std::string before = directory_ + "/" + kBeforeOpenFolder;
    std::error_code error;
    if (fs::exists(before, error)) folders.insert(folders.begin(), before);
    for (const std::string& folder : folders) {
      add_source("as it is", Store::open_copy(folder, StoreMode::kReadOnly));
      add_source("skipping damaged log records", Store::open_copy(folder, StoreMode::kSalvage));
      add_source("with the manifest rebuilt", Store::open_rebuilt_copy(folder));
    }
  }

  // The newest meta that can be read, the high-water file, and the last sample found.
  Status choose_state() {
    bool found = false;
    for (const auto& source : sources_) {
      auto state = source->load_state();
      if (!state.ok()) continue;
      if (!found || state->info.last_seq > state_.info.last_seq) state_ = *std::move(state);
      found = true;
    }
    if (!found) report_.notes.push_back("meta is lost: every sample counts as uncommitted");
    const auto mark = HighWater::read(directory_);
    if (mark.ok()) {
      state_.info.epoch = std::max(state_.info.epoch, mark->epoch);
      state_.info.last_seq =
          std::max({state_.info.last_seq, mark->synced_seq, mark->reserved_seq, mark->os_seq});
      if (!found) state_.info.producer_id = mark->producer_id;
    } else {
      report_.notes.push_back(mark.status().message());
    }
    for (const auto& source : sources_) {
      const Store::Session session = source->session();
      std::unique_ptr<rocksdb::Iterator> it(
          session.db().NewIterator(rocksdb::ReadOptions(), session.family(Family::kSamples)));
      it->SeekToLast();
      if (it->Valid() && it->key().size() == 8) {
        state_.info.last_seq = std::max(state_.info.last_seq, parse_be64(it->key().ToStringView()));
      }
    }
    if (!found && !mark.ok()) return take_producer_from_a_record();
    return ok_status();
  }

  Status take_producer_from_a_record() {
    for (const auto& source : sources_) {
      for (uint64_t seq = 1; seq <= state_.info.last_seq; ++seq) {
        const auto stored = source->read(seq);
        if (!stored.ok()) continue;
        const auto summary = peek_trajectory(stored->record);
        if (!summary.ok()) continue;
        state_.info.producer_id = summary->producer_id;
        return ok_status();
      }
    }
    return data_loss("sample log " + directory_ + ": neither meta, high-water file nor samples");
  }

  Status copy_samples(const Store& source, const LogProgress& progress) {
    std::vector<uint64_t> early;  // dead letters that retention left behind
    for (const auto& [seq, letter] : state_.dead_letters) {
      if (seq < state_.info.retained_from) early.push_back(seq);
    }
    for (uint64_t seq : early) WARPROLL_TRY(copy_sample(source, seq));
    for (uint64_t seq = state_.info.retained_from; seq <= state_.info.last_seq; ++seq) {
      WARPROLL_TRY(copy_sample(source, seq));
      if (progress && !progress(seq, state_.info.last_seq, report_.bytes_copied)) {
        return aborted("repair: stopped at seq " + std::to_string(seq));
      }
    }
    return ok_status();
  }

  Status copy_sample(const Store& source, uint64_t seq) {
    if (copied_.count(seq) != 0) return ok_status();
    const auto stored = source.read(seq);
    if (!stored.ok()) return ok_status();  // counted as lost when no source has it
    const auto trajectory = decode_stored(*stored);
    if (!trajectory.ok() || !validate(*trajectory, 0).ok() || trajectory->seq != seq ||
        trajectory->producer_id != state_.info.producer_id) {
      return ok_status();
    }
    const auto summary = peek_trajectory(stored->record);
    if (!summary.ok()) return ok_status();
    const uint64_t bytes = stored->record.size() + stored->tensors.size();
    {
      const Store::Session session = target_->session();
      put_sample(session, *summary, stored->record, stored->tensors, false, &batch_);
      if (seq > state_.info.commit_upto && state_.dead_letters.count(seq) == 0) {
        batch_.Put(session.family(Family::kOutbox), be64(seq),
                   encode_outbox({.seq = seq, .bytes = bytes}));
      }
    }
    state_.info.epoch = std::max(state_.info.epoch, trajectory->epoch);
    copied_.insert(seq);
    report_.samples_copied += 1;
    report_.bytes_copied += bytes;
    return batch_.GetDataSize() > kBatchBytes ? flush() : ok_status();
  }

  Status flush() {
    WARPROLL_TRY(target_->write(&batch_, true));
    batch_.Clear();
    return ok_status();
  }

  void add_lost(uint64_t seq) {
    if (!report_.lost.empty() && report_.lost.back().to + 1 == seq) {
      report_.lost.back().to = seq;
    } else {
      report_.lost.push_back({.from = seq, .to = seq, .reason = "lost, found by log repair"});
    }
  }

  bool in_known_gap(uint64_t seq) const {
    auto gap = state_.gaps.upper_bound(seq);
    return gap != state_.gaps.begin() && std::prev(gap)->second.to >= seq;
  }

  void put_state() {
    const Store::Session session = target_->session();
    auto* meta = session.family(Family::kMeta);
    for (const auto& [seq, letter] : state_.dead_letters) {
      if (copied_.count(seq) != 0) {
        batch_.Put(session.family(Family::kDeadLetters), be64(seq), encode_dead_letter(letter));
      } else if (seq < state_.info.retained_from) {
        report_.notes.push_back("the bytes of dead letter " + std::to_string(seq) + " are lost");
      }
    }
    for (uint64_t seq = state_.info.retained_from; seq <= state_.info.last_seq; ++seq) {
      if (copied_.count(seq) == 0 && !in_known_gap(seq)) add_lost(seq);
    }
    for (const auto& [from, gap] : state_.gaps) batch_.Put(meta, gap_key(from), encode_gap(gap));
    for (const GapRange& gap : report_.lost) batch_.Put(meta, gap_key(gap.from), encode_gap(gap));
    batch_.Put(meta, kMetaEpoch, be64(state_.info.epoch));
  }

  const std::string directory_;
  const std::string out_;
  std::vector<std::shared_ptr<Store>> sources_;
  LogState state_;
  std::shared_ptr<Store> target_;
  rocksdb::WriteBatch batch_;
  std::set<uint64_t> copied_;
  RepairReport report_;
};

}  // namespace

Result<RepairReport> repair_log_to(const std::string& directory, const std::string& out_directory,
                                   const LogProgress& progress) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) return not_found("no directory " + directory);
  if (fs::exists(out_directory, error) && !fs::is_empty(out_directory, error)) {
    return already_exists("log repair: " + out_directory + " is not empty");
  }
  // A repair that did not end must not be taken for a log.
  const std::string partial = out_directory + ".partial";
  fs::remove_all(partial, error);
  if (!fs::create_directories(partial, error)) {
    return unavailable("cannot make " + partial + ": " + error.message());
  }
  auto report = Repair(directory, partial).run(progress);
  if (!report.ok()) {
    fs::remove_all(partial, error);
    return report.status();
  }
  fs::rename(partial, out_directory, error);
  if (error) return unavailable("cannot rename " + partial + ": " + error.message());
  return report;
}

}  // namespace warproll
