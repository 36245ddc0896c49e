// Checks that the validators of Task and Trajectory share (internal to protocol/).
// Every failure is kInvalidArgument with the field, the value got and the value wanted.
// Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/status.h"

namespace warproll {

inline constexpr size_t kMaxIdBytes = 256;
inline constexpr int32_t kMaxGroupSize = 65536;

Status check_utf8(std::string_view name, std::string_view text);
// UTF-8 of 1..max_bytes bytes.
Status check_text(std::string_view name, std::string_view text, size_t max_bytes);
// Every id >= 0 and, when vocab_size > 0, < vocab_size.
Status check_ids(std::string_view name, const std::vector<int32_t>& ids, int32_t vocab_size);

}  // namespace warproll
