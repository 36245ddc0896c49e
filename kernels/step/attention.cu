// attention: grid decode_ctas + prefill tiles * num_kv_heads, block 128 threads. A decode CTA
// produces its even share of the splits of all one-token sequences, a prefill CTA the output of 64
// (token, head) rows of a KV head. Few sequences: attention_split_kernel, attention_finish_kernel.
#include "kernels/step/attention.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/step/attention_decode.cuh"
#include "kernels/step/attention_prefill.cuh"
#include "kernels/step/attention_split.cuh"

namespace warproll {
namespace attention {
namespace {

// kHigh: G > 8. Prefill goes with kHigh alone; what it adds to decode's rows has no effect.
template <int kD, bool kHigh, bool kPrefill>
__global__ void __launch_bounds__(kThreads, 2) attention_kernel(const __grid_constant__ Params p) {
  ptx::allow_next_kernel();
  std::byte* memory = ptx::dynamic_shared_memory();
  const int tile = static_cast<int>(blockIdx.x) - p.decode_ctas;
  if (!kPrefill || tile < 0) return Decoder<kD, kHigh>(p, memory).run();
  if constexpr (kPrefill) {
    // The last tiles of a sequence see most: first.
    const int tiles = (static_cast<int>(gridDim.x) - p.decode_ctas) / p.op.num_kv_heads;
    Prefiller<kD>(p, memory).run(tiles - 1 - tile / p.op.num_kv_heads, tile % p.op.num_kv_heads);
  }
}

// Grid (8 * groups of splits that a sequence can have, KV heads, sequences): a cluster for every group; block
// 128 threads. A CTA produces a split, then its heads' share of the sums. Three CTAs an SM.
template <int kD, bool kHigh>
__global__ void __launch_bounds__(kThreads, 3)
    attention_split_kernel(const __grid_constant__ Params p) {
  ptx::allow_next_kernel();
  SplitDecoder<kD, kHigh, false, 1>(p, ptx::dynamic_shared_memory()).run();
}

// The same with qkv_finish; a cluster for one group or two. Block 160 threads, or 288 with kHigh; three CTAs
// an SM, or one.
template <int kD, bool kHigh, int kGroups>
__global__ void __launch_bounds__(SplitDecoder<kD, kHigh, true, kGroups>::kCtaThreads,
                                  kHigh ? 1 : 3)
    attention_finish_kernel(const __grid_constant__ Params p,
                            const __grid_constant__ QkvFinishParams finish) {
  ptx::allow_next_kernel();
  SplitDecoder<kD, kHigh, true, kGroups>(p, ptx::dynamic_shared_memory(), finish).run();
}

// The workspace: tickets, states, values.
struct Layout {
  int64_t units = 0;  // that can be left in parts
  size_t states_offset = 0, values_offset = 0, bytes = 0;
};

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t max_pair_splits(const PagedAttentionParams& p) {
  return ceil_divide(int64_t{p.blocks_per_sequence} * p.block_tokens, kSplit);
}

Layout layout(const PagedAttentionParams& p) {
  const int64_t pairs = int64_t{p.num_sequences} * p.num_kv_heads;
  const int64_t splits = max_pair_splits(p);
  if (splits <= 1 || pairs == 0) return {};
  Layout l;
  l.units = std::max(std::min(pairs * splits, int64_t{kMaxSplitUnits}),
                     pairs * ceil_divide(splits, kGroupSplits));
  const auto align = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  const auto rows = static_cast<size_t>(l.units * (p.num_heads / p.num_kv_heads));
  l.states_offset = kAttentionTicketBytes;
  l.values_offset = l.states_offset + align(rows * sizeof(float2));
  l.bytes = l.values_offset + rows * static_cast<size_t>(p.head_dim) * sizeof(float);
  return l;
}

void check_shapes(const PagedAttentionParams& p) {
  const bool heads = p.num_kv_heads >= 1 && p.num_heads >= 1 && p.num_heads % p.num_kv_heads == 0 &&
                     p.num_heads / p.num_kv_heads <= kMaxAttentionGroup;
  check_argument(heads, [&] {
    return "paged_attention: heads " + std::to_string(p.num_heads) + ", KV heads " +
           std::to_string(p.num_kv_heads) + "; wanted KV heads that divide heads, at most " +
           std::to_string(kMaxAttentionGroup) + " heads each";
  });
  check_argument(p.head_dim >= 8 && p.head_dim % 8 == 0 && p.head_dim <= kMaxAttentionHeadDim, [&] {
    return "paged_attention: head_dim " + std::to_string(p.head_dim) +
           ", wanted a multiple of 8, 8 .. " + std::to_string(kMaxAttentionHeadDim);
  });
  check_argument(p.num_tokens >= 0 && p.num_sequences >= 0 &&
                     p.num_sequences <= kMaxAttentionSequences && p.max_query_tokens >= 0 &&
                     (p.num_tokens == 0 || p.num_sequences >= 1),
                 [&] {
                   return "paged_attention: T " + std::to_string(p.num_tokens) + ", B " +
                          std::to_string(p.num_sequences) + ", max_query_tokens " +
                          std::to_string(p.max_query_tokens) + "; wanted T >= 0, B 1 .. " +
                          std::to_string(kMaxAttentionSequences) + ", max_query_tokens >= 0";
                 });
  constexpr int64_t kLimit = int64_t{1} << 30;
  check_argument(p.block_tokens >= 1 && p.num_blocks >= 0 && p.blocks_per_sequence >= 0 &&
                     int64_t{p.num_blocks} * p.block_tokens < 2 * kLimit &&
                     int64_t{p.blocks_per_sequence} * p.block_tokens < kLimit &&
                     int64_t{p.num_sequences} * p.num_kv_heads * max_pair_splits(p) < kLimit,
                 [&] {
                   return "paged_attention: block_tokens " + std::to_string(p.block_tokens) +
                          ", num_blocks " + std::to_string(p.num_blocks) + ", P " +
                          std::to_string(p.blocks_per_sequence) + ", B " +
                          std::to_string(p.num_sequences) + ", KV heads " +
                          std::to_string(p.num_kv_heads) +
                          "; wanted slots below 2^31, P * block_tokens and B * KV heads * splits "
                          "below 2^30";
                 });
}

void check_inputs(const PagedAttentionParams& p, bool reads_q) {
  check_argument(std::isfinite(p.scale) && p.scale > 0.0f, [&] {
    return "paged_attention: scale " + std::to_string(p.scale) + ", wanted finite and > 0";
  });
  check_argument(p.num_blocks >= 1 && p.blocks_per_sequence >= 1, [&] {
    return "paged_attention: num_blocks " + std::to_string(p.num_blocks) + ", P " +
           std::to_string(p.blocks_per_sequence) + ", wanted at least 1";
  });
  const bool has_all = (p.q != nullptr || !reads_q) && p.k_cache != nullptr &&
                       p.v_cache != nullptr && p.positions != nullptr &&
                       p.cu_seqlens_q != nullptr && p.block_table != nullptr && p.out != nullptr;
  check_argument(has_all, [] { return std::string("paged_attention: null pointer"); });
  const void* const vectors[] = {p.q, p.k_cache, p.v_cache, p.out, p.workspace};
  for (const void* pointer : vectors) {
    check_argument(reinterpret_cast<uintptr_t>(pointer) % 16 == 0, [] {
      return std::string(
          "paged_attention: q, the caches, out or the workspace is not aligned to 16 bytes");
    });
  }
  check_argument(p.workspace != nullptr || layout(p).bytes == 0, [&] {
    return "paged_attention: no workspace, wanted " + std::to_string(layout(p).bytes) + " bytes";
  });
}

// What both ops are told must agree.
void check_same(const QkvFinishParams& f, const PagedAttentionParams& p) {
  const bool same = f.num_tokens == p.num_tokens && f.num_heads == p.num_heads &&
                    f.num_kv_heads == p.num_kv_heads && f.head_dim == p.head_dim;
  check_argument(same, [&] {
    return "finish_attention: qkv_finish of T " + std::to_string(f.num_tokens) + ", heads " +
           std::to_string(f.num_heads) + "/" + std::to_string(f.num_kv_heads) + ", D " +
           std::to_string(f.head_dim) + ", attention of T " + std::to_string(p.num_tokens) +
           ", heads " + std::to_string(p.num_heads) + "/" + std::to_string(p.num_kv_heads) +
           ", D " + std::to_string(p.head_dim) + "; wanted the same";
  });
  check_argument(
      f.positions == p.positions && f.k_cache == p.k_cache && f.v_cache == p.v_cache, [] {
        return std::string(
            "finish_attention: positions or caches of qkv_finish and of attention differ");
      });
}

Params device_params(const PagedAttentionParams& op) {
  Params p;
  p.op = op;
  p.by_block_tokens = Divider(op.block_tokens);
  p.scale_log2 = op.scale * 1.44269504f;
  p.group = op.num_heads / op.num_kv_heads;
  p.tile_tokens = kTileRows / p.group;
  p.one_token_each = op.max_query_tokens == 1 && op.num_tokens == op.num_sequences;
  const int64_t units = int64_t{op.num_sequences} * op.num_kv_heads * max_pair_splits(op);
  const int most = std::min(2 * num_multiprocessors(), kMaxDecodeCtas);
  p.decode_ctas = static_cast<int>(std::min(units, int64_t{most}));
  const Layout l = layout(op);
  if (l.bytes > 0) {
    auto* memory = static_cast<std::byte*>(op.workspace);
    p.partials = {reinterpret_cast<float2*>(memory + l.states_offset),
                  reinterpret_cast<float*>(memory + l.values_offset),
                  reinterpret_cast<unsigned*>(memory)};
  }
  return p;
}

template <int kD, bool kHigh, bool kPrefill>
void launch(const Params& p, cudaStream_t stream) {
  int64_t ctas = p.decode_ctas;
  int shared_bytes = DecodeShared<kD, kHigh>::bytes(p.op.num_sequences);
  if (kPrefill) {
    ctas +=
        max_prefill_tiles(p.op.num_tokens, p.op.num_sequences, p.tile_tokens) * p.op.num_kv_heads;
    shared_bytes = std::max(shared_bytes, PrefillShared<kD>::kBytes);
  }
  LaunchConfig config(dim3(static_cast<unsigned>(ctas)), kThreads, shared_bytes, stream);
  config.programmatic();
  config.all_shared();
  config.run(attention_kernel<kD, kHigh, kPrefill>, p);
}

// A kernel of clusters, by what runs in it.
template <class Decoder>
void configure_split(LaunchConfig& config) {
  config.programmatic();
  config.all_shared();
  config.cluster(Decoder::kClusterCtas);
}
// All clusters of a launch are to run side by side.
template <class Decoder, class... P>
int max_split_clusters(void (*kernel)(P...)) {
  LaunchConfig config(dim3(Decoder::kClusterCtas), Decoder::kCtaThreads,
                      sizeof(typename Decoder::Shared), nullptr);
  configure_split<Decoder>(config);
  return std::min(config.max_active_clusters(kernel), 2 * kMaxDecodeCtas / kFoldCtas);
}
int64_t pair_groups(const PagedAttentionParams& op) {
  return ceil_divide(max_pair_splits(op), kGroupSplits);
}
// kGroups: of a cluster.
template <int kGroups>
int64_t split_clusters(const PagedAttentionParams& op) {
  return int64_t{op.num_sequences} * op.num_kv_heads * ceil_divide(pair_groups(op), kGroups);
}

template <class Decoder, class... P, class... More>
void launch_split(void (*kernel)(P...), Params p, cudaStream_t stream, const More&... more) {
  p.pair_groups = static_cast<int>(pair_groups(p.op));
  const dim3 grid(static_cast<unsigned>(p.pair_groups * kFoldCtas),
                  static_cast<unsigned>(p.op.num_kv_heads),
                  static_cast<unsigned>(p.op.num_sequences));
  // Few CTAs have an SM each: two would wait for each other.
  constexpr int kMoreThanHalf = 116 * 1024;
  const int64_t ctas = int64_t{grid.x} * grid.y * grid.z;
  const int shared_bytes = std::max(static_cast<int>(sizeof(typename Decoder::Shared)),
                                    ctas <= num_multiprocessors() / 2 ? kMoreThanHalf : 0);
  LaunchConfig config(grid, Decoder::kCtaThreads, shared_bytes, stream);
  configure_split<Decoder>(config);
  config.run(kernel, p, more...);
}

template <int kD, bool kHigh>
void launch_decode(const Params& p, cudaStream_t stream) {
  using Decoder = SplitDecoder<kD, kHigh, false, 1>;
  static const int most = max_split_clusters<Decoder>(attention_split_kernel<kD, kHigh>);
  if (split_clusters<1>(p.op) > most) return launch<kD, kHigh, false>(p, stream);
  launch_split<Decoder>(attention_split_kernel<kD, kHigh>, p, stream);
}

// Whether the clusters of attention_finish_kernel run side by side.
template <int kD, bool kHigh, int kGroups>
bool finish_fits(const PagedAttentionParams& op) {
  using Decoder = SplitDecoder<kD, kHigh, true, kGroups>;
  static const int most = max_split_clusters<Decoder>(attention_finish_kernel<kD, kHigh, kGroups>);
  return split_clusters<kGroups>(op) <= most;
}

template <int kD, bool kHigh>
void launch_finish(const Params& p, cudaStream_t stream, const QkvFinishParams& finish) {
  const auto launch = [&]<int kGroups> {
    launch_split<SplitDecoder<kD, kHigh, true, kGroups>>(
        attention_finish_kernel<kD, kHigh, kGroups>, p, stream, finish);
  };
  if (pair_groups(p.op) == 2 && finish_fits<kD, kHigh, 2>(p.op)) {
    return launch.template operator()<2>();
  }
  launch.template operator()<1>();
}

// use<kD, kHigh>() of the kernels for these heads.
template <class Use>
auto with_heads(const PagedAttentionParams& op, const Use& use) {
  const bool high = op.num_heads / op.num_kv_heads > 8;
  if (op.head_dim <= 64) {
    return high ? use.template operator()<64, true>() : use.template operator()<64, false>();
  }
  return high ? use.template operator()<128, true>() : use.template operator()<128, false>();
}

}  // namespace
}  // namespace attention

size_t paged_attention_workspace_bytes(const PagedAttentionParams& params) {
  attention::check_shapes(params);
  return attention::layout(params).bytes;
}

void paged_attention(const PagedAttentionParams& params, cudaStream_t stream) {
  attention::check_shapes(params);
  if (params.num_tokens == 0) return;
  attention::check_inputs(params, /*reads_q=*/true);
  const attention::Params p = attention::device_params(params);
  const bool prefill = params.max_query_tokens != 1 && params.num_tokens > 1;
  attention::with_heads(params, [&]<int kD, bool kHigh> {
    if (prefill) return attention::launch<kD, true, true>(p, stream);
    attention::launch_decode<kD, kHigh>(p, stream);
  });
}

bool attention_can_finish(const PagedAttentionParams& params) {
  attention::check_shapes(params);
  const bool one_token_each = params.max_query_tokens == 1 && params.num_tokens > 0 &&
                              params.num_tokens == params.num_sequences;
  if (!one_token_each || params.head_dim % 16 != 0) return false;
  return params.blocks_per_sequence > 0 && attention::with_heads(params, [&]<int kD, bool kHigh> {
           return attention::finish_fits<kD, kHigh, 1>(params);
         });
}

bool finish_attention_is_faster(const PagedAttentionParams& params) {
  constexpr int32_t kMaxSequences = 2;
  return params.num_sequences <= kMaxSequences && attention_can_finish(params);
}

void finish_attention(const QkvFinishParams& finish, const PagedAttentionParams& params,
                      cudaStream_t stream) {
  attention::check_shapes(params);
  check_qkv_finish(finish, /*writes_q=*/false);
  attention::check_same(finish, params);
  if (params.num_tokens == 0) return;
  attention::check_inputs(params, /*reads_q=*/false);
  check_argument(attention_can_finish(params), [&] {
    return "finish_attention: B " + std::to_string(params.num_sequences) + ", T " +
           std::to_string(params.num_tokens) + ", KV heads " + std::to_string(params.num_kv_heads) +
           ", P " + std::to_string(params.blocks_per_sequence) + " of " +
           std::to_string(params.block_tokens) +
           " positions; wanted what attention_can_finish takes";
  });
  attention::Params p = attention::device_params(params);
  p.op.indices_are_older = params.indices_are_older && finish.indices_are_older;
  attention::with_heads(
      params, [&]<int kD, bool kHigh> { attention::launch_finish<kD, kHigh>(p, stream, finish); });
}

}  // namespace warproll
