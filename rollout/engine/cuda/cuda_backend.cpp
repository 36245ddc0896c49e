#include "rollout/engine/cuda/cuda_backend.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <stdexcept>

#include "kernels/cuda/stream_owner.h"
#include "rollout/engine/cuda/step_graphs.h"
#include "rollout/engine/cuda/step_results.h"
#include "rollout/model/cuda/device_kv_cache.h"

namespace warproll {
namespace {

// Block tables are as wide as the longest context of a step, in powers of two from here on, so that
// few graphs serve all lengths.
constexpr uint32_t kFewestBlocks = 16;

DeviceForwardOptions forward_options(const BackendSizes& sizes, const CudaBackendOptions& options,
                                     OpTimer* timer) {
  DeviceForwardOptions forward;
  forward.largest.num_tokens = sizes.max_batch_tokens;
  forward.largest.num_sequences = std::min(sizes.max_sequences, sizes.max_batch_tokens);
  forward.largest.num_logits = std::max(forward.largest.num_sequences, sizes.max_logits);
  const int32_t blocks = (sizes.max_context_tokens + sizes.block_tokens - 1) / sizes.block_tokens;
  forward.largest.blocks_per_sequence =
      static_cast<int32_t>(std::bit_ceil(std::max(static_cast<uint32_t>(blocks), kFewestBlocks)));
  forward.block_tokens = sizes.block_tokens;
  forward.batch_invariant = options.batch_invariant;
  forward.moe_path = options.moe_path;
  forward.capture_router_logits = options.capture_router_logits;
  forward.timer = timer;
  return forward;
}

class CudaBackend {
 public:
  CudaBackend(const ModelConfig& config, const BackendSizes& sizes,
              const CudaBackendOptions& options)
      : config_(config),
        options_(options),
        timer_(options.time_ops ? std::make_unique<OpTimer>() : nullptr),
        forward_options_(forward_options(sizes, options, timer_.get())),
        kv_(config, sizes.num_blocks, sizes.block_tokens),
        forward_(config, forward_options_),
        inputs_(config.num_moe_layers(), config.num_experts_per_tok, forward_options_.largest),
        results_(static_cast<size_t>(forward_options_.largest.num_logits),
                 static_cast<size_t>(sizes.max_batch_tokens) * route_ids()),
        graphs_(
            [this](const StepShape& shape, const DeviceModelWeights& weights, cudaStream_t stream) {
              inputs_.take(shape, results_.step(), stream);
              put(shape, weights, stream);
            }) {
    WARPROLL_CUDA_CHECK(cudaGetDevice(&device_));
  }

  void forward(const ForwardBatch& batch, const WeightSet& weights, ForwardOutput& out) {
    check_idle();
    const uint64_t step = next_step_;
    enqueue(batch, weights, {}, {.router_logits = out.want_router_logits});
    const size_t tokens = batch.token_ids.size();
    if (out.want_routes) {
      copy_back(results_.routes(step).data(), forward_.outputs().routes,
                tokens * route_ids() * sizeof(int32_t));
    }
    if (out.want_router_logits) give_router_logits(tokens, out);
    const auto logits = batch.logits_rows.size() * static_cast<size_t>(config_.vocab_size);
    out.logits.resize(logits);
    copy_back(out.logits.data(), forward_.outputs().logits, logits * sizeof(float));
    stream_.synchronize();
    if (out.want_routes) give_routes(step, tokens, out);
  }

  void launch(const ForwardBatch& batch, const WeightSet& weights,
              std::span<const RowSampling> rows, bool fed, bool want_routes) {
    if (num_under_way_ == kStepSlots) throw std::logic_error("two steps are under way already");
    const uint64_t step = next_step_;
    enqueue(batch, weights, rows, {.fed = fed, .routes = want_routes});
    under_way_[step % kStepSlots] = {rows.size(), batch.token_ids.size(), want_routes};
    ++num_under_way_;
  }

