#include "rollout/model/cuda/forward_step.h"

#include <cmath>
#include <cstddef>
#include <utility>

#include "kernels/step/add_rmsnorm.h"
#include "kernels/step/attention.h"
#include "kernels/step/cluster_linear.h"
#include "kernels/step/embed.h"
#include "kernels/step/gather_rows.h"
#include "kernels/step/linear.h"
#include "kernels/step/qkv_finish.h"
#include "kernels/step/sample.h"
#include "kernels/step/stream_linear.h"

namespace warproll {
namespace {

// Of QKV and O, and of lm_head: up to so many tokens stream_linear is faster than step_linear.
constexpr int32_t kMaxStreamedTokens = 256;
constexpr int32_t kMaxStreamedRows = 40;

}  // namespace

void DeviceForward::Step::run() {
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

void DeviceForward::Step::add_and_norm(const Addend& addend, const std::byte* weight) const {
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

ResidualNorm DeviceForward::Step::take_norm(const uint16_t* addend, const std::byte* weight) {
  const bool adds = addend != nullptr;
  const ResidualNorm norm = {.hidden = hidden_,
                             .addend = addend,
                             .hidden_out = adds ? hidden_next_ : nullptr,
                             .weight = weight,
                             .weight_dtype = weights_.norm_dtype,
                             .eps = config_.rms_norm_eps};
  if (adds) std::swap(hidden_, hidden_next_);
  return norm;
}

void DeviceForward::Step::norm_linear(const Addend& addend, const std::byte* norm,
                                      const TileMatrix& weight, uint16_t* y, float* y_f32,
                                      const char* op) {
  if (addend.moe.partials == nullptr && stream_linear_can_norm(shape_.num_tokens, weight)) {
    stream_linear({.x = {},
                   .norm = take_norm(addend.tensor, norm),
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

void DeviceForward::Step::linear(const TileActivations& tiles, const uint16_t* x,
                                 const TileMatrix& weight, int32_t rows, uint16_t* y,
                                 float* y_f32) const {
  const bool has_tiles = tiles.values != nullptr;
  const auto run = [&]<class Params>(void (*op)(const Params&, cudaStream_t)) {
    op({.x = tiles,
        .x_bf16 = has_tiles ? nullptr : x,
        .weight = weight,
        .y = y,
        .y_f32 = y_f32,
        .num_tokens = rows},
       stream_);
  };
  if (!options_.batch_invariant && cluster_linear_is_faster(rows, weight, has_tiles))
    return run(cluster_linear);
  const int32_t most = y_f32 == nullptr ? kMaxStreamedTokens : kMaxStreamedRows;
  if (options_.batch_invariant || rows <= most) return run(stream_linear);
  step_linear({.x = x,
               .weight = weight,
               .workspace = space_.linear,
               .workspace_bytes = space_.linear_bytes,
               .y = y,
               .y_f32 = y_f32,
               .num_tokens = rows},
              stream_);
}

void DeviceForward::Step::attention(const DeviceLayerWeights& w, int32_t layer,
                                    const Addend& addend) {
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
                                  .head_dim = config_.head_dim,
                                  .indices_are_older = true};
  const PagedAttentionParams attend = {
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
      .past_is_older = true};
  if (finish_attention_is_faster(attend)) {
    finish_attention(finish, attend, stream_);
  } else {
    qkv_finish(finish, stream_);
    mark("qkv_finish");
    paged_attention(attend, stream_);
  }
  mark("attention");
  linear({}, space_.attention, w.o, shape_.num_tokens, space_.projected, nullptr);
  mark("o");
}

void DeviceForward::Step::logits(const Addend& addend) {
  if (shape_.num_logits == 0) {
    // Partial sums must be taken: that also makes the lists' counters ready for the next layer.
    if (addend.moe.partials != nullptr) add_and_norm(addend, weights_.final_norm);
    return;
  }
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

}  // namespace warproll
