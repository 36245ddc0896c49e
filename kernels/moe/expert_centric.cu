// expert_centric: prepare (grid T / 4, block 128), place (grid P / 2048, block 512), gate_up and
// down (grid one CTA an SM, block 384: a CTA produces 128 weight rows times up to 256 pairs of an
// expert at a time), combine (grid (H / 512, T), block 128).
#include "kernels/moe/expert_centric.h"

#include <cuda_fp16.h>

#include <string>

#include "kernels/check.h"
#include "kernels/moe/expert_centric_gemm.cuh"
#include "kernels/moe/expert_centric_pairs.cuh"
#include "kernels/moe/launch.cuh"

namespace warproll {
namespace moe {
namespace {

// The 8x8 matrix whose row g, columns 2t and 2t + 1 lane 4g + t holds, transposed.
__device__ __forceinline__ uint32_t transposed(uint32_t two) {
  uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(two));
  return out;
}

struct GateUpOp {
  const float* x_scales;     // [T]
  const int32_t* any_scale;  // [1]
  const int32_t* tokens;     // [P]
  uint16_t* h;               // F16 [P, I / 32, 2, 32]
  int intermediate_size;

  // Rows 0..7 of the record are gates, 8..15 ups.
  template <int kCount>
  __device__ __forceinline__ void store(int first, int count, int record, float gate_scale,
                                        float up_scale, const float (&d)[kCount]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, t = lane % 4;
    const bool scaled = *any_scale != 0;
    uint16_t* out = h + static_cast<int64_t>(first + lane / 4) * 2 * intermediate_size +
                    record / 4 * 64 + record % 4 * 8 + 2 * t;
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      float value[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float gate = d[4 * i + j] * gate_scale, up = d[4 * i + 2 + j] * up_scale;
        if (scaled) {
          const float scale = x_scales[tokens[first + min(8 * i + 2 * t + j, count - 1)]];
          gate *= scale;
          up *= scale;
        }
        const float product = gate / (1.0f + __expf(-gate)) * up * kHiddenScale;
        constexpr float kLimit = 65504.0f;
        value[j] = product > kLimit ? kLimit : product < -kLimit ? -kLimit : product;
      }
      const __half2 halves = __floats2half2_rn(value[0], value[1]);
      const float2 kept = __half22float2(halves);
      const __half2 rest = __floats2half2_rn(value[0] - kept.x, value[1] - kept.y);
      const uint32_t two = transposed(*reinterpret_cast<const uint32_t*>(&halves));
      const uint32_t two_more = transposed(*reinterpret_cast<const uint32_t*>(&rest));
      if (8 * i + lane / 4 < count) {
        *reinterpret_cast<uint32_t*>(out) = two;
        *reinterpret_cast<uint32_t*>(out + kTileBlock) = two_more;
      }
      out += 16 * intermediate_size;
    }
  }
};

struct DownOp {
  float* partials;  // [P, H]
  int hidden_size;

  template <int kCount>
  __device__ __forceinline__ void store(int first, int count, int record, float low, float high,
                                        const float (&d)[kCount]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, t = lane % 4;
    float* out = partials + static_cast<int64_t>(first + 2 * t) * hidden_size + record * kTileRows +
                 lane / 4;
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      if (8 * i + 2 * t < count) {
        out[0] = d[4 * i] * low;
        out[8] = d[4 * i + 2] * high;
      }
      if (8 * i + 2 * t + 1 < count) {
        out[hidden_size] = d[4 * i + 1] * low;
        out[hidden_size + 8] = d[4 * i + 3] * high;
      }
      out += static_cast<int64_t>(8) * hidden_size;
    }
  }
};

