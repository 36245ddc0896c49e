#include "rollout/stream/trajectory_store.h"

#include <utility>

#include "rollout/stream/trajectory_store_impl.h"

namespace warproll {

using namespace store_encoding;
using enum StoreFamily;

namespace {
constexpr std::string_view kFormat = "warproll trajectory store 1";
}

Status TrajectoryStore::Impl::load() {
  WARPROLL_TRY_ASSIGN(format, database->get(kMeta, "format"));
  if (!format.empty() && format != kFormat) {
    return failed_precondition("trajectory store '" + options.directory + "' has format '" +
                               format + "', wanted '" + std::string(kFormat) + "'");
  }
  WARPROLL_TRY_ASSIGN(lineage, database->get(kMeta, "lineage_id"));
  lineage_id = lineage;
  WARPROLL_TRY_ASSIGN(epoch, database->get(kMeta, "trainer_epoch"));
  if (!epoch.empty()) {
    WARPROLL_TRY_ASSIGN(number, parse_u64(epoch, "meta/trainer_epoch"));
    trainer_epoch = number;
  }
  WARPROLL_TRY_ASSIGN(file, database->get(kMeta, "file_progress"));
  if (!file.empty()) {
    WARPROLL_TRY_ASSIGN(parsed, parse_progress(file));
    progress = parsed;
  }
  WARPROLL_TRY(database->scan(kProducers, "", [&](auto key, auto value) -> Result<bool> {
    WARPROLL_TRY_ASSIGN(producer_id, parse_producer_key(key));
    WARPROLL_TRY_ASSIGN(watermark, parse_watermark(value));
    producers[producer_id] = watermark;
    return true;
  }));
  WARPROLL_TRY(database->scan(kQuarantine, "", [&](auto, auto) -> Result<bool> {
    ++num_quarantined;
    return true;
  }));
  WARPROLL_TRY_ASSIGN(last, database->last_key(kTaken));
  if (!last.empty()) {
    WARPROLL_TRY_ASSIGN(index, parse_u64(last, "taken key"));
    num_taken = next_take = index + 1;
  }
  return ok_status();
}

Status TrajectoryStore::Impl::start_session() {
  ++trainer_epoch;
  if (lineage_id.empty()) lineage_id = random_lineage();
  StoreBatch changes;
  changes.put(kMeta, "format", kFormat);
  changes.put(kMeta, "lineage_id", lineage_id);
  changes.put(kMeta, "trainer_epoch", u64_key(trainer_epoch));
  return database->write(changes, true);  // synced always: two runs must never share an epoch
}

void TrajectoryStore::Impl::clear_staged() {
  batch.clear();
  touched.clear();
  pairs.clear();
  pair_keys.clear();
  hashes.clear();
  quarantine_keys.clear();
}

TrajectoryStore::TrajectoryStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrajectoryStore::~TrajectoryStore() = default;

Result<std::unique_ptr<TrajectoryStore>> TrajectoryStore::open(
    const TrajectoryStoreOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  WARPROLL_TRY_ASSIGN(database, StoreDatabase::open(options.directory));
  impl->database = std::move(database);
  WARPROLL_TRY(impl->load());
  WARPROLL_TRY(impl->start_session());
  return std::unique_ptr<TrajectoryStore>(new TrajectoryStore(std::move(impl)));
}

const std::string& TrajectoryStore::lineage_id() const { return impl_->lineage_id; }
uint64_t TrajectoryStore::trainer_epoch() const { return impl_->trainer_epoch; }
uint64_t TrajectoryStore::num_taken() const { return impl_->num_taken; }
uint64_t TrajectoryStore::num_quarantined() const { return impl_->num_quarantined; }
TrajectoryStore::FileProgress TrajectoryStore::file_progress() const { return impl_->progress; }
const std::map<ProducerId, ProducerWatermark>& TrajectoryStore::producers() const {
  return impl_->producers;
}
ProducerWatermark TrajectoryStore::producer(const ProducerId& producer_id) const {
  const auto it = impl_->producers.find(producer_id);
  return it == impl_->producers.end() ? ProducerWatermark{} : it->second;
}

Result<bool> TrajectoryStore::is_taken(std::string_view task_id, int32_t sample_index) const {
  const std::string key = pair_key(task_id, sample_index);
  if (impl_->pair_keys.contains(key)) return true;
  WARPROLL_TRY_ASSIGN(value, impl_->database->get(kPairs, key));
  return !value.empty();
}

Result<SeenContent> TrajectoryStore::seen(const ProducerId& producer_id, uint64_t seq,
                                          const std::vector<std::byte>& record) const {
  const std::string key = seq_key(producer_id, seq);
  std::string hash;
  if (const auto staged = impl_->hashes.find(key); staged != impl_->hashes.end()) {
    hash = staged->second;
  } else {
    WARPROLL_TRY_ASSIGN(stored, impl_->database->get(kSeqs, key));
    hash = std::move(stored);
  }
  if (hash.empty()) return SeenContent::kNew;
  return hash == content_hash(record) ? SeenContent::kSame : SeenContent::kOther;
}

void TrajectoryStore::stage_epoch(const ProducerId& producer_id, uint64_t epoch) {
  impl_->producers[producer_id].epoch = epoch;
  impl_->touched.insert(producer_id);
}

void TrajectoryStore::stage_watermark(const ProducerId& producer_id, uint64_t recv_upto) {
  impl_->producers[producer_id].recv_upto = recv_upto;
  impl_->touched.insert(producer_id);
}

void TrajectoryStore::stage_duplicate(const SampleKey& key, const Data& data) {
  const std::string seq = seq_key(key.producer_id, key.seq);
  std::string hash = content_hash(data.record);
  impl_->batch.put(kSeqs, seq, hash);
  impl_->hashes[seq] = std::move(hash);
}

void TrajectoryStore::stage_taken(const SampleKey& key, const Data& data) {
  stage_duplicate(key, data);  // the (producer, seq) is known from now on either way
  const std::string index = u64_key(impl_->next_take++);
  std::string pair = pair_key(key.task_id, key.sample_index);
  impl_->batch.put(kTaken, index, taken_value(key, data.record));
  if (!data.tensors.empty()) impl_->batch.put(kTensors, index, as_view(data.tensors));
  impl_->batch.put(kPairs, pair, index);
  impl_->pairs.push_back({key.task_id, key.sample_index});
  impl_->pair_keys.insert(std::move(pair));
}

void TrajectoryStore::stage_gap(const ProducerId& producer_id, const Gap& gap) {
  impl_->batch.put(kGaps, seq_key(producer_id, gap.from), u64_key(gap.to) + gap.reason);
}

Status TrajectoryStore::stage_quarantine(const ProducerId& producer_id, uint64_t seq,
                                         const Data& data, std::string_view reason) {
  // Keyed by content, so that a sample restated a thousand times is kept once.
  std::string key = seq_key(producer_id, seq) + content_hash(data.record);
  if (impl_->quarantine_keys.contains(key)) return ok_status();
  WARPROLL_TRY_ASSIGN(stored, impl_->database->get(kQuarantine, key));
  if (!stored.empty()) return ok_status();
  std::string value = u64_key(reason.size());
  value.append(reason).append(as_view(data.record));
  impl_->batch.put(kQuarantine, key, value);
  impl_->quarantine_keys.insert(std::move(key));
  ++impl_->num_quarantined;
  return ok_status();
}

bool TrajectoryStore::has_staged() const {
  return !impl_->batch.empty() || !impl_->touched.empty();
}

Result<std::vector<TakenPair>> TrajectoryStore::flush() {
  if (!has_staged()) return std::vector<TakenPair>();
  StoreBatch& batch = impl_->batch;
  for (const ProducerId& producer_id : impl_->touched) {
    const ProducerWatermark& watermark = impl_->producers[producer_id];
    batch.put(kProducers, producer_key(producer_id),
              watermark_value(watermark.epoch, watermark.recv_upto));
  }
  WARPROLL_TRY(impl_->database->write(batch, impl_->options.sync));
  for (const ProducerId& producer_id : impl_->touched) {
    ProducerWatermark& watermark = impl_->producers[producer_id];
    watermark.commit_upto = watermark.recv_upto;
  }
  impl_->num_taken = impl_->next_take;
  std::vector<TakenPair> pairs = std::move(impl_->pairs);
  impl_->clear_staged();
  return pairs;
}

Result<std::vector<TakenTrajectory>> TrajectoryStore::read(uint64_t take_index, size_t max) const {
  std::vector<TakenTrajectory> found;
  if (max == 0) return found;
  WARPROLL_TRY(
      impl_->database->scan(kTaken, u64_key(take_index), [&](auto key, auto value) -> Result<bool> {
        WARPROLL_TRY_ASSIGN(index, parse_u64(key, "taken key"));
        WARPROLL_TRY_ASSIGN(taken, parse_taken(index, value));
        WARPROLL_TRY_ASSIGN(tensors, impl_->database->get(kTensors, key));
        taken.tensors = to_bytes(tensors);
        found.push_back(std::move(taken));
        return found.size() < max;
      }));
  return found;
}

Status TrajectoryStore::set_file_progress(const FileProgress& progress) {
  StoreBatch changes;
  changes.put(kMeta, "file_progress", progress_value(progress));
  WARPROLL_TRY(impl_->database->write(changes, impl_->options.sync));
  impl_->progress = progress;
  return ok_status();
}

}  // namespace warproll
