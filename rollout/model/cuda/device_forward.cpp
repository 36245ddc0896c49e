#include "rollout/model/cuda/device_forward.h"

#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "kernels/check.h"
#include "kernels/moe/expert_centric.h"
#include "kernels/moe/literal.h"
#include "kernels/moe/route.h"
#include "kernels/step/add_rmsnorm.h"
#include "kernels/step/attention.h"
#include "kernels/step/embed.h"
#include "kernels/step/gather_rows.h"
#include "kernels/step/linear.h"
#include "kernels/step/qkv_finish.h"
#include "kernels/step/sample.h"
#include "kernels/step/stream_linear.h"
#include "rollout/model/cuda/forward_workspace.h"

namespace warproll {

// Of QKV and O, and of lm_head: up to so many tokens stream_linear is faster than step_linear.
constexpr int32_t kMaxStreamedTokens = 256;
constexpr int32_t kMaxStreamedRows = 40;

// One step: the model's ops in order, over the workspace's buffers.
class DeviceForward::Step {
 public:
  Step(const DeviceForward& owner, const StepShape& shape, const StepInputs& inputs,
       const DeviceModelWeights& weights, const DeviceKvCache& kv, cudaStream_t stream)
      : config_(owner.config_),
        options_(owner.options_),
        space_(*owner.space_),
        shape_(shape),
        inputs_(inputs),
        weights_(weights),
        kv_(kv),
        stream_(stream),
        hidden_(space_.hidden),
        hidden_next_(space_.hidden_next) {}

  void run() {
    if (options_.timer != nullptr) options_.timer->begin_step(stream_);
    static_assert(offsetof(SampledToken, token_id) == 0 && sizeof(SampledToken) % 4 == 0);
    embed({.token_ids = shape_.fed ? &space_.sampled->token_id : inputs_.token_ids,
           .token_stride = shape_.fed ? int32_t{sizeof(SampledToken) / sizeof(int32_t)} : 1,
           .weight = weights_.embedding,
           .hidden = hidden_,
           .num_tokens = shape_.num_tokens},
          stream_);
    mark("embed");
    int32_t moe_layer = 0;
    Addend addend;
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
      const DeviceLayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
      attention(w, layer, addend);
      addend = w.is_moe ? moe(w, moe_layer++) : dense(w);
    }
    logits(addend);
  }

 private:
  // What the next norm adds to the residual stream: a BF16 tensor, a MoE layer's partial sums, nothing.
  struct Addend {
    const uint16_t* tensor = nullptr;
    MoePartials moe = {};
  };

  void mark(const char* op) const {
    if (options_.timer != nullptr) options_.timer->mark(op, stream_);
  }

  void add_and_norm(const Addend& addend, const std::byte* weight) const {
    add_rmsnorm({.hidden = hidden_,
                 .addend = addend.tensor,
                 .moe = addend.moe,
                 .weight = weight,
                 .weight_dtype = weights_.norm_dtype,
                 .eps = config_.rms_norm_eps,
                 .normed = space_.normed,
                 .normed_tile = space_.normed_tile,
                 .num_tokens = shape_.num_tokens,
                 .hidden_size = config_.hidden_size},
                stream_);
    mark("add_rmsnorm");
  }

  // The same as a prologue of the kernel that reads the norm: ask only where that takes it.
  [[nodiscard]] bool can_fuse(const Addend& addend) const {
    return options_.fused && addend.moe.partials == nullptr;
  }
  ResidualNorm take_norm(const Addend& addend, const std::byte* weight) {
    const bool adds = addend.tensor != nullptr;
    const ResidualNorm norm = {.hidden = hidden_,
                               .addend = addend.tensor,
                               .hidden_out = adds ? hidden_next_ : nullptr,
                               .weight = weight,
                               .weight_dtype = weights_.norm_dtype,
                               .eps = config_.rms_norm_eps};
    if (adds) std::swap(hidden_, hidden_next_);
    return norm;
  }

