// warp decode: the SwiGLU experts of a layer, output-centric and expert-deduplicated. The path
// `auto` takes for decode batches.
//   h[p]  = silu(gate_e x[t]) * (up_e x[t])          for every pair p = (t, k), e = its expert
//   y[t]  = sum over k, in order, of weight[p] * down_e h[p]
// Weight rows are the M of mma.m16n8k16, the tokens routed to their expert its N: a row is read from
// device memory once for all of them. Persistent CTAs stream rows through shared memory by bulk
// copies, so the bytes in flight do not depend on what the warps compute (expert_stream.cuh).
// Three kernels, programmatic dependent launch: gate_up writes h, down a partial sum for every pair,
// combine adds the K of a token. One or two tokens of the reference shape: gate_up and down_small,
// which adds them itself and has its weights on the way while gate_up ends; the same bits.
// No host synchronisation, no allocation, no float atomics, no waiting for other CTAs; can be captured.
//
// Numbers: x in F16 (exact for BF16), h as a sum of two F16 (22 bits; stored times 2^-6), exact F16
// weights (tiles.h), F32 sums in an order that columns alone decide, y rounded once. A token's bits
// depend on nothing but its own row: batch-invariant for every T.
// Tolerance: |y - F64| <= 0.5 ulp_bf16 + 1e-3 * RMS(y).
//
// Every kernel waits for the one before it before it reads anything that one may have written; down
// reads the lists before, which are older. A pair without an expert (expert_lists.h) adds nothing.
// Thread: any, one stream. Errors: std::invalid_argument (shapes), CudaError.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/moe/expert_lists.h"
#include "kernels/moe/tiles.h"

namespace warproll {

// x as the kernels read it: F16 in tile order, divided by a power of two per token (1 unless the
// row reaches 2^15), so that no value overflows.
struct TileActivations {
  uint16_t* values = nullptr;  // F16 [T, H] in tile order
  float* scales = nullptr;     // [T]
};

struct ConvertActivationsParams {
  const uint16_t* x = nullptr;  // BF16 [T, H]
  TileActivations out;
  int32_t num_tokens = 0;   // T >= 0; 0 is a no-op
  int32_t hidden_size = 0;  // H, multiple of 32
};
void convert_activations(const ConvertActivationsParams& params, cudaStream_t stream);

struct WarpDecodeParams {
  TileActivations x;          // [T, H]
  ExpertLists lists;          // of T * K pairs
  TileMatrix gate_up;         // E x I/8 tiles over H
  TileMatrix down;            // E x H/16 tiles over I
  uint16_t* h = nullptr;      // F16 [T * K, 2, I], workspace
  float* partials = nullptr;  // [T * K, H], workspace
  uint16_t* y = nullptr;      // BF16 [T, H]
  float* y_f32 = nullptr;  // [T, H], written instead of y when not null: the sums before rounding
  int32_t num_tokens = 0;  // T, 0 .. kMaxWarpDecodeTokens; 0 is a no-op
  int32_t top_k = 0;       // K, 1 .. 16
};
inline constexpr int32_t kMaxWarpDecodeTokens = 1024;
void warp_decode(const WarpDecodeParams& params, cudaStream_t stream);

// What `down` leaves for combine, or for add_rmsnorm to do the same (kernels/step/add_rmsnorm.h).
struct MoePartials {
  const float* partials = nullptr;  // [T * K, H], 16-byte aligned; anything where the weight is 0
  const float* pair_weights = nullptr;  // [T * K]
  ExpertListCounts* counts = nullptr;   // of these lists: next_down becomes 0 again; or null
  int32_t top_k = 0;                    // K, 1 .. 16
};
// warp_decode without combine: y is not written, what is returned has its sums; whoever adds them is
// the next user of partials and lists. But where one kernel does it all (down_small, or T = 0), y is
// written and partials is null. A matter of shapes alone. y_f32 must be null.
[[nodiscard]] MoePartials warp_decode_partials(const WarpDecodeParams& params, cudaStream_t stream);
// Its two halves by themselves, for benches: gate_up writes h, down reads it and writes y.
void warp_decode_gate_up(const WarpDecodeParams& params, cudaStream_t stream);
void warp_decode_down(const WarpDecodeParams& params, cudaStream_t stream);

}  // namespace warproll
