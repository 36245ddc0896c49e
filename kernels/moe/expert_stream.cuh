// expert_stream: what gate_up and down are both made of. A persistent CTA streams records of row
// tiles from device memory through a ring in shared memory and multiplies each with the activations
// of its expert block. Roles by warp:
//   warps 0..7  multiply: warp w takes blocks w, w + 8, w + 16, .. of every record. It keeps its
//               share of the expert block's activations in registers across records.
//   warp 8      loads: decides which record is next and fills the ring by bulk copies.
//   warp 9      finishes: adds the eight warps' sums, in warp order, and hands them to the Op.
// Roles meet at mbarriers only. So the order of every sum is a matter of columns alone, and the
// bytes in flight do not depend on what the warps compute.
//
// Work: records of all expert blocks in one line. A CTA takes an even share of the first three
// quarters; the rest goes to whoever is free, by a counter in device memory, because SMs do not get
// equal shares of the memory's bandwidth. Internal to kernels/moe/*.cu.
#pragma once

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/moe/expert_lists.h"
#include "kernels/moe/tiles.h"

namespace warproll::moe {

inline constexpr int kMultiplyWarps = 8;
inline constexpr int kLoadWarp = 8;
inline constexpr int kFinishWarp = 9;
inline constexpr int kStreamThreads = 10 * 32;
inline constexpr int kSlots = 2;  // records between the multiplying and the finishing warps
inline constexpr int kMaxTokenTiles = kMaxBlockPairs / 8;
inline constexpr int kMaxStages = 12;

// A warp arrives by one lane, after __syncwarp(). compute-sanitizer's racecheck does not follow
// __syncwarp(): for it, -DWARPROLL_RACECHECK makes every lane arrive, which is slower.
#ifdef WARPROLL_RACECHECK
inline constexpr int kArrivals = 32;
#else
inline constexpr int kArrivals = 1;
#endif
__device__ __forceinline__ void arrive_as_warp(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 < kArrivals) ptx::mbarrier_arrive(barrier);
}

// kSlice: how many blocks of a record every warp takes, when it is the same for all and their
// activations fit into registers; 0: any number, activations are read again for every record.
// kTiles: neighbouring records of an expert that are loaded and multiplied at once: more than one
// where a single record is too little work between two waits.
// kTokenTiles: of eight columns; what the largest expert block needs.
template <TileFormat kFormat_, int kSlice_, int kTiles_, int kTokenTiles_ = kMaxTokenTiles>
struct StreamShape {
  static constexpr TileFormat kFormat = kFormat_;
  static constexpr int kSlice = kSlice_;
  static constexpr int kTiles = kTiles_;
  static constexpr int kTokenTiles = kTokenTiles_;
  static constexpr int kBlockBytes = tile_block_bytes(kFormat);
  // Blocks of one warp in a stage, of each record.
  static constexpr int kSteps = kSlice == 3 ? 3 : kFormat == TileFormat::kF16 ? 2 : 4;
  static constexpr int kPartBlocks = kSteps * kMultiplyWarps;
  // A slot holds the sums of as many records as have kSlotUnits (record, token tile) pairs.
  static constexpr int kSlotUnits = kTiles > kTokenTiles ? kTiles : kTokenTiles;
  static constexpr int kSlotFloat4s = kMultiplyWarps * kSlotUnits * 32;
  // Records multiplied at once, and handed on in one slot.
  static constexpr int group(int token_tiles) {
    return kTiles > token_tiles ? kTiles / token_tiles : 1;
  }
  static_assert(kTiles == 1 || kSlice == kSteps,
                "several records only if a stage holds them whole");
};

struct StageHeader {
  int block;  // of ExpertLists::blocks; -1: no more records
  int tile;   // the first
};

// Shared memory, in this order; stages are 128-byte aligned.
template <class Shape>
struct StreamShared {
  std::byte* stages;     // [num_stages][stage_stride]
  float4* slots;         // [kSlots][kMultiplyWarps][kSlotUnits][32]
  uint64_t* barriers;    // announced, full, empty [kMaxStages] each, slot full, slot empty [kSlots]
  StageHeader* headers;  // [kMaxStages] of stages, [kSlots] of slots
  ExpertBlock* blocks;   // [max_blocks]

