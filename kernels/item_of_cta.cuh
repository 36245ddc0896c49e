// The item of a list that a CTA works for, where items have several CTAs each. Internal to kernels/*.cu.
#pragma once

#include <cstdint>

namespace warproll {

// items[..].first_cta ascend from 0; CTA c is the last item's that begins at or before c. Whole warps: a
// step looks at 32 items, as every step waits for device memory.
template <class Item>
__device__ const Item& item_of_cta(const Item* items, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int first = 0;
  while (count > 1) {
    const int step = (count + 31) / 32, at = lane * step;
    const bool begins = at < count && items[first + at].first_cta <= int64_t{blockIdx.x};
    const int skipped = (__popc(__ballot_sync(~0u, begins)) - 1) * step;
    first += skipped;
    count = min(step, count - skipped);
  }
  return items[first];
}

}  // namespace warproll
