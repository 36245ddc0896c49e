// route_small: the router of a decode batch in one kernel. Grid: a cluster of E / 16 CTAs (up to eight)
// per eight tokens; block 256 threads. A CTA produces the logits of sixteen experts, its warps share
// the columns; its weights are on their way before the previous kernel ends. Logits go to the
// cluster's first CTA through shared memory, where a warp produces one token's ids and weights; of
// these CTAs the last builds the expert lists.
// The others meanwhile convert the tokens' activations. Same order of sums, so same bits, as route.cu.
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/moe/convert_activations.cuh"
#include "kernels/moe/expert_lists.cuh"
#include "kernels/moe/route_small.h"
#include "kernels/moe/route_top_k.cuh"

namespace warproll::moe {
namespace {

constexpr int kTokens = 8;  // of a cluster
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kExperts = 16;  // of a CTA
constexpr int kMaxCluster = 8;
constexpr int kKept = 8;  // blocks of columns a warp keeps: H = 2048

struct alignas(16) Shared {
  float sums[kWarps][kExperts * kTokens];
  float logits[kTokens][kMaxCluster * kExperts];
  float largest_of_warp[kWarps];
  int ids[kTokens * kMaxTopK];
  float weights[kTokens * kMaxTopK];
  ListScratch lists;
  bool built;  // the lists, by build_lists_of_one
  uint64_t arrived;
};

// The products of a warp's blocks; a lane takes eight neighbouring columns of every operand: the order
// of the columns in a product is free as long as both agree.
__device__ __forceinline__ void multiply(float (&sum)[4], uint4 a, uint4 b, uint4 v) {
  ptx::mma_16816_bf16(sum, a.x, b.x, a.y, b.y, v.x, v.y);
  ptx::mma_16816_bf16(sum, a.z, b.z, a.w, b.w, v.z, v.w);
}

// The lists of one token by the warp that has its choice, if its experts are different ones of the model,
// as they are unless they were given: then every block is one pair.
__device__ __forceinline__ bool build_lists_of_one(const RouteParams& p, const Chosen& chosen) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (p.given_ids != nullptr) {
    const int id = lane < p.top_k ? chosen.id : -1 - lane;  // the other lanes' differ too
    const bool alone = __popc(__match_any_sync(~0u, id)) == 1;
    const bool valid = lane >= p.top_k || (id >= 0 && id < p.num_experts);
    if (!__all_sync(~0u, alone && valid)) return false;
  }
  int place = 0;  // among the experts
  for (int k = 0; k < p.top_k; ++k) place += __shfl_sync(~0u, chosen.id, k) < chosen.id;
  if (lane < p.top_k) {
    const ExpertBlock block = {
        .first = place, .expert = static_cast<uint16_t>(chosen.id), .count = 1};
    p.lists.blocks[place] = p.lists.large_blocks[place] = block;
    p.lists.pairs[place] = lane;
    p.lists.pair_weights[lane] = chosen.weight;
  }
  if (lane == 0) {
    *p.lists.counts = {.num_blocks = p.top_k,
                       .num_large_blocks = p.top_k,
                       .num_active = p.top_k,
                       .num_pairs = p.top_k,
                       .num_invalid = 0,
                       .next_gate_up = 0,
                       .next_down = 0};
  }
  return true;
}

// Ids and weights of this cluster's tokens, and the lists if it is the last. The cluster's first CTA.
__device__ __forceinline__ void choose(const RouteParams& p, Shared& s, int first, int tokens) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned clusters = gridDim.y;
  const bool one = p.num_tokens == 1;
  if (warp < tokens) {
    const Chosen chosen =
        top_k_of_token<kMaxCluster * kExperts / 32>(p, s.logits[warp], first + warp);
    store_chosen(p, first + warp, chosen);
    if (one) {
      const bool built = build_lists_of_one(p, chosen);
      if (lane == 0) s.built = built;
    }
    if (lane < p.top_k) {
      s.ids[warp * p.top_k + lane] = chosen.id;
      s.weights[warp * p.top_k + lane] = chosen.weight;
    }
  }
  if (one && p.given_ids == nullptr) return;
  const bool alone = clusters == 1;
  if (!alone && !is_last_cta(p.lists.finished_ctas, clusters)) return;
  if (alone) __syncthreads();
  if (one && s.built) return;
  build_lists<kThreads>({.topk_ids = alone ? s.ids : p.topk_ids,
                         .topk_weights = alone ? s.weights : p.topk_weights,
                         .lists = p.lists,
                         .num_tokens = p.num_tokens,
                         .num_experts = p.num_experts,
                         .top_k = p.top_k},
                        s.lists);
}