  static constexpr int kFixedBytes = kSlots * Shape::kSlotFloat4s * 16 +
                                     (3 * kMaxStages + 2 * kSlots) * 8 +
                                     (kMaxStages + kSlots) * static_cast<int>(sizeof(StageHeader));

  static int bytes(int num_stages, int stage_stride, int max_blocks) {
    return num_stages * stage_stride + kFixedBytes +
           max_blocks * static_cast<int>(sizeof(ExpertBlock));
  }
  __device__ StreamShared(std::byte* base, int num_stages, int stage_stride)
      : stages(base),
        slots(reinterpret_cast<float4*>(base + num_stages * stage_stride)),
        barriers(reinterpret_cast<uint64_t*>(slots + kSlots * Shape::kSlotFloat4s)),
        headers(reinterpret_cast<StageHeader*>(barriers + 3 * kMaxStages + 2 * kSlots)),
        blocks(reinterpret_cast<ExpertBlock*>(headers + kMaxStages + kSlots)) {}

  // The stage's header stands; its bytes are on their way.
  __device__ uint32_t announced(int stage) const { return ptx::shared_address(barriers + stage); }
  __device__ uint32_t full(int stage) const { return announced(kMaxStages + stage); }
  __device__ uint32_t empty(int stage) const { return announced(2 * kMaxStages + stage); }
  __device__ uint32_t slot_full(int slot) const { return announced(3 * kMaxStages + slot); }
  __device__ uint32_t slot_empty(int slot) const {
    return announced(3 * kMaxStages + kSlots + slot);
  }
  __device__ StageHeader& slot_header(int slot) const { return headers[kMaxStages + slot]; }
};

// A place in a ring and how often it went round: waiting for `full` takes parity, for `empty` the
// other one (a fresh ring is empty).
struct RingPosition {
  int index = 0;
  uint32_t parity = 0;
  int size;

  __device__ void advance() {
    if (++index == size) {
      index = 0;
      parity ^= 1;
    }
  }
};

struct StreamParams {
  TileMatrix weights;
  ExpertLists lists;
  int* next_item;  // in lists.counts
  int max_blocks;
  int num_stages, stage_stride;
};

// ---- load ----

// The work items of this CTA, one after the other.
class ItemSource {
 public:
  __device__ ItemSource(int num_items, int* next_item) : next_(next_item), total_(num_items) {
    const int ctas = static_cast<int>(gridDim.x), mine = num_items / ctas;
    const int even = max(0, mine - max(mine / 4, 2));
    fixed_ = even * ctas;
    at_ = even * static_cast<int>(blockIdx.x);
    end_ = at_ + even;
    if (even == 0) take_ticket();
  }
  // About how many are left for this CTA.
  __device__ int left() const {
    const int ctas = static_cast<int>(gridDim.x);
    if (at_ < end_) return end_ - at_ + (total_ - fixed_) / ctas;
    return max(0, total_ - fixed_ - ticket_) / ctas;
  }
  // -1: none left.
  __device__ int next() {
    if (at_ < end_) {
      if (at_ + 1 == end_) take_ticket();
      return at_++;
    }
    const int item = fixed_ + ticket_;
    if (item >= total_) return -1;
    take_ticket();
    return item;
  }

 private:
  // One item before it is needed: its latency is not waited for.
  __device__ void take_ticket() { ticket_ = atomicAdd(next_, 1); }

  int* next_;
  int total_, fixed_, at_, end_;
  int ticket_ = 0;
};

