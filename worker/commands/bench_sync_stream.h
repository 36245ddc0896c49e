// What `warproll bench sync` broadcasts: random weights of a config as the byte stream of a manifest.
// Drawn on a GPU (weights_sync/cuda/random_stream.h), or, for the command's own tests, on the CPU.
// Thread: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "protocol/status.h"
#include "weights_sync/manifest.h"
#include "weights_sync/weight_arenas.h"
#include "worker/node/arena_packer.h"
#include "worker/node/serving_model.h"

namespace warproll {

struct DrawnStream {
  std::shared_ptr<const Manifest> manifest;
  const std::byte* bytes = nullptr;        // [manifest->stream_bytes()], until the next draw
  std::optional<OfferedArena> arena = {};  // is sent instead; to be let go before the next draw
  [[nodiscard]] uint64_t stream_bytes() const {
    return arena ? arena->packed.bytes : manifest->stream_bytes();
  }
};
using DrawStream = std::function<Result<DrawnStream>(uint64_t weight_version, uint64_t seed)>;

enum class StreamPlace : uint8_t { kCpu, kDevice, kPinned };  // kPinned: drawn by the GPU
struct StreamOptions {
  RandomModel model;  // its seed is not used
  StreamPlace place = StreamPlace::kDevice;
  int32_t gpu_index = 0;
  uint64_t bucket_bytes = 0;
  bool quantise_to_mxfp8 = false;  // by the receiver, or by who packs
  // Not null, on a GPU: as the arena of a worker on a GPU, packed in this one's memory.
  ArenaDevicePtr packed_on = nullptr;
};
// Owns the stream's memory. kFailedPrecondition: this build has no CUDA.
Result<DrawStream> make_draw_stream(const StreamOptions& options);

// A cold start from a stream in host memory, as load_random_model() is one from a seed.
Result<StagedWeightsPtr> load_drawn(const DrawnStream& stream, const LayoutFunction& layout,
                                    WeightArenas& arenas);

}  // namespace warproll
