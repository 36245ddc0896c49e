#include "kernels/moe/warp_decode.h"

#include <string>

#include "kernels/check.h"
#include "kernels/moe/launch.cuh"
#include "kernels/router.h"

namespace warproll {
namespace {

std::string shape_of(const TileMatrix& m) {
  return "E " + std::to_string(m.num_experts) + ", " + std::to_string(m.num_tiles) +
         " tiles over " + std::to_string(m.cols);
}

void check(const WarpDecodeParams& p) {
  check_argument(
      p.gate_up.num_experts == p.down.num_experts && p.gate_up.num_experts >= 1 &&
          p.gate_up.num_experts <= kMaxExperts && p.gate_up.num_tiles * 8 == p.down.cols &&
          p.down.num_tiles * kTileRows == p.gate_up.cols && p.gate_up.cols % kTileBlock == 0 &&
          p.down.cols % kTileBlock == 0,
      [&] {
        return "warp decode: gate_up " + shape_of(p.gate_up) + "; down " + shape_of(p.down) +
               "; wanted I/8 tiles over H and H/16 tiles over I, H and I multiples of " +
               std::to_string(kTileBlock) + ", E 1 .. " + std::to_string(kMaxExperts);
      });
  check_argument(p.num_tokens >= 0 && p.num_tokens <= kMaxWarpDecodeTokens && p.top_k >= 1 &&
                     p.top_k <= kMaxTopK,
                 [&] {
                   return "warp decode: T " + std::to_string(p.num_tokens) + ", K " +
                          std::to_string(p.top_k) + "; wanted T 0 .. " +
                          std::to_string(kMaxWarpDecodeTokens) + ", K 1 .. " +
                          std::to_string(kMaxTopK);
                 });
}

}  // namespace

void warp_decode_gate_up(const WarpDecodeParams& p, cudaStream_t stream) {
  check(p);
  if (p.num_tokens > 0) moe::launch_gate_up(p, stream);
}

void warp_decode_down(const WarpDecodeParams& p, cudaStream_t stream) {
  check(p);
  if (p.num_tokens == 0) return;
  if (moe::down_is_small(p)) return moe::launch_down_small(p, stream);
  moe::launch_down(p, stream);
  moe::launch_combine(p, stream);
}

MoePartials warp_decode_partials(const WarpDecodeParams& p, cudaStream_t stream) {
  check(p);
  check_argument(p.y_f32 == nullptr,
                 [] { return std::string("warp decode: partials, and y_f32 is not null"); });
  if (p.num_tokens == 0) return {};
  moe::launch_gate_up(p, stream);
  if (moe::down_is_small(p)) {
    moe::launch_down_small(p, stream);
    return {};
  }
  moe::launch_down(p, stream);
  return {p.partials, p.lists.pair_weights, p.lists.counts, p.top_k};
}

void warp_decode(const WarpDecodeParams& p, cudaStream_t stream) {
  warp_decode_gate_up(p, stream);
  warp_decode_down(p, stream);
}

}  // namespace warproll
