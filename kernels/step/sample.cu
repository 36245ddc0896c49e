// sample: grid 8 R, clusters of 8, block 512 threads: a cluster produces one row's token, each CTA
// keeps an eighth of the row in shared memory. One histogram of tokens and integer masses over
// logits finds the bin where a cumulative count or mass crosses; the bin's tokens are sorted by the
// cluster's first CTA, the leader, which walks them. A bin with more tokens than the leader sorts is
// split by keys first. All sums that decide are of integers (sample_order.cuh).
#include "kernels/step/sample.h"

#include <string>

#include "kernels/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/step/sample_row.cuh"

namespace warproll {
namespace {

// kCtasPerSm: two, or one where there are few rows: then lanes have all the registers they want.
template <int kCtasPerSm>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    sample_kernel(const __grid_constant__ SampleParams p) {
  extern __shared__ __align__(16) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  ptx::wait_for_previous_kernel();
  ptx::allow_next_kernel();
  RowSampler(p, shared, reinterpret_cast<float*>(memory + sizeof(Shared))).run(p);
}

void check(const SampleParams& p) {
  check_argument(p.num_rows >= 0 && p.num_rows <= 65536 && p.vocab_size >= 1 &&
                     p.vocab_size <= kMaxSampleVocab,
                 [&] {
                   return "sample: R " + std::to_string(p.num_rows) + ", V " +
                          std::to_string(p.vocab_size) + "; wanted R 0 .. 65536, V 1 .. " +
                          std::to_string(kMaxSampleVocab);
                 });
  check_argument(p.num_rows == 0 || (p.logits != nullptr && p.rows != nullptr && p.out != nullptr),
                 [] { return "sample: no logits, rows or out"; });
}

}  // namespace

void sample_tokens(const SampleParams& p, cudaStream_t stream) {
  check(p);
  if (p.num_rows == 0) return;
  const int share = ((p.vocab_size + kCtas - 1) / kCtas + 3) / 4 * 4;
  LaunchConfig config(dim3(static_cast<unsigned>(p.num_rows * kCtas)), kThreads,
                      static_cast<int>(sizeof(Shared)) + share * 4, stream);
  config.cluster(kCtas);
  config.programmatic();
  const bool few = p.num_rows * kCtas <= num_multiprocessors() / 2;
  config.run(few ? sample_kernel<1> : sample_kernel<2>, p);
}

}  // namespace warproll
