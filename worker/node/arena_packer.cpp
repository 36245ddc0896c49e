#include "worker/node/arena_packer.h"

#include <chrono>
#include <thread>
#include <utility>

#include "weights_sync/weight_staging.h"
#include "worker/node/serving_model.h"

namespace warproll {
namespace {
constexpr std::chrono::seconds kLetGo(30);
}

ArenaPacker::ArenaPacker(ArenaDevicePtr device, bool quantise_to_mxfp8)
    : arenas_(0, std::move(device)),
      layout_(make_layout_function(quantise_to_mxfp8, std::nullopt, /*on_gpu=*/true)) {}

Result<OfferedArena> ArenaPacker::offered(StagedWeightsPtr staged, const Manifest& manifest) {
  if (staged->source_digest != manifest.source_digest) {
    return data_loss("the source digest is " + to_hex(staged->source_digest) +
                     ", the manifest wants " + to_hex(manifest.source_digest));
  }
  auto complete = std::make_shared<Manifest>(manifest);
  complete->weight_digest = staged->weight_digest;
  // It is only read; NCCL's calls have one pointer for all ranks.
  auto* const bytes = const_cast<std::byte*>(staged->arena.data());
  const PackedArena packed = packed_arena_of(*staged);
  return OfferedArena{std::move(complete), packed, {std::move(staged), bytes}};
}

Result<OfferedArena> ArenaPacker::pack(const Checkpoint& checkpoint, const Manifest& manifest) {
  const auto load = [&] {
    return load_staged(checkpoint, manifest.weight_version, layout_, arenas_);
  };
  Result<StagedWeightsPtr> staged = load();
  // A group that was ended lets go of its arena a moment later.
  const auto until = std::chrono::steady_clock::now() + kLetGo;
  while (staged.status().code() == StatusCode::kUnavailable &&
         std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    staged = load();
  }
  WARPROLL_TRY(staged.status());
  return offered(std::move(*staged), manifest);
}

Result<OfferedArena> ArenaPacker::pack_stream(const Manifest& manifest,
                                              const std::byte* device_bytes) {
  const auto write_all = [&](WeightStaging& staging) -> Status {
    for (uint64_t i = 0; i < manifest.num_buckets(); ++i) {
      const uint64_t offset = i * manifest.bucket_bytes;
      WARPROLL_TRY(staging.write_device(
          offset, {device_bytes + offset, manifest.bytes_of_bucket(i)}, /*stream=*/nullptr));
    }
    return ok_status();
  };
  WARPROLL_TRY_ASSIGN(staged, stage_stream(manifest, layout_, arenas_, write_all));
  return offered(std::move(staged), manifest);
}

}  // namespace warproll