// One lane. An item is kTiles records of one expert block. The next kernel may start when about
// `start_next_at` items are left to load.
template <class Shape>
__device__ void load_records(const StreamParams& p, const StreamShared<Shape>& shared,
                             int num_blocks, int start_next_at) {
  const uint64_t policy = ptx::evict_first_policy();
  const int blocks_of_record = p.weights.num_blocks();
  const int items_of_block = p.weights.num_tiles / Shape::kTiles;
  const std::byte* row_scales = p.weights.row_scales();
  ItemSource source(num_blocks * items_of_block, p.next_item);
  RingPosition ring{.size = p.num_stages};
  for (bool started = false;;) {
    if (!started && source.left() <= start_next_at) {
      ptx::allow_next_kernel();
      started = true;
    }
    const int item = source.next();
    const int block = item / items_of_block;
    const int tile = item % items_of_block * Shape::kTiles;
    if (item < 0) {
      ptx::mbarrier_wait(shared.empty(ring.index), ring.parity ^ 1);
      shared.headers[ring.index] = {.block = -1, .tile = 0};
      ptx::mbarrier_arrive(shared.announced(ring.index));
      return;
    }
    const int64_t record =
        static_cast<int64_t>(shared.blocks[block].expert) * p.weights.num_tiles + tile;
    const std::byte* from = p.weights.data + record * p.weights.record_bytes();
    for (int first = 0; first < blocks_of_record; first += Shape::kPartBlocks) {
      const uint32_t bytes =
          Shape::kTiles * min(Shape::kPartBlocks, blocks_of_record - first) * Shape::kBlockBytes;
      const bool last = first + Shape::kPartBlocks >= blocks_of_record;
      constexpr int kScales = Shape::kTiles * kRowScaleBytes;
      ptx::mbarrier_wait(shared.empty(ring.index), ring.parity ^ 1);
      shared.headers[ring.index] = {.block = block, .tile = tile};
      ptx::mbarrier_arrive(shared.announced(ring.index));
      const uint32_t barrier = shared.full(ring.index);
      ptx::mbarrier_arrive_expect(barrier, bytes + (last ? kScales : 0));
      const uint32_t to = ptx::shared_address(shared.stages + ring.index * p.stage_stride);
      ptx::bulk_load(to, from, bytes, barrier, policy);
      if (last)
        ptx::bulk_load(to + bytes, row_scales + record * kRowScaleBytes, kScales, barrier, policy);
      from += bytes;
      ring.advance();
    }
  }
}

// ---- multiply ----

// Sums of a tile's rows with token columns 8i .. 8i + 7, in two chains that are added at the end.
// Activations of one term: the first and the second mma of every block. Of two terms (h): the terms.
template <int kTokenTiles>
struct TileSums {
  float first[kTokenTiles][4] = {};
  float second[kTokenTiles][4] = {};
};

// The lane's granules of one block of activations, of each of the terms that make up a value.
template <int kTerms, int kTokenTiles>
struct BlockActivations {
  uint4 term[kTerms][kTokenTiles];
};

// How the products of a block go into the chains of TileSums.
enum class Chains {
  kSteps,   // one term: the two mma
  kTerms,   // two terms
  kPacked,  // two terms, the second one's columns behind the first one's: all into `first`
};

template <Chains kChains, int kTerms, int kTokenTiles>
__device__ __forceinline__ void multiply_tile(const uint32_t (&a)[8],
                                              const BlockActivations<kTerms, kTokenTiles>& x, int i,
                                              float (&first)[4], float (&second)[4]) {
  ptx::mma_16816(first, a[0], a[1], a[2], a[3], x.term[0][i].x, x.term[0][i].y);
  ptx::mma_16816(kChains == Chains::kSteps ? second : first, a[4], a[5], a[6], a[7], x.term[0][i].z,
                 x.term[0][i].w);
  if constexpr (kTerms == 2) {
    ptx::mma_16816(second, a[0], a[1], a[2], a[3], x.term[1][i].x, x.term[1][i].y);
    ptx::mma_16816(second, a[4], a[5], a[6], a[7], x.term[1][i].z, x.term[1][i].w);
  }
}