  // The norm of hidden + addend, times a matrix.
  void norm_linear(const Addend& addend, const std::byte* norm, const TileMatrix& weight,
                   uint16_t* y, float* y_f32, const char* op) {
    if (can_fuse(addend) && stream_linear_can_norm(shape_.num_tokens, weight)) {
      stream_linear({.x = {},
                     .norm = take_norm(addend, norm),
                     .weight = weight,
                     .y = y,
                     .y_f32 = y_f32,
                     .num_tokens = shape_.num_tokens},
                    stream_);
    } else {
      add_and_norm(addend, norm);
      linear(space_.normed_tile, space_.normed, weight, shape_.num_tokens, y, y_f32);
    }
    mark(op);
  }

  // x as tiles where the norm before wrote them, else as rows. Where bits may depend on the step's size
  // the grouped product takes what it is faster at (docs/benchmarks/step.md).
  void linear(const TileActivations& tiles, const uint16_t* x, const TileMatrix& weight,
              int32_t rows, uint16_t* y, float* y_f32) const {
    const int32_t most = y_f32 == nullptr ? kMaxStreamedTokens : kMaxStreamedRows;
    if (options_.batch_invariant || rows <= most) {
      stream_linear({.x = tiles,
                     .x_bf16 = tiles.values == nullptr ? x : nullptr,
                     .weight = weight,
                     .y = y,
                     .y_f32 = y_f32,
                     .num_tokens = rows},
                    stream_);
      return;
    }
    step_linear({.x = x,
                 .weight = weight,
                 .workspace = space_.linear,
                 .workspace_bytes = space_.linear_bytes,
                 .y = y,
                 .y_f32 = y_f32,
                 .num_tokens = rows},
                stream_);
  }

  void attention(const DeviceLayerWeights& w, int32_t layer, const Addend& addend) {
    norm_linear(addend, w.input_norm, w.qkv, space_.qkv, nullptr, "qkv");
    const QkvFinishParams finish = {.qkv = space_.qkv,
                                    .q_norm = w.q_norm,
                                    .k_norm = w.k_norm,
                                    .norm_dtype = weights_.norm_dtype,
                                    .eps = config_.rms_norm_eps,
                                    .cos = space_.cos,
                                    .sin = space_.sin,
                                    .positions = inputs_.positions,
                                    .slot_mapping = inputs_.slot_mapping,
                                    .q = space_.q,
                                    .k_cache = kv_.k(layer),
                                    .v_cache = kv_.v(layer),
                                    .num_slots = kv_.num_slots(),
                                    .max_positions = config_.max_position_embeddings,
                                    .num_tokens = shape_.num_tokens,
                                    .num_heads = config_.num_heads,
                                    .num_kv_heads = config_.num_kv_heads,
                                    .head_dim = config_.head_dim};
    const PagedAttentionParams params = {
        .q = space_.q,
        .k_cache = kv_.k(layer),
        .v_cache = kv_.v(layer),
        .positions = inputs_.positions,
        .cu_seqlens_q = inputs_.cu_seqlens_q,
        .block_table = inputs_.block_table,
        .out = space_.attention,
        .workspace = space_.attention_workspace,
        .num_sequences = shape_.num_sequences,
        .num_tokens = shape_.num_tokens,
        .max_query_tokens = shape_.decode_only ? 1 : 0,
        .num_heads = config_.num_heads,
        .num_kv_heads = config_.num_kv_heads,
        .head_dim = config_.head_dim,
        .num_blocks = kv_.num_blocks(),
        .block_tokens = kv_.block_tokens(),
        .blocks_per_sequence = shape_.blocks_per_sequence,
        .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
        .indices_are_older = true,
        .past_is_older = true,
        .one_kernel = options_.fused};
    if (options_.fused && shape_.decode_only) {
      decode_attention(finish, params, stream_);
    } else {
      qkv_finish(finish, stream_);
      mark("qkv_finish");
      paged_attention(params, stream_);
    }
    mark("attention");
    linear({}, space_.attention, w.o, shape_.num_tokens, space_.projected, nullptr);
    mark("o");
  }

