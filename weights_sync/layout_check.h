// Whether an ArenaLayout is sound: its slots and tile regions lie in the arena, aligned and apart, and
// the slots of a tile region have all of its rows. Thread: pure functions.
#pragma once

#include <cstdint>

#include "kernels/arena.h"
#include "protocol/status.h"

namespace warproll {

// Errors name the slot or the region.
Status check_layout(const ArenaLayout& layout, uint64_t arena_bytes);

}  // namespace warproll