  void collect(std::span<SampledToken> sampled, ForwardOutput& out) {
    if (num_under_way_ == 0) throw std::logic_error("no step is under way");
    const uint64_t step = next_step_ - num_under_way_;
    results_.wait(step, stream_.get());
    --num_under_way_;
    const UnderWay& what = under_way_[step % kStepSlots];
    std::copy_n(results_.sampled(step).begin(), what.num_rows, sampled.begin());
    if (what.want_routes) give_routes(step, what.num_tokens, out);
  }

  void copy_block(int32_t from_block, int32_t to_block) {
    use_device();
    kv_.copy_block(from_block, to_block, stream_.get());
  }

  std::vector<OpTime> take_op_times() {
    use_device();
    return timer_->take();
  }

  void prepare(const WeightSet& weights) {
    use_device();
    graphs_.prepare(device_weights(weights));
  }

 private:
  void use_device() const {
    int current = -1;  // of this thread; asking is cheaper than setting
    WARPROLL_CUDA_CHECK(cudaGetDevice(&current));
    if (current != device_) WARPROLL_CUDA_CHECK(cudaSetDevice(device_));
  }

  static const DeviceModelWeights& device_weights(const WeightSet& weights) {
    if (weights.device == nullptr) {
      throw std::invalid_argument("version " + std::to_string(weights.weight_version) +
                                  " of the weights is in host memory, wanted on the device");
    }
    return *weights.device;
  }

  [[nodiscard]] StepShape shape_of(const ForwardBatch& batch, bool sampled,
                                   bool router_logits) const {
    StepShape shape;
    shape.num_tokens = static_cast<int32_t>(batch.token_ids.size());
    shape.num_sequences = static_cast<int32_t>(batch.context_lens.size());
    shape.blocks_per_sequence = static_cast<int32_t>(
        std::bit_ceil(std::max(static_cast<uint32_t>(batch.blocks_per_sequence), kFewestBlocks)));
    shape.num_logits = static_cast<int32_t>(batch.logits_rows.size());
    shape.decode_only =
        shape.num_tokens == shape.num_sequences && shape.num_logits == shape.num_tokens;
    shape.given_routes = !batch.given_routes.empty();
    shape.sampled = sampled;
    shape.want_router_logits = router_logits;
    return shape;
  }

  // Of a step that was launched and not collected.
  struct UnderWay {
    size_t num_rows = 0, num_tokens = 0;
    bool want_routes = false;
  };

  // What a step is asked for beside its tokens or logits.
  struct Wanted {
    bool fed = false;
    bool routes = false;  // in its slot
    bool router_logits = false;
  };

  void check_idle() const {
    if (num_under_way_ != 0) throw std::logic_error("a step is under way");
  }

  // Step next_step_, which is counted when all of it is enqueued: the device counts where it ends.
  void enqueue(const ForwardBatch& batch, const WeightSet& weights,
               std::span<const RowSampling> rows, const Wanted& wanted) {
    use_device();
    const DeviceModelWeights& on_device = device_weights(weights);
    StepShape shape = shape_of(batch, !rows.empty(), wanted.router_logits);
    shape.fed = wanted.fed;
    shape.want_routes = wanted.routes;
    inputs_.pack(batch, shape, rows, next_step_);
    if (options_.use_graphs && timer_ == nullptr && shape.decode_only) {
      graphs_.graph(shape, on_device).launch(stream_.get());  // the step's one driver call
    } else {
      inputs_.upload(stream_.get());
      put(shape, on_device, stream_.get());
    }
    ++next_step_;
  }

  // All of a step behind its inputs. Its first kernel waits for these before it lets another start early:
  // later ones may read them at once.
  void put(const StepShape& shape, const DeviceModelWeights& weights, cudaStream_t stream) {
    forward_.enqueue(shape, inputs_.at(shape), weights, kv_, stream);
    const size_t ids = shape.want_routes ? static_cast<size_t>(shape.num_tokens) * route_ids() : 0;
    results_.enqueue(shape, forward_.outputs(), ids, stream);
  }