  [[nodiscard]] Addend moe(const DeviceLayerWeights& w, int32_t moe_layer) {
    const int64_t tokens = shape_.num_tokens, top_k = config_.num_experts_per_tok;
    int32_t* const topk_ids = space_.topk_ids + moe_layer * tokens * top_k;
    const int64_t captured = shape_.want_router_logits ? moe_layer * tokens : 0;
    RouteParams params = {.x = nullptr,
                          .weight = w.router,
                          .weight_dtype = w.router_dtype,
                          .given_ids = inputs_.given_ids == nullptr
                                           ? nullptr
                                           : inputs_.given_ids + moe_layer * tokens * top_k,
                          .logits = space_.router_logits + captured * config_.num_experts,
                          .topk_ids = topk_ids,
                          .topk_weights = space_.topk_weights,
                          .lists = space_.lists,
                          .x_tile = {},  // the norm wrote them
                          .num_tokens = shape_.num_tokens,
                          .hidden_size = config_.hidden_size,
                          .num_experts = config_.num_experts,
                          .top_k = config_.num_experts_per_tok,
                          .renormalise = config_.norm_topk_prob};
    const Addend projected = {.tensor = space_.projected};
    if (can_fuse(projected) && route_can_norm(params)) {
      params.norm = take_norm(projected, w.post_attention_norm);
      const bool is_grouped = grouped(w.gate_up.format);
      if (is_grouped || options_.moe_path == MoePath::kLiteral) params.normed = space_.normed;
      if (!is_grouped) params.x_tile = space_.normed_tile;
    } else {
      add_and_norm(projected, w.post_attention_norm);
      params.x = space_.normed;
    }
    route(params, stream_);
    mark("route");
    return experts(w, topk_ids, space_.topk_weights, space_.lists, config_.num_experts_per_tok);
  }

  // A dense MLP is one expert of weight 1.
  [[nodiscard]] Addend dense(const DeviceLayerWeights& w) {
    add_and_norm({.tensor = space_.projected}, w.post_attention_norm);
    build_expert_lists({.topk_ids = space_.dense_ids,
                        .topk_weights = space_.dense_weights,
                        .lists = space_.dense_lists,
                        .num_tokens = shape_.num_tokens,
                        .num_experts = 1,
                        .top_k = 1},
                       stream_);
    mark("route");
    return experts(w, space_.dense_ids, space_.dense_weights, space_.dense_lists, 1);
  }

  [[nodiscard]] bool grouped(TileFormat format) const {
    switch (options_.batch_invariant ? MoePath::kWarpDecode : options_.moe_path) {
      case MoePath::kWarpDecode:
        return false;
      case MoePath::kExpertCentric:
        return true;
      case MoePath::kLiteral:
        return !shape_.decode_only;
      case MoePath::kAuto:
        break;
    }
    return shape_.num_tokens >= expert_centric_from(format);
  }

  [[nodiscard]] Addend experts(const DeviceLayerWeights& w, const int32_t* topk_ids,
                               const float* topk_weights, const ExpertLists& lists,
                               int32_t top_k) const {
    if (grouped(w.gate_up.format)) {
      expert_centric_moe({.x = space_.normed,
                          .topk_ids = topk_ids,
                          .topk_weights = topk_weights,
                          .gate_up = w.gate_up,
                          .down = w.down,
                          .workspace = space_.expert_centric,
                          .workspace_bytes = space_.expert_centric_bytes,
                          .y = space_.projected,
                          .num_tokens = shape_.num_tokens,
                          .top_k = top_k},
                         stream_);
      mark("experts");
      return {.tensor = space_.projected};
    }
    if (options_.moe_path == MoePath::kLiteral && w.gate_rows.data != nullptr) {
      literal_moe({.x = space_.normed,
                   .topk_ids = topk_ids,
                   .topk_weights = topk_weights,
                   .gate = w.gate_rows,
                   .up = w.up_rows,
                   .down = w.down_rows,
                   .h = space_.expert_partials,
                   .y = space_.projected,
                   .num_tokens = shape_.num_tokens,
                   .top_k = top_k},
                  stream_);
      mark("experts");
      return {.tensor = space_.projected};
    }
    const WarpDecodeParams params = {.x = space_.normed_tile,
                                     .lists = lists,
                                     .gate_up = w.gate_up,
                                     .down = w.down,
                                     .h = space_.expert_h,
                                     .partials = space_.expert_partials,
                                     .y = space_.projected,
                                     .num_tokens = shape_.num_tokens,
                                     .top_k = top_k};
    MoePartials partials;
    if (options_.fused) {
      partials = warp_decode_partials(params, stream_);
    } else {
      warp_decode(params, stream_);
    }
    mark("experts");
    if (partials.partials != nullptr) return {.moe = partials};
    return {.tensor = space_.projected};
  }

