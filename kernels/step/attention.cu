// attention: grid decode_ctas + prefill tiles * num_kv_heads, block 128 threads. A decode CTA
// produces its even share of the splits of all one-token sequences, a prefill CTA the output of 64
// (token, head) rows of a KV head.
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

// Grid: a cluster for every group of splits that a (sequence, KV head) can have; block 128 threads. A CTA
// produces a split, then its heads' share of the sums. Three CTAs an SM.
template <int kD, bool kHigh>
__global__ void __launch_bounds__(kThreads, 3)
    attention_split_kernel(const __grid_constant__ Params p) {
  ptx::allow_next_kernel();
  SplitDecoder<kD, kHigh>(p, ptx::dynamic_shared_memory()).run();
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

void check_inputs(const PagedAttentionParams& p) {
  check_argument(std::isfinite(p.scale) && p.scale > 0.0f, [&] {
    return "paged_attention: scale " + std::to_string(p.scale) + ", wanted finite and > 0";
  });
  check_argument(p.num_blocks >= 1 && p.blocks_per_sequence >= 1, [&] {
    return "paged_attention: num_blocks " + std::to_string(p.num_blocks) + ", P " +
           std::to_string(p.blocks_per_sequence) + ", wanted at least 1";
  });
  const void* const all[] = {p.q,           p.k_cache, p.v_cache, p.positions, p.cu_seqlens_q,
                             p.block_table, p.out};
  for (const void* pointer : all) {
    check_argument(pointer != nullptr, [] { return std::string("paged_attention: null pointer"); });
  }
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

template <int kD, bool kHigh>
void configure_split(LaunchConfig& config) {
  config.programmatic();
  config.all_shared();
  config.cluster(kClusterCtas);
}
// All clusters of a launch are to run side by side.
template <int kD, bool kHigh>
int max_split_clusters() {
  LaunchConfig config(dim3(kClusterCtas), kThreads, sizeof(SplitShared<kD, kHigh>), nullptr);
  configure_split<kD, kHigh>(config);
  return std::min(config.max_active_clusters(attention_split_kernel<kD, kHigh>),
                  2 * kMaxDecodeCtas / kClusterCtas);
}

template <int kD, bool kHigh>
void launch_decode(Params p, cudaStream_t stream) {
  static const int most = max_split_clusters<kD, kHigh>();
  const int64_t groups = ceil_divide(max_pair_splits(p.op), kGroupSplits);
  const int64_t clusters = int64_t{p.op.num_sequences} * p.op.num_kv_heads * groups;
  if (clusters > most) return launch<kD, kHigh, false>(p, stream);
  p.pair_groups = static_cast<int>(groups);
  // Few CTAs have an SM each: two would wait for each other.
  constexpr int kMoreThanHalf = 116 * 1024;
  const int64_t ctas = clusters * kClusterCtas;
  const int shared_bytes = std::max(static_cast<int>(sizeof(SplitShared<kD, kHigh>)),
                                    ctas <= num_multiprocessors() / 2 ? kMoreThanHalf : 0);
  LaunchConfig config(dim3(static_cast<unsigned>(ctas)), kThreads, shared_bytes, stream);
  configure_split<kD, kHigh>(config);
  config.run(attention_split_kernel<kD, kHigh>, p);
}

template <int kD>
void launch_dim(const Params& p, cudaStream_t stream) {
  const bool prefill = p.op.max_query_tokens != 1 && p.op.num_tokens > 1;
  if (prefill) return launch<kD, true, true>(p, stream);
  if (p.group > 8) return launch_decode<kD, true>(p, stream);
  launch_decode<kD, false>(p, stream);
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
  attention::check_inputs(params);
  const attention::Params p = attention::device_params(params);
  if (params.head_dim <= 64) {
    attention::launch_dim<64>(p, stream);
  } else {
    attention::launch_dim<128>(p, stream);
  }
}

}  // namespace warproll