  [[nodiscard]] size_t route_ids() const {
    return static_cast<size_t>(config_.num_moe_layers()) *
           static_cast<size_t>(config_.num_experts_per_tok);
  }

  // [L, T, width] as the kernels leave it -> [T, L, width].
  template <typename From, typename To>
  void to_token_major(const From* from, size_t tokens, size_t width, std::vector<To>& to) const {
    const auto layers = static_cast<size_t>(config_.num_moe_layers());
    to.resize(tokens * layers * width);
    for (size_t layer = 0; layer < layers; ++layer) {
      for (size_t t = 0; t < tokens; ++t) {
        std::copy_n(from + (layer * tokens + t) * width, width,
                    to.data() + (t * layers + layer) * width);
      }
    }
  }

  void give_routes(uint64_t step, size_t tokens, ForwardOutput& out) const {
    to_token_major(results_.routes(step).data(), tokens,
                   static_cast<size_t>(config_.num_experts_per_tok), out.routes);
  }

  void give_router_logits(size_t tokens, ForwardOutput& out) {
    const auto experts = static_cast<size_t>(config_.num_experts);
    std::vector<float> by_layer(static_cast<size_t>(config_.num_moe_layers()) * tokens * experts);
    copy_back(by_layer.data(), forward_.outputs().router_logits, by_layer.size() * sizeof(float));
    stream_.synchronize();
    to_token_major(by_layer.data(), tokens, experts, out.router_logits);
  }

  void copy_back(void* to, const void* from, size_t bytes) const {
    if (bytes == 0) return;
    WARPROLL_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_.get()));
  }

  const ModelConfig config_;
  const CudaBackendOptions options_;
  const std::unique_ptr<OpTimer> timer_;
  const DeviceForwardOptions forward_options_;
  int device_ = 0;
  CudaStream stream_;
  DeviceKvCache kv_;
  DeviceForward forward_;
  StepInputBuffer inputs_;
  StepResults results_;
  uint64_t next_step_ = 0;  // as the device counts them once all have ended
  UnderWay under_way_[kStepSlots];
  size_t num_under_way_ = 0;
  StepGraphs graphs_;
};

}  // namespace

ModelBackend make_cuda_backend(const ModelConfig& config, const BackendSizes& sizes,
                               const CudaBackendOptions& options) {
  const auto device = std::make_shared<CudaBackend>(config, sizes, options);
  ModelBackend backend;
  backend.forward = [device](const ForwardBatch& batch, const WeightSet& weights,
                             ForwardOutput& out) { device->forward(batch, weights, out); };
  backend.launch = [device](const ForwardBatch& batch, const WeightSet& weights,
                            std::span<const RowSampling> rows, bool fed, bool want_routes) {
    device->launch(batch, weights, rows, fed, want_routes);
  };
  backend.collect = [device](std::span<SampledToken> sampled, ForwardOutput& out) {
    device->collect(sampled, out);
  };
  backend.copy_block = [device](int32_t from_block, int32_t to_block) {
    device->copy_block(from_block, to_block);
  };
  if (options.time_ops) backend.take_op_times = [device] { return device->take_op_times(); };
  backend.prepare = [device](const WeightSet& weights) { device->prepare(weights); };
  return backend;
}

ModelRunner cuda_runner(const CudaBackendOptions& options) {
  return {"cuda", ActivationDtype::kBf16, sizeof(uint16_t),
          [options](const ModelConfig& config, const BackendSizes& sizes) {
            return make_cuda_backend(config, sizes, options);
          }};
}

size_t cuda_workspace_bytes(const ModelConfig& config, const BackendSizes& sizes,
                            const CudaBackendOptions& options) {
  return DeviceForward::workspace_bytes(config, forward_options(sizes, options, nullptr));
}

}  // namespace warproll