// sums += the block at `at` times x.
template <TileFormat kFormat, Chains kChains, int kTerms, int kTokenTiles>
__device__ __forceinline__ void multiply_block(const std::byte* at,
                                               const BlockActivations<kTerms, kTokenTiles>& x,
                                               TileSums<kTokenTiles>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t a[8];  // even: row g (0, 2), row g + 8 (1, 3); odd: 4 .. 7
  const uint4 w = *reinterpret_cast<const uint4*>(at + lane * 16);
  if constexpr (kFormat == TileFormat::kF16) {
    const uint4 w1 = *reinterpret_cast<const uint4*>(at + 512 + lane * 16);
    a[0] = w.x, a[1] = w.y, a[2] = w.z, a[3] = w.w;
    a[4] = w1.x, a[5] = w1.y, a[6] = w1.z, a[7] = w1.w;
  } else {
    ptx::e4m3x4_to_f16x2(w.x, a[0], a[2]);
    ptx::e4m3x4_to_f16x2(w.z, a[1], a[3]);
    ptx::e4m3x4_to_f16x2(w.y, a[4], a[6]);
    ptx::e4m3x4_to_f16x2(w.w, a[5], a[7]);
  }
  if constexpr (kFormat == TileFormat::kMxfp8) {
    const uint32_t scales = *reinterpret_cast<const uint16_t*>(at + 512 + lane / 4 * 2);
    const uint32_t low = __byte_perm(scales, 0, 0x0404);  // a high byte into both halves
    const uint32_t high = __byte_perm(scales, 0, 0x1414);
#pragma unroll
    for (int j = 0; j < 8; ++j) a[j] = ptx::mul_f16x2(a[j], j % 2 == 0 ? low : high);
  }
#pragma unroll
  for (int i = 0; i < kTokenTiles; ++i) {
    if constexpr (kFormat == TileFormat::kFp8Block) {
      const float2 scale = *reinterpret_cast<const float2*>(at + 512);
      float first[4] = {}, second[4] = {};
      multiply_tile<kChains>(a, x, i, first, second);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float s = j < 2 ? scale.x : scale.y;
        sums.first[i][j] = fmaf(s, first[j], sums.first[i][j]);
        sums.second[i][j] = fmaf(s, second[j], sums.second[i][j]);
      }
    } else {
      multiply_tile<kChains>(a, x, i, sums.first[i], sums.second[i]);
    }
  }
}

// first = (first + second chain) times the row scales. Packed, the second one is the first's columns
// 4 .. 7: two lanes on.
template <Chains kChains>
__device__ __forceinline__ void add_chains(float (&first)[4], const float (&second)[4], float low,
                                           float high) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float other = kChains == Chains::kPacked ? __shfl_down_sync(~0u, first[j], 2) : second[j];
    first[j] = (first[j] + other) * (j < 2 ? low : high);
  }
}

template <class Shape, class Op>
class Multiplier {
 public:
  __device__ Multiplier(const StreamParams& p, const StreamShared<Shape>& shared, const Op& op)
      : p_(p), shared_(shared), op_(op), ring_{.size = p.num_stages}, slot_{.size = kSlots} {}

  __device__ void run() {
    for (StageHeader next = announced(); next.block >= 0;) {
      const ExpertBlock block = shared_.blocks[next.block];
      if (Op::kTerms == 2 && block.count <= 4) {
        next = run_block<1, Chains::kPacked>(block, next);
      } else if (Shape::kTokenTiles == 1 || block.count <= 8) {
        next = run_block<1, kChains>(block, next);
      } else {
        next = run_block<Shape::kTokenTiles, kChains>(block, next);
      }
    }
    wait_for_slot();
    put({.block = -1, .tile = 0});
  }

 private:
  static constexpr TileFormat kFormat = Shape::kFormat;
  static constexpr int kSlice = Shape::kSlice;
  static constexpr int kTiles = Shape::kTiles;

  static constexpr Chains kChains = Op::kTerms == 1 ? Chains::kSteps : Chains::kTerms;
  template <int kTokenTiles, Chains kHow>
  using Activations = BlockActivations<kHow == Chains::kTerms ? 2 : 1, kTokenTiles>;

