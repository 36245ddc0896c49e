// The body of pack_tiles: what one CTA does for tiles all of whose sixteen rows are there, with their scales, so
// that a lane writes 16 bytes and no sector of memory is written twice. The half tiles of gate and up, one tensor
// after the other, each write 8 (or 4) bytes of 16. 256 threads. Internal to kernels/*.cu.
#pragma once

#include "kernels/moe/pack_half_tile.cuh"

namespace warproll {

inline constexpr int kTileVectors = 2;   // of 64 bytes of sixteen rows, that a warp has under way
inline constexpr int kMostCtaTiles = 4;  // of FP8; of F16 one

// Of the view: of gate_up tiles the others are up's.
__host__ __device__ inline int rows_of_tile(const TileTarget& to) {
  return to.gate_up ? 8 : kTileRows;
}
__host__ __device__ inline int tiles_of_matrix(const WeightView& rows, const TileTarget& to) {
  return rows.rows / rows_of_tile(to);
}
__host__ __device__ inline int tiles_of_cta(const WeightView& rows) {
  if (!is_fp8(rows.format)) return 1;
  const int tiles = kPackWarps * kTileVectors * 64 / rows.cols;
  return tiles < 1 ? 1 : tiles > kMostCtaTiles ? kMostCtaTiles : tiles;
}
inline int64_t num_tile_ctas(const WeightView& rows, const TileTarget& to) {
  const int64_t tiles = int64_t{rows.num_matrices} * tiles_of_matrix(rows, to);
  return (tiles + tiles_of_cta(rows) - 1) / tiles_of_cta(rows);
}

// Where tile `index` of all matrices comes from and goes. Its rows 0..7 are those of `low` from low_row on.
struct TilePlace {
  int matrix, low_row, high_row;
  int64_t record;
  std::byte* out;

  __device__ TilePlace(const WeightView& low, const TileTarget& to, int index) {
    const int tiles = tiles_of_matrix(low, to), rows = rows_of_tile(to);
    matrix = index / tiles;
    low_row = index % tiles * rows;
    high_row = to.gate_up ? low_row : low_row + 8;
    record = int64_t{to.first_matrix + matrix} * to.tiles.num_tiles + to.first_row / rows +
             index % tiles;
    out = to.out + record * to.tiles.record_bytes();
  }
};

// A lane's words of two blocks of FP8 (pack_fp8_vector()) or of one of F16, of both halves.
__device__ __forceinline__ void write_fp8_tile(uint4 low, uint4 high, int lane, std::byte* out) {
  uint32_t a[4], b[4];
  fp8_words(low, lane, a);
  fp8_words(high, lane, b);
  constexpr int kBlockBytes = tile_block_bytes(TileFormat::kMxfp8);
  *reinterpret_cast<uint4*>(out + lane * 16) = {a[0], a[1], b[0], b[1]};
  *reinterpret_cast<uint4*>(out + kBlockBytes + lane * 16) = {a[2], a[3], b[2], b[3]};
}

__device__ __forceinline__ void write_f16_tile(uint4 low, uint4 high, int lane, WeightFormat format,
                                               int low_exponent, int high_exponent,
                                               std::byte* out) {
  uint32_t a[4], b[4];
  f16_words(low, lane, format, low_exponent, a);
  f16_words(high, lane, format, high_exponent, b);
  *reinterpret_cast<uint4*>(out + lane * 16) = {a[0], b[0], a[1], b[1]};
  *reinterpret_cast<uint4*>(out + 512 + lane * 16) = {a[2], b[2], a[3], b[3]};
}

// see(v, low, high, place, which) for each 64 bytes of sixteen rows of tiles begin .. end: v of a row's, the
// lane's 16 of rows lane / 4 and that + 8.
template <class See>
__device__ __forceinline__ void for_each_vector(const WeightView& low, const WeightView& high,
                                                const TileTarget& to, int begin, int end,
                                                int element_bytes, const See& see) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int of_tile = low.cols * element_bytes / 64, vectors = (end - begin) * of_tile;
  for (int v = warp; v < vectors; v += kPackWarps * kTileVectors) {
    uint4 a[kTileVectors], b[kTileVectors];
#pragma unroll
    for (int u = 0; u < kTileVectors; ++u) {
      const int at = min(v + u * kPackWarps, vectors - 1);
      const TilePlace place(low, to, begin + at / of_tile);
      const std::byte* const low_row =
          row_data(low, place.matrix, place.low_row + lane / 4, element_bytes);
      const std::byte* const high_row =
          row_data(high, place.matrix, place.high_row + lane / 4, element_bytes);
      a[u] = reinterpret_cast<const uint4*>(low_row)[at % of_tile * 4 + lane % 4];
      b[u] = reinterpret_cast<const uint4*>(high_row)[at % of_tile * 4 + lane % 4];
    }
#pragma unroll
    for (int u = 0; u < kTileVectors; ++u) {
      const int at = v + u * kPackWarps;
      if (at >= vectors) break;
      see(at % of_tile, a[u], b[u], TilePlace(low, to, begin + at / of_tile));
    }
  }
}

