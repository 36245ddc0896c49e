#include "rollout/model/forward.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "kernels/embedding.h"
#include "kernels/linear.h"
#include "kernels/moe.h"
#include "kernels/residual_add.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/router.h"
#include "rollout/model/batch_check.h"

namespace warproll {
namespace {

Dtype dtype_of(ActivationDtype activations) {
  switch (activations) {
    case ActivationDtype::kBf16:
      return Dtype::kBf16;
    case ActivationDtype::kF16:
      return Dtype::kF16;
    default:
      return Dtype::kF32;
  }
}

template <typename T>
T* at_least(std::vector<T>& buffer, int64_t size) {
  if (buffer.size() < static_cast<size_t>(size)) buffer.resize(static_cast<size_t>(size));
  return buffer.data();
}

// One step: the model's ops in order, over the workspace's buffers.
class Step {
 public:
  Step(const ForwardBatch& batch, const ModelConfig& config, const ModelWeights& weights,
       ActivationDtype activations, KvCache& kv, ForwardOutput& out)
      : batch_(batch),
        config_(config),
        weights_(weights),
        dtype_(dtype_of(activations)),
        kv_(kv),
        out_(out),
        space_(kv.workspace()),
        num_tokens_(static_cast<int32_t>(batch.token_ids.size())) {}

  void run() {
    reserve();
    embedding_cpu({.token_ids = batch_.token_ids.data(),
                   .weight = weights_.embedding,
                   .y = space_.hidden.data(),
                   .num_tokens = num_tokens_,
                   .round_to = dtype_});
    rope_angles_cpu({.positions = batch_.positions.data(),
                     .cos = space_.cos.data(),
                     .sin = space_.sin.data(),
                     .num_tokens = num_tokens_,
                     .head_dim = config_.head_dim,
                     .theta = config_.rope_theta});
    int32_t moe_layer = 0;
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
      const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
      norm(space_.hidden, w.input_norm, space_.normed);
      attention(w, layer);
      add_residual();
      norm(space_.hidden, w.post_attention_norm, space_.normed);
      if (w.is_moe) {
        route(w, moe_layer++);
      } else {
        route_dense();
      }
      experts(w);
      add_residual();
    }
    logits();
  }

 private:
  void reserve() {
    const int64_t tokens = num_tokens_;
    const int64_t hidden = tokens * config_.hidden_size;
    const int64_t q = tokens * config_.num_heads * config_.head_dim;
    const int64_t kv = tokens * config_.num_kv_heads * config_.head_dim;
    for (auto* buffer : {&space_.hidden, &space_.normed, &space_.projected}) {
      at_least(*buffer, hidden);
    }
    for (auto* buffer : {&space_.q, &space_.attention}) at_least(*buffer, q);
    for (auto* buffer : {&space_.k, &space_.v}) at_least(*buffer, kv);
    for (auto* buffer : {&space_.cos, &space_.sin})
      at_least(*buffer, tokens * config_.head_dim / 2);
    at_least(space_.router_logits, tokens * config_.num_experts);
    at_least(space_.topk_weights, tokens * config_.num_experts_per_tok);
    at_least(space_.topk_ids, tokens * config_.num_experts_per_tok);
    const auto moe_layers = static_cast<size_t>(config_.num_moe_layers());
    const auto rows = static_cast<size_t>(num_tokens_) * moe_layers;
    out_.routes.resize(out_.want_routes ? rows * static_cast<size_t>(config_.num_experts_per_tok)
                                        : 0);
    out_.router_logits.resize(
        out_.want_router_logits ? rows * static_cast<size_t>(config_.num_experts) : 0);
  }

  void norm(const std::vector<float>& x, const std::byte* weight, std::vector<float>& y) const {
    rmsnorm_cpu({.x = x.data(),
                 .weight = weight,
                 .weight_dtype = weights_.norm_dtype,
                 .y = y.data(),
                 .num_rows = num_tokens_,
                 .row_size = config_.hidden_size,
                 .eps = config_.rms_norm_eps,
                 .round_to = dtype_});
  }

  // Not rounded: a GPU norms and rotates a head in registers.
  void head_norm(std::vector<float>& heads, int32_t num_heads, const std::byte* weight) const {
    rmsnorm_cpu({.x = heads.data(),
                 .weight = weight,
                 .weight_dtype = weights_.norm_dtype,
                 .y = heads.data(),
                 .num_rows = int64_t{num_tokens_} * num_heads,
                 .row_size = config_.head_dim,
                 .eps = config_.rms_norm_eps});
  }

  void linear(const std::vector<float>& x, const WeightView& weight, std::vector<float>& y) const {
    linear_cpu({.x = x.data(),
                .weight = weight,
                .y = y.data(),
                .num_tokens = num_tokens_,
                .round_to = dtype_});
  }

