#include "weights_sync/arena_fill.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weights_sync/fill_plan.h"
#include "weights_sync/quantise_tensor.h"
#include "weights_sync/tensor_check.h"
#include "weights_sync/tensor_scan.h"

namespace warproll {
namespace {

enum class FillState : uint8_t { kMissing, kPartly, kBusy, kDone, kFailed };

// One tensor on its way in.
struct Arrival {
  FillState state = FillState::kMissing;  // guarded by the filler's mutex
  // From here on: of the thread that holds the tensor.
  std::map<uint64_t, uint64_t> parts;  // begin -> end of what came, merged
  std::vector<std::byte> staging;      // parts of a tensor that cannot go straight to its place
  Digest digest{};                     // of the source
  Digest elements_digest{};            // of the quantised form
  Digest scales_digest{};
};

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

struct ArenaFiller::Impl {
  const Manifest* manifest = nullptr;
  std::span<std::byte> arena;
  FillPlan plan;
  std::vector<Arrival> arrivals;  // [plan.tensors]
  std::mutex mutex;

  Result<size_t> claim(std::string_view name, bool whole);
  Status settle(size_t index, const Status& outcome, FillState good);
  Status place_whole(size_t index, std::span<const std::byte> bytes);
  Status place_part(size_t index, uint64_t offset, std::span<const std::byte> part, bool& complete);
  Status take_in(size_t index, std::span<const std::byte> memory, std::byte* copy_to);
  Status quantise(size_t index, std::span<const std::byte> source);
  Status check_missing() const;
  Status check_aliases() const;
  void collect(std::vector<TensorInfo>& tensors, std::vector<Digest>& digests, bool exported) const;
};

// Gives the calling thread the tensor, if it may have it.
Result<size_t> ArenaFiller::Impl::claim(std::string_view name, bool whole) {
  const auto found = plan.index.find(name);
  if (found == plan.index.end()) {
    return invalid_argument("tensor '" + printable(name) + "' has no place in the layout");
  }
  const std::lock_guard lock(mutex);
  Arrival& arrival = arrivals[found->second];
  const bool free =
      arrival.state == FillState::kMissing || (arrival.state == FillState::kPartly && !whole);
  if (!free) {
    return already_exists("tensor '" + std::string(name) +
                          "' came before (whole, in part, or with an error), wanted it once");
  }
  arrival.state = FillState::kBusy;
  return found->second;
}

Status ArenaFiller::Impl::settle(size_t index, const Status& outcome, FillState good) {
  const std::lock_guard lock(mutex);
  arrivals[index].state = outcome.ok() ? good : FillState::kFailed;
  return outcome;
}

// Scans and digests a whole tensor, chunk by chunk while it is in the cache; with `copy_to` it is
// copied there first and read there, so what is verified is what will serve.
Status ArenaFiller::Impl::take_in(size_t index, std::span<const std::byte> memory,
                                  std::byte* copy_to) {
  const PlannedTensor& tensor = plan.tensors[index];
  const uint64_t element_bytes = dtype_bytes(tensor.scan_as);
  TensorHasher hasher;
  for (uint64_t at = 0; at < memory.size(); at += kDigestChunkBytes) {
    std::span<const std::byte> chunk =
        memory.subspan(at, std::min<uint64_t>(kDigestChunkBytes, memory.size() - at));
    if (copy_to != nullptr) {
      std::memcpy(copy_to + at, chunk.data(), chunk.size());
      chunk = {copy_to + at, chunk.size()};
    }
    hasher.update(chunk);
    if (const auto bad = find_not_finite(tensor.scan_as, chunk)) {
      return not_finite_error(tensor.info.name, tensor.scan_as, at / element_bytes + *bad,
                              chunk.subspan(*bad * element_bytes, element_bytes));
    }
  }
  arrivals[index].digest = hasher.finish();
  if (tensor.expected && *tensor.expected != arrivals[index].digest) {
    return data_loss(quoted(tensor.info) + ": digest is " + to_hex(arrivals[index].digest) +
                     ", wanted " + to_hex(*tensor.expected) + " as the manifest says");
  }
  return tensor.kind == PlannedTensor::Kind::kQuantise ? quantise(index, memory) : ok_status();
}

Status ArenaFiller::Impl::quantise(size_t index, std::span<const std::byte> source) {
  const PlannedTensor& tensor = plan.tensors[index];
  const auto elements = arena.subspan(tensor.arena_offset, tensor.quantised.elements.bytes);
  const auto scales = arena.subspan(tensor.scales_arena_offset, tensor.quantised.scales.bytes);
  WARPROLL_TRY(quantise_mxfp8(tensor.info, source, elements, scales));
  arrivals[index].elements_digest = tensor_digest(elements);
  arrivals[index].scales_digest = tensor_digest(scales);
  return ok_status();
}

Status ArenaFiller::Impl::place_whole(size_t index, std::span<const std::byte> bytes) {
  const PlannedTensor& tensor = plan.tensors[index];
  if (bytes.size() != tensor.info.bytes) {
    return invalid_argument(quoted(tensor.info) + " came with " + std::to_string(bytes.size()) +
                            " bytes, wanted " + std::to_string(tensor.info.bytes));
  }
  const bool copies = tensor.kind == PlannedTensor::Kind::kCopy;
  return take_in(index, bytes, copies ? arena.data() + tensor.arena_offset : nullptr);
}

Status ArenaFiller::Impl::place_part(size_t index, uint64_t offset, std::span<const std::byte> part,
                                     bool& complete) {
  const PlannedTensor& tensor = plan.tensors[index];
  Arrival& arrival = arrivals[index];
  const uint64_t size = tensor.info.bytes;
  if (offset > size || part.size() > size - offset) {
    return invalid_argument(quoted(tensor.info) + ": part of " + std::to_string(part.size()) +
                            " bytes at " + std::to_string(offset) + " ends past its " +
                            std::to_string(size) + " bytes");
  }
  if (!part.empty() && !add_interval(arrival.parts, offset, offset + part.size())) {
    return already_exists(quoted(tensor.info) + ": bytes [" + std::to_string(offset) + ", " +
                          std::to_string(offset + part.size()) +
                          ") came before in part, wanted each byte once");
  }
  const bool copies = tensor.kind == PlannedTensor::Kind::kCopy;
  if (!copies) arrival.staging.resize(size);
  std::byte* place = copies ? arena.data() + tensor.arena_offset : arrival.staging.data();
  if (!part.empty()) std::memcpy(place + offset, part.data(), part.size());
  complete = size == 0 || (arrival.parts.size() == 1 && arrival.parts.begin()->first == 0 &&
                           arrival.parts.begin()->second == size);
  if (!complete) return ok_status();
  const Status outcome = take_in(index, {place, size}, nullptr);
  arrival.staging = {};
  return outcome;
}

Status ArenaFiller::Impl::check_missing() const {
  constexpr size_t kNamed = 5;
  size_t missing = 0;
  std::string names;
  for (size_t i = 0; i < arrivals.size(); ++i) {
    if (arrivals[i].state == FillState::kDone) continue;
    if (missing++ < kNamed)
      names += (names.empty() ? "'" : ", '") + plan.tensors[i].info.name + "'";
  }
  if (missing == 0) return ok_status();
  return failed_precondition(std::to_string(missing) + " of " + std::to_string(arrivals.size()) +
                             " tensors did not come whole: " + names +
                             (missing > kNamed ? ", ..." : ""));
}

Status ArenaFiller::Impl::check_aliases() const {
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const PlannedTensor& tensor = plan.tensors[i];
    if (tensor.kind != PlannedTensor::Kind::kAlias) continue;
    if (arrivals[i].digest == arrivals[tensor.same_as].digest) continue;
    return invalid_argument(quoted(tensor.info) + " has digest " + to_hex(arrivals[i].digest) +
                            ", wanted " + to_hex(arrivals[tensor.same_as].digest) + " as " +
                            quoted(plan.tensors[tensor.same_as].info) + ", which it is tied to");
  }
  return ok_status();
}

void ArenaFiller::Impl::collect(std::vector<TensorInfo>& tensors, std::vector<Digest>& digests,
                                bool exported) const {
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const PlannedTensor& tensor = plan.tensors[i];
    if (exported && tensor.kind == PlannedTensor::Kind::kQuantise) {
      tensors.push_back(tensor.quantised.elements);
      digests.push_back(arrivals[i].elements_digest);
      tensors.push_back(tensor.quantised.scales);
      digests.push_back(arrivals[i].scales_digest);
    } else {
      tensors.push_back(tensor.info);
      digests.push_back(arrivals[i].digest);
    }
  }
}