  // The lane's granules at `block` blocks from the warp's first.
  template <Chains kHow, int kTokenTiles>
  __device__ __forceinline__ Activations<kTokenTiles, kHow> read(
      const uint4* const (&rows)[kTokenTiles], int block) const {
    Activations<kTokenTiles, kHow> x;
#pragma unroll
    for (int n = 0; n < (kHow == Chains::kTerms ? 2 : 1); ++n) {
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i)
        x.term[n][i] = rows[i][block * 4 + n * op_.term_stride()];
    }
    return x;
  }

  __device__ StageHeader announced() const {
    ptx::mbarrier_wait(shared_.announced(ring_.index), ring_.parity);
    return shared_.headers[ring_.index];
  }
  __device__ const std::byte* landed() const {
    ptx::mbarrier_wait(shared_.full(ring_.index), ring_.parity);
    return shared_.stages + ring_.index * p_.stage_stride;
  }
  __device__ void release() {
    arrive_as_warp(shared_.empty(ring_.index));
    ring_.advance();
  }
  __device__ void wait_for_slot() const {
    ptx::mbarrier_wait(shared_.slot_empty(slot_.index), slot_.parity ^ 1);
  }
  // The slot, which wait_for_slot() found free, to the finishing warp.
  __device__ void put(const StageHeader& header) {
    if (threadIdx.x == 0) shared_.slot_header(slot_.index) = header;
    arrive_as_warp(shared_.slot_full(slot_.index));
    slot_.advance();
  }

  // Items, the announced `next` first, until one of another block is announced: returns that.
  template <int kTokenTiles, Chains kHow>
  __device__ __forceinline__ StageHeader run_block(const ExpertBlock& block, StageHeader next) {
    const uint4* rows[kTokenTiles];
    const int* pairs = p_.lists.pairs + block.first;
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i) {
      constexpr int kColumns = kHow == Chains::kPacked ? 4 : 8;
      const int column = i * 8 + lane_ / 4 % kColumns;  // past the last: a copy of the first
      const int term = lane_ / 4 / kColumns;
      rows[i] = op_.row(pairs[column < block.count ? column : 0]) + term * op_.term_stride() +
                warp_ * 4 + lane_ % 4;
    }
    op_.wait_for_rows();
    Activations<kTokenTiles, kHow> x[kSlice == 0 ? 1 : kSlice];
