// expert centric: the SwiGLU experts of a layer as two grouped matrix products on tensor cores. The
// path for prefill and large batches, where an expert has tens to thousands of tokens:
//   h[p]  = silu(gate_e x[t]) * (up_e x[t])          for every pair p = (t, k), e = topk_ids[t, k]
//   y[t]  = sum over k, in order, of topk_weights[t, k] * down_e h[p]
// The same numbers as warp_decode (warp_decode.h) from the same tiles, in another order of sums.
// Pairs are sorted by expert on the device, so an expert's pairs are neighbours in h. Six nodes: a
// memset, prepare (x to F16, ranks), place (positions, token blocks), gate_up, down, combine. No
// host synchronisation, no allocation, no float atomics; can be captured into a graph.
//
// Numbers: F16 x (divided by a power of two per token), h as a sum of two F16 (22 bits; stored times
// 2^-6), exact F16 weights, F32 sums in the order of the columns, y rounded once. A token's bits
// depend on its own row alone: how tokens are grouped changes which column of a tensor-core tile they
// are, not their sums. Tolerance: |y - F64| <= 0.5 ulp_bf16 + 1e-3 * RMS(y).
//
// A pair whose expert id is outside [0, E) contributes nothing. sm_90a runs wgmma; other targets
// mma.sync through the same pipeline. Thread: any, one stream; the workspace serves one call at a
// time. Errors: std::invalid_argument (shapes, a small workspace), CudaError.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/moe/tiles.h"

namespace warproll {

struct ExpertCentricShape {
  int32_t num_tokens = 0;         // T, 0 .. kMaxExpertCentricTokens
  int32_t num_experts = 0;        // E, 1 .. 512
  int32_t top_k = 0;              // K, 1 .. 16
  int32_t hidden_size = 0;        // H, multiple of 32
  int32_t intermediate_size = 0;  // I, multiple of 32
};
inline constexpr int32_t kMaxExpertCentricTokens = 8192;
// From so many tokens on this path is taken rather than warp_decode, where both may: the crossover at
// the reference shape, uniform routing, one H200 (docs/benchmarks/moe.md). Beyond
// kMaxWarpDecodeTokens it is the only one.
constexpr int32_t expert_centric_from(TileFormat format) {
  return format == TileFormat::kF16 ? 448 : 480;
}

// Most of it is T * K * H floats: 537 MB at T 8192, K 8, H 2048.
[[nodiscard]] size_t expert_centric_workspace_bytes(const ExpertCentricShape& shape);

struct ExpertCentricParams {
  const uint16_t* x = nullptr;          // BF16 [T, H], 16-byte aligned
  const int32_t* topk_ids = nullptr;    // [T, K]
  const float* topk_weights = nullptr;  // [T, K]
  TileMatrix gate_up;                   // E x I/8 tiles over H
  TileMatrix down;                      // E x H/16 tiles over I
  std::byte* workspace = nullptr;       // 256-byte aligned, its content does not matter
  size_t workspace_bytes = 0;
  uint16_t* y = nullptr;   // BF16 [T, H]
  float* y_f32 = nullptr;  // [T, H], written instead of y when not null: the sums before rounding
  int32_t num_tokens = 0;  // T, 0 is a no-op
  int32_t top_k = 0;       // K
};
void expert_centric_moe(const ExpertCentricParams& params, cudaStream_t stream);

}  // namespace warproll
