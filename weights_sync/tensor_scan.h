// Finds what must not be in weights: NaN and Inf in F32, F16 and BF16, the NaN codes of E4M3
// (0x7f, 0xff) and of E8M0 (255). Integer tensors have nothing to find.
// Thread: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/arena.h"
#include "protocol/status.h"

namespace warproll {

// Index of the first such element; bytes.size() must be whole elements, any alignment.
std::optional<uint64_t> find_not_finite(Dtype dtype, std::span<const std::byte> bytes);

// The dtype to scan a checkpoint tensor as: MXFP8 exports store E8M0 scales as U8 under names that
// end in "weight_scale" or "_scale_inv".
Dtype scan_dtype(const TensorInfo& tensor);

// "tensor 'x': element 17 is BF16 0x7fc0, wanted finite values"; `element` is the bytes of that
// one element.
Status not_finite_error(std::string_view tensor_name, Dtype dtype, uint64_t element_index,
                        std::span<const std::byte> element);

}  // namespace warproll
