// The body of pack_elements and pack_scales: what one CTA does for half tiles, 8 rows of a matrix each. 256
// threads. Of FP8 elements it has as many as make four vectors a warp, of MXFP8 scales one a warp, else one: a
// warp finds a row's exponent where one is needed, then the warps write blocks of 32 columns.
// Internal to kernels/*.cu.
#pragma once

#include "kernels/moe/pack.h"
#include "kernels/moe/pack_tile.h"

namespace warproll {

inline constexpr int kPackWarps = 8;    // one for each row of a half tile
inline constexpr int kPackVectors = 4;  // of 64 bytes of eight rows, that a warp has under way

inline int64_t num_half_tiles(const WeightView& rows) {
  return int64_t{rows.num_matrices} * (rows.rows / 8);
}
// Whether elements are read 16 bytes at a time, by four lanes side by side; scales 4.
__host__ __device__ inline bool reads_vectors(const WeightView& rows) {
  const uint64_t places = reinterpret_cast<uint64_t>(rows.data) | rows.matrix_stride_bytes;
  return places % 16 == 0 && (!is_fp8(rows.format) || rows.cols % 64 == 0);
}
__host__ __device__ inline bool reads_scale_words(const WeightView& rows) {
  const uint64_t places = reinterpret_cast<uint64_t>(rows.scales) | rows.scale_stride_bytes;
  return rows.format == WeightFormat::kMxfp8 && places % 4 == 0 &&
         rows.cols % (4 * kTileBlock) == 0;
}
// Half tiles of a CTA.
__host__ __device__ inline int pack_halves(const WeightView& rows, bool scales) {
  if (scales) return reads_scale_words(rows) ? kPackWarps : 1;
  if (!is_fp8(rows.format) || !reads_vectors(rows)) return 1;
  const int halves = kPackWarps * kPackVectors * 64 / rows.cols;
  return halves < 1 ? 1 : halves > 8 ? 8 : halves;
}
inline int64_t num_pack_ctas(const WeightView& rows, bool scales) {
  const int halves = pack_halves(rows, scales);
  return (num_half_tiles(rows) + halves - 1) / halves;
}
// F16 tiles have no scales of their own.
inline bool packs_nothing(const TileTarget& to, bool scales) {
  return scales && to.tiles.format == TileFormat::kF16;
}

// Words i of lanes t of four neighbours become words t of lanes i.
__device__ inline void transpose_quad(uint32_t (&words)[4], int lane) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool high = (lane & step) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & step) != 0) continue;
      const uint32_t given = __shfl_xor_sync(~0u, high ? words[i] : words[i + step], step);
      words[i] = high ? given : words[i];
      words[i + step] = high ? words[i + step] : given;
    }
  }
}

// A lane's words of a block of FP8 or F16, from 16 bytes of its row and its neighbours' (`read`): two
// words each of two blocks of FP8, or of one of F16.
__device__ __forceinline__ void fp8_words(uint4 read, int lane, uint32_t (&words)[4]) {
  // A word: columns 2t, 2t + 1, 2t + 8 and 2t + 9 of the 16.
  words[0] = __byte_perm(read.x, read.z, 0x5410);
  words[1] = __byte_perm(read.x, read.z, 0x7632);
  words[2] = __byte_perm(read.y, read.w, 0x5410);
  words[3] = __byte_perm(read.y, read.w, 0x7632);
  transpose_quad(words, lane);
}

__device__ __forceinline__ void f16_words(uint4 read, int lane, WeightFormat format, int exponent,
                                          uint32_t (&words)[4]) {
  words[0] = read.x;  // columns 2t and 2t + 1 of the eight
  words[1] = read.y;
  words[2] = read.z;
  words[3] = read.w;
  transpose_quad(words, lane);
#pragma unroll
  for (uint32_t& word : words) {
    const uint32_t low = f16_of(format, static_cast<uint16_t>(word), exponent);
    const uint32_t high = f16_of(format, static_cast<uint16_t>(word >> 16), exponent);
    word = low | high << 16;
  }
}

