// with_format: a tile format known at run time as a constant of the code. Internal to kernels/*/*.cu.
#pragma once

#include "kernels/moe/tiles.h"

namespace warproll::moe {

// body.template operator()<format>()
template <class Body>
void with_format(TileFormat format, const Body& body) {
  switch (format) {
    case TileFormat::kF16:
      return body.template operator()<TileFormat::kF16>();
    case TileFormat::kMxfp8:
      return body.template operator()<TileFormat::kMxfp8>();
    case TileFormat::kFp8Block:
      return body.template operator()<TileFormat::kFp8Block>();
  }
}

}  // namespace warproll::moe