#pragma unroll
    for (int step = 0; step < kSlice; ++step) x[step] = read<kHow>(rows, step * kMultiplyWarps);
    const int id = next.block;
    do {
      if constexpr (kTiles > 1) {
        multiply_tiles<kHow>(x, next);
        next = announced();
        continue;
      }
      TileSums<kTokenTiles> sums[1];
      if constexpr (kSlice > 0) {
#pragma unroll
        for (int part = 0; part < kSlice; part += Shape::kSteps) {
          if (part > 0) announced();
          const std::byte* stage = landed();
#pragma unroll
          for (int step = 0; step < Shape::kSteps; ++step) {
            multiply_block<kFormat, kHow>(
                stage + (step * kMultiplyWarps + warp_) * Shape::kBlockBytes, x[part + step],
                sums[0]);
          }
          if (part + Shape::kSteps == kSlice) {
            scale_rows<kHow>(stage + Shape::kPartBlocks * Shape::kBlockBytes, sums);
          }
          release();
        }
      } else {
        for (int left = p_.weights.num_blocks(), first = 0; left > 0; left -= Shape::kPartBlocks) {
          if (first > 0) announced();
          const std::byte* stage = landed();
          for (int b = warp_; b < min(left, Shape::kPartBlocks); b += kMultiplyWarps) {
            multiply_block<kFormat, kHow>(stage + b * Shape::kBlockBytes,
                                          read<kHow>(rows, first + b - warp_), sums[0]);
          }
          if (left <= Shape::kPartBlocks) scale_rows<kHow>(stage + left * Shape::kBlockBytes, sums);
          release();
          first += Shape::kPartBlocks;
        }
      }
      put(next, sums);
      next = announced();
    } while (next.block == id);
    return next;
  }

  // A stage of kTiles whole records, some at a time, as registers allow.
  template <Chains kHow, int kTerms, int kTokenTiles>
  __device__ __forceinline__ void multiply_tiles(
      const BlockActivations<kTerms, kTokenTiles> (&x)[kSlice == 0 ? 1 : kSlice],
      const StageHeader& header) {
    constexpr int kGroup = Shape::group(kTokenTiles);
    const std::byte* stage = landed();
#pragma unroll
    for (int t0 = 0; t0 < kTiles; t0 += kGroup) {
      TileSums<kTokenTiles> sums[kGroup];
#pragma unroll
      for (int step = 0; step < kSlice; ++step) {
#pragma unroll
        for (int t = 0; t < kGroup; ++t) {
          const int at = (t0 + t) * Shape::kPartBlocks + step * kMultiplyWarps + warp_;
          multiply_block<kFormat, kHow>(stage + at * Shape::kBlockBytes, x[step], sums[t]);
        }
      }
      scale_rows<kHow>(
          stage + kTiles * Shape::kPartBlocks * Shape::kBlockBytes + t0 * kRowScaleBytes, sums);
      if (t0 + kGroup == kTiles) release();
      put({header.block, header.tile + t0}, sums);
    }
  }

  template <int kTokenTiles, int kGroup>
  __device__ __forceinline__ void put(const StageHeader& header,
                                      const TileSums<kTokenTiles> (&sums)[kGroup]) {
    wait_for_slot();
    float4* slot =
        shared_.slots + slot_.index * Shape::kSlotFloat4s + warp_ * Shape::kSlotUnits * 32 + lane_;
#pragma unroll
    for (int t = 0; t < kGroup; ++t) {
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i) {
        const auto& s = sums[t].first[i];
        slot[(t * kTokenTiles + i) * 32] = make_float4(s[0], s[1], s[2], s[3]);
      }
    }
    put(header);
  }

  // sums.first = both chains, times the row scales at `scales`: powers of two, exact.
  template <Chains kHow, int kTokenTiles, int kGroup>
  __device__ __forceinline__ void scale_rows(const std::byte* scales,
                                             TileSums<kTokenTiles> (&sums)[kGroup]) const {
    const auto* bits = reinterpret_cast<const uint16_t*>(scales);
#pragma unroll
    for (int t = 0; t < kGroup; ++t) {
      const float low = __uint_as_float(uint32_t{bits[t * kTileRows + lane_ / 4]} << 16);
      const float high = __uint_as_float(uint32_t{bits[t * kTileRows + lane_ / 4 + 8]} << 16);
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i)
        add_chains<kHow>(sums[t].first[i], sums[t].second[i], low, high);
    }
  }

  const StreamParams& p_;
  const StreamShared<Shape>& shared_;
  const Op& op_;
  const int lane_ = static_cast<int>(threadIdx.x) % 32;
  const int warp_ = static_cast<int>(threadIdx.x) / 32;
  RingPosition ring_, slot_;
};

// ---- finish ----

// The sums of a slot: each of its records and token tiles over the eight warps.
template <class Shape, int kTokenTiles, class Op>
__device__ __forceinline__ void finish_slot(const float4* sums, int first_tile,
                                            const int (&pairs)[kMaxTokenTiles][2],
                                            const float (&scales)[kMaxTokenTiles][2],
                                            const Op& op) {
#pragma unroll
  for (int t = 0; t < Shape::group(kTokenTiles); ++t) {
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i, sums += 32) {
      float4 sum = sums[0];
#pragma unroll
      for (int w = 1; w < kMultiplyWarps; ++w) {
        const float4 v = sums[w * Shape::kSlotUnits * 32];
        sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
      }
      if (pairs[i][0] >= 0) op.store(pairs[i][0], scales[i][0], first_tile + t, sum.x, sum.z);
      if (pairs[i][1] >= 0) op.store(pairs[i][1], scales[i][1], first_tile + t, sum.y, sum.w);
    }
  }
}