__device__ __forceinline__ void pack_fp8_vector(uint4 read, int lane, int half, std::byte* out,
                                                int block_bytes) {
  uint32_t words[4];
  fp8_words(read, lane, words);
  std::byte* const to = out + lane * 16 + half * 8;
  *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
  *reinterpret_cast<uint2*>(to + block_bytes) = {words[2], words[3]};
}

__device__ __forceinline__ void pack_f16_vector(uint4 read, int lane, int half, WeightFormat format,
                                                int exponent, std::byte* out) {
  uint32_t words[4];
  f16_words(read, lane, format, exponent, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<uint32_t*>(out + i / 2 * 512 + lane * 16 + i % 2 * 8 + half * 4) = words[i];
  }
}

// Of row `row` of the 16 of a record.
__device__ __forceinline__ void write_row_scale(const WeightView& rows, const TileTarget& to,
                                                int64_t record, int row, int exponent) {
  auto* const scales = reinterpret_cast<uint16_t*>(
      to.out + to.tiles.num_records() * to.tiles.record_bytes() + record * kRowScaleBytes);
  scales[row] = row_scale_bits(rows.format, exponent);
}

// Where half tile `index` of all matrices comes from and goes.
struct HalfTilePlace {
  int matrix, row, half;
  int64_t record;
  std::byte* out;  // the record

  __device__ HalfTilePlace(const WeightView& rows, const TileTarget& to, int index) {
    const int halves = rows.rows / 8;
    matrix = index / halves;
    row = index % halves * 8;
    const HalfTile at = half_tile(to.first_row + row, to.gate_up, to.tiles.num_tiles);
    half = at.half;
    record = int64_t{to.first_matrix + matrix} * to.tiles.num_tiles + at.tile;
    out = to.out + record * to.tiles.record_bytes();
  }
  // Of row `g` of the half tile.
  __device__ void write_row_scale(const WeightView& rows, const TileTarget& to, int g,
                                  int exponent) const {
    warproll::write_row_scale(rows, to, record, half * 8 + g, exponent);
  }
};

// What pack_lane() does for FP8, for half tiles begin .. end: a warp has 64 bytes of eight rows at a time.
__device__ __forceinline__ void pack_fp8_vectors(const WeightView& w, const TileTarget& to,
                                                 int begin, int end) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int of_half = w.cols / 64, vectors = (end - begin) * of_half;
  for (int v = warp; v < vectors; v += kPackWarps * kPackVectors) {
    uint4 read[kPackVectors];
#pragma unroll
    for (int u = 0; u < kPackVectors; ++u) {
      const int at = min(v + u * kPackWarps, vectors - 1);
      const HalfTilePlace place(w, to, begin + at / of_half);
      const std::byte* const row = row_data(w, place.matrix, place.row + lane / 4, 1);
      read[u] = reinterpret_cast<const uint4*>(row)[at % of_half * 4 + lane % 4];
    }
#pragma unroll
    for (int u = 0; u < kPackVectors; ++u) {
      const int at = v + u * kPackWarps;
      if (at >= vectors) break;
      const HalfTilePlace place(w, to, begin + at / of_half);
      constexpr int kBlockBytes = tile_block_bytes(TileFormat::kMxfp8);
      pack_fp8_vector(read[u], lane, place.half, place.out + at % of_half * 2 * kBlockBytes,
                      kBlockBytes);
    }
  }
}

// What pack_lane() does for 16-bit elements of a half tile, a warp for 64 bytes of each row.
__device__ __forceinline__ void pack_f16_vectors(const WeightView& w, const HalfTilePlace& place,
                                                 int exponent) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::byte* const row = row_data(w, place.matrix, place.row + lane / 4, 2);
  const int vectors = w.cols / kTileBlock;
  for (int v = warp; v < vectors; v += kPackWarps * kPackVectors) {
    uint4 read[kPackVectors];
#pragma unroll
    for (int u = 0; u < kPackVectors; ++u) {
      read[u] =
          reinterpret_cast<const uint4*>(row)[min(v + u * kPackWarps, vectors - 1) * 4 + lane % 4];
    }
#pragma unroll
    for (int u = 0; u < kPackVectors; ++u) {
      const int at = v + u * kPackWarps;
      if (at >= vectors) break;
      pack_f16_vector(read[u], lane, place.half, w.format, exponent,
                      place.out + at * tile_block_bytes(TileFormat::kF16));
    }
  }
}

