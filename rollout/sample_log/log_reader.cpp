#include "rollout/sample_log/log_reader.h"

#include <rocksdb/db.h>
#include <rocksdb/iterator.h>

#include <deque>

#include "rollout/sample_log/store.h"

namespace warproll {
namespace {

constexpr size_t kSeqsPerChunk = 256;
constexpr size_t kSeqBytes = 8;

// The index entries a query walks: keys `prefix` + middle + BE64 seq, from `start` on.
struct Walk {
  std::string prefix;
  std::string start;  // full key to seek to
  bool by_minute = false;
};

Walk choose_walk(const SampleQuery& query) {
  Walk walk;
  if (query.task_id) {
    walk.prefix = task_index_prefix(*query.task_id);
    walk.start = walk.prefix;  // sample_index stands before seq
  } else if (query.group_id) {
    walk.prefix = group_index_prefix(*query.group_id);
    walk.start = walk.prefix + be64(query.from_seq);
  } else if (query.weight_version) {
    walk.prefix = version_index_prefix(*query.weight_version);
    walk.start = walk.prefix + be64(query.from_seq);
  } else if (query.from_ns || query.to_ns) {
    walk.prefix = std::string(1, kIndexMinute);
    walk.start = minute_index_prefix(query.from_ns.value_or(0));
    walk.by_minute = true;
  } else {
    walk.prefix = std::string(1, kIndexSeq);
    walk.start = seq_index_key(query.from_seq);
  }
  return walk;
}

}  // namespace

struct SampleCursor::Impl {
  std::shared_ptr<Store> store;
  SampleQuery query;
  Walk walk;
  std::string resume_key;  // where the next chunk begins
  bool finished = false;
  std::deque<uint64_t> seqs;