Result<ArenaFiller> ArenaFiller::create(const ArenaLayout& layout, std::span<std::byte> arena,
                                        const Manifest* manifest) {
  auto impl = std::make_unique<Impl>();
  WARPROLL_TRY_ASSIGN(plan, make_fill_plan(layout, arena.size(), manifest));
  impl->plan = std::move(plan);
  impl->manifest = manifest;
  impl->arena = arena;
  impl->arrivals.resize(impl->plan.tensors.size());
  return ArenaFiller(std::move(impl));
}

ArenaFiller::ArenaFiller(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ArenaFiller::ArenaFiller(ArenaFiller&&) noexcept = default;
ArenaFiller& ArenaFiller::operator=(ArenaFiller&&) noexcept = default;
ArenaFiller::~ArenaFiller() = default;

Status ArenaFiller::put(std::string_view tensor_name, std::span<const std::byte> bytes) {
  WARPROLL_TRY_ASSIGN(index, impl_->claim(tensor_name, true));
  return impl_->settle(index, impl_->place_whole(index, bytes), FillState::kDone);
}

Status ArenaFiller::put_part(std::string_view tensor_name, uint64_t offset_bytes,
                             std::span<const std::byte> bytes) {
  WARPROLL_TRY_ASSIGN(index, impl_->claim(tensor_name, false));
  bool complete = false;
  const Status outcome = impl_->place_part(index, offset_bytes, bytes, complete);
  return impl_->settle(index, outcome, complete ? FillState::kDone : FillState::kPartly);
}

Result<FilledArena> ArenaFiller::finish() {
  WARPROLL_TRY(impl_->check_missing());
  WARPROLL_TRY(impl_->check_aliases());
  FilledArena filled;
  for (const PlannedTensor& tensor : impl_->plan.tensors) filled.source_bytes += tensor.info.bytes;
  std::vector<TensorInfo> tensors;
  std::vector<Digest> digests;
  impl_->collect(tensors, digests, false);
  filled.source_digest = weight_digest(tensors, digests);
  filled.weight_digest = filled.source_digest;
  if (impl_->plan.quantises) {
    tensors.clear();
    digests.clear();
    impl_->collect(tensors, digests, true);
    filled.weight_digest = weight_digest(tensors, digests);
  }
  const Manifest* manifest = impl_->manifest;
  const bool known = manifest != nullptr && manifest->weight_digest != Digest{};
  if (known && manifest->weight_digest != filled.weight_digest) {
    return data_loss("weight_digest of the filled arena is " + to_hex(filled.weight_digest) +
                     ", wanted " + to_hex(manifest->weight_digest) + " as the manifest says");
  }
  return filled;
}

}  // namespace warproll
