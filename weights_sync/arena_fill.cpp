#include "weights_sync/arena_fill.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "weights_sync/digest.h"
#include "weights_sync/fill_ledger.h"
#include "weights_sync/quantise_tensor.h"
#include "weights_sync/tensor_scan.h"

namespace warproll {

struct ArenaFiller::Impl {
  FillLedger ledger;
  std::span<std::byte> arena;
  // Parts of tensors that cannot go straight to their places; [tensors], of whoever holds the tensor.
  std::vector<std::vector<std::byte>> staging;

  Impl(FillPlan plan, const Manifest* manifest, std::span<std::byte> memory)
      : ledger(std::move(plan), manifest), arena(memory), staging(ledger.plan().tensors.size()) {}

  Status place_whole(size_t index, std::span<const std::byte> bytes);
  Status place_part(size_t index, uint64_t offset, std::span<const std::byte> part, bool& complete);
  Status take_in(size_t index, std::span<const std::byte> memory, std::byte* copy_to);
  Status quantise(size_t index, std::span<const std::byte> source);
};

// Scans and digests a whole tensor, chunk by chunk while it is in the cache; with `copy_to` it is
// copied there first and read there, so what is verified is what will serve.
Status ArenaFiller::Impl::take_in(size_t index, std::span<const std::byte> memory,
                                  std::byte* copy_to) {
  const PlannedTensor& tensor = ledger.tensor(index);
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
  WARPROLL_TRY(ledger.set_digest(index, hasher.finish()));
  return tensor.kind == PlannedTensor::Kind::kQuantise ? quantise(index, memory) : ok_status();
}

Status ArenaFiller::Impl::quantise(size_t index, std::span<const std::byte> source) {
  const PlannedTensor& tensor = ledger.tensor(index);
  const auto elements = arena.subspan(tensor.arena_offset, tensor.quantised.elements.bytes);
  const auto scales = arena.subspan(tensor.scales_arena_offset, tensor.quantised.scales.bytes);
  WARPROLL_TRY(quantise_mxfp8(tensor.info, source, elements, scales));
  ledger.set_quantised_digests(index, tensor_digest(elements), tensor_digest(scales));
  return ok_status();
}

Status ArenaFiller::Impl::place_whole(size_t index, std::span<const std::byte> bytes) {
  WARPROLL_TRY(ledger.check_whole(index, bytes.size()));
  const PlannedTensor& tensor = ledger.tensor(index);
  const bool copies = tensor.kind == PlannedTensor::Kind::kCopy;
  return take_in(index, bytes, copies ? arena.data() + tensor.arena_offset : nullptr);
}

Status ArenaFiller::Impl::place_part(size_t index, uint64_t offset, std::span<const std::byte> part,
                                     bool& complete) {
  const PlannedTensor& tensor = ledger.tensor(index);
  WARPROLL_TRY(ledger.add_part(index, offset, part.size(), complete));
  const uint64_t size = tensor.info.bytes;
  const bool copies = tensor.kind == PlannedTensor::Kind::kCopy;
  if (!copies) staging[index].resize(size);
  std::byte* place = copies ? arena.data() + tensor.arena_offset : staging[index].data();
  if (!part.empty()) std::memcpy(place + offset, part.data(), part.size());
  if (!complete) return ok_status();
  const Status outcome = take_in(index, {place, size}, nullptr);
  staging[index] = {};
  return outcome;
}

Result<ArenaFiller> ArenaFiller::create(const ArenaLayout& layout, std::span<std::byte> arena,
                                        const Manifest* manifest) {
  WARPROLL_TRY_ASSIGN(plan, make_fill_plan(layout, arena.size(), manifest));
  if (plan.has_tiles) {
    return invalid_argument("the layout has tiles, wanted rows alone in host memory");
  }
  return ArenaFiller(std::make_unique<Impl>(std::move(plan), manifest, arena));
}

ArenaFiller::ArenaFiller(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ArenaFiller::ArenaFiller(ArenaFiller&&) noexcept = default;
ArenaFiller& ArenaFiller::operator=(ArenaFiller&&) noexcept = default;
ArenaFiller::~ArenaFiller() = default;

Status ArenaFiller::put(std::string_view tensor_name, std::span<const std::byte> bytes) {
  WARPROLL_TRY_ASSIGN(index, impl_->ledger.claim(tensor_name, true));
  return impl_->ledger.settle(index, impl_->place_whole(index, bytes), true);
}

Status ArenaFiller::put_part(std::string_view tensor_name, uint64_t offset_bytes,
                             std::span<const std::byte> bytes) {
  WARPROLL_TRY_ASSIGN(index, impl_->ledger.claim(tensor_name, false));
  bool complete = false;
  const Status outcome = impl_->place_part(index, offset_bytes, bytes, complete);
  return impl_->ledger.settle(index, outcome, complete);
}

Status ArenaFiller::put_device(std::span<const DevicePart> parts, void*) {
  return failed_precondition(std::to_string(parts.size()) +
                             " parts in device memory, the arena is in host memory");
}

Result<FilledArena> ArenaFiller::finish() { return impl_->ledger.finish(); }

}  // namespace warproll