  void attention(const LayerWeights& w, int32_t layer) {
    linear(space_.normed, w.q, space_.q);
    linear(space_.normed, w.k, space_.k);
    linear(space_.normed, w.v, space_.v);
    head_norm(space_.q, config_.num_heads, w.q_norm);
    head_norm(space_.k, config_.num_kv_heads, w.k_norm);
    rope_kv_write_cpu({.q = space_.q.data(),
                       .k = space_.k.data(),
                       .v = space_.v.data(),
                       .cos = space_.cos.data(),
                       .sin = space_.sin.data(),
                       .slot_mapping = batch_.slot_mapping.data(),
                       .k_cache = kv_.k(layer),
                       .v_cache = kv_.v(layer),
                       .num_slots = int64_t{kv_.num_blocks()} * kv_.block_tokens(),
                       .num_tokens = num_tokens_,
                       .num_heads = config_.num_heads,
                       .num_kv_heads = config_.num_kv_heads,
                       .head_dim = config_.head_dim,
                       .round_to = dtype_});
    attention_cpu({.q = space_.q.data(),
                   .k_cache = kv_.k(layer),
                   .v_cache = kv_.v(layer),
                   .positions = batch_.positions.data(),
                   .cu_seqlens_q = batch_.cu_seqlens_q.data(),
                   .block_table = batch_.block_table.data(),
                   .out = space_.attention.data(),
                   .num_sequences = static_cast<int32_t>(batch_.context_lens.size()),
                   .num_tokens = num_tokens_,
                   .num_heads = config_.num_heads,
                   .num_kv_heads = config_.num_kv_heads,
                   .head_dim = config_.head_dim,
                   .num_blocks = kv_.num_blocks(),
                   .block_tokens = kv_.block_tokens(),
                   .blocks_per_sequence = batch_.blocks_per_sequence,
                   .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                   .round_to = dtype_});
    linear(space_.attention, w.o, space_.projected);
  }

  void add_residual() {
    residual_add_cpu({.x = space_.hidden.data(),
                      .y = space_.projected.data(),
                      .count = int64_t{num_tokens_} * config_.hidden_size,
                      .round_to = dtype_});
  }

  // topk_ids and topk_weights of this layer, and what the caller asked to see of them.
  void route(const LayerWeights& w, int32_t moe_layer) {
    top_k_ = config_.num_experts_per_tok;
    linear_cpu({.x = space_.normed.data(),
                .weight = w.router,
                .y = space_.router_logits.data(),
                .num_tokens = num_tokens_});
    const bool given = !batch_.given_routes.empty();
    const int64_t layers = config_.num_moe_layers();
    const auto route_at = [&](int64_t t) { return (t * layers + moe_layer) * top_k_; };
    for (int64_t t = 0; given && t < num_tokens_; ++t) {
      std::copy_n(batch_.given_routes.data() + route_at(t), top_k_,
                  space_.topk_ids.data() + t * top_k_);
    }
    router_cpu({.logits = space_.router_logits.data(),
                .given_ids = given ? space_.topk_ids.data() : nullptr,
                .topk_ids = space_.topk_ids.data(),
                .topk_weights = space_.topk_weights.data(),
                .num_tokens = num_tokens_,
                .num_experts = config_.num_experts,
                .top_k = top_k_,
                .renormalise = config_.norm_topk_prob});
    const int64_t experts = config_.num_experts;
    for (int64_t t = 0; t < num_tokens_; ++t) {
      const int32_t* ids = space_.topk_ids.data() + t * top_k_;
      if (out_.want_routes) std::copy_n(ids, top_k_, out_.routes.data() + route_at(t));
      if (!out_.want_router_logits) continue;
      std::copy_n(space_.router_logits.data() + t * experts, experts,
                  out_.router_logits.data() + (t * layers + moe_layer) * experts);
    }
  }

  // A dense MLP is one expert of weight 1.
  void route_dense() {
    top_k_ = 1;
    std::fill_n(space_.topk_ids.begin(), num_tokens_, 0);
    std::fill_n(space_.topk_weights.begin(), num_tokens_, 1.0f);
  }

  void experts(const LayerWeights& w) {
    const bool fused = w.gate_up.data != nullptr;
    const int32_t intermediate = w.gate_up.rows / 2;
    MoeParams params{.x = space_.normed.data(),
                     .topk_ids = space_.topk_ids.data(),
                     .topk_weights = space_.topk_weights.data(),
                     .gate = fused ? w.gate_up.slice_rows(0, intermediate) : w.gate,
                     .up = fused ? w.gate_up.slice_rows(intermediate, intermediate) : w.up,
                     .down = w.down,
                     .y = space_.projected.data(),
                     .num_tokens = num_tokens_,
                     .top_k = top_k_,
                     .round_to = dtype_};
    params.scratch = at_least(space_.moe_scratch, moe_scratch_floats(params));
    moe_cpu(params);
  }

  // Only the asked rows see the head. Logits are not rounded: the sampler reads F32.
  void logits() {
    const auto rows = static_cast<int32_t>(batch_.logits_rows.size());
    const int64_t hidden = config_.hidden_size;
    float* gathered = at_least(space_.logits_hidden, rows * hidden);
    for (int64_t n = 0; n < rows; ++n) {
      std::copy_n(space_.hidden.data() + batch_.logits_rows[static_cast<size_t>(n)] * hidden,
                  hidden, gathered + n * hidden);
    }
    out_.logits.resize(static_cast<size_t>(rows) * static_cast<size_t>(config_.vocab_size));
    rmsnorm_cpu({.x = gathered,
                 .weight = weights_.final_norm,
                 .weight_dtype = weights_.norm_dtype,
                 .y = gathered,
                 .num_rows = rows,
                 .row_size = config_.hidden_size,
                 .eps = config_.rms_norm_eps,
                 .round_to = dtype_});
    linear_cpu(
        {.x = gathered, .weight = weights_.lm_head, .y = out_.logits.data(), .num_tokens = rows});
  }

  const ForwardBatch& batch_;
  const ModelConfig& config_;
  const ModelWeights& weights_;
  const Dtype dtype_;
  KvCache& kv_;
  ForwardOutput& out_;
  ForwardWorkspace& space_;
  const int32_t num_tokens_;
  int32_t top_k_ = 1;  // of the layer that runs
};

}  // namespace

void forward(const ForwardBatch& batch, const ModelConfig& config, const ModelWeights& weights,
             ActivationDtype activations, KvCache& kv, ForwardOutput& out) {
  check_batch(batch, config, weights, activations, kv);
  Step(batch, config, weights, activations, kv, out).run();
}

}  // namespace warproll
