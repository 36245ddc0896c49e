#include <algorithm>
#include <random>

#include "rollout/stream/trajectory_store_impl.h"

namespace warproll {

using namespace store_encoding;
using enum StoreFamily;

std::string random_lineage() {
  std::random_device device;
  Digest bytes{};
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(device());
  return to_hex(bytes);
}

Result<ProducerId> parse_producer_key(std::string_view key) {
  ProducerId producer_id{};
  if (key.size() < producer_id.size()) {
    return data_loss("trajectory store: producer key has " + std::to_string(key.size()) +
                     " bytes, wanted " + std::to_string(producer_id.size()) + " or more");
  }
  std::copy_n(key.begin(), producer_id.size(), producer_id.begin());
  return producer_id;
}

Status TrajectoryStore::mark(std::string_view name) {
  if (name.empty()) return invalid_argument("mark: the name is empty");
  if (has_staged()) return failed_precondition("mark: staged changes must be flushed first");
  Mark mark;
  mark.num_taken = impl_->num_taken;
  for (const auto& [producer_id, watermark] : impl_->producers) {
    mark.commit_upto[producer_id] = watermark.commit_upto;
  }
  StoreBatch changes;
  changes.put(kMarks, name, mark_value(mark));
  return impl_->database->write(changes, true);
}

Result<std::vector<std::string>> TrajectoryStore::marks() const {
  std::vector<std::string> names;
  WARPROLL_TRY(impl_->database->scan(kMarks, "", [&](auto key, auto) -> Result<bool> {
    names.emplace_back(key);
    return true;
  }));
  return names;
}

Status TrajectoryStore::Impl::erase_above(StoreFamily family, const Mark& mark,
                                          StoreBatch* changes) {
  return database->scan(family, "", [&](auto key, auto) -> Result<bool> {
    WARPROLL_TRY_ASSIGN(producer_id, parse_producer_key(key));
    WARPROLL_TRY_ASSIGN(seq, parse_u64(key.substr(producer_id.size()), "seq key"));
    const auto it = mark.commit_upto.find(producer_id);
    const uint64_t upto = it == mark.commit_upto.end() ? 0 : it->second;
    if (seq > upto) changes->erase(family, key);
    return true;
  });
}

Status TrajectoryStore::rollback(std::string_view name) {
  WARPROLL_TRY_ASSIGN(stored, impl_->database->get(kMarks, name));
  if (stored.empty()) return not_found("rollback: no mark named '" + std::string(name) + "'");
  WARPROLL_TRY_ASSIGN(mark, parse_mark(stored));
  StoreBatch changes;
  WARPROLL_TRY(impl_->database->scan(
      kTaken, u64_key(mark.num_taken), [&](auto key, auto value) -> Result<bool> {
        WARPROLL_TRY_ASSIGN(taken, parse_taken(0, value));
        changes.erase(kTaken, key);
        changes.erase(kTensors, key);
        changes.erase(kPairs, pair_key(taken.key.task_id, taken.key.sample_index));
        return true;
      }));
  WARPROLL_TRY(impl_->erase_above(kSeqs, mark, &changes));
  WARPROLL_TRY(impl_->erase_above(kGaps, mark, &changes));
  // Later marks describe a history that is no more.
  WARPROLL_TRY(impl_->database->scan(kMarks, "", [&](auto key, auto value) -> Result<bool> {
    WARPROLL_TRY_ASSIGN(other, parse_mark(value));
    if (other.num_taken > mark.num_taken) changes.erase(kMarks, key);
    return true;
  }));
  auto producers = impl_->producers;
  for (auto& [producer_id, watermark] : producers) {
    const auto it = mark.commit_upto.find(producer_id);
    watermark.commit_upto = watermark.recv_upto = it == mark.commit_upto.end() ? 0 : it->second;
    changes.put(kProducers, producer_key(producer_id),
                watermark_value(watermark.epoch, watermark.commit_upto));
  }
  const std::string lineage_id = random_lineage();
  changes.put(kMeta, "lineage_id", lineage_id);
  FileProgress progress = impl_->progress;
  if (progress.lines > mark.num_taken) progress = {mark.num_taken, kUnknownBytes};
  changes.put(kMeta, "file_progress", progress_value(progress));
  WARPROLL_TRY(impl_->database->write(changes, true));
  impl_->clear_staged();
  impl_->producers = std::move(producers);
  impl_->lineage_id = lineage_id;
  impl_->progress = progress;
  impl_->num_taken = impl_->next_take = mark.num_taken;
  return ok_status();
}

Status TrajectoryStore::start_new_lineage() {
  const std::string lineage_id = random_lineage();
  StoreBatch changes;
  changes.put(kMeta, "lineage_id", lineage_id);
  WARPROLL_TRY(impl_->database->write(changes, true));
  impl_->lineage_id = lineage_id;
  return ok_status();
}

}  // namespace warproll
