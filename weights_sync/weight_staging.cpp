#include "weights_sync/weight_staging.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weights_sync/digest.h"
#include "weights_sync/fill_plan.h"

namespace warproll {
namespace {

// More threads fill a device no faster (measured: 4 to 8), they only contend for the driver.
constexpr int kDeviceFillThreads = 8;

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

Result<std::unique_ptr<WeightFiller>> make_filler(const StandbyArena& standby,
                                                  const ArenaLayout& layout,
                                                  std::span<std::byte> arena,
                                                  const Manifest* manifest) {
  if (const ArenaDevicePtr device = standby.device()) {
    return device->make_filler(layout, arena, manifest);
  }
  WARPROLL_TRY_ASSIGN(filler, ArenaFiller::create(layout, arena, manifest));
  return std::unique_ptr<WeightFiller>(std::make_unique<ArenaFiller>(std::move(filler)));
}

Digest digest_of(const StandbyArena& standby, const ArenaLayout& layout,
                 std::span<const std::byte> arena) {
  const ArenaDevicePtr device = standby.device();
  return device ? device->digest(arena.first(layout.total_bytes)) : layout_digest(layout, arena);
}

}  // namespace

struct WeightStaging::Impl {
  Manifest manifest;
  ArenaLayout layout;
  std::optional<PackedArena> packed;
  std::vector<uint64_t> entry_offsets;  // [entries] in the stream, ascending
  std::optional<StandbyArena> standby;
  std::unique_ptr<WeightFiller> filler;  // before the standby: it writes there until it is gone
  std::span<std::byte> arena;
  uint64_t packed_bytes = 0;  // that have come

