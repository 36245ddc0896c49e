#include "worker/commands/bench_sync_stream.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/dtype.h"
#include "weights_sync/digest.h"
#include "weights_sync/weight_staging.h"
#ifdef WARPROLL_HAS_CUDA
#include "kernels/cuda/pinned_buffer.h"
#include "weights_sync/cuda/random_stream.h"
#endif

namespace warproll {
namespace {

// BF16 alone, N(0, 0.02), norms 1. Other numbers than a GPU's.
class CpuStream {
 public:
  CpuStream(RandomCheckpoint checkpoint, const StreamOptions& options) {
    places_.weight_version = 1;
    places_.bucket_bytes = options.bucket_bytes;
    places_.quantise = options.quantise_to_mxfp8 ? QuantiseRecipe::kMxfp8 : QuantiseRecipe::kNone;
    places_.files = std::move(checkpoint.files);
    for (TensorInfo& tensor : checkpoint.tensors) {
      places_.entries.push_back({.tensor = std::move(tensor)});
    }
    std::sort(places_.entries.begin(), places_.entries.end(),
              [](const ManifestEntry& a, const ManifestEntry& b) {
                return a.tensor.name < b.tensor.name;
              });
  }

  Result<DrawnStream> draw(uint64_t weight_version, uint64_t seed) {
    Manifest manifest = places_;
    manifest.weight_version = weight_version;
    WARPROLL_TRY(seal_manifest(manifest));
    bytes_.assign(manifest.stream_bytes(), std::byte{0});
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    for (ManifestEntry& entry : manifest.entries) {
      if (entry.tensor.dtype != Dtype::kBf16) {
        return invalid_argument("random weights on a CPU are bf16, tensor '" + entry.tensor.name +
                                "' is not");
      }
      const bool is_norm = entry.tensor.name.find("norm") != std::string::npos;
      std::byte* const at = bytes_.data() + manifest.stream_offset(entry);
      for (uint64_t i = 0; i < entry.tensor.bytes; i += 2) {
        const uint16_t value = f32_to_bf16(is_norm ? 1.0f : normal(random));
        std::memcpy(at + i, &value, sizeof value);
      }
      entry.digest = tensor_digest({at, entry.tensor.bytes});
    }
    WARPROLL_TRY(seal_manifest(manifest));
    return DrawnStream{std::make_shared<const Manifest>(std::move(manifest)), bytes_.data()};
  }

 private:
  Manifest places_;  // without digests
  std::vector<std::byte> bytes_;
};

#ifdef WARPROLL_HAS_CUDA
// Drawn on the GPU and packed there; kPinned: the arena is then the host's.
class PackedStream {
 public:
  PackedStream(std::shared_ptr<RandomStream> stream, const StreamOptions& options)
      : stream_(std::move(stream)),
        packer_(options.packed_on, options.quantise_to_mxfp8),
        on_host_(options.place == StreamPlace::kPinned) {}

  Result<DrawnStream> draw(uint64_t weight_version, uint64_t seed) {
    WARPROLL_TRY_ASSIGN(manifest, stream_->draw(weight_version, seed));
    WARPROLL_TRY_ASSIGN(arena, packer_.pack_stream(*manifest, stream_->bytes().data()));
    if (on_host_) {
      const uint64_t bytes = arena.packed.bytes;
      if (!host_ || host_->size() != bytes)
        host_ = std::make_shared<PinnedBuffer<std::byte>>(bytes);
      WARPROLL_CUDA_CHECK(
          cudaMemcpy(host_->data(), arena.bytes.get(), bytes, cudaMemcpyDeviceToHost));
      arena.bytes = {host_, host_->data()};
    }
    return DrawnStream{arena.manifest, stream_->bytes().data(), arena};
  }

 private:
  const std::shared_ptr<RandomStream> stream_;
  ArenaPacker packer_;
  const bool on_host_;
  std::shared_ptr<PinnedBuffer<std::byte>> host_;
};
#endif

}  // namespace

Result<DrawStream> make_draw_stream(const StreamOptions& options) {
  WARPROLL_TRY_ASSIGN(checkpoint, describe_random_model(options.model));
  if (options.place == StreamPlace::kCpu) {
    auto stream = std::make_shared<CpuStream>(std::move(checkpoint), options);
    return DrawStream([stream](uint64_t weight_version, uint64_t seed) {
      return stream->draw(weight_version, seed);
    });
  }
#ifdef WARPROLL_HAS_CUDA
  const bool on_host = options.place == StreamPlace::kPinned;
  const QuantiseRecipe quantise =
      options.quantise_to_mxfp8 ? QuantiseRecipe::kMxfp8 : QuantiseRecipe::kNone;
  WARPROLL_TRY_ASSIGN(made, RandomStream::make({checkpoint.files, checkpoint.tensors, 0},
                                               {.device = options.gpu_index,
                                                .on_host = on_host && !options.packed_on,
                                                .bucket_bytes = options.bucket_bytes,
                                                .quantise = quantise}));
  const std::shared_ptr<RandomStream> stream = std::move(made);
  if (options.packed_on) {
    const auto packed = std::make_shared<PackedStream>(stream, options);
    return DrawStream([packed](uint64_t weight_version, uint64_t seed) {
      return packed->draw(weight_version, seed);
    });
  }
  return DrawStream([stream](uint64_t weight_version, uint64_t seed) -> Result<DrawnStream> {
    WARPROLL_TRY_ASSIGN(manifest, stream->draw(weight_version, seed));
    return DrawnStream{manifest, stream->bytes().data(), std::nullopt};
  });
#else
  return failed_precondition("weights are drawn on a GPU, and this build has no CUDA");
#endif
}

Result<StagedWeightsPtr> load_drawn(const DrawnStream& stream, const LayoutFunction& layout,
                                    WeightArenas& arenas) {
  return stage_stream(*stream.manifest, layout, arenas, [&](WeightStaging& staging) {
    return staging.write(0, {stream.bytes, stream.manifest->stream_bytes()});
  });
}

}  // namespace warproll