// kBlocks: kKept, or 0 for any number.
template <int kBlocks>
__global__ void __launch_bounds__(kThreads, 1)
    route_small_kernel(const __grid_constant__ RouteParams p) {
  __shared__ Shared s;
  const int me = static_cast<int>(threadIdx.x);
  const int warp = me / 32, lane = me % 32, g = lane / 4, t = lane % 4;
  const int rank = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
  const int first = static_cast<int>(blockIdx.y) * kTokens;
  const int tokens = min(kTokens, p.num_tokens - first);
  const auto row = [&](const uint16_t* matrix, int index) {
    return reinterpret_cast<const uint4*>(matrix + static_cast<int64_t>(index) * p.hidden_size) + t;
  };
  // Rows past the last are a copy of it.
  const auto* weight = static_cast<const uint16_t*>(p.weight);
  const uint4* low = row(weight, min(rank * kExperts + g, p.num_experts - 1));
  const uint4* high = row(weight, min(rank * kExperts + g + 8, p.num_experts - 1));
  uint4 a[kBlocks == 0 ? 1 : kBlocks], b[kBlocks == 0 ? 1 : kBlocks];
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    a[i] = ptx::load_now_16(low + (warp + i * kWarps) * 4);
    b[i] = ptx::load_now_16(high + (warp + i * kWarps) * 4);
  }
  const uint32_t arrived = ptx::shared_address(&s.arrived);
  if (me == 0) {
    ptx::mbarrier_init(arrived, 1);
    ptx::fence_mbarrier_init();
    if (rank == 0)
      ptx::mbarrier_arrive_expect(arrived, static_cast<uint32_t>(kTokens * p.num_experts * 4));
  }
  __syncthreads();
  ptx::cluster_arrive();
  ptx::allow_next_kernel();
  ptx::wait_for_previous_kernel();

  const uint4* x = row(p.x, first + min(g, tokens - 1));
  float sum[4] = {};
  if constexpr (kBlocks > 0) {
    uint4 v[kBlocks];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) v[i] = x[(warp + i * kWarps) * 4];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) multiply(sum, a[i], b[i], v[i]);
  } else {
#pragma unroll 4
    for (int block = warp; block < p.hidden_size / kTileBlock; block += kWarps)
      multiply(sum, low[block * 4], high[block * 4], x[block * 4]);
  }
  *reinterpret_cast<float4*>(&s.sums[warp][lane * 4]) = make_float4(sum[0], sum[1], sum[2], sum[3]);
  __syncthreads();
  ptx::cluster_wait();
  if (me < kExperts * kTokens) {
    float total = s.sums[0][me];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) total += s.sums[w][me];
    // me / 4 is the lane, me % 4 the place among its four sums.
    const int expert = rank * kExperts + me / 16 + me % 4 / 2 * 8;
    const int token = me / 4 % 4 * 2 + me % 2;
    if (expert < p.num_experts) {
      if (ctas == 1) {  // a cluster of one has no other CTA's shared memory to write to
        s.logits[token][expert] = total;
      } else {
        ptx::store_to_cluster(
            ptx::address_in_cluster(ptx::shared_address(&s.logits[token][expert]), 0), total,
            ptx::address_in_cluster(arrived, 0));
      }
      if (token < tokens)
        p.logits[static_cast<int64_t>(first + token) * p.num_experts + expert] = total;
    }
  }
  if (ctas == 1) {
    __syncthreads();
  } else if (rank == 0) {
    ptx::mbarrier_wait(arrived, 0);
  }
  if (rank == 0) {
    choose(p, s, first, tokens);
    if (ctas > 1) return;
  }
  if (p.x_tile.values == nullptr) return;
  const ConvertActivationsParams convert = {p.x, p.x_tile, p.num_tokens, p.hidden_size};
  for (int i = max(rank - 1, 0); i < tokens; i += max(ctas - 1, 1)) {
    convert_row<kThreads>(convert, first + i, s.largest_of_warp);
    __syncthreads();
  }
}

}  // namespace

bool route_is_small(const RouteParams& p) {
  return p.weight_dtype == Dtype::kBf16 && p.num_experts <= kMaxCluster * kExperts &&
         p.num_tokens <= kMaxSmallRouteTokens;
}

void launch_route_small(const RouteParams& p, cudaStream_t stream) {
  const auto ctas = static_cast<unsigned>((p.num_experts + kExperts - 1) / kExperts);
  LaunchConfig config(dim3(ctas, static_cast<unsigned>((p.num_tokens + kTokens - 1) / kTokens)),
                      kThreads, 0, stream);
  config.programmatic();
  config.all_shared();
  config.cluster(ctas);
  const bool kept = p.hidden_size == kKept * kWarps * kTileBlock;
  config.run(kept ? route_small_kernel<kKept> : route_small_kernel<0>, p);
}

}  // namespace warproll::moe
