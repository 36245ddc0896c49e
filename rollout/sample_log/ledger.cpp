#include "rollout/sample_log/ledger.h"

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <chrono>

namespace warproll {
namespace {

// Up to so many outbox entries go by single deletes: a range tombstone for every ack would slow
// every later seek.
constexpr uint64_t kSingleDeletes = 64;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

bool disk_trouble(const Status& status) {
  return status.code() == StatusCode::kResourceExhausted ||
         status.code() == StatusCode::kUnavailable;
}

void prune_outbox(const Store::Session& session, uint64_t from, uint64_t upto,
                  rocksdb::WriteBatch* batch) {
  auto* outbox = session.family(Family::kOutbox);
  if (upto < from) return;
  if (upto - from >= kSingleDeletes) {
    batch->DeleteRange(outbox, be64(from), be64(upto + 1));
    return;
  }
  for (uint64_t seq = from; seq <= upto; ++seq) batch->Delete(outbox, be64(seq));
}

bool in_gap(const LogState& state, uint64_t seq) {
  auto gap = state.gaps.upper_bound(seq);
  return gap != state.gaps.begin() && std::prev(gap)->second.to >= seq;
}

// [from, to] without what is a dead letter or a gap already.
std::vector<GapRange> new_gaps(const LogState& state, uint64_t from, uint64_t to,
                               const std::string& reason) {
  std::vector<GapRange> out;
  for (uint64_t seq = from; seq <= to; ++seq) {
    if (in_gap(state, seq) || state.dead_letters.count(seq) != 0) continue;
    if (!out.empty() && out.back().to + 1 == seq) {
      out.back().to = seq;
    } else {
      out.push_back({.from = seq, .to = seq, .reason = reason});
    }
  }
  return out;
}

// Outbox entries for the stored samples of [from, to], made anew from the index.
Status refill_outbox(const Store::Session& session, const LogState& state, uint64_t from,
                     uint64_t to, rocksdb::WriteBatch* batch) {
  std::unique_ptr<rocksdb::Iterator> it(
      session.db().NewIterator(rocksdb::ReadOptions(), session.family(Family::kIndex)));
  for (it->Seek(seq_index_key(from)); it->Valid() && it->key()[0] == kIndexSeq; it->Next()) {
    const uint64_t seq = parse_be64(it->key().ToStringView().substr(1));
    if (seq > to) break;
    if (state.dead_letters.count(seq) != 0) continue;
    const auto info = parse_seq_info(it->value().ToStringView());
    if (!info) return data_loss("sample log index: entry of seq " + std::to_string(seq));
    batch->Put(session.family(Family::kOutbox), be64(seq),
               encode_outbox({.seq = seq, .bytes = info->bytes}));
  }
  return from_rocksdb(it->status(), "sample log index");
}

}  // namespace

Ledger::Ledger(std::shared_ptr<Store> store, LogState state, RetentionPolicy retention)
    : store_(std::move(store)),
      retention_(retention),
      written_commit_(state.info.commit_upto),
      state_(std::move(state)) {}

LogState Ledger::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}
LogInfo Ledger::info() const {
  std::lock_guard lock(mutex_);
  return state_.info;
}
void Ledger::advance(uint64_t last_seq) {
  std::lock_guard lock(mutex_);
  state_.info.last_seq = last_seq;
}

Result<std::vector<OutboxEntry>> Ledger::read_outbox(uint64_t from_seq, size_t max_entries) const {
  const LogInfo known = info();
  WARPROLL_TRY_ASSIGN(entries,
                      store_->outbox(std::max(from_seq, known.commit_upto + 1), max_entries));
  // What the writer has put but not yet made durable is not to be sent.
  while (!entries.empty() && entries.back().seq > known.last_seq) entries.pop_back();
  return entries;
}

std::vector<GapRange> Ledger::unsendable(uint64_t from_seq, uint64_t to_seq) const {
  std::map<uint64_t, GapRange> out;
  std::lock_guard lock(mutex_);
  for (const auto& [from, gap] : state_.gaps) {
    if (gap.to < from_seq || from > to_seq) continue;
    const uint64_t first = std::max(from, from_seq);
    out[first] = {.from = first, .to = std::min(gap.to, to_seq), .reason = gap.reason};
  }
  for (auto it = state_.dead_letters.lower_bound(from_seq);
       it != state_.dead_letters.end() && it->first <= to_seq; ++it) {
    const DeadLetter& letter = it->second;
    out[letter.seq] = {
        .from = letter.seq,
        .to = letter.seq,
        .reason = "dead letter (" + std::string(to_string(letter.code)) + "): " + letter.reason};
  }
  std::vector<GapRange> ranges;
  for (auto& [from, gap] : out) ranges.push_back(std::move(gap));
  return ranges;
}

