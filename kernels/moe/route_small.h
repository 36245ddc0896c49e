// The one-kernel router of decode batches, which route() takes where it can. Internal to kernels/moe.
#pragma once

#include "kernels/moe/route.h"

namespace warproll::moe {

inline constexpr int32_t kMaxSmallRouteTokens = 128;
[[nodiscard]] bool route_is_small(const RouteParams& params);
void launch_route_small(const RouteParams& params, cudaStream_t stream);

}  // namespace warproll::moe
