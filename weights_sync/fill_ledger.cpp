#include "weights_sync/fill_ledger.h"

#include <utility>

#include "weights_sync/tensor_check.h"

namespace warproll {
namespace {

// Adds [begin, end) to the merged intervals; false when a byte of it is there already.
bool add_interval(std::map<uint64_t, uint64_t>& parts, uint64_t begin, uint64_t end) {
  const auto next = parts.lower_bound(begin);
  if (next != parts.end() && next->first < end) return false;
  const auto previous = next == parts.begin() ? parts.end() : std::prev(next);
  if (previous != parts.end() && previous->second > begin) return false;
  if (next != parts.end() && next->first == end) {
    end = next->second;
    parts.erase(next);
  }
  if (previous != parts.end() && previous->second == begin) {
    previous->second = end;
  } else {
    parts.emplace(begin, end);
  }
  return true;
}

std::string quoted(const TensorInfo& tensor) { return "tensor '" + tensor.name + "'"; }

}  // namespace

FillLedger::FillLedger(FillPlan plan, const Manifest* manifest)
    : plan_(std::move(plan)),
      manifest_(manifest),
      arrivals_(plan_.tensors.size()),
      source_(sorted_tensors(/*exported=*/false)),
      export_(plan_.quantises ? sorted_tensors(true) : std::vector<DigestedTensor>()) {}

Result<size_t> FillLedger::claim(std::string_view name, bool whole) {
  const auto found = plan_.index.find(name);
  if (found == plan_.index.end()) {
    return invalid_argument("tensor '" + printable(name) + "' has no place in the layout");
  }
  const std::lock_guard lock(mutex_);
  State& state = arrivals_[found->second].state;
  if (state != State::kMissing && (state != State::kPartly || whole)) {
    return already_exists("tensor '" + std::string(name) +
                          "' came before (whole, in part, or with an error), wanted it once");
  }
  state = State::kBusy;
  return found->second;
}

Status FillLedger::settle(size_t index, const Status& outcome, bool complete) {
  const std::lock_guard lock(mutex_);
  arrivals_[index].state = !outcome.ok() ? State::kFailed
                           : complete    ? State::kDone
                                         : State::kPartly;
  return outcome;
}

Status FillLedger::check_whole(size_t index, uint64_t bytes) const {
  const TensorInfo& info = plan_.tensors[index].info;
  if (bytes == info.bytes) return ok_status();
  return invalid_argument(quoted(info) + " came with " + std::to_string(bytes) + " bytes, wanted " +
                          std::to_string(info.bytes));
}

Status FillLedger::add_part(size_t index, uint64_t offset, uint64_t bytes, bool& complete) {
  const TensorInfo& info = plan_.tensors[index].info;
  std::map<uint64_t, uint64_t>& parts = arrivals_[index].parts;
  if (offset > info.bytes || bytes > info.bytes - offset) {
    return invalid_argument(quoted(info) + ": part of " + std::to_string(bytes) + " bytes at " +
                            std::to_string(offset) + " ends past its " +
                            std::to_string(info.bytes) + " bytes");
  }
  if (bytes != 0 && !add_interval(parts, offset, offset + bytes)) {
    return already_exists(quoted(info) + ": bytes [" + std::to_string(offset) + ", " +
                          std::to_string(offset + bytes) +
                          ") came before in part, wanted each byte once");
  }
  complete = info.bytes == 0 || (parts.size() == 1 && parts.begin()->first == 0 &&
                                 parts.begin()->second == info.bytes);
  return ok_status();
}

Status FillLedger::set_digest(size_t index, const Digest& digest) {
  const PlannedTensor& tensor = plan_.tensors[index];
  arrivals_[index].digest = digest;
  if (!tensor.expected || *tensor.expected == digest) return ok_status();
  return data_loss(quoted(tensor.info) + ": digest is " + to_hex(digest) + ", wanted " +
                   to_hex(*tensor.expected) + " as the manifest says");
}

void FillLedger::set_quantised_digests(size_t index, const Digest& elements, const Digest& scales) {
  arrivals_[index].elements_digest = elements;
  arrivals_[index].scales_digest = scales;
}

Status FillLedger::check_missing() const {
  constexpr size_t kNamed = 5;
  size_t missing = 0;
  std::string names;
  for (size_t i = 0; i < arrivals_.size(); ++i) {
    if (arrivals_[i].state == State::kDone) continue;
    if (missing++ < kNamed) {
      names += (names.empty() ? "'" : ", '") + plan_.tensors[i].info.name + "'";
    }
  }
  if (missing == 0) return ok_status();
  return failed_precondition(std::to_string(missing) + " of " + std::to_string(arrivals_.size()) +
                             " tensors did not come whole: " + names +
                             (missing > kNamed ? ", ..." : ""));
}

Status FillLedger::check_aliases() const {
  for (size_t i = 0; i < arrivals_.size(); ++i) {
    const PlannedTensor& tensor = plan_.tensors[i];
    if (tensor.kind != PlannedTensor::Kind::kAlias) continue;
    if (arrivals_[i].digest == arrivals_[tensor.same_as].digest) continue;
    return invalid_argument(quoted(tensor.info) + " has digest " + to_hex(arrivals_[i].digest) +
                            ", wanted " + to_hex(arrivals_[tensor.same_as].digest) + " as " +
                            quoted(plan_.tensors[tensor.same_as].info) + ", which it is tied to");
  }
  return ok_status();
}

std::vector<DigestedTensor> FillLedger::sorted_tensors(bool exported) const {
  std::vector<DigestedTensor> tensors;
  for (size_t i = 0; i < arrivals_.size(); ++i) {
    const PlannedTensor& tensor = plan_.tensors[i];
    if (exported && tensor.kind == PlannedTensor::Kind::kQuantise) {
      tensors.push_back({&tensor.quantised.elements, &arrivals_[i].elements_digest});
      tensors.push_back({&tensor.quantised.scales, &arrivals_[i].scales_digest});
    } else {
      tensors.push_back({&tensor.info, &arrivals_[i].digest});
    }
  }
  sort_by_name(tensors);
  return tensors;
}

Result<FilledArena> FillLedger::finish() const {
  WARPROLL_TRY(check_missing());
  WARPROLL_TRY(check_aliases());
  FilledArena filled;
  for (const PlannedTensor& tensor : plan_.tensors) filled.source_bytes += tensor.info.bytes;
  filled.source_digest = weight_digest_of_sorted(source_);
  filled.weight_digest = plan_.quantises ? weight_digest_of_sorted(export_) : filled.source_digest;
  const bool known = manifest_ != nullptr && manifest_->weight_digest != Digest{};
  if (known && manifest_->weight_digest != filled.weight_digest) {
    return data_loss("weight_digest of the filled arena is " + to_hex(filled.weight_digest) +
                     ", wanted " + to_hex(manifest_->weight_digest) + " as the manifest says");
  }
  return filled;
}

}  // namespace warproll