// The scales of tiles begin .. end, a thread for each 16 bytes of them, and the row scales.
__device__ __forceinline__ void pack_tile_scales(const WeightView& low, const WeightView& high,
                                                 const TileTarget& to, int begin, int end) {
  __shared__ int exponents[kMostCtaTiles * kTileRows];
  constexpr int kBlockBytes = tile_block_bytes(TileFormat::kMxfp8);
  const int blocks = low.cols / kTileBlock, thread = static_cast<int>(threadIdx.x);
  const int row = thread / 4, tile = begin + row / kTileRows;  // four lanes a row
  if (tile < end) {
    const TilePlace place(low, to, tile);
    const bool is_high = row % kTileRows >= 8;
    int exponent = 0;
    if (low.format == WeightFormat::kMxfp8) {
      const std::byte* const scales =
          is_high ? scales_of_row(high, place.matrix, place.high_row + row % 8)
                  : scales_of_row(low, place.matrix, place.low_row + row % 8);
      exponent =
          row_exponent_of_quad(reinterpret_cast<const uint32_t*>(scales), blocks / 4, thread % 4);
    }
    if (thread % 4 == 0) exponents[row] = exponent;
  }
  __syncthreads();
  for (int i = thread; i < (end - begin) * blocks; i += kPackWarps * 32) {
    const int block = i % blocks, t = i / blocks;
    const TilePlace place(low, to, begin + t);
    std::byte* const out = place.out + block * kBlockBytes + 512;
    if (low.format == WeightFormat::kFp8Block) {
      pack_scale(low, place.matrix, place.low_row, block, 0, 0, 0, out);
      pack_scale(high, place.matrix, place.high_row, block, 0, 1, 0, out);
      continue;
    }
    const std::byte* const a = scales_of_row(low, place.matrix, place.low_row) + block;
    const std::byte* const b = scales_of_row(high, place.matrix, place.high_row) + block;
    uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      const int* const e = exponents + t * kTileRows + g;
      const uint32_t pair = block_scale_byte(static_cast<int>(a[g * blocks]), e[0]) |
                            block_scale_byte(static_cast<int>(b[g * blocks]), e[8]) << 8;
      words[g / 2] |= pair << (g % 2 * 16);
    }
    *reinterpret_cast<uint4*>(out) = {words[0], words[1], words[2], words[3]};
  }
  if (thread >= (end - begin) * kTileRows) return;
  write_row_scale(low, to, TilePlace(low, to, begin + thread / kTileRows).record,
                  thread % kTileRows, exponents[thread]);
}

// The largest exponents of a tile's sixteen rows of BF16.
__device__ __forceinline__ void find_exponents(const WeightView& low, const WeightView& high,
                                               const TileTarget& to, int tile, int* exponents) {
  constexpr uint32_t kFields = 0x7f807f80u;
  const int thread = static_cast<int>(threadIdx.x), g = thread % 32 / 4;
  if (thread < kTileRows) exponents[thread] = kLeastBf16Exponent;
  __syncthreads();
  uint32_t largest[2] = {0, 0};
  for_each_vector(low, high, to, tile, tile + 1, 2, [&](int, uint4 a, uint4 b, const TilePlace&) {
    const auto fields = [](uint4 v) {
      return __vmaxu2(__vmaxu2(v.x & kFields, v.y & kFields),
                      __vmaxu2(v.z & kFields, v.w & kFields));
    };
    largest[0] = __vmaxu2(largest[0], fields(a));
    largest[1] = __vmaxu2(largest[1], fields(b));
  });
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t mine = largest[half];
    mine = __vmaxu2(mine, __shfl_xor_sync(~0u, mine, 1));
    mine = __vmaxu2(mine, __shfl_xor_sync(~0u, mine, 2));
    mine = __vmaxu2(mine, mine >> 16) & 0xffffu;
    if (thread % 4 == 0) atomicMax(exponents + half * 8 + g, static_cast<int>(mine >> 7));
  }
  __syncthreads();
}

// Of CTA `cta` of num_tile_ctas().
__device__ __forceinline__ void pack_whole_tiles(const WeightView& low, const WeightView& high,
                                                 const TileTarget& to, int cta) {
  const int begin = cta * tiles_of_cta(low);
  const int end = min(begin + tiles_of_cta(low), low.num_matrices * tiles_of_matrix(low, to));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (is_fp8(low.format)) {
    for_each_vector(low, high, to, begin, end, 1,
                    [&](int v, uint4 a, uint4 b, const TilePlace& place) {
                      constexpr int kBlockBytes = tile_block_bytes(TileFormat::kMxfp8);
                      write_fp8_tile(a, b, lane, place.out + v * 2 * kBlockBytes);
                    });
    return pack_tile_scales(low, high, to, begin, end);
  }
  __shared__ int exponents[kTileRows];
  if (low.format == WeightFormat::kBf16) find_exponents(low, high, to, begin, exponents);
  const bool is_bf16 = low.format == WeightFormat::kBf16;
  const int low_exponent = is_bf16 ? exponents[lane / 4] : 0;
  const int high_exponent = is_bf16 ? exponents[8 + lane / 4] : 0;
  for_each_vector(low, high, to, begin, end, 2,
                  [&](int v, uint4 a, uint4 b, const TilePlace& place) {
                    write_f16_tile(a, b, lane, low.format, low_exponent, high_exponent,
                                   place.out + v * tile_block_bytes(TileFormat::kF16));
                  });
  if (threadIdx.x < kTileRows) {
    write_row_scale(low, to, TilePlace(low, to, begin).record, static_cast<int>(threadIdx.x),
                    is_bf16 ? exponents[threadIdx.x] : 0);
  }
}

}  // namespace warproll