  // Only the asked rows see the head; of a decode step, all.
  void logits(const Addend& addend) {
    if (shape_.num_logits == 0) return;
    if (shape_.decode_only) {
      norm_linear(addend, weights_.final_norm, weights_.lm_head, nullptr, space_.logits, "lm_head");
    } else {
      add_and_norm(addend, weights_.final_norm);
      gather_rows({.x = space_.normed,
                   .rows = inputs_.logits_rows,
                   .y = space_.logits_hidden,
                   .num_rows = shape_.num_logits,
                   .width = config_.hidden_size},
                  stream_);
      linear({}, space_.logits_hidden, weights_.lm_head, shape_.num_logits, nullptr, space_.logits);
      mark("lm_head");
    }
    if (!shape_.sampled) return;
    sample_tokens({.logits = space_.logits,
                   .rows = inputs_.rows,
                   .out = space_.sampled,
                   .num_rows = shape_.num_logits,
                   .vocab_size = config_.vocab_size},
                  stream_);
    mark("sample");
  }

  const ModelConfig& config_;
  const DeviceForwardOptions& options_;
  const Workspace& space_;
  const StepShape& shape_;
  const StepInputs& inputs_;
  const DeviceModelWeights& weights_;
  const DeviceKvCache& kv_;
  const cudaStream_t stream_;
  uint16_t *hidden_, *hidden_next_;  // the residual stream is the first
};

DeviceForward::DeviceForward(const ModelConfig& config, const DeviceForwardOptions& options)
    : config_(config), options_(options), space_(std::make_unique<Workspace>(config, options)) {}

DeviceForward::~DeviceForward() = default;

void DeviceForward::enqueue(const StepShape& shape, const StepInputs& inputs,
                            const DeviceModelWeights& weights, const DeviceKvCache& kv,
                            cudaStream_t stream) {
  const StepShape& most = options_.largest;
  check_argument(
      shape.num_tokens <= most.num_tokens && shape.num_sequences <= most.num_sequences &&
          shape.num_logits <= most.num_logits &&
          shape.blocks_per_sequence <= most.blocks_per_sequence &&
          (!shape.want_router_logits || options_.capture_router_logits),
      [&] {
        const auto text = [](const StepShape& s) {
          return std::to_string(s.num_tokens) + " tokens, " + std::to_string(s.num_sequences) +
                 " sequences of " + std::to_string(s.blocks_per_sequence) + " blocks, " +
                 std::to_string(s.num_logits) + " logits";
        };
        return "forward: a step of " + text(shape) + ", wanted at most " + text(most) +
               (shape.want_router_logits ? ", router logits only where made for them" : "");
      });
  if (shape.num_tokens > 0) Step(*this, shape, inputs, weights, kv, stream).run();
}

StepOutputs DeviceForward::outputs() const {
  return {space_->logits, space_->sampled, space_->topk_ids, space_->router_logits};
}

size_t DeviceForward::workspace_bytes(const ModelConfig& config,
                                      const DeviceForwardOptions& options) {
  return Workspace::bytes_of(config, options);
}

}  // namespace warproll
