// The units of attention_decode.cuh: a split or, where there are too many, a group of splits of a (sequence, KV
// head), and the run of consecutive ones that a CTA walks chunk by chunk. Internal to kernels/step/attention.cu.
#pragma once

#include "kernels/step/attention_cache.cuh"

namespace warproll::attention {

inline constexpr int kSplitLog2 = 7, kGroupLog2 = 10;
static_assert(1 << kSplitLog2 == kSplit && 1 << kGroupLog2 == kGroup);

// The chunks of a CTA's units, in order.
struct Walk {
  const int* last;                          // shared, [B]: last position, or -1: not one new token
  int num_kv_heads, unit_log2, units_left;  // positions of a unit: 1 << unit_log2
  int sequence, kv_head;
  int first_unit;  // number of the pair's unit 0
  int pair_units;
  int position, end;  // of the chunk, of the run in this pair
  int begin;          // of the run in this pair
  int quota;          // units of a CTA
  bool whole;         // the run is all of the pair
  bool done;

  __device__ __forceinline__ void enter(int unit) {
    pair_units = (last[sequence] >> unit_log2) + 1;
    const int count = min(units_left, pair_units - unit);
    whole = count == pair_units;
    position = begin = unit << unit_log2;
    end = min(last[sequence] + 1, (unit + count) << unit_log2);
    units_left -= count;
  }
  __device__ __forceinline__ void next() {
    position += kChunk;
    if (position < end) return;
    if (units_left == 0) {
      done = true;
      return;
    }
    first_unit += pair_units;
    if (++kv_head == num_kv_heads) {
      kv_head = 0;
      do ++sequence;
      while (last[sequence] < 0);
    }
    enter(0);
  }
};

__device__ __forceinline__ void read_lasts(const Params& p, int* last) {
  for (int b = static_cast<int>(threadIdx.x); b < p.op.num_sequences; b += kThreads) {
    if (p.one_token_each) {
      last[b] = p.op.positions[b];
    } else {
      last[b] = query_tokens(p.op, b) == 1 ? p.op.positions[p.op.cu_seqlens_q[b]] : -1;
    }
  }
  __syncthreads();
}

__device__ __forceinline__ int count_units(const Params& p, const int* last, int unit_log2) {
  int sum = 0;
  for (int b = static_cast<int>(threadIdx.x) % 32; b < p.op.num_sequences; b += 32) {
    if (last[b] >= 0) sum += (last[b] >> unit_log2) + 1;
  }
  return __reduce_add_sync(~0u, sum) * p.op.num_kv_heads;
}

__device__ __forceinline__ Walk start_walk(const Params& p, const int* last) {
  Walk w = {};
  w.last = last;
  w.num_kv_heads = p.op.num_kv_heads;
  w.unit_log2 = kSplitLog2;
  w.done = true;
  int total = count_units(p, last, kSplitLog2);
  if (total > kMaxSplitUnits) {
    w.unit_log2 = kGroupLog2;
    total = count_units(p, last, kGroupLog2);
  }
  const int quota = (total + p.decode_ctas - 1) / p.decode_ctas;
  w.quota = quota;
  const int first = static_cast<int>(blockIdx.x) * quota;
  w.units_left = min(quota, total - first);
  if (w.units_left <= 0) return w;
  const auto pair_units = [&](int b) { return last[b] < 0 ? 0 : (last[b] >> w.unit_log2) + 1; };
  const Found found = find_item(first, p.op.num_sequences,
                                [&](int b) { return pair_units(b) * p.op.num_kv_heads; });
  const int units = pair_units(found.index);
  w.sequence = found.index;
  w.kv_head = (first - found.before) / units;
  w.first_unit = found.before + w.kv_head * units;
  w.done = false;
  w.enter(first - w.first_unit);
  return w;
}

}  // namespace warproll::attention
