#include "weights_sync/cuda/random_stream.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/cuda/device_info.h"
#include "kernels/cuda/error.h"
#include "kernels/cuda/event.h"
#include "kernels/cuda/stream_owner.h"
#include "weights_sync/cuda/device_digests.h"

namespace warproll {
namespace {

// Memory of the stream; null where there was no room.
class StreamMemory {
 public:
  StreamMemory(uint64_t bytes, bool on_host) : on_host_(on_host) {
    const cudaError_t code =
        on_host ? cudaHostAlloc(&data_, bytes, cudaHostAllocPortable) : cudaMalloc(&data_, bytes);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // the maker tells it
      data_ = nullptr;
      return;
    }
    WARPROLL_CUDA_CHECK(code);
  }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;
  ~StreamMemory() { on_host_ ? cudaFreeHost(data_) : cudaFree(data_); }
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  const bool on_host_;
  void* data_ = nullptr;
};

// Puts every tensor at its place of the stream, as it comes.
class StreamFiller final : public WeightFiller {
 public:
  StreamFiller(Manifest& manifest, std::byte* stream) : manifest_(manifest), stream_(stream) {
    std::vector<uint64_t> sizes;
    for (size_t i = 0; i < manifest.entries.size(); ++i) {
      by_name_.emplace(manifest.entries[i].tensor.name, i);
      sizes.push_back(manifest.entries[i].tensor.bytes);
    }
    digests_ = std::make_unique<DeviceDigests>(sizes);
    digests_->allocate();
  }

  Status put(std::string_view name, std::span<const std::byte>) override { return refuse(name); }
  Status put_part(std::string_view name, uint64_t, std::span<const std::byte>) override {
    return refuse(name);
  }

  Status put_device(std::span<const DevicePart> parts, void* stream) override {
    const auto on = static_cast<cudaStream_t>(stream);
    for (const DevicePart& part : parts) {
      const auto found = by_name_.find(std::string(part.tensor_name));
      if (found == by_name_.end()) return refuse(part.tensor_name);
      const ManifestEntry& entry = manifest_.entries[found->second];
      if (part.offset_bytes != 0 || part.bytes.size() != entry.tensor.bytes) {
        return refuse(part.tensor_name);
      }
      digests_->enqueue(found->second, part.bytes.data(), on);
      WARPROLL_CUDA_CHECK(cudaMemcpyAsync(stream_ + manifest_.stream_offset(entry),
                                          part.bytes.data(), part.bytes.size(), cudaMemcpyDefault,
                                          on));
      ++num_put_;
    }
    drawn_.record(on);
    return ok_status();
  }

  Result<FilledArena> finish() override {
    if (num_put_ != manifest_.entries.size()) {
      return internal_error(std::to_string(num_put_) + " tensors were drawn, wanted " +
                            std::to_string(manifest_.entries.size()));
    }
    drawn_.synchronize();  // not the device: an engine may be capturing a graph there
    digests_->fetch();
    for (size_t i = 0; i < manifest_.entries.size(); ++i) {
      manifest_.entries[i].digest = digests_->get(i);
    }
    return FilledArena{};
  }

 private:
  static Status refuse(std::string_view name) {
    return internal_error("tensor '" + std::string(name) +
                          "': a random stream takes whole tensors of its manifest, on the device");
  }

  Manifest& manifest_;
  std::byte* const stream_;
  std::unordered_map<std::string, size_t> by_name_;
  std::unique_ptr<DeviceDigests> digests_;
  size_t num_put_ = 0;
  CudaEvent drawn_;  // all that was put, on one stream
};

class DrawnStream final : public RandomStream {
 public:
  DrawnStream(RandomWeights weights, Manifest places, const RandomStreamOptions& options)
      : weights_(std::move(weights)),
        places_(std::move(places)),
        options_(options),
        memory_(places_.stream_bytes(), options.on_host) {}

  [[nodiscard]] bool has_room() const { return memory_.data() != nullptr; }
  [[nodiscard]] std::span<const std::byte> bytes() const override {
    return {memory_.data(), places_.stream_bytes()};
  }

  void clear() {  // the fill between tensors is zeros, which new memory of the host is already
    if (options_.on_host) return;
    const CudaStream stream;
    WARPROLL_CUDA_CHECK(cudaMemsetAsync(memory_.data(), 0, places_.stream_bytes(), stream.get()));
    stream.synchronize();
  }

  Result<std::shared_ptr<const Manifest>> draw(uint64_t weight_version, uint64_t seed) override {
    use_gpu(options_.device);
    Manifest manifest = places_;
    manifest.weight_version = weight_version;
    StreamFiller filler(manifest, memory_.data());
    WARPROLL_TRY(fill_random(weights_.tensors, seed, filler).status());
    WARPROLL_TRY(seal_manifest(manifest));
    return std::make_shared<const Manifest>(std::move(manifest));
  }

 private:
  const RandomWeights weights_;
  const Manifest places_;  // without digests
  const RandomStreamOptions options_;
  const StreamMemory memory_;
};

}  // namespace

Result<std::unique_ptr<RandomStream>> RandomStream::make(RandomWeights weights,
                                                         const RandomStreamOptions& options) {
  Manifest places;
  places.weight_version = 1;
  places.bucket_bytes = options.bucket_bytes;
  places.quantise = options.quantise;
  places.files = weights.files;
  for (const TensorInfo& tensor : weights.tensors) places.entries.push_back({.tensor = tensor});
  // The order of a checkpoint.
  std::sort(
      places.entries.begin(), places.entries.end(),
      [](const ManifestEntry& a, const ManifestEntry& b) { return a.tensor.name < b.tensor.name; });
  WARPROLL_TRY(seal_manifest(places));
  use_gpu(options.device);
  const uint64_t bytes = places.stream_bytes();
  auto stream = std::make_unique<DrawnStream>(std::move(weights), std::move(places), options);
  if (!stream->has_room()) {
    return resource_exhausted(
        "a stream of " + std::to_string(bytes) + " bytes: " +
        (options.on_host
             ? "page-locked memory of the host is exhausted"
             : "the memory of GPU " + std::to_string(options.device) + " is exhausted"));
  }
  stream->clear();
  return std::unique_ptr<RandomStream>(std::move(stream));
}

}  // namespace warproll
