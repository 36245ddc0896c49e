// add_rmsnorm: the residual addition and the norm behind it, in one pass over a token's row.
//   hidden[t] = bf16(hidden[t] + addend[t])                                     where there is one
//   normed[t] = bf16(hidden[t] / sqrt(mean(hidden[t]^2) + eps) * weight)
// The addend is a BF16 tensor, or a MoE layer's partials, which are combined here as
// kernels/moe/combine.cu does (and have its bits): sum over k, in order, of weight * partial, pairs of
// weight 0 skipped, rounded to BF16.
// Twins: residual_add_cpu, then rmsnorm_cpu, rounding to BF16. hidden has their bits; normed may
// differ by one BF16 ulp, because its F32 sum has another order. That order depends on H alone: a
// row's bits depend on nothing but the row.
// Waits for the previous kernel before it reads anything but the weight; programmatic dependent
// launch; no host synchronisation, can be captured.
// The next kernel may start before this one has waited. So what that one reads before its own wait
// (weights, positions) must be older than the last kernel that waits before it lets others start, as
// embed and gate_up do, or than a copy.
// Thread: any, one stream. Errors: std::invalid_argument, CudaError.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/dtype.h"
#include "kernels/moe/warp_decode.h"

namespace warproll {

struct AddRmsNormParams {
  uint16_t* hidden = nullptr;         // BF16 [T, H]; written only when there is an addend
  const uint16_t* addend = nullptr;   // BF16 [T, H], or null
  MoePartials moe;                    // partials null: none. Not both of addend and moe
  const std::byte* weight = nullptr;  // [H]
  Dtype weight_dtype = Dtype::kBf16;  // kBf16, kF16 or kF32
  float eps = 1e-6f;
  uint16_t* normed = nullptr;  // BF16 [T, H], or null; may be addend
  TileActivations
      normed_tile;          // what convert_activations makes of normed; values null: not written
  int32_t num_tokens = 0;   // T >= 0; 0 is a no-op
  int32_t hidden_size = 0;  // H, multiple of 32, 32 .. kMaxAddRmsNormHidden
};
inline constexpr int32_t kMaxAddRmsNormHidden = 16384;
void add_rmsnorm(const AddRmsNormParams& params, cudaStream_t stream);

}  // namespace warproll
