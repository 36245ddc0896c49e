// The experts of a layer: their router, a dense MLP, and which path they take.
#include "kernels/moe/expert_centric.h"
#include "kernels/moe/literal.h"
#include "kernels/moe/route.h"
#include "rollout/model/cuda/forward_step.h"

namespace warproll {

DeviceForward::Step::Addend DeviceForward::Step::moe(const DeviceLayerWeights& w,
                                                     int32_t moe_layer) {
  const int64_t tokens = shape_.num_tokens, top_k = config_.num_experts_per_tok;
  int32_t* const topk_ids = space_.topk_ids + moe_layer * tokens * top_k;
  const int64_t captured = shape_.want_router_logits ? moe_layer * tokens : 0;
  add_and_norm({.tensor = space_.projected}, w.post_attention_norm);
  route({.x = space_.normed,
         .weight = w.router,
         .weight_dtype = w.router_dtype,
         .given_ids = inputs_.given_ids == nullptr ? nullptr
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
         .renormalise = config_.norm_topk_prob},
        stream_);
  mark("route");
  return experts(w, topk_ids, space_.topk_weights, space_.lists, config_.num_experts_per_tok);
}

DeviceForward::Step::Addend DeviceForward::Step::dense(const DeviceLayerWeights& w) {
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

bool DeviceForward::Step::grouped(TileFormat format) const {
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

DeviceForward::Step::Addend DeviceForward::Step::experts(const DeviceLayerWeights& w,
                                                         const int32_t* topk_ids,
                                                         const float* topk_weights,
                                                         const ExpertLists& lists,
                                                         int32_t top_k) const {
  MoePartials partials;
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
  } else if (options_.moe_path == MoePath::kLiteral && w.gate_rows.data != nullptr) {
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
  } else {
    partials = warp_decode_partials({.x = space_.normed_tile,
                                     .lists = lists,
                                     .gate_up = w.gate_up,
                                     .down = w.down,
                                     .h = space_.expert_h,
                                     .partials = space_.expert_partials,
                                     .y = space_.projected,
                                     .num_tokens = shape_.num_tokens,
                                     .top_k = top_k},
                                    stream_);
  }
  mark("experts");
  if (partials.partials != nullptr) return {.moe = partials};
  return {.tensor = space_.projected};
}

}  // namespace warproll
