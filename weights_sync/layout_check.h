// Whether an ArenaLayout is sound: its slots and tile regions lie in the arena, aligned and apart, and
// the slots of a tile region have all of its rows. And what of the arena lies between them.
// Thread: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/arena.h"
#include "protocol/status.h"

namespace warproll {

// Errors name the slot or the region.
Status check_layout(const ArenaLayout& layout, uint64_t arena_bytes);

// Bytes [begin, begin + bytes) of an arena.
struct ArenaGap {
  uint64_t begin = 0;
  uint64_t bytes = 0;  // > 0
};
// What no tensor writes of [0, total_bytes) of an arena that is filled: all that lies between slots and
// tile regions, ascending. Of a layout that make_fill_plan takes: there a slot has all of its bytes from
// its tensors, and a tile region's are all written by the packing of its rows (kernels/moe/pack.h).
std::vector<ArenaGap> arena_gaps(const ArenaLayout& layout);

}  // namespace warproll
