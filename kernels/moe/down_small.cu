// down_small: down and combine in one kernel, for the few pairs of a tiny batch, where kernel
// boundaries cost more than bytes. Grid one CTA a row tile, block 512 threads. A CTA produces sixteen
// outputs of every token: two warps take an expert block, a whole record, all under way before h is
// there. Sums are added in the order of down's eight warps and have its bits.
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/moe/expert_stream.cuh"
#include "kernels/moe/launch.cuh"

namespace warproll::moe {
namespace {

constexpr int kRecords = 8;  // under way at once
constexpr int kWarps = 2 * kRecords;
constexpr int kThreads = kWarps * 32;
constexpr int kSlice = 3;                    // I = 768
constexpr int kChains = kMultiplyWarps / 2;  // of one warp

struct DownSmallParams {
  TileMatrix weights;
  ExpertLists lists;
  const uint16_t* h;  // F16 [T * K, 2, I], tile order
  __nv_bfloat16* y;   // [T, H]
  float* y_f32;       // instead of y, or null
  int num_tokens, top_k, hidden_size, max_blocks;
};

template <TileFormat kFormat>
struct Layout {
  static constexpr int kRecordBytes = kSlice * kMultiplyWarps * tile_block_bytes(kFormat);
  static constexpr int kStride = kRecordBytes + 128;  // and its row scales
  static constexpr int kTermBytes = kSlice * kMultiplyWarps * kTileBlock * 2;
  static constexpr int kRowBytes = 2 * kTermBytes;   // of h
  static constexpr int kRowStride = kRowBytes + 64;  // neighbouring rows in different banks
  // So much that an SM takes one CTA: two would leave another SM idle.
  static int bytes(int pairs, int max_blocks) {
    const int used = kRecords * (kStride + 16) + pairs * kRowStride +
                     max_blocks * static_cast<int>(sizeof(ExpertBlock));
    return std::max(used, 115 * 1024);
  }
};

// Half a record's chains times up to four pairs, their second terms in columns 4 .. 7: out[(chain * pairs + pair) * 16 + output].
template <TileFormat kFormat>
__device__ __forceinline__ void multiply_half(const std::byte* record, int first_chain,
                                              const uint4* row, int pair0, int pair1, float* out) {
  const auto* bits = reinterpret_cast<const uint16_t*>(record + Layout<kFormat>::kRecordBytes);
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const float low = __uint_as_float(uint32_t{bits[g]} << 16);
  const float high = __uint_as_float(uint32_t{bits[g + 8]} << 16);
#pragma unroll
  for (int c = 0; c < kChains; ++c) {
    TileSums<1> sums;
#pragma unroll
    for (int step = 0; step < kSlice; ++step) {
      const int block = step * kMultiplyWarps + first_chain + c;
      const BlockActivations<1, 1> x = {{{row[block * 4]}}};
      multiply_block<kFormat, Chains::kPacked>(record + block * tile_block_bytes(kFormat), x, sums);
    }
    float* chain = out + (first_chain + c) * kMaxSmallPairs * kTileRows + g;
    auto& sum = sums.first[0];
    add_chains<Chains::kPacked>(sum, sums.second[0], low, high);
    if (pair0 >= 0) {
      chain[pair0 * kTileRows] = sum[0];
      chain[pair0 * kTileRows + 8] = sum[2];
    }
    if (pair1 >= 0) {
      chain[pair1 * kTileRows] = sum[1];
      chain[pair1 * kTileRows + 8] = sum[3];
    }
  }
}

template <TileFormat kFormat>
__global__ void __maxnreg__(kDownSmallRegisters)
    down_small_kernel(const __grid_constant__ DownSmallParams p) {
  using L = Layout<kFormat>;
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ float chains[kMultiplyWarps * kMaxSmallPairs * kTileRows];
  __shared__ float partials[kMaxSmallPairs * kTileRows], weights[kMaxSmallPairs];
  __shared__ int pairs[kMaxSmallPairs];
  const int me = static_cast<int>(threadIdx.x);
  const int warp = me / 32, lane = me % 32;
  const int slot = warp / 2;
  const int tile = static_cast<int>(blockIdx.x);
  const int num_pairs = p.num_tokens * p.top_k;
  std::byte* stage = memory + slot * L::kStride;
  std::byte* rows = memory + kRecords * L::kStride;
  auto* barriers = reinterpret_cast<uint64_t*>(rows + num_pairs * L::kRowStride);
  auto* blocks = reinterpret_cast<ExpertBlock*>(barriers + 2 * kRecords);
  const uint32_t barrier = ptx::shared_address(barriers + slot);
  // Both warps are, with the stage.
  const uint32_t done = ptx::shared_address(barriers + kRecords + slot);
  if (me < kRecords) {
    ptx::mbarrier_init(ptx::shared_address(barriers + me), 1);
    ptx::mbarrier_init(ptx::shared_address(barriers + kRecords + me), 2 * kWarpArrivals);
    ptx::fence_mbarrier_init();
  }
  // The lists are older than the previous kernel, which waited for them before it let us start.
  const int num_blocks = min(p.lists.counts->num_blocks, p.max_blocks);
  for (int i = me; i < p.max_blocks; i += kThreads) blocks[i] = p.lists.blocks[i];
  __syncthreads();
  const auto load = [&](int b) {
    const int64_t record = static_cast<int64_t>(blocks[b].expert) * p.weights.num_tiles + tile;
    const uint64_t policy = ptx::evict_first_policy();
    ptx::mbarrier_arrive_expect(barrier, L::kRecordBytes + kRowScaleBytes);
    ptx::bulk_load(ptx::shared_address(stage), p.weights.data + record * L::kRecordBytes,
                   L::kRecordBytes, barrier, policy);
    ptx::bulk_load(ptx::shared_address(stage + L::kRecordBytes),
                   p.weights.row_scales() + record * kRowScaleBytes, kRowScaleBytes, barrier,
                   policy);
  };
  const bool loads = warp % 2 == 0 && lane == 0;
  if (loads && slot < num_blocks) load(slot);
  const float my_weight = me < num_pairs ? p.lists.pair_weights[me] : 0.0f;
  const int my_pair = me < num_pairs ? p.lists.pairs[me] : 0;
  ptx::wait_for_previous_kernel();
  // Its first loads come behind ours, if ours are all under way.
  if (num_blocks <= kRecords) ptx::allow_next_kernel();
  constexpr int kGranules = L::kRowBytes / 16;  // of an h row
  for (int i = me; i < num_pairs * kGranules; i += kThreads) {
    const uint4 v = reinterpret_cast<const uint4*>(p.h)[i];
    *reinterpret_cast<uint4*>(rows + i / kGranules * L::kRowStride + i % kGranules * 16) = v;
  }
  if (me < num_pairs) {
    weights[me] = my_weight;
    pairs[me] = my_pair;
  }
  __syncthreads();
  uint32_t parity = 0;
  for (int b = slot; b < num_blocks; b += kRecords, parity ^= 1) {
    const ExpertBlock block = blocks[b];
    const int source = pairs[block.first + (lane / 4 % 4 < block.count ? lane / 4 % 4 : 0)];
    const int column = lane % 4 * 2;
    const int pair0 = column < block.count ? pairs[block.first + column] : -1;
    const int pair1 = column + 1 < block.count ? pairs[block.first + column + 1] : -1;
    const auto* row =
        reinterpret_cast<const uint4*>(rows + source * L::kRowStride + lane / 16 * L::kTermBytes) +
        lane % 4;
    ptx::mbarrier_wait(barrier, parity);
    multiply_half<kFormat>(stage, warp % 2 * kChains, row, pair0, pair1, chains);
    if (b + kRecords < num_blocks) {
      release_stage(done);
      if (loads) {
        ptx::mbarrier_wait(done, parity);
        load(b + kRecords);
      }
    }
  }
  ptx::allow_next_kernel();
  __syncthreads();
  for (int i = me; i < num_pairs * kTileRows; i += kThreads) {
    if (weights[i / kTileRows] == 0.0f) continue;  // no expert: nobody wrote its sums
    float sum = chains[i];
#pragma unroll
    for (int w = 1; w < kMultiplyWarps; ++w) sum += chains[w * kMaxSmallPairs * kTileRows + i];
    partials[i] = sum;
  }
  if (tile == 0 && me == 0) p.lists.counts->next_gate_up = 0;
  __syncthreads();
  for (int i = me; i < p.num_tokens * kTileRows; i += kThreads) {
    const int token = i / kTileRows, d = i % kTileRows;
    float sum = 0.0f;
    for (int k = 0; k < p.top_k; ++k) {
      const int pair = token * p.top_k + k;
      if (weights[pair] != 0.0f) sum = fmaf(weights[pair], partials[pair * kTileRows + d], sum);
    }
    sum *= 1.0f / kHiddenScale;
    const int64_t at = static_cast<int64_t>(token) * p.hidden_size + tile * kTileRows + d;
    if (p.y_f32 != nullptr) {
      p.y_f32[at] = sum;
    } else {
      p.y[at] = __float2bfloat16_rn(sum);
    }
  }
}

template <TileFormat kFormat>
void launch(const WarpDecodeParams& p, cudaStream_t stream) {
  const int pairs = p.num_tokens * p.top_k;
  const int max_blocks = max_expert_blocks(pairs, p.down.num_experts);
  LaunchConfig config(dim3(static_cast<unsigned>(p.down.num_tiles)), kThreads,
                      Layout<kFormat>::bytes(pairs, max_blocks), stream);
  config.programmatic();
  config.all_shared();
  config.run(down_small_kernel<kFormat>, DownSmallParams{.weights = p.down,
                                                         .lists = p.lists,
                                                         .h = p.h,
                                                         .y = reinterpret_cast<__nv_bfloat16*>(p.y),
                                                         .y_f32 = p.y_f32,
                                                         .num_tokens = p.num_tokens,
                                                         .top_k = p.top_k,
                                                         .hidden_size = p.gate_up.cols,
                                                         .max_blocks = max_blocks});
}

}  // namespace

bool down_is_small(const WarpDecodeParams& p) {
  return p.down.format != TileFormat::kF16 && p.down.num_blocks() == kSlice * kMultiplyWarps &&
         p.num_tokens <= 4 && p.num_tokens * p.top_k <= kMaxSmallPairs;
}

void launch_down_small(const WarpDecodeParams& p, cudaStream_t stream) {
  if (p.down.format == TileFormat::kMxfp8) return launch<TileFormat::kMxfp8>(p, stream);
  launch<TileFormat::kFp8Block>(p, stream);
}

}  // namespace warproll::moe
