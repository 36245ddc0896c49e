// attention: grid decode_ctas + prefill tiles * num_kv_heads, block 128 threads. A decode CTA
// produces its even share of the splits of all one-token sequences, a prefill CTA the output of 64
// (token, head) rows of a KV head. combine: attention_combine.cuh.
#include "kernels/step/attention.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/step/attention_combine.cuh"
#include "kernels/step/attention_decode.cuh"
#include "kernels/step/attention_prefill.cuh"

namespace warproll {
namespace attention {
namespace {

// kHigh: G > 8. Prefill goes with kHigh alone; what it adds to decode's rows has no effect.
// kFinish: decode_attention.
template <int kD, bool kHigh, bool kPrefill, bool kFinish>
__global__ void __launch_bounds__(kThreads, 2) attention_kernel(const __grid_constant__ Params p) {
  ptx::allow_next_kernel();
  std::byte* memory = ptx::dynamic_shared_memory();
  const int tile = static_cast<int>(blockIdx.x) - p.decode_ctas;
  if (!kPrefill || tile < 0) return Decoder<kD, kHigh, kFinish>(p, memory).run();
  if constexpr (kPrefill) {
    // The last tiles of a sequence see most: first.
    const int tiles = (static_cast<int>(gridDim.x) - p.decode_ctas) / p.op.num_kv_heads;
    Prefiller<kD>(p, memory).run(tiles - 1 - tile / p.op.num_kv_heads, tile % p.op.num_kv_heads);
  }
}

__global__ void __launch_bounds__(Combiner::kThreads)
    attention_combine_kernel(const __grid_constant__ Params p) {
  ptx::allow_next_kernel();
  ptx::wait_for_previous_kernel();
  const int head = static_cast<int>(blockIdx.x), sequence = static_cast<int>(blockIdx.y);
  const int kv_head = head / p.group;
  if (query_tokens(p.op, sequence) != 1) return;
  const int token = p.op.cu_seqlens_q[sequence];
  const int place = p.partials.places[sequence * p.op.num_kv_heads + kv_head];
  if (place == kNoPartials) return;
  const bool groups = place % 2 != 0;
  const Combiner combiner = {.parts = p.partials,
                             .group = p.group,
                             .head_dim = p.op.head_dim,
                             .head_in_group = head % p.group,
                             .first_unit = place / 2,
                             .units = p.op.positions[token] / (groups ? kGroup : kSplit) + 1,
                             .units_are_groups = groups};
  combiner.run(p.op.out + (static_cast<int64_t>(token) * p.op.num_heads + head) * p.op.head_dim);
}

// The workspace: tickets, places, states, values.
struct Layout {
  int64_t units = 0;  // that can be left in parts
  size_t places_offset = 0, states_offset = 0, values_offset = 0, bytes = 0;
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
  l.places_offset = kAttentionTicketBytes;
  l.states_offset = l.places_offset + align(static_cast<size_t>(pairs) * sizeof(int32_t));
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
    p.partials = {reinterpret_cast<int32_t*>(memory + l.places_offset),
                  reinterpret_cast<float2*>(memory + l.states_offset),
                  reinterpret_cast<float*>(memory + l.values_offset),
                  reinterpret_cast<unsigned*>(memory)};
  }
  return p;
}

template <int kD, bool kHigh, bool kPrefill, bool kFinish>
void launch(const Params& p, cudaStream_t stream) {
  int64_t ctas = p.decode_ctas;
  int shared_bytes = DecodeShared<kD, kHigh, kFinish>::bytes(p.op.num_sequences);
  if (kPrefill) {
    ctas +=
        max_prefill_tiles(p.op.num_tokens, p.op.num_sequences, p.tile_tokens) * p.op.num_kv_heads;
    shared_bytes = std::max(shared_bytes, PrefillShared<kD>::kBytes);
  }
  LaunchConfig config(dim3(static_cast<unsigned>(ctas)), kThreads, shared_bytes, stream);
  config.programmatic();
  config.all_shared();
  config.run(attention_kernel<kD, kHigh, kPrefill, kFinish>, p);
}

template <int kD>
void launch_dim(const Params& p, cudaStream_t stream) {
  const bool prefill = p.op.max_query_tokens != 1 && p.op.num_tokens > 1;
  if (prefill) return launch<kD, true, true, false>(p, stream);
  if (p.group > 8) return launch<kD, true, false, false>(p, stream);
  launch<kD, false, false, false>(p, stream);
}

template <int kD>
void launch_finish(const Params& p, cudaStream_t stream) {
  if (p.group > 8) return launch<kD, true, false, true>(p, stream);
  launch<kD, false, false, true>(p, stream);
}

void combine(const Params& p, cudaStream_t stream) {
  if (p.partials.places == nullptr || p.op.one_kernel) return;
  LaunchConfig config(
      dim3(static_cast<unsigned>(p.op.num_heads), static_cast<unsigned>(p.op.num_sequences)),
      Combiner::kThreads, 0, stream);
  config.programmatic();
  config.all_shared();
  config.run(attention_combine_kernel, p);
}

void check_finish(const QkvFinishParams& f, const PagedAttentionParams& a) {
  check_qkv_finish(f, false);
  check_argument(
      f.num_tokens == a.num_tokens && a.num_sequences == a.num_tokens && a.max_query_tokens == 1 &&
          f.num_heads == a.num_heads && f.num_kv_heads == a.num_kv_heads &&
          f.head_dim == a.head_dim && f.k_cache == a.k_cache && f.v_cache == a.v_cache &&
          f.positions == a.positions,
      [&] {
        return "decode_attention: T " + std::to_string(f.num_tokens) + " and " +
               std::to_string(a.num_tokens) + ", B " + std::to_string(a.num_sequences) +
               ", max_query_tokens " + std::to_string(a.max_query_tokens) +
               "; wanted one new token a sequence, and equal heads, D, caches and positions";
      });
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
  attention::combine(p, stream);
}

void decode_attention(const QkvFinishParams& finish, const PagedAttentionParams& params,
                      cudaStream_t stream) {
  attention::check_shapes(params);
  attention::check_finish(finish, params);
  if (params.num_tokens == 0) return;
  PagedAttentionParams op = params;
  op.q = finish.qkv;
  attention::check_inputs(op);
  attention::Params p = attention::device_params(op);
  p.finish = finish;
  if (params.head_dim <= 64) {
    attention::launch_finish<64>(p, stream);
  } else {
    attention::launch_finish<128>(p, stream);
  }
  attention::combine(p, stream);
}

}  // namespace warproll
