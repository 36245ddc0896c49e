#include "weights_sync/weight_staging.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weights_sync/digest.h"
#include "weights_sync/fill_plan.h"

namespace warproll {
namespace {

bool quantises(const ArenaLayout& layout) {
  for (const ArenaSlot& slot : layout.slots) {
    for (const SlotSource& source : slot.sources) {
      if (source.transform == FillTransform::kQuantiseMxfp8) return true;
    }
  }
  return false;
}

Status check_digest(const char* what, const Digest& got, const Digest& wanted) {
  if (wanted == Digest{} || got == wanted) return ok_status();
  return data_loss(std::string(what) + " is " + to_hex(got) + ", the manifest wants " +
                   to_hex(wanted));
}

}  // namespace

struct WeightStaging::Impl {
  Manifest manifest;
  ArenaLayout layout;
  std::vector<uint64_t> entry_offsets;  // [entries] in the stream, ascending
  std::optional<StandbyArena> standby;
  std::optional<ArenaFiller> filler;
  std::span<std::byte> arena;
};

WeightStaging::WeightStaging(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WeightStaging::WeightStaging(WeightStaging&&) noexcept = default;
WeightStaging& WeightStaging::operator=(WeightStaging&&) noexcept = default;
WeightStaging::~WeightStaging() = default;

const Manifest& WeightStaging::manifest() const { return impl_->manifest; }
uint64_t WeightStaging::arena_bytes() const { return impl_->layout.total_bytes; }

Result<WeightStaging> WeightStaging::plan(const UpdateBegin& begin, const LayoutFunction& layout,
                                          bool has_gate) {
  WARPROLL_TRY_ASSIGN(manifest, decode_manifest(begin.manifest));
  if (manifest.weight_version != begin.id.weight_version) {
    return invalid_argument("manifest: it is of version " +
                            std::to_string(manifest.weight_version) + ", the update of version " +
                            std::to_string(begin.id.weight_version));
  }
  if (manifest.gate && !has_gate) {
    return invalid_argument(
        "manifest: it has golden prompts, and this worker has no way to run them");
  }
  const std::vector<TensorInfo> tensors = manifest.tensors();
  WARPROLL_TRY_ASSIGN(arena_layout, layout(manifest.files, tensors));
  const bool wants_mxfp8 = manifest.quantise == QuantiseRecipe::kMxfp8;
  if (quantises(arena_layout) != wants_mxfp8) {
    return invalid_argument("manifest: quantise is '" + std::string(to_string(manifest.quantise)) +
                            "', this worker's layout wants '" + (wants_mxfp8 ? "none" : "mxfp8") +
                            "'");
  }
  WARPROLL_TRY_ASSIGN(fill_plan, make_fill_plan(arena_layout, arena_layout.total_bytes, &manifest));
  (void)fill_plan;
  auto impl = std::make_unique<Impl>();
  impl->manifest = std::move(manifest);
  impl->layout = std::move(arena_layout);
  for (const ManifestEntry& entry : impl->manifest.entries) {
    impl->entry_offsets.push_back(impl->manifest.stream_offset(entry));
  }
  return WeightStaging(std::move(impl));
}

Status WeightStaging::open(StandbyArena standby) {
  Impl& impl = *impl_;
  WARPROLL_TRY_ASSIGN(arena, standby.overwrite(impl.layout.total_bytes));
  impl.standby = std::move(standby);
  impl.arena = arena;
  WARPROLL_TRY_ASSIGN(filler, ArenaFiller::create(impl.layout, impl.arena, &impl.manifest));
  impl.filler.emplace(std::move(filler));
  for (const ManifestEntry& entry : impl.manifest.entries) {
    if (entry.tensor.bytes == 0) WARPROLL_TRY(impl.filler->put(entry.tensor.name, {}));
  }
  return ok_status();
}

Status WeightStaging::write(uint64_t stream_offset, std::span<const std::byte> bytes) {
  Impl& impl = *impl_;
  WARPROLL_CHECK(impl.filler.has_value(), "write() before open()");
  const uint64_t end = stream_offset + bytes.size();
  const auto& offsets = impl.entry_offsets;
  // The last entry that starts at or before the first byte.
  const auto after = std::upper_bound(offsets.begin(), offsets.end(), stream_offset);
  size_t index = after == offsets.begin() ? 0 : static_cast<size_t>(after - offsets.begin()) - 1;
  for (; index < offsets.size() && offsets[index] < end; ++index) {
    const TensorInfo& tensor = impl.manifest.entries[index].tensor;
    const uint64_t from = std::max(stream_offset, offsets[index]);
    const uint64_t to = std::min(end, offsets[index] + tensor.bytes);
    if (from >= to) continue;  // the fill behind it, or an empty tensor
    WARPROLL_TRY(impl.filler->put_part(tensor.name, from - offsets[index],
                                       bytes.subspan(from - stream_offset, to - from)));
  }
  return ok_status();
}

Result<StagedWeightsPtr> WeightStaging::finish(const GoldenGateFunction& gate) {
  Impl& impl = *impl_;
  WARPROLL_CHECK(impl.filler.has_value(), "finish() before open()");
  WARPROLL_TRY_ASSIGN(filled, impl.filler->finish());
  WARPROLL_TRY(
      check_digest("the source digest", filled.source_digest, impl.manifest.source_digest));
  WARPROLL_TRY(
      check_digest("the weight digest", filled.weight_digest, impl.manifest.weight_digest));
  StagedWeights weights;
  weights.weight_version = impl.manifest.weight_version;
  weights.weight_digest = filled.weight_digest;
  weights.source_digest = filled.source_digest;
  weights.layout_digest = layout_digest(impl.layout, impl.arena);
  impl.filler.reset();  // it points to the layout
  weights.layout = std::move(impl.layout);
  weights.files = impl.manifest.files;
  StagedWeightsPtr staged = std::move(*impl.standby).publish(std::move(weights));
  impl.standby.reset();
  if (impl.manifest.gate) {
    WARPROLL_TRY(gate(staged, *impl.manifest.gate).with_context("golden prompts"));
  }
  return staged;
}

Result<StagedWeightsPtr> load_staged(const Checkpoint& checkpoint, uint64_t weight_version,
                                     const LayoutFunction& layout, WeightArenas& arenas,
                                     const ByteProgress& progress) {
  StagedWeights weights;
  weights.weight_version = weight_version;
  weights.files = checkpoint.files();
  WARPROLL_TRY_ASSIGN(arena_layout, layout(checkpoint.files(), checkpoint.tensors()));
  weights.layout = std::move(arena_layout);
  WARPROLL_TRY_ASSIGN(standby, arenas.acquire_standby(weights.layout.total_bytes));
  WARPROLL_TRY_ASSIGN(arena, standby.overwrite(weights.layout.total_bytes));
  WARPROLL_TRY_ASSIGN(filled, fill_from_checkpoint(checkpoint, weights.layout, arena, progress));
  weights.weight_digest = filled.weight_digest;
  weights.source_digest = filled.source_digest;
  weights.layout_digest = layout_digest(weights.layout, arena);
  return std::move(standby).publish(std::move(weights));
}

}  // namespace warproll
