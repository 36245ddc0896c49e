#include "kernels/attention.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/check.h"
#include "kernels/lanes.h"
#include "kernels/parallel.h"
#include "kernels/rounding.h"

namespace warproll {
namespace {

constexpr int32_t kChunk = 64;  // positions between two rescalings; multiple of kLanes

// Where the K and V of a sequence's position lie, for one KV head.
struct HeadCache {
  const float* k;
  const float* v;
  const int32_t* blocks;  // [P]
  int32_t block_tokens;
  int64_t slot_stride;  // num_kv_heads * D

  [[nodiscard]] int64_t offset(int32_t position) const {
    const int64_t slot =
        int64_t{blocks[position / block_tokens]} * block_tokens + position % block_tokens;
    return slot * slot_stride;
  }
};

struct SoftmaxState {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
};

// scores[0 .. count) become e^(score - max), zeros up to kChunk; `acc` and the sum are rescaled to
// the new max.
WARPROLL_INLINE void softmax_chunk(float* scores, int32_t count, int32_t head_dim,
                                   SoftmaxState& state, float* acc) {
  float max = state.max;
  for (int32_t j = 0; j < count; ++j) max = std::max(max, scores[j]);
  std::fill(scores + count, scores + kChunk, -std::numeric_limits<float>::infinity());
  Lanes sum = {}, p;
  for (int32_t j = 0; j < kChunk; j += kLanes) {
    load_lanes(p, scores + j);
    p = p - max;
    exp_lanes(p);
    sum += p;
    store_lanes(scores + j, p);
  }
  splat(p, state.max - max);
  exp_lanes(p);
  const float rescale = p[0];
  for (int32_t d = 0; d < head_dim; ++d) acc[d] *= rescale;
  state.sum = state.sum * rescale + fold_lanes(sum);
  state.max = max;
}

// out[j] = q . K[offsets[j]] * scale.
WARPROLL_INLINE void score_chunk(const float* q, const float* k, const int64_t* offsets,
                                 int32_t count, int32_t head_dim, float scale, float* scores) {
  int32_t j = 0;
  for (; j + 4 <= count; j += 4) {
    const float* rows[4] = {k + offsets[j], k + offsets[j + 1], k + offsets[j + 2],
                            k + offsets[j + 3]};
    dot_four(q, rows, head_dim, scores + j);
  }
  for (; j < count; ++j) scores[j] = dot_lanes(q, k + offsets[j], head_dim);
  for (j = 0; j < count; ++j) scores[j] *= scale;
}

// acc[d] += sum over j, in order, of p[j] * V[offsets[j]][d], for Blocks * 16 dimensions.
template <int Blocks>
WARPROLL_INLINE void weigh_values(const float* p, const float* v, const int64_t* offsets,
                                  int32_t count, float* acc) {
  Lanes sum[Blocks], value;
  for (int i = 0; i < Blocks; ++i) load_lanes(sum[i], acc + i * kLanes);
  for (int32_t j = 0; j < count; ++j) {
    for (int i = 0; i < Blocks; ++i) {
      load_lanes(value, v + offsets[j] + i * kLanes);
      sum[i] += value * p[j];
    }
  }
  for (int i = 0; i < Blocks; ++i) store_lanes(acc + i * kLanes, sum[i]);
}

WARPROLL_INLINE void weigh_all_values(const float* p, const float* v, const int64_t* offsets,
                                      int32_t count, int32_t head_dim, float* acc) {
  int32_t d = 0;
  for (; d + 4 * kLanes <= head_dim; d += 4 * kLanes) {
    weigh_values<4>(p, v + d, offsets, count, acc + d);
  }
  for (; d + kLanes <= head_dim; d += kLanes) weigh_values<1>(p, v + d, offsets, count, acc + d);
  for (int32_t j = 0; d < head_dim && j < count; ++j) {
    for (int32_t i = d; i < head_dim; ++i) acc[i] += v[offsets[j] + i] * p[j];
  }
}

// One query head over positions 0 .. last.
WARPROLL_VECTOR_CLONES void attend(const float* q, const HeadCache& cache, int32_t last,
                                   int32_t head_dim, float scale, float* out) {
  float acc[kMaxHeadDim] = {};
  float scores[kChunk];
  int64_t offsets[kChunk];
  SoftmaxState state;
  for (int32_t first = 0; first <= last; first += kChunk) {
    const int32_t count = std::min(kChunk, last - first + 1);
    for (int32_t j = 0; j < count; ++j) offsets[j] = cache.offset(first + j);
    score_chunk(q, cache.k, offsets, count, head_dim, scale, scores);
    softmax_chunk(scores, count, head_dim, state, acc);
    weigh_all_values(scores, cache.v, offsets, count, head_dim, acc);
  }
  for (int32_t d = 0; d < head_dim; ++d) out[d] = acc[d] / state.sum;
}

void check_shapes(const AttentionParams& p) {
  check_activation_dtype(p.round_to, "attention");
  check_argument(
      p.num_tokens >= 0 && p.num_sequences >= 0 && p.num_kv_heads >= 1 && p.num_heads >= 1 &&
          p.num_heads % p.num_kv_heads == 0 && p.head_dim >= 1 && p.head_dim <= kMaxHeadDim &&
          p.block_tokens >= 1 && p.num_blocks >= 0 && p.blocks_per_sequence >= 0,
      [&] {
        return "attention: T " + std::to_string(p.num_tokens) + ", B " +
               std::to_string(p.num_sequences) + ", heads " + std::to_string(p.num_heads) +
               ", KV heads " + std::to_string(p.num_kv_heads) + ", head_dim " +
               std::to_string(p.head_dim) + ", block_tokens " + std::to_string(p.block_tokens) +
               ", num_blocks " + std::to_string(p.num_blocks) +
               "; wanted KV heads that divide heads, head_dim 1 .. " + std::to_string(kMaxHeadDim) +
               ", block_tokens >= 1";
      });
  if (p.num_tokens == 0) return;
  check_argument(p.q != nullptr && p.k_cache != nullptr && p.v_cache != nullptr &&
                     p.positions != nullptr && p.cu_seqlens_q != nullptr &&
                     p.block_table != nullptr && p.out != nullptr,
                 [] { return std::string("attention: a pointer is null"); });
  check_argument(p.cu_seqlens_q[0] == 0 && p.cu_seqlens_q[p.num_sequences] == p.num_tokens, [&] {
    return "attention: cu_seqlens_q runs from " + std::to_string(p.cu_seqlens_q[0]) + " to " +
           std::to_string(p.cu_seqlens_q[p.num_sequences]) + ", wanted 0 to " +
           std::to_string(p.num_tokens);
  });
}

// Positions inside the table, and the blocks up to them inside the cache.
void check_sequence(const AttentionParams& p, int32_t b) {
  int32_t last = -1;
  check_argument(p.cu_seqlens_q[b] <= p.cu_seqlens_q[b + 1], [&] {
    return "attention: cu_seqlens_q falls after sequence " + std::to_string(b);
  });
  for (int32_t t = p.cu_seqlens_q[b]; t < p.cu_seqlens_q[b + 1]; ++t) {
    const int64_t limit = int64_t{p.blocks_per_sequence} * p.block_tokens;
    check_argument(p.positions[t] >= 0 && p.positions[t] < limit, [&] {
      return "attention: position of token " + std::to_string(t) + " is " +
             std::to_string(p.positions[t]) + ", wanted 0 .. " + std::to_string(limit - 1);
    });
    last = std::max(last, p.positions[t]);
  }
  for (int32_t i = 0; last >= 0 && i <= last / p.block_tokens; ++i) {
    const int32_t block = p.block_table[int64_t{b} * p.blocks_per_sequence + i];
    check_argument(block >= 0 && block < p.num_blocks, [&] {
      return "attention: block " + std::to_string(i) + " of sequence " + std::to_string(b) +
             " is " + std::to_string(block) + ", wanted 0 .. " + std::to_string(p.num_blocks - 1);
    });
  }
}

}  // namespace

void attention_cpu(const AttentionParams& p) {
  check_shapes(p);
  if (p.num_tokens == 0) return;
  int64_t work = 0;
  for (int32_t b = 0; b < p.num_sequences; ++b) check_sequence(p, b);
  for (int32_t t = 0; t < p.num_tokens; ++t) work += p.positions[t] + 1;
  const int64_t group = p.num_heads / p.num_kv_heads;
  const int64_t slot_stride = int64_t{p.num_kv_heads} * p.head_dim;
  // Units (token, KV head): the G query heads of a unit share its K and V while they are cached.
  const int64_t units = int64_t{p.num_tokens} * p.num_kv_heads;
  parallel_ranges(units, 2 * work * p.num_heads * p.head_dim, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      // From both ends in turn: late tokens see more context, and every thread gets some.
      const int64_t unit = i % 2 == 0 ? i / 2 : units - 1 - i / 2;
      const auto t = static_cast<int32_t>(unit / p.num_kv_heads);
      const int64_t kv_head = unit % p.num_kv_heads;
      const auto b = std::upper_bound(p.cu_seqlens_q, p.cu_seqlens_q + p.num_sequences + 1, t) -
                     p.cu_seqlens_q - 1;
      const HeadCache cache{p.k_cache + kv_head * p.head_dim, p.v_cache + kv_head * p.head_dim,
                            p.block_table + b * p.blocks_per_sequence, p.block_tokens, slot_stride};
      const int64_t first = (int64_t{t} * p.num_heads + kv_head * group) * p.head_dim;
      for (int64_t g = 0; g < group; ++g) {
        const int64_t at = first + g * p.head_dim;
        attend(p.q + at, cache, p.positions[t], p.head_dim, p.scale, p.out + at);
      }
      round_activations(p.out + first, group * p.head_dim, p.round_to);
    }
  });
}

}  // namespace warproll