// One warp. Op: kTerms, term_stride()                        terms of a value, granules between them
//               const uint4* row(int pair)                   the pair's activations, in tile order
//               void wait_for_rows()                         returns once they can be read
//               float scale(int pair)                        what store() wants to know of a pair
//               void store(int pair, float scale, int tile, float low, float high)
//                                                            rows g and g + 8 of the tile
template <class Shape, class Op>
__device__ void finish_records(const StreamParams& p, const StreamShared<Shape>& shared,
                               const Op& op) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  RingPosition slot{.size = kSlots};
  int block = -1, count = 0;
  int pairs[kMaxTokenTiles][2];  // of this lane's columns, -1: none
  float scales[kMaxTokenTiles][2];
  for (;;) {
    ptx::mbarrier_wait(shared.slot_full(slot.index), slot.parity);
    const StageHeader header = shared.slot_header(slot.index);
    if (header.block < 0) return;
    if (header.block != block) {
      block = header.block;
      const ExpertBlock b = shared.blocks[block];
      count = b.count;
#pragma unroll
      for (int i = 0; i < kMaxTokenTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int column = i * 8 + lane % 4 * 2 + j;
          pairs[i][j] = column < count ? p.lists.pairs[b.first + column] : -1;
          scales[i][j] = column < count ? op.scale(pairs[i][j]) : 0.0f;
        }
      }
    }
    const float4* sums = shared.slots + slot.index * Shape::kSlotFloat4s + lane;
    if (Shape::kTokenTiles == 1 || count <= 8) {
      finish_slot<Shape, 1>(sums, header.tile, pairs, scales, op);
    } else {
      finish_slot<Shape, Shape::kTokenTiles>(sums, header.tile, pairs, scales, op);
    }
    arrive_as_warp(shared.slot_empty(slot.index));
    slot.advance();
  }
}

// ---- the kernel's body ----

// One thread, before the CTA's next __syncthreads().
template <class Shape>
__device__ __forceinline__ void init_barriers(const StreamParams& p,
                                              const StreamShared<Shape>& shared) {
  for (int i = 0; i < p.num_stages; ++i) {
    ptx::mbarrier_init(shared.announced(i), 1);
    ptx::mbarrier_init(shared.full(i), 1);
    ptx::mbarrier_init(shared.empty(i), kMultiplyWarps * kArrivals);
  }
  for (int i = 0; i < kSlots; ++i) {
    ptx::mbarrier_init(shared.slot_full(i), kMultiplyWarps * kArrivals);
    ptx::mbarrier_init(shared.slot_empty(i), kArrivals);
  }
  ptx::fence_mbarrier_init();
}

// All threads: the lists' blocks into shared memory. Returns how many there are.
template <class Shape>
__device__ __forceinline__ int read_blocks(const StreamParams& p,
                                           const StreamShared<Shape>& shared) {
  const int count = min(p.lists.counts->num_blocks, p.max_blocks);
  for (int i = static_cast<int>(threadIdx.x); i < p.max_blocks; i += kStreamThreads) {
    shared.blocks[i] = p.lists.blocks[i];
  }
  __syncthreads();
  return count;
}

// As many stages as `ring_bytes` hold.
template <class Shape>
StreamParams stream_params(const TileMatrix& weights, const ExpertLists& lists, int* next_item,
                           int max_blocks, int ring_bytes) {
  const int blocks = Shape::kTiles * std::min(weights.num_blocks(), Shape::kPartBlocks);
  const int stride =
      (blocks * Shape::kBlockBytes + Shape::kTiles * kRowScaleBytes + 127) / 128 * 128;
  return {.weights = weights,
          .lists = lists,
          .next_item = next_item,
          .max_blocks = max_blocks,
          .num_stages = std::clamp(ring_bytes / stride, 2, kMaxStages),
          .stage_stride = stride};
}

}  // namespace warproll::moe
