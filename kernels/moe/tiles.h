// MoE tiles: how the weight arena of a GPU holds expert weights, so that the warp-decode kernels
// read them as one forward stream of bulk copies and every lane finds its tensor-core operand in
// one 16-byte read. A change of places and of exponents only: no value is rounded (below).
//
// A row tile is 16 weight rows of one expert over all K columns, one contiguous record:
//   gate_up: rows 0..7 = gate rows 8n .. 8n+7, rows 8..15 = up rows 8n .. 8n+7   (K = H, I/8 tiles)
//   down:    rows 16n .. 16n+15                                                  (K = I, H/16 tiles)
// Records lie in order [expert][tile]; after all of them 16 BF16 row scales a record, in the same
// order. A record is its blocks of 32 columns in order. A block holds, for lane 4g + t of a warp,
// rows g and g + 8 at the columns c + {2t, 2t+1, 2t+8, 2t+9, 2t+16, 2t+17, 2t+24, 2t+25}: the A
// operands of two mma.m16n8k16.
//   kF16      1024 bytes: [step 0, 1][lane][row g: 2t,2t+1 | g+8 | g: 2t+8,2t+9 | g+8] F16
//   kMxfp8    512 bytes: [lane][row g: 8 E4M3 | row g+8: 8 E4M3],
//             then 16: [g][row g, row g+8] high bytes of F16 powers of two, the block's scales
//   kFp8Block 512 bytes as kMxfp8, then 16: F32 scale of rows 0..7, of rows 8..15, 8 unused bytes
//
// Exactness. F16 weight = checkpoint weight / row scale, the row scale a power of two that puts the
// row's largest value near the top of F16. BF16 has 8 bits where F16 has 11, so this is exact down
// to 2^-31 of the row's largest weight (kF16), or for scales down to 2^-23 of the row's largest
// scale (kMxfp8, where a smaller one becomes 0); what is lost is below the F32 sum's last bit.
//
// Activations that meet tiles are F16 in tile order (tile_position). Thread: plain values, pure
// functions. Errors: std::invalid_argument naming the dimension, the value and what is wanted.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/weight.h"

namespace warproll {

inline constexpr int32_t kTileRows = 16;
inline constexpr int32_t kTileBlock = 32;      // columns of a block
inline constexpr int32_t kRowScaleBytes = 32;  // 16 BF16, of a record

enum class TileFormat : uint8_t { kF16, kMxfp8, kFp8Block };

constexpr int32_t tile_block_bytes(TileFormat f) { return f == TileFormat::kF16 ? 1024 : 528; }

// Expert weights as tiles. Does not own.
struct TileMatrix {
  TileFormat format = TileFormat::kF16;
  const std::byte* data = nullptr;  // [E][tiles] records, 128-byte aligned
  int32_t num_experts = 0;          // E
  int32_t num_tiles = 0;            // row tiles of an expert
  int32_t cols = 0;                 // K, multiple of 32

  [[nodiscard]] constexpr int32_t num_blocks() const { return cols / kTileBlock; }
  [[nodiscard]] constexpr int32_t record_bytes() const {
    return num_blocks() * tile_block_bytes(format);
  }
  [[nodiscard]] constexpr int64_t num_records() const { return int64_t{num_experts} * num_tiles; }
  [[nodiscard]] constexpr const std::byte* row_scales() const {
    return data + num_records() * record_bytes();
  }
  [[nodiscard]] constexpr uint64_t bytes() const {
    return static_cast<uint64_t>(num_records() * (record_bytes() + kRowScaleBytes));
  }
};

// Where column c of a row of activations lies in tile order: within its block of 32, lane t's
// eight values are neighbours.
constexpr int32_t tile_position(int32_t c) {
  const int32_t in_block = c % kTileBlock;
  return c - in_block + in_block % 8 / 2 * 8 + in_block / 8 * 2 + in_block % 2;
}

// The tiles that hold `weight`'s format: BF16 and F16 -> kF16. Throws for F32.
TileFormat tile_format_of(WeightFormat format);
// Shapes and format of the tiles of gate | up ([E, I, H] each) and of down ([E, H, I]); data null.
TileMatrix gate_up_tiles(const WeightView& gate, const WeightView& up);
TileMatrix down_tiles(const WeightView& down);

// Writes `tiles.bytes()` bytes at `out`. CPU twins of pack.h's kernels, the spec of the layout.
void pack_gate_up_cpu(const WeightView& gate, const WeightView& up, std::byte* out);
void pack_down_cpu(const WeightView& down, std::byte* out);

}  // namespace warproll
