// RowSlice: what a CTA of a sampling cluster has of its row, and how it reads the others'. Internal to
// kernels/step/sample*.
#pragma once

#include "kernels/step/sample_shared.cuh"

namespace warproll {
namespace {

class RowSlice {
 public:
  __device__ RowSlice(const SampleParams& p, Shared& shared, float* slice)
      : cluster_(cg::this_cluster()),
        s_(shared),
        slice_(slice),
        cta_(static_cast<int>(cluster_.block_rank())),
        tid_(static_cast<int>(threadIdx.x)),
        warp_(tid_ / 32),
        lane_(tid_ % 32),
        row_(static_cast<int>(blockIdx.x) / kCtas),
        vocab_size_(p.vocab_size),
        logits_(p.logits + static_cast<int64_t>(row_) * p.vocab_size) {
    const int share = ((vocab_size_ + kCtas - 1) / kCtas + 3) / 4 * 4;
    first_ = min(cta_ * share, vocab_size_);
    size_ = min(share, vocab_size_ - first_);
  }

 protected:
  template <typename T>
  __device__ const T& of_cta(const T& mine, int cta) {
    return *cluster_.map_shared_rank(&mine, static_cast<unsigned>(cta));
  }

  __device__ void clear(int bins) {
    for (int i = tid_; i < bins; i += kThreads) {
      s_.histogram.count[i] = 0;
      s_.histogram.low[i] = 0;
      s_.histogram.high[i] = 0;
    }
  }

  // All CTAs' part of one bin of their histograms.
  __device__ Tally tally_of(int index, int octaves) {
    uint32_t count = 0;
    uint64_t weights = 0;
#pragma unroll
    for (int cta = 0; cta < kCtas; ++cta) {
      const Histogram& h = of_cta(s_.histogram, cta);
      count += h.count[index];
      weights += static_cast<uint64_t>(h.high[index]) << 32 | h.low[index];
    }
    return {count, scale_.mass(weights, octaves)};
  }

  cg::cluster_group cluster_;
  Shared& s_;
  float* slice_;  // of the row's logits, this CTA's
  const int cta_, tid_, warp_, lane_, row_, vocab_size_;
  const float* logits_;  // [V]
  int first_, size_;     // of the slice
  RowScale scale_;
};

}  // namespace
}  // namespace warproll
