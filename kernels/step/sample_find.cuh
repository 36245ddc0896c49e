// OrderFinder: where the order of a row's tokens answers a question (sample_order.cuh), by one cluster, once
// the bins are joined. Internal to kernels/step/sample*.
#pragma once

#include "kernels/step/sample_slice.cuh"

namespace warproll {
namespace {

// Every function is called by all threads of the cluster, unless it says otherwise.
class OrderFinder : public RowSlice {
 protected:
  using RowSlice::RowSlice;

  // The first token of the order for which `query` is reached; there must be one.
  __device__ Found find(const Query& query) {
    if (cta_ == 0) find_bin(query);
    cluster_.sync();
    Window window = of_cta(s_.window, 0);
    while (window.count > kCapacity) window = split(window, query);
    gather(window);
    cluster_.sync();
    if (cta_ == 0) find_candidate(window, query);
    cluster_.sync();
    return of_cta(s_.found, 0);
  }

 private:
  // The window's tokens to the leader, in any order. Few are: eight are looked at before one is handed on.
  __device__ void gather(const Window& window) {
    constexpr int kAtOnce = 8;
    Shared& leader = *cluster_.map_shared_rank(&s_, 0);
    for (int base = tid_; base < size_; base += kThreads * kAtOnce) {
      uint32_t in_bin = 0;
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int i = base + u * kThreads;
        if (i < size_ && scale_.bin(slice_[i]) == window.bin) in_bin |= 1u << u;
      }
      for (; in_bin != 0; in_bin &= in_bin - 1) {
        const int u = __ffs(static_cast<int>(in_bin)) - 1;
        const uint64_t key = key_in(window, base + u * kThreads);
        if (key == ~uint64_t{0}) continue;
        const uint32_t place = atomicAdd(&leader.num_candidates, 1u);
        if (place < kCapacity) leader.candidates[place] = key;
      }
    }
  }

  // The key of the slice's token i where it is in the window, else ~0.
  __device__ uint64_t key_in(const Window& window, int i) const {
    const float logit = slice_[i];
    if (scale_.bin(logit) != window.bin) return ~uint64_t{0};
    const uint64_t key = step::key_of(logit, first_ + i);
    return key >= window.first_key && key <= window.last_key ? key : ~uint64_t{0};
  }

  // Leader.
  __device__ void find_bin(const Query& query) {
    int bin = 0;
    for (int b = tid_; b < kBins; b += kThreads)
      bin += __syncthreads_count(!query.reached(s_.count_to[b], s_.mass_to[b]));
    if (tid_ != 0) return;
    bin = min(bin, kBins - 1);
    const Tally before = bin == 0 ? Tally{0, 0} : Tally{s_.count_to[bin - 1], s_.mass_to[bin - 1]};
    s_.window = {bin, s_.count_to[bin] - before.count, 0, ~uint64_t{0}, before};
    s_.num_candidates = 0;
  }

  // The part, of at most 512, of the window where `query` is reached.
  __device__ Window split(const Window& window, const Query& query) {
    KeyRange mine = {~uint64_t{0}, 0};
    for (int i = tid_; i < size_; i += kThreads) {
      const uint64_t key = key_in(window, i);
      if (key == ~uint64_t{0}) continue;
      mine = {min(mine.first, key), max(mine.last, key)};
    }
    mine = reduce<32>(mine);
    if (lane_ == 0) s_.warp_range[warp_] = mine;
    clear(kSplit);
    __syncthreads();
    if (warp_ == 0) {
      mine = reduce<kWarps>(s_.warp_range[lane_ % kWarps]);
      if (lane_ == 0) s_.range = mine;
    }
    cluster_.sync();
    const KeyRange range = reduce<kCtas>(of_cta(s_.range, lane_ % kCtas));
    const int shift =
        max(0, 64 - __clzll(static_cast<long long>(range.last - range.first)) - kSplitBits);
    const int octaves = scale_.octaves(window.bin);
    for (int i = tid_; i < size_; i += kThreads) {
      const uint64_t key = key_in(window, i);
      if (key == ~uint64_t{0}) continue;
      add(s_.histogram, static_cast<int>((key - range.first) >> shift), 1,
          scale_.weight(slice_[i], octaves));
    }
    cluster_.sync();
    if (cta_ == 0) {
      const Tally part = tally_of(tid_, octaves);
      Tally before = tally_before(part, s_.warp_tally);
      before.count += window.before.count;
      before.mass += window.before.mass;
      const bool reached = query.reached(before.count + part.count, before.mass + part.mass);
      const int at = min(__syncthreads_count(!reached), kSplit - 1);
      if (tid_ == at) {
        const uint64_t first = range.first + (static_cast<uint64_t>(at) << shift);
        const uint64_t end = first + (uint64_t{1} << shift);
        // Not beyond this window's own tokens.
        s_.window = {window.bin, part.count, first, min(end - 1, range.last), before};
      }
    }
    cluster_.sync();
    return of_cta(s_.window, 0);
  }