  Status fill();
  Result<bool> matches(const Store::Session& session, uint64_t seq) const;
  bool past_end(std::string_view key) const;
};

// Conditions besides the walked one, by point lookups in the index.
Result<bool> SampleCursor::Impl::matches(const Store::Session& session, uint64_t seq) const {
  if (seq < query.from_seq || seq > query.to_seq) return false;
  std::vector<std::string> wanted;
  if (query.group_id) wanted.push_back(group_index_prefix(*query.group_id) + be64(seq));
  if (query.weight_version)
    wanted.push_back(version_index_prefix(*query.weight_version) + be64(seq));
  auto* index = session.family(Family::kIndex);
  std::string value;
  for (const std::string& key : wanted) {
    const auto status = session.db().Get(rocksdb::ReadOptions(), index, key, &value);
    if (status.IsNotFound()) return false;
    WARPROLL_TRY(from_rocksdb(status, "sample log index"));
  }
  if (!query.from_ns && !query.to_ns) return true;
  const auto status = session.db().Get(rocksdb::ReadOptions(), index, seq_index_key(seq), &value);
  if (status.IsNotFound()) return false;
  WARPROLL_TRY(from_rocksdb(status, "sample log index"));
  const auto info = parse_seq_info(value);
  if (!info) return data_loss("sample log index: entry of seq " + std::to_string(seq));
  return (!query.from_ns || info->sealed_ns >= *query.from_ns) &&
         (!query.to_ns || info->sealed_ns < *query.to_ns);
}

bool SampleCursor::Impl::past_end(std::string_view key) const {
  if (key.substr(0, walk.prefix.size()) != walk.prefix) return true;
  if (walk.by_minute && query.to_ns) {
    return key.substr(0, 1 + kSeqBytes) > minute_index_prefix(*query.to_ns);
  }
  const bool ordered_by_seq = !walk.by_minute && !query.task_id;
  return ordered_by_seq && parse_be64(key.substr(key.size() - kSeqBytes)) > query.to_seq;
}

Status SampleCursor::Impl::fill() {
  const Store::Session session = store->session();
  WARPROLL_TRY(session.require_open());
  std::unique_ptr<rocksdb::Iterator> it(
      session.db().NewIterator(rocksdb::ReadOptions(), session.family(Family::kIndex)));
  it->Seek(resume_key);
  for (; it->Valid() && seqs.size() < kSeqsPerChunk; it->Next()) {
    const std::string_view key = it->key().ToStringView();
    if (key.size() < walk.prefix.size() + kSeqBytes || past_end(key)) break;
    resume_key = std::string(key) + '\0';  // the least key behind this one
    const uint64_t seq = parse_be64(key.substr(key.size() - kSeqBytes));
    WARPROLL_TRY_ASSIGN(match, matches(session, seq));
    if (match) seqs.push_back(seq);
  }
  WARPROLL_TRY(from_rocksdb(it->status(), "sample log index"));
  finished = seqs.size() < kSeqsPerChunk;
  return ok_status();
}

SampleCursor::SampleCursor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SampleCursor::~SampleCursor() = default;
SampleCursor::SampleCursor(SampleCursor&&) noexcept = default;
SampleCursor& SampleCursor::operator=(SampleCursor&&) noexcept = default;

Result<std::optional<uint64_t>> SampleCursor::next_seq() {
  if (impl_->seqs.empty() && !impl_->finished) WARPROLL_TRY(impl_->fill());
  if (impl_->seqs.empty()) return std::optional<uint64_t>{};
  const uint64_t seq = impl_->seqs.front();
  impl_->seqs.pop_front();
  return std::optional<uint64_t>{seq};
}

Result<std::optional<StoredRecord>> SampleCursor::next() {
  while (true) {
    WARPROLL_TRY_ASSIGN(seq, next_seq());
    if (!seq) return std::optional<StoredRecord>{};
    auto stored = impl_->store->read(*seq);
    if (stored.status().code() == StatusCode::kNotFound) continue;  // retention was faster
    if (!stored.ok()) return stored.status();
    return std::optional<StoredRecord>{*std::move(stored)};
  }
}

Result<std::shared_ptr<LogReader>> LogReader::open_for_inspection(const std::string& directory) {
  WARPROLL_TRY_ASSIGN(store, Store::open_copy(directory, StoreMode::kReadOnly));
  WARPROLL_TRY_ASSIGN(state, store->load_state());  // the format version is checked here
  (void)state;
  return std::make_shared<LogReader>(std::move(store));
}

LogReader::LogReader(std::shared_ptr<Store> store) : store_(std::move(store)) {}
LogReader::~LogReader() = default;

Result<LogInfo> LogReader::info() const {
  WARPROLL_TRY_ASSIGN(state, store_->load_state());
  return state.info;
}
Result<StoredRecord> LogReader::read(uint64_t seq) const { return store_->read(seq); }
SampleCursor LogReader::query(SampleQuery query) const {
  auto impl = std::make_unique<SampleCursor::Impl>();
  impl->store = store_;
  impl->walk = choose_walk(query);
  impl->resume_key = impl->walk.start;
  impl->query = std::move(query);
  return SampleCursor(std::move(impl));
}
Result<bool> LogReader::is_sealed(const std::string& task_id, int32_t sample_index) const {
  return store_->is_sealed(task_id, sample_index);
}
Result<std::vector<OutboxEntry>> LogReader::outbox(uint64_t from_seq, size_t max_entries) const {
  return store_->outbox(from_seq, max_entries);
}
Result<std::vector<DeadLetter>> LogReader::dead_letters() const {
  WARPROLL_TRY_ASSIGN(state, store_->load_state());
  std::vector<DeadLetter> out;
  for (auto& [seq, letter] : state.dead_letters) out.push_back(std::move(letter));
  return out;
}
Result<std::vector<GapRange>> LogReader::gaps() const {
  WARPROLL_TRY_ASSIGN(state, store_->load_state());
  std::vector<GapRange> out;
  for (auto& [from, gap] : state.gaps) out.push_back(std::move(gap));
  return out;
}
Result<Accounting> LogReader::accounting() const { return store_->accounting(); }

Result<Trajectory> decode_stored(const StoredRecord& stored) {
  return decode_trajectory(stored.record, stored.tensors);
}

}  // namespace warproll