unsigned ceil_div(int64_t a, int64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

void launch_lists(const ExpertCentricParams& p, const ExpertCentricShape& s, const Workspace& w,
                  cudaStream_t stream) {
  WARPROLL_CUDA_CHECK(cudaMemsetAsync(
      w.counts, 0, (static_cast<size_t>(s.num_experts) + 1) * sizeof(int32_t), stream));
  LaunchConfig prepare(dim3(ceil_div(s.num_tokens, kPrepareThreads / 32)), kPrepareThreads, 0,
                       stream);
  prepare.run(prepare_kernel, PrepareParams{.x = p.x,
                                            .ids = p.topk_ids,
                                            .to = w,
                                            .num_tokens = s.num_tokens,
                                            .num_experts = s.num_experts,
                                            .top_k = s.top_k,
                                            .hidden_size = s.hidden_size});
  const int pairs = s.num_tokens * s.top_k;
  LaunchConfig place(dim3(ceil_div(pairs, kPlacePairs)), kPlaceThreads, 0, stream);
  place.programmatic();
  place.run(place_kernel, PlaceParams{.ids = p.topk_ids,
                                      .to = w,
                                      .num_pairs = pairs,
                                      .num_experts = s.num_experts,
                                      .top_k = s.top_k});
}

void launch_pair_sums(const ExpertCentricParams& p, const ExpertCentricShape& s, const Workspace& w,
                      cudaStream_t stream) {
  LaunchConfig config(dim3(ceil_div(s.hidden_size, kCombineThreads * kCombineCols),
                           static_cast<unsigned>(s.num_tokens)),
                      kCombineThreads, 0, stream);
  config.programmatic();
  config.run(combine_kernel, CombineParams{.partials = w.partials,
                                           .positions = w.positions,
                                           .weights = p.topk_weights,
                                           .y = reinterpret_cast<__nv_bfloat16*>(p.y),
                                           .y_f32 = p.y_f32,
                                           .top_k = s.top_k,
                                           .hidden_size = s.hidden_size});
}

void check_shape(const ExpertCentricShape& s) {
  check_argument(
      s.num_tokens >= 0 && s.num_tokens <= kMaxExpertCentricTokens && s.num_experts >= 1 &&
          s.num_experts <= kMaxExperts && s.top_k >= 1 && s.top_k <= kMaxTopK &&
          s.hidden_size >= kTileBlock && s.hidden_size % kTileBlock == 0 &&
          s.intermediate_size >= kTileBlock && s.intermediate_size % kTileBlock == 0,
      [&] {
        return "expert centric: T " + std::to_string(s.num_tokens) + ", E " +
               std::to_string(s.num_experts) + ", K " + std::to_string(s.top_k) + ", H " +
               std::to_string(s.hidden_size) + ", I " + std::to_string(s.intermediate_size) +
               "; wanted T 0.." + std::to_string(kMaxExpertCentricTokens) + ", E 1.." +
               std::to_string(kMaxExperts) + ", K 1.." + std::to_string(kMaxTopK) +
               ", H and I multiples of " + std::to_string(kTileBlock);
      });
}

void check_params(const ExpertCentricParams& p, const ExpertCentricShape& s, size_t wanted_bytes) {
  check_argument(
      p.down.num_experts == s.num_experts && p.down.num_tiles * kTileRows == s.hidden_size &&
          p.gate_up.num_tiles * 8 == s.intermediate_size,
      [&] {
        return "expert centric: gate_up is " + std::to_string(p.gate_up.num_experts) + " x " +
               std::to_string(p.gate_up.num_tiles) + " tiles over " +
               std::to_string(p.gate_up.cols) + " columns, down " +
               std::to_string(p.down.num_experts) + " x " + std::to_string(p.down.num_tiles) +
               " over " + std::to_string(p.down.cols) + "; wanted E x I/8 over H, E x H/16 over I";
      });
  check_argument(p.workspace_bytes >= wanted_bytes, [&] {
    return "expert centric: the workspace has " + std::to_string(p.workspace_bytes) +
           " bytes, wanted " + std::to_string(wanted_bytes);
  });
}

}  // namespace
}  // namespace moe

size_t expert_centric_workspace_bytes(const ExpertCentricShape& shape) {
  moe::check_shape(shape);
  return moe::workspace_at(nullptr, shape).bytes;
}

void expert_centric_moe(const ExpertCentricParams& p, cudaStream_t stream) {
  const ExpertCentricShape shape = {.num_tokens = p.num_tokens,
                                    .num_experts = p.gate_up.num_experts,
                                    .top_k = p.top_k,
                                    .hidden_size = p.gate_up.cols,
                                    .intermediate_size = p.down.cols};
  moe::check_shape(shape);
  const moe::Workspace w = moe::workspace_at(p.workspace, shape);
  moe::check_params(p, shape, w.bytes);
  if (p.num_tokens == 0) return;
  moe::launch_lists(p, shape, w, stream);
  const moe::GateUpOp gate_up = {w.x_scales, w.any_scale, w.tokens, w.h, shape.intermediate_size};
  moe::launch_gemm({p.gate_up, w.blocks, w.num_blocks, w.x, w.tokens, {}}, gate_up, stream);
  const moe::DownOp down = {w.partials, shape.hidden_size};
  moe::launch_gemm<2>({p.down, w.blocks, w.num_blocks, w.h, nullptr, {}}, down, stream);
  moe::launch_pair_sums(p, shape, w, stream);
}

}  // namespace warproll