  // Over kLanes neighbouring lanes, whole warp.
  template <int kLanes>
  __device__ static KeyRange reduce(KeyRange mine) {
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
      mine = {min(mine.first, shuffle_xor(mine.first, lanes)),
              max(mine.last, shuffle_xor(mine.last, lanes))};
    }
    return mine;
  }

  // Leader: sorts the window's tokens and walks them.
  __device__ void find_candidate(const Window& window, const Query& query) {
    const int count = static_cast<int>(min(s_.num_candidates, uint32_t{kCapacity}));
    sort_candidates(count);
    const int octaves = scale_.octaves(window.bin);
    const auto tally = [&](int i) -> Tally {
      if (i >= count) return {0, 0};
      return {1,
              scale_.mass(scale_.weight(step::logit_of_key(s_.candidates[i]), octaves), octaves)};
    };
    const int i = 2 * tid_;
    const Tally a = tally(i), b = tally(i + 1);
    const Tally before = tally_before({a.count + b.count, a.mass + b.mass}, s_.warp_tally);
    const Tally to_a = {window.before.count + before.count + a.count,
                        window.before.mass + before.mass + a.mass};
    const Tally to_b = {to_a.count + b.count, to_a.mass + b.mass};
    int at = __syncthreads_count(i < count && !query.reached(to_a.count, to_a.mass));
    at += __syncthreads_count(i + 1 < count && !query.reached(to_b.count, to_b.mass));
    at = min(at, count - 1);
    if (i == at) s_.found = {s_.candidates[i], to_a.count, step::to_double(to_a.mass)};
    if (i + 1 == at) s_.found = {s_.candidates[i + 1], to_b.count, step::to_double(to_b.mass)};
  }

  // Ascending. A few by counting those below each, as no two keys are alike; else bitonic.
  __device__ void sort_candidates(int count) {
    if (count <= kThreads / 2) {
      const uint64_t mine = tid_ < count ? s_.candidates[tid_] : 0;
      int place = 0;
      if (tid_ < count) {
#pragma unroll 8
        for (int i = 0; i < count; ++i) place += s_.candidates[i] < mine ? 1 : 0;
      }
      __syncthreads();
      if (tid_ < count) s_.candidates[place] = mine;
      __syncthreads();
      return;
    }
    int padded = 2;
    while (padded < count) padded *= 2;
    for (int i = count + tid_; i < padded; i += kThreads) s_.candidates[i] = ~uint64_t{0};
    __syncthreads();
    for (int run = 2; run <= padded; run *= 2) {
      for (int distance = run / 2; distance > 0; distance /= 2) {
        if (tid_ < padded / 2) {
          const int low = (tid_ & ~(distance - 1)) * 2 + (tid_ & (distance - 1));
          const uint64_t a = s_.candidates[low], b = s_.candidates[low + distance];
          if ((a > b) == ((low & run) == 0)) {
            s_.candidates[low] = b;
            s_.candidates[low + distance] = a;
          }
        }
        __syncthreads();
      }
    }
  }
};

}  // namespace
}  // namespace warproll
