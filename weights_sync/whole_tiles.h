// join_tiles: of rows that are to be packed into tiles at the same time, those that fill tiles whole: gate and
// up, elements and scales, each a tensor of its own. A checkpoint in name order has them side by side, so nearly
// all that comes in a bucket does. Thread: pure function.
#pragma once

#include <span>
#include <vector>

#include "kernels/fill_items.h"

namespace warproll {

// Elements, scales or both: those that are not null.
struct PackRequest {
  WeightView rows;
  TileTarget to;
};

struct JoinedTiles {
  std::vector<TileItem> whole;  // in the order of the requests, as `rest`
  std::vector<PackRequest> rest;
};
JoinedTiles join_tiles(std::span<const PackRequest> requests);

}  // namespace warproll
