// join_tiles: of rows that are to be packed into tiles at the same time, those that fill tiles whole: gate and
// up, elements and scales, each a tensor of its own. A checkpoint in name order has them side by side, so nearly
// all that comes in a bucket does. Thread: pure function.
#pragma once

#include <span>
#include <vector>

#include "kernels/moe/pack.h"

namespace warproll {

// Elements, scales or both: those that are not null.
struct PackRequest {
  WeightView rows;
  TileTarget to;
};

// All rows of its tiles, with scales if the format has any.
struct WholeTiles {
  WeightView rows;  // of a gate_up target: gate's
  WeightView up;    // of a gate_up target
  TileTarget to;    // of `rows`
};

struct JoinedTiles {
  std::vector<WholeTiles> whole;  // in the order of the requests, as `rest`
  std::vector<PackRequest> rest;
};
JoinedTiles join_tiles(std::span<const PackRequest> requests);

}  // namespace warproll
