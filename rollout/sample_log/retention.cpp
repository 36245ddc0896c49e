// The part of Ledger that removes committed samples.
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <chrono>

#include "rollout/sample_log/ledger.h"

namespace warproll {
namespace {

constexpr uint64_t kSamplesPerBatch = 1024;

// [from, to) without the dead letters, as [begin, end) pairs.
std::vector<std::pair<uint64_t, uint64_t>> without_dead_letters(
    const std::map<uint64_t, DeadLetter>& letters, uint64_t from, uint64_t to) {
  std::vector<std::pair<uint64_t, uint64_t>> out;
  for (auto it = letters.lower_bound(from); it != letters.end() && it->first < to; ++it) {
    if (it->first > from) out.emplace_back(from, it->first);
    from = it->first + 1;
  }
  if (from < to) out.emplace_back(from, to);
  return out;
}

}  // namespace

// Walks back from the newest committed sample until a limit is exceeded.
Result<uint64_t> Ledger::first_seq_to_keep(const LogInfo& info) const {
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  const Store::Session session = store_->session();
  WARPROLL_TRY(session.require_open());
  std::unique_ptr<rocksdb::Iterator> it(
      session.db().NewIterator(rocksdb::ReadOptions(), session.family(Family::kIndex)));
  uint64_t samples = 0;
  uint64_t bytes = 0;
  for (it->SeekForPrev(seq_index_key(info.commit_upto)); it->Valid(); it->Prev()) {
    if (it->key()[0] != kIndexSeq) break;
    const uint64_t seq = parse_be64(it->key().ToStringView().substr(1));
    if (seq < info.retained_from) break;
    const auto entry = parse_seq_info(it->value().ToStringView());
    if (!entry) return data_loss("sample log index: entry of seq " + std::to_string(seq));
    samples += 1;
    bytes += entry->bytes;
    const int64_t age_s = (now - entry->sealed_ns) / 1'000'000'000;
    const bool too_many = retention_.keep_samples != 0 && samples > retention_.keep_samples;
    const bool too_big = retention_.keep_bytes != 0 && bytes > retention_.keep_bytes;
    const bool too_old =
        retention_.keep_age_s != 0 && age_s > static_cast<int64_t>(retention_.keep_age_s);
    if (too_many || too_big || too_old) return seq + 1;
  }
  WARPROLL_TRY(from_rocksdb(it->status(), "sample log index"));
  return info.retained_from;
}

Result<RetentionResult> Ledger::apply_retention() {
  const LogInfo start = info();
  RetentionResult result{.retained_from = start.retained_from};
  WARPROLL_TRY_ASSIGN(keep_from, first_seq_to_keep(start));
  for (uint64_t from = start.retained_from; from < keep_from; from += kSamplesPerBatch) {
    const uint64_t to = std::min(from + kSamplesPerBatch, keep_from);
    std::lock_guard change(change_mutex_);
    if (info().commit_upto + 1 < to) break;  // a trainer rollback wants them again
    WARPROLL_TRY(remove_samples(from, to, &result));
  }
  if (result.removed_samples > 0) WARPROLL_TRY(delete_files_below(result.retained_from));
  return result;
}

// Takes [from, to) out of samples, tensors and index in one synced batch. The commit watermark goes
// with it, for the files are deleted at once and a prune still unsynced could be undone by a crash.
Status Ledger::remove_samples(uint64_t from, uint64_t to, RetentionResult* result) {
  const LogState known = state();
  rocksdb::WriteBatch batch;
  uint64_t samples = 0;
  uint64_t bytes = 0;
  for (uint64_t seq = from; seq < to; ++seq) {
    if (known.dead_letters.count(seq) != 0) continue;
    const auto stored = store_->read(seq);
    if (stored.status().code() == StatusCode::kNotFound) continue;  // a gap
    if (!stored.ok()) return stored.status().with_context("retention; see `warproll log repair`");
    const auto summary = peek_trajectory(stored->record);
    if (!summary.ok()) return summary.status().with_context("retention of " + std::to_string(seq));
    const Store::Session session = store_->session();
    WARPROLL_TRY(session.require_open());
    for (const std::string& key : index_keys(*summary)) {
      batch.Delete(session.family(Family::kIndex), key);
    }
    samples += 1;
    bytes += stored->record.size() + stored->tensors.size();
  }
  {
    const Store::Session session = store_->session();
    WARPROLL_TRY(session.require_open());
    for (const auto& [begin, end] : without_dead_letters(known.dead_letters, from, to)) {
      batch.DeleteRange(session.family(Family::kSamples), be64(begin), be64(end));
      batch.DeleteRange(session.family(Family::kTensors), be64(begin), be64(end));
    }
    batch.Put(session.family(Family::kMeta), kMetaRetainedFrom, be64(to));
  }
  if (written_commit_ < known.info.commit_upto) WARPROLL_TRY(write_commit(known.info.commit_upto));
  WARPROLL_TRY(store_->write(&batch, true));
  result->removed_samples += samples;
  result->removed_bytes += bytes;
  result->retained_from = to;
  std::lock_guard lock(mutex_);
  state_.info.retained_from = to;
  return ok_status();
}

// Frees the space now: whole table files below `seq` need no compaction.
Status Ledger::delete_files_below(uint64_t seq) const {
  const LogState known = state();
  const Store::Session session = store_->session();
  WARPROLL_TRY(session.require_open());
  std::vector<std::pair<std::string, std::string>> keys;
  for (const auto& [begin, end] : without_dead_letters(known.dead_letters, 0, seq)) {
    keys.emplace_back(be64(begin), be64(end));
  }
  std::vector<rocksdb::RangePtr> ranges;
  std::vector<std::pair<rocksdb::Slice, rocksdb::Slice>> slices;
  for (const auto& [begin, end] : keys) slices.emplace_back(begin, end);
  for (const auto& [begin, end] : slices) ranges.emplace_back(&begin, &end);
  for (Family family : {Family::kSamples, Family::kTensors}) {
    WARPROLL_TRY(from_rocksdb(rocksdb::DeleteFilesInRanges(&session.db(), session.family(family),
                                                           ranges.data(), ranges.size(), false),
                              "sample log retention"));
  }
  return ok_status();
}

}  // namespace warproll
