// MXFP8 of one checkpoint tensor: what it becomes (names, dtypes, shapes) and its bytes. Used by
// both the arena filler and `checkpoint quantize`, so that quantise-on-receive and a quantised
// export cannot differ. Thread: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/arena.h"
#include "protocol/status.h"

namespace warproll {

// SGLang dialect: "x.weight" BF16 [.., rows, cols] becomes "x.weight" F8_E4M3 of the same shape and
// "x.weight_scale_inv" U8 [.., rows, cols / 32].
struct QuantisedTensor {
  TensorInfo elements;
  TensorInfo scales;
};
// Wants F32, F16 or BF16, rank >= 2, a last dimension that is a multiple of 32.
Result<QuantisedTensor> plan_quantise_mxfp8(const TensorInfo& source);

// Sizes as planned (checked invariant). NaN or Inf is an error that names tensor and element.
// On the calling thread alone.
Status quantise_mxfp8(const TensorInfo& source, std::span<const std::byte> source_bytes,
                      std::span<std::byte> elements, std::span<std::byte> scales);

}  // namespace warproll
