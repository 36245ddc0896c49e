// What holds for every tensor that comes from outside (safetensors header, manifest).
// Thread: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/arena.h"
#include "protocol/status.h"

namespace warproll {

inline constexpr size_t kMaxTensorRank = 8;
inline constexpr size_t kMaxTensorNameBytes = 1024;

// 1..kMaxTensorNameBytes bytes of UTF-8, no control characters (names go into logs and terminals).
Status check_tensor_name(std::string_view name);
// product(shape) * dtype_bytes; refuses negative dimensions, rank and overflow with the values.
Result<uint64_t> checked_tensor_bytes(Dtype dtype, const std::vector<int64_t>& shape);

std::string shape_to_string(const std::vector<int64_t>& shape);  // "[512, 64]"
// Text from outside as it may stand in an error: always UTF-8, control characters escaped, long
// text cut.
std::string printable(std::string_view text);

}  // namespace warproll