  Status take_packed(uint64_t offset, uint64_t bytes);
  [[nodiscard]] Status check_packed(const Digest& layout_digest) const;
  Result<FilledArena> finish_tensors();
  [[nodiscard]] std::vector<DevicePart> parts_of(uint64_t stream_offset,
                                                 std::span<const std::byte> bytes) const;
};

WeightStaging::WeightStaging(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WeightStaging::WeightStaging(WeightStaging&&) noexcept = default;
WeightStaging& WeightStaging::operator=(WeightStaging&&) noexcept = default;
WeightStaging::~WeightStaging() = default;

const Manifest& WeightStaging::manifest() const { return impl_->manifest; }
uint64_t WeightStaging::arena_bytes() const { return impl_->layout.total_bytes; }
uint64_t WeightStaging::stream_bytes() const {
  return impl_->packed ? impl_->packed->bytes : impl_->manifest.stream_bytes();
}
const std::optional<PackedArena>& WeightStaging::packed() const { return impl_->packed; }
std::span<std::byte> WeightStaging::arena() const { return impl_->arena; }

Result<WeightStaging> WeightStaging::plan(const UpdateBegin& begin, const LayoutFunction& layout,
                                          bool has_gate, const std::optional<PackedArena>& packed) {
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
    return invalid_argument(
        "manifest: quantise is '" + std::string(to_string(manifest.quantise)) +
        "' (checkpoints.quantise of warproll trainer), this worker's layout wants '" +
        (wants_mxfp8 ? "none" : "mxfp8") + "' (model.quantise)");
  }
  WARPROLL_TRY_ASSIGN(fill_plan, make_fill_plan(arena_layout, arena_layout.total_bytes, &manifest));
  (void)fill_plan;
  if (packed) {
    WARPROLL_TRY(check_packed_arena(*packed, arena_layout));
    if (manifest.weight_digest == Digest{}) {
      return invalid_argument("packed arena: the manifest does not say its weight digest");
    }
  }
  auto impl = std::make_unique<Impl>();
  impl->packed = packed;
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
  impl.arena = arena.first(impl.layout.total_bytes);
  if (impl.packed) return ok_status();
  WARPROLL_TRY_ASSIGN(filler, make_filler(*impl.standby, impl.layout, impl.arena, &impl.manifest));
  impl.filler = std::move(filler);
  for (const ManifestEntry& entry : impl.manifest.entries) {
    if (entry.tensor.bytes == 0) WARPROLL_TRY(impl.filler->put(entry.tensor.name, {}));
  }
  return ok_status();
}

// Cuts [stream_offset, + bytes.size()) at the tensors' borders.
std::vector<DevicePart> WeightStaging::Impl::parts_of(uint64_t stream_offset,
                                                      std::span<const std::byte> bytes) const {
  std::vector<DevicePart> parts;
  const uint64_t end = stream_offset + bytes.size();
  // The last entry that starts at or before the first byte.
  const auto after = std::upper_bound(entry_offsets.begin(), entry_offsets.end(), stream_offset);
  auto index = static_cast<size_t>(after - entry_offsets.begin());
  if (index > 0) --index;
  for (; index < entry_offsets.size() && entry_offsets[index] < end; ++index) {
    const TensorInfo& tensor = manifest.entries[index].tensor;
    const uint64_t from = std::max(stream_offset, entry_offsets[index]);
    const uint64_t to = std::min(end, entry_offsets[index] + tensor.bytes);
    if (from >= to) continue;  // the fill behind it, or an empty tensor
    parts.push_back(
        {tensor.name, from - entry_offsets[index], bytes.subspan(from - stream_offset, to - from)});
  }
  return parts;
}

// Bytes [offset, + bytes) of the arena come, each once.
Status WeightStaging::Impl::take_packed(uint64_t offset, uint64_t bytes) {
  if (offset > arena.size() || bytes > arena.size() - offset) {
    return invalid_argument("packed arena: bytes " + std::to_string(offset) + " + " +
                            std::to_string(bytes) + " of " + std::to_string(arena.size()));
  }
  packed_bytes += bytes;
  return ok_status();
}

Status WeightStaging::Impl::check_packed(const Digest& layout_digest) const {
  if (packed_bytes != packed->bytes) {
    return data_loss("packed arena: " + std::to_string(packed_bytes) + " of " +
                     std::to_string(packed->bytes) + " bytes came");
  }
  const Digest digest = standby->device() ? layout_digest : tensor_digest(arena);
  if (digest == packed->digest) return ok_status();
  return data_loss("the packed arena's digest is " + to_hex(digest) + ", the trainer's is " +
                   to_hex(packed->digest));
}

Result<FilledArena> WeightStaging::Impl::finish_tensors() {
  WARPROLL_TRY_ASSIGN(filled, filler->finish());
  filler.reset();  // it points to the layout
  WARPROLL_TRY(check_digest("the source digest", filled.source_digest, manifest.source_digest));
  WARPROLL_TRY(check_digest("the weight digest", filled.weight_digest, manifest.weight_digest));
  return filled;
}

Status WeightStaging::write(uint64_t stream_offset, std::span<const std::byte> bytes) {
  if (impl_->packed) {
    WARPROLL_CHECK(impl_->standby && !impl_->standby->device(), "host bytes for a device's arena");
    WARPROLL_TRY(impl_->take_packed(stream_offset, bytes.size()));
    std::memcpy(impl_->arena.data() + stream_offset, bytes.data(), bytes.size());
    return ok_status();
  }
  WARPROLL_CHECK(impl_->filler != nullptr, "write() before open()");
  for (const DevicePart& part : impl_->parts_of(stream_offset, bytes)) {
    WARPROLL_TRY(impl_->filler->put_part(part.tensor_name, part.offset_bytes, part.bytes));
  }
  return ok_status();
}

Status WeightStaging::write_device(uint64_t stream_offset, std::span<const std::byte> device_bytes,
                                   void* stream) {
  if (impl_->packed) {
    WARPROLL_CHECK(device_bytes.data() == impl_->arena.data() + stream_offset,
                   "bytes of a packed arena come in place");
    return impl_->take_packed(stream_offset, device_bytes.size());
  }
  WARPROLL_CHECK(impl_->filler != nullptr, "write_device() before open()");
  return impl_->filler->put_device(impl_->parts_of(stream_offset, device_bytes), stream);
}

Result<StagedWeightsPtr> WeightStaging::finish(const GoldenGateFunction& gate) {
  Impl& impl = *impl_;
  WARPROLL_CHECK(impl.standby && (impl.packed || impl.filler), "finish() before open()");
  StagedWeights weights;
  weights.weight_version = impl.manifest.weight_version;
  weights.weight_digest = impl.manifest.weight_digest;
  weights.source_digest = impl.manifest.source_digest;
  if (!impl.packed) {
    WARPROLL_TRY_ASSIGN(filled, impl.finish_tensors());
    weights.weight_digest = filled.weight_digest;  // which the manifest need not have said
    weights.source_digest = filled.source_digest;
  }
  weights.layout_digest = digest_of(*impl.standby, impl.layout, impl.arena);
  if (impl.packed) WARPROLL_TRY(impl.check_packed(weights.layout_digest));
  weights.layout = std::move(impl.layout);
  weights.files = impl.manifest.files;
  StagedWeightsPtr staged = std::move(*impl.standby).publish(std::move(weights));
  impl.standby.reset();
  if (impl.manifest.gate) {
    WARPROLL_TRY(gate(staged, *impl.manifest.gate).with_context("golden prompts"));
  }
  return staged;
}

Result<StagedWeightsPtr> stage_stream(const Manifest& manifest, const LayoutFunction& layout,
                                      WeightArenas& arenas,
                                      const std::function<Status(WeightStaging&)>& write_all) {
  UpdateBegin begin;
  begin.id.weight_version = manifest.weight_version;
  begin.manifest = encode_manifest(manifest);
  WARPROLL_TRY_ASSIGN(staging, WeightStaging::plan(begin, layout, /*has_gate=*/false));
  WARPROLL_TRY_ASSIGN(standby, arenas.acquire_standby(staging.arena_bytes()));
  WARPROLL_TRY(staging.open(std::move(standby)));
  WARPROLL_TRY(write_all(staging));
  return staging.finish({});
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
  WARPROLL_TRY_ASSIGN(filler, make_filler(standby, weights.layout, arena, nullptr));
  const int num_threads = standby.device() ? kDeviceFillThreads : 0;
  WARPROLL_TRY_ASSIGN(filled, fill_from_checkpoint(checkpoint, *filler, progress, num_threads));
  filler.reset();  // it points to the layout
  weights.weight_digest = filled.weight_digest;
  weights.source_digest = filled.source_digest;
  weights.layout_digest = digest_of(standby, weights.layout, arena);
  return std::move(standby).publish(std::move(weights));
}

}  // namespace warproll
