// ResidualNorm: what add_rmsnorm does (add_rmsnorm.h), asked of the kernel that reads the norm, as its
// prologue: one kernel less. Every CTA computes the norms it needs; hidden, normed and tiles have
// add_rmsnorm's bits. Thread: plain values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace warproll {

struct ResidualNorm {
  const uint16_t* hidden = nullptr;   // BF16 [T, H], before the addition; null: no norm is asked
  const uint16_t* addend = nullptr;   // BF16 [T, H], or null
  uint16_t* hidden_out = nullptr;     // BF16 [T, H], after it; or null. Others still read hidden
  const std::byte* weight = nullptr;  // [H]
  Dtype weight_dtype = Dtype::kBf16;  // kBf16, kF16 or kF32
  float eps = 1e-6f;
};                                                    // all pointers 16-byte aligned
inline constexpr int32_t kResidualNormHidden = 2048;  // H

// Throws std::invalid_argument that begins with `op`.
void check_residual_norm(const ResidualNorm& norm, const char* op);

}  // namespace warproll