Status Ledger::note_sent(const std::vector<uint64_t>& seqs) {
  std::lock_guard change(change_mutex_);
  const uint64_t commit_upto = info().commit_upto;
  const int64_t now = now_ns();
  rocksdb::WriteBatch batch;
  {
    const Store::Session session = store_->session();
    WARPROLL_TRY(session.require_open());
    auto* outbox = session.family(Family::kOutbox);
    for (uint64_t seq : seqs) {
      std::string value;
      if (seq <= commit_upto) continue;
      const auto got = session.db().Get(rocksdb::ReadOptions(), outbox, be64(seq), &value);
      if (got.IsNotFound()) continue;  // refused meanwhile
      WARPROLL_TRY(from_rocksdb(got, "sample log outbox"));
      auto entry = parse_outbox(be64(seq), value);
      if (!entry) return data_loss("sample log outbox: entry of seq " + std::to_string(seq));
      ++entry->attempts;
      if (entry->first_sent_ns == 0) entry->first_sent_ns = now;
      batch.Put(outbox, be64(seq), encode_outbox(*entry));
    }
  }
  const Status status = store_->write(&batch, false);
  return disk_trouble(status) ? ok_status() : status;  // statistics; sending goes on
}

Status Ledger::check_commit(const LogInfo& info, uint64_t upto) const {
  if (upto <= info.last_seq) return ok_status();
  return invalid_argument("commit_upto " + std::to_string(upto) + ": this log (producer " +
                          to_hex(info.producer_id) + ") has sealed up to " +
                          std::to_string(info.last_seq) +
                          "; an older copy of the directory, or a trainer of another one");
}

Status Ledger::write_commit(uint64_t upto) {
  rocksdb::WriteBatch batch;
  {
    const Store::Session session = store_->session();
    WARPROLL_TRY(session.require_open());
    prune_outbox(session, written_commit_ + 1, upto, &batch);
    batch.Put(session.family(Family::kMeta), kMetaCommitUpto, be64(upto));
  }
  WARPROLL_TRY(store_->write(&batch, false));
  written_commit_ = upto;
  return ok_status();
}

Status Ledger::mark_committed(uint64_t upto, const std::string& lineage_id) {
  std::lock_guard change(change_mutex_);
  const LogInfo known = info();
  if (lineage_id != known.lineage_id) {
    return failed_precondition("commit of lineage '" + lineage_id + "', the log follows '" +
                               known.lineage_id + "'");
  }
  if (upto <= known.commit_upto) return ok_status();
  WARPROLL_TRY(check_commit(known, upto));
  {
    std::lock_guard lock(mutex_);
    state_.info.commit_upto = upto;
  }
  const Status status = write_commit(upto);
  return disk_trouble(status) ? ok_status() : status;
}

Status Ledger::write_pending_commit() {
  std::lock_guard change(change_mutex_);
  const uint64_t upto = info().commit_upto;
  return upto > written_commit_ ? write_commit(upto) : ok_status();
}

Result<std::vector<GapRange>> Ledger::rewind(const std::string& lineage_id, uint64_t commit_upto) {
  std::lock_guard change(change_mutex_);
  LogState next = state();
  const uint64_t old_commit = next.info.commit_upto;
  const bool same_lineage = lineage_id == next.info.lineage_id;
  if (same_lineage && commit_upto <= old_commit) return std::vector<GapRange>{};
  WARPROLL_TRY(check_commit(next.info, commit_upto));
  const std::vector<GapRange> gaps =
      new_gaps(next, commit_upto + 1, next.info.retained_from - 1, "removed by retention");
  rocksdb::WriteBatch batch;
  {
    const Store::Session session = store_->session();
    WARPROLL_TRY(session.require_open());
    auto* meta = session.family(Family::kMeta);
    prune_outbox(session, written_commit_ + 1, commit_upto, &batch);
    if (commit_upto < old_commit) {
      const uint64_t from = std::max(commit_upto + 1, next.info.retained_from);
      WARPROLL_TRY(refill_outbox(session, next, from, old_commit, &batch));
    }
    for (const GapRange& gap : gaps) {
      batch.Put(meta, gap_key(gap.from), encode_gap(gap));
      next.gaps.emplace(gap.from, gap);
    }
    batch.Put(meta, kMetaLineage, lineage_id);
    batch.Put(meta, kMetaCommitUpto, be64(commit_upto));
  }
  WARPROLL_TRY(store_->write(&batch, true));
  written_commit_ = commit_upto;
  std::lock_guard lock(mutex_);
  state_.gaps = std::move(next.gaps);
  state_.info.lineage_id = lineage_id;
  state_.info.commit_upto = commit_upto;
  return gaps;
}

Status Ledger::dead_letter(uint64_t seq, NackCode code, const std::string& reason) {
  std::lock_guard change(change_mutex_);
  const LogState known = state();
  if (known.dead_letters.count(seq) != 0) return ok_status();
  if (seq < known.info.retained_from || seq > known.info.last_seq || in_gap(known, seq)) {
    return not_found("dead letter: the log holds no sample " + std::to_string(seq));
  }
  const DeadLetter letter{.seq = seq, .code = code, .reason = reason, .unix_ns = now_ns()};
  rocksdb::WriteBatch batch;
  {
    const Store::Session session = store_->session();
    WARPROLL_TRY(session.require_open());
    batch.Put(session.family(Family::kDeadLetters), be64(seq), encode_dead_letter(letter));
    batch.Delete(session.family(Family::kOutbox), be64(seq));
  }
  WARPROLL_TRY(store_->write(&batch, true));
  std::lock_guard lock(mutex_);
  state_.dead_letters.emplace(seq, letter);
  return ok_status();
}

}  // namespace warproll
