#include "weights_sync/cuda/random_weights.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "kernels/cuda/stream_owner.h"
#include "kernels/quantise.h"
#include "kernels/random_normal.h"
#include "weights_sync/cuda/buffer_pool.h"

namespace warproll {
namespace {

constexpr uint64_t kBatchBytes = uint64_t{64} << 20;
constexpr float kSigma = 0.02f;

bool is_norm(const TensorInfo& tensor) {
  return tensor.shape.size() == 1 && tensor.name.find("norm") != std::string::npos;
}

// Draws tensors into one buffer, as many as it holds, and hands them on together.
class Drawer {
 public:
  Drawer(std::span<const TensorInfo> tensors, uint64_t seed, WeightFiller& filler)
      : tensors_(tensors), seed_(seed), filler_(filler) {
    for (size_t i = 0; i < tensors.size(); ++i) by_name_.emplace(tensors[i].name, i);
  }

  Status run() {
    uint64_t batch = kBatchBytes, wide = 0;
    for (const TensorInfo& tensor : tensors_) {
      batch = std::max(batch, align_to_arena(tensor.bytes) + align_to_arena(tensor.bytes / 32));
      if (tensor.dtype == Dtype::kF8E4M3) wide = std::max(wide, tensor.bytes * 2);
    }
    WARPROLL_TRY_ASSIGN(memory, try_allocate(batch, "buffer for random weights"));
    WARPROLL_TRY_ASSIGN(source, try_allocate(wide, "buffer for random weights"));
    memory_ = std::move(memory);
    source_ = std::move(source);
    for (size_t i = 0; i < tensors_.size(); ++i) WARPROLL_TRY(draw(i));
    WARPROLL_TRY(flush());
    stream_.synchronize();  // before the buffers go
    return ok_status();
  }

 private:
  Status draw(size_t index) {
    const TensorInfo& tensor = tensors_[index];
    const bool mxfp8 = tensor.dtype == Dtype::kF8E4M3;
    if (is_scale(tensor)) return ok_status();  // comes with its elements
    if (tensor.dtype != Dtype::kBf16 && !mxfp8) {
      return invalid_argument("tensor '" + tensor.name + "' is " +
                              std::string(to_string(tensor.dtype)) +
                              ", random weights are BF16 or MXFP8");
    }
    const auto scale = by_name_.find(tensor.name + "_scale_inv");
    if (mxfp8 && scale == by_name_.end()) {
      return invalid_argument("tensor '" + tensor.name + "' has no '_scale_inv' beside it");
    }
    const uint64_t scale_bytes = mxfp8 ? tensors_[scale->second].bytes : 0;
    if (used_ + align_to_arena(tensor.bytes) + align_to_arena(scale_bytes) > memory_.size()) {
      WARPROLL_TRY(flush());
    }
    std::byte* const out = take(tensor);
    std::byte* const normal = mxfp8 ? source_.data() : out;
    const bool norm = is_norm(tensor);
    random_normal({.out = reinterpret_cast<uint16_t*>(normal),
                   .count = mxfp8 ? tensor.bytes : tensor.bytes / 2,
                   .seed = seed_,
                   .stream_id = index,
                   .mean = norm ? 1.0f : 0.0f,
                   .sigma = norm ? 0.0f : kSigma},
                  stream_.get());
    if (!mxfp8) return ok_status();
    const int64_t cols = tensor.shape.back();
    std::byte* const scales = take(tensors_[scale->second]);
    quantise_mxfp8({.source = normal,
                    .rows = static_cast<int64_t>(tensor.bytes) / cols,
                    .cols = cols,
                    .elements = reinterpret_cast<uint8_t*>(out),
                    .scales = reinterpret_cast<uint8_t*>(scales)},
                   nullptr, stream_.get());
    return ok_status();
  }

  [[nodiscard]] bool is_scale(const TensorInfo& tensor) const {
    constexpr std::string_view kEnd = "_scale_inv";
    return tensor.dtype == Dtype::kU8 && tensor.name.size() > kEnd.size() &&
           tensor.name.ends_with(kEnd) &&
           by_name_.contains(tensor.name.substr(0, tensor.name.size() - kEnd.size()));
  }

  std::byte* take(const TensorInfo& tensor) {
    std::byte* const at = memory_.data() + used_;
    used_ += align_to_arena(tensor.bytes);
    parts_.push_back({tensor.name, 0, {at, tensor.bytes}});
    return at;
  }

  Status flush() {
    const Status status = filler_.put_device(parts_, stream_.get());
    parts_.clear();
    used_ = 0;
    return status;
  }

  std::span<const TensorInfo> tensors_;
  uint64_t seed_;
  WeightFiller& filler_;
  std::unordered_map<std::string, size_t> by_name_;
  CudaStream stream_{CudaStream::Priority::kLow};
  DeviceBuffer<std::byte> memory_, source_;
  uint64_t used_ = 0;
  std::vector<DevicePart> parts_;  // drawn, not handed on yet
};

}  // namespace

Result<FilledArena> fill_random(std::span<const TensorInfo> tensors, uint64_t seed,
                                WeightFiller& filler) {
  WARPROLL_TRY(Drawer(tensors, seed, filler).run());
  return filler.finish();
}

Result<StagedWeightsPtr> load_random(const RandomWeights& random, uint64_t weight_version,
                                     const LayoutFunction& layout, WeightArenas& arenas) {
  StagedWeights weights;
  weights.weight_version = weight_version;
  weights.files = random.files;
  WARPROLL_TRY_ASSIGN(arena_layout, layout(random.files, random.tensors));
  weights.layout = std::move(arena_layout);
  WARPROLL_TRY_ASSIGN(standby, arenas.acquire_standby(weights.layout.total_bytes));
  WARPROLL_TRY_ASSIGN(arena, standby.overwrite(weights.layout.total_bytes));
  const ArenaDevicePtr device = standby.device();
  if (!device) return failed_precondition("random weights are drawn on a GPU, the arenas are not");
  WARPROLL_TRY_ASSIGN(filler, device->make_filler(weights.layout, arena, nullptr));
  WARPROLL_TRY_ASSIGN(filled, fill_random(random.tensors, random.seed, *filler));
  filler.reset();  // it points to the layout
  weights.weight_digest = filled.weight_digest;
  weights.source_digest = filled.source_digest;
  weights.layout_digest = device->digest(arena.first(weights.layout.total_bytes));
  return std::move(standby).publish(std::move(weights));
}

}  // namespace warproll