// row_exponent() by four neighbouring lanes, from words of scales.
__device__ __forceinline__ int row_exponent_of_quad(const uint32_t* row, int words, int t) {
  uint32_t largest = 0;  // of each byte of a word
#pragma unroll 4
  for (int i = t; i < words; i += 4) largest = __vmaxu4(largest, row[i]);
  largest = __vmaxu4(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = __vmaxu4(largest, __shfl_xor_sync(~0u, largest, 2));
  largest = __vmaxu4(largest, largest >> 16);
  return static_cast<int>(__vmaxu4(__vmaxu4(largest, largest >> 8) & 255u, kLeastMxfp8Exponent));
}

// MXFP8 scales of a half tile by a warp, four lanes a row, four blocks at a time.
__device__ __forceinline__ void pack_scale_words(const WeightView& w, const TileTarget& to,
                                                 const HalfTilePlace& place) {
  constexpr int kBlockBytes = tile_block_bytes(TileFormat::kMxfp8);
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int blocks = w.cols / kTileBlock, words = blocks / 4;
  const auto* const row =
      reinterpret_cast<const uint32_t*>(scales_of_row(w, place.matrix, place.row + g));
  const int exponent = row_exponent_of_quad(row, words, t);
#pragma unroll 4
  for (int i = t; i < words; i += 4) {
    const uint32_t four = row[i];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      place.out[(i * 4 + k) * kBlockBytes + 512 + g * 2 + place.half] = static_cast<std::byte>(
          block_scale_byte(static_cast<int>(four >> (8 * k) & 255u), exponent));
    }
  }
  if (t == 0) place.write_row_scale(w, to, g, exponent);
}

// Of CTA `cta` of num_pack_ctas(): elements, or scales.
__device__ __forceinline__ void pack_half_tiles(const WeightView& rows, const TileTarget& to,
                                                int cta, bool writes_scales) {
  __shared__ int exponents[kPackWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int halves = pack_halves(rows, writes_scales);
  const int begin = cta * halves;
  const int end = min(begin + halves, rows.num_matrices * (rows.rows / 8));
  const bool vectors = reads_vectors(rows);
  if (!writes_scales && vectors && is_fp8(rows.format))
    return pack_fp8_vectors(rows, to, begin, end);
  if (writes_scales && reads_scale_words(rows)) {
    if (begin + warp < end) pack_scale_words(rows, to, HalfTilePlace(rows, to, begin + warp));
    return;
  }
  const HalfTilePlace place(rows, to, begin);
  const bool writes_row_scales = writes_scales || to.tiles.format == TileFormat::kF16;
  if (writes_row_scales) {
    const int mine = row_exponent(rows, place.matrix, place.row + warp, lane, 32);
    const int largest = __reduce_max_sync(~0u, mine);
    if (lane == 0) exponents[warp] = largest;
    __syncthreads();
  }
  const int block_bytes = tile_block_bytes(to.tiles.format);
  const int blocks = to.tiles.num_blocks();
  if (writes_scales) {
    const int g = static_cast<int>(threadIdx.x) % 8;
    for (int block = static_cast<int>(threadIdx.x) / 8; block < blocks; block += kPackWarps * 4) {
      pack_scale(rows, place.matrix, place.row, block, g, place.half, exponents[g],
                 place.out + block * block_bytes + 512);
    }
  } else {
    const int exponent = writes_row_scales ? exponents[lane / 4] : 0;
    if (vectors && !is_fp8(rows.format)) {
      pack_f16_vectors(rows, place, exponent);
    } else {
      for (int block = warp; block < blocks; block += kPackWarps) {
        pack_lane(rows, place.matrix, place.row, block, lane, place.half, exponent,
                  place.out + block * block_bytes);
      }
    }
  }
  if (writes_row_scales && threadIdx.x < 8) {
    place.write_row_scale(rows, to, static_cast<int>(threadIdx.x), exponents[threadIdx.x]);
  }
}

}  // namespace warproll
