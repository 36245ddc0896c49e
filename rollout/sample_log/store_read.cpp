// The reading half of Store: every call opens a session, reads and lets go.
#include <rocksdb/db.h>
#include <rocksdb/iterator.h>

#include "rollout/sample_log/store.h"

namespace warproll {
namespace {

// One consistent view of the DB for the length of a call.
class View {
 public:
  explicit View(const Store::Session& session)
      : db_(session.db()), snapshot_(session.db().GetSnapshot()) {
    options_.snapshot = snapshot_;  // null on a read-only DB, which does not change anyway
  }
  ~View() {
    if (snapshot_ != nullptr) db_.ReleaseSnapshot(snapshot_);
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  [[nodiscard]] const rocksdb::ReadOptions& options() const { return options_; }

 private:
  rocksdb::DB& db_;
  const rocksdb::Snapshot* snapshot_;
  rocksdb::ReadOptions options_;
};

Status get_meta(const Store::Session& session, const rocksdb::ReadOptions& read,
                std::string_view key, std::string* value) {
  const rocksdb::Status status = session.db().Get(read, session.family(Family::kMeta),
                                                  rocksdb::Slice(key.data(), key.size()), value);
  if (status.IsNotFound()) return data_loss("sample log meta has no " + std::string(key));
  return from_rocksdb(status, "sample log meta " + std::string(key));
}

Status get_meta_u64(const Store::Session& session, const rocksdb::ReadOptions& read,
                    std::string_view key, uint64_t* number) {
  std::string value;
  WARPROLL_TRY(get_meta(session, read, key, &value));
  if (value.size() != 8) {
    return data_loss("sample log meta " + std::string(key) + ": " + std::to_string(value.size()) +
                     " bytes, wanted 8");
  }
  *number = parse_be64(value);
  return ok_status();
}

Status load_gaps(const Store::Session& session, const rocksdb::ReadOptions& read,
                 std::map<uint64_t, GapRange>* gaps) {
  std::unique_ptr<rocksdb::Iterator> it(
      session.db().NewIterator(read, session.family(Family::kMeta)));
  const rocksdb::Slice prefix(kMetaGapPrefix.data(), kMetaGapPrefix.size());
  for (it->Seek(prefix); it->Valid() && it->key().starts_with(prefix); it->Next()) {
    const auto gap = parse_gap(it->key().ToStringView(), it->value().ToStringView());
    if (!gap) return data_loss("sample log meta: a gap entry is malformed");
    gaps->emplace(gap->from, *gap);
  }
  return from_rocksdb(it->status(), "sample log meta gaps");
}

Status load_dead_letters(const Store::Session& session, const rocksdb::ReadOptions& read,
                         std::map<uint64_t, DeadLetter>* letters) {
  std::unique_ptr<rocksdb::Iterator> it(
      session.db().NewIterator(read, session.family(Family::kDeadLetters)));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    const auto letter = parse_dead_letter(it->key().ToStringView(), it->value().ToStringView());
    if (!letter) return data_loss("sample log dead_letters: an entry is malformed");
    letters->emplace(letter->seq, *letter);
  }
  return from_rocksdb(it->status(), "sample log dead_letters");
}

}  // namespace

Result<LogState> Store::load_state(const Session& session, const rocksdb::ReadOptions& read) const {
  WARPROLL_TRY(session.require_open());
  LogState state;
  LogInfo& info = state.info;
  uint64_t format = 0;
  uint64_t next_seq = 0;
  std::string producer;
  WARPROLL_TRY(get_meta_u64(session, read, kMetaFormat, &format));
  info.format_version = static_cast<uint32_t>(format);
  if (format != kLogFormatVersion) {
    return failed_precondition("sample log " + directory() + ": format version " +
                               std::to_string(format) + ", this program reads " +
                               std::to_string(kLogFormatVersion));
  }
  WARPROLL_TRY(get_meta(session, read, kMetaProducer, &producer));
  if (producer.size() != info.producer_id.size()) {
    return data_loss("sample log meta producer_id: " + std::to_string(producer.size()) +
                     " bytes, wanted 16");
  }
  std::copy(producer.begin(), producer.end(), info.producer_id.begin());
  WARPROLL_TRY(get_meta_u64(session, read, kMetaEpoch, &info.epoch));
  WARPROLL_TRY(get_meta_u64(session, read, kMetaNextSeq, &next_seq));
  if (next_seq == 0) return data_loss("sample log meta next_seq: 0, wanted 1 or more");
  info.last_seq = next_seq - 1;
  WARPROLL_TRY(get_meta_u64(session, read, kMetaCommitUpto, &info.commit_upto));
  WARPROLL_TRY(get_meta(session, read, kMetaLineage, &info.lineage_id));
  WARPROLL_TRY(get_meta_u64(session, read, kMetaRetainedFrom, &info.retained_from));
  WARPROLL_TRY(load_gaps(session, read, &state.gaps));
  WARPROLL_TRY(load_dead_letters(session, read, &state.dead_letters));
  return state;
}

Result<LogState> Store::load_state() const {
  const Session open = session();
  WARPROLL_TRY(open.require_open());
  const View view(open);
  return load_state(open, view.options());
}

Result<Accounting> Store::accounting() const {
  const Session open = session();
  WARPROLL_TRY(open.require_open());
  const View view(open);
  WARPROLL_TRY_ASSIGN(state, load_state(open, view.options()));
  Accounting out{.produced = state.info.last_seq,
                 .committed = std::min(state.info.commit_upto, state.info.last_seq),
                 .dead_letters = state.dead_letters.size()};
  const uint64_t upto = out.committed;
  for (const auto& [from, gap] : state.gaps) {
    out.gaps += gap.to - from + 1;
    if (from <= upto) out.committed -= std::min(gap.to, upto) - from + 1;
  }
  for (const auto& [seq, letter] : state.dead_letters) {
    if (seq <= upto) --out.committed;
  }
  std::unique_ptr<rocksdb::Iterator> it(
      open.db().NewIterator(view.options(), open.family(Family::kOutbox)));
  for (it->Seek(be64(upto + 1)); it->Valid(); it->Next()) ++out.outbox;
  WARPROLL_TRY(from_rocksdb(it->status(), "sample log outbox"));
  return out;
}

Result<StoredRecord> Store::read(uint64_t seq) const {
  const Session open = session();
  WARPROLL_TRY(open.require_open());
  StoredRecord out;
  out.seq = seq;
  const std::string key = sample_key(seq);
  rocksdb::PinnableSlice value;
  const rocksdb::ReadOptions options;
  rocksdb::Status status =
      open.db().Get(options, open.family(Family::kSamples), rocksdb::Slice(key), &value);
  if (status.IsNotFound())
    return not_found("the sample log holds no sample " + std::to_string(seq));
  WARPROLL_TRY(from_rocksdb(status, "sample " + std::to_string(seq)));
  WARPROLL_TRY_ASSIGN(header, open_record("samples", key, value.ToStringView(), &out.record));
  out.sealed_ns = header.unix_ns;
  value.Reset();
  const std::string tensor = tensor_key(seq, kRoutedExpertsTensor);
  status = open.db().Get(options, open.family(Family::kTensors), rocksdb::Slice(tensor), &value);
  if (status.IsNotFound()) return out;
  WARPROLL_TRY(from_rocksdb(status, "tensors of sample " + std::to_string(seq)));
  WARPROLL_TRY_ASSIGN(tensor_header,
                      open_record("tensors", tensor, value.ToStringView(), &out.tensors));
  (void)tensor_header;
  return out;
}

Result<std::vector<OutboxEntry>> Store::outbox(uint64_t from_seq, size_t max_entries) const {
  const Session open = session();
  WARPROLL_TRY(open.require_open());
  std::vector<OutboxEntry> out;
  std::unique_ptr<rocksdb::Iterator> it(
      open.db().NewIterator(rocksdb::ReadOptions(), open.family(Family::kOutbox)));
  // Seek to the cursor: SeekToFirst would walk every tombstone of what was delivered before.
  for (it->Seek(be64(from_seq)); it->Valid() && out.size() < max_entries; it->Next()) {
    const auto entry = parse_outbox(it->key().ToStringView(), it->value().ToStringView());
    if (!entry) return data_loss("sample log outbox: an entry is malformed");
    out.push_back(*entry);
  }
  WARPROLL_TRY(from_rocksdb(it->status(), "sample log outbox"));
  return out;
}

Result<bool> Store::is_sealed(const std::string& task_id, int32_t sample_index) const {
  const Session open = session();
  WARPROLL_TRY(open.require_open());
  const std::string prefix = task_sample_prefix(task_id, sample_index);
  std::unique_ptr<rocksdb::Iterator> it(
      open.db().NewIterator(rocksdb::ReadOptions(), open.family(Family::kIndex)));
  it->Seek(prefix);
  const bool found = it->Valid() && it->key().starts_with(prefix);
  WARPROLL_TRY(from_rocksdb(it->status(), "sample log index"));
  return found;
}

Result<std::vector<GapRange>> Store::missing_seqs(const LogState& state) const {
  const Session open = session();
  WARPROLL_TRY(open.require_open());
  std::vector<GapRange> missing;
  uint64_t expected = state.info.retained_from;
  // Everything in [expected, upto) is missing unless a gap says so.
  const auto absent_until = [&](uint64_t upto) {
    while (expected < upto) {
      auto gap = state.gaps.upper_bound(expected);
      if (gap != state.gaps.begin() && std::prev(gap)->second.to >= expected) {
        expected = std::prev(gap)->second.to + 1;
        continue;
      }
      const uint64_t end = gap == state.gaps.end() ? upto : std::min(upto, gap->first);
      missing.push_back({.from = expected, .to = end - 1, .reason = "not in the log"});
      expected = end;
    }
  };
  std::unique_ptr<rocksdb::Iterator> it(
      open.db().NewIterator(rocksdb::ReadOptions(), open.family(Family::kIndex)));
  for (it->Seek(seq_index_key(expected)); it->Valid() && it->key()[0] == kIndexSeq; it->Next()) {
    const uint64_t seq = parse_be64(it->key().ToStringView().substr(1));
    absent_until(seq);
    expected = std::max(expected, seq + 1);
  }
  WARPROLL_TRY(from_rocksdb(it->status(), "sample log index"));
  absent_until(state.info.last_seq + 1);
  return missing;
}

}  // namespace warproll
