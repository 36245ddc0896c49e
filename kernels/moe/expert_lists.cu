// build_expert_lists: one CTA of 1024 threads. Histogram of the ids, prefix sums over the experts,
// then every pair to its expert's place. The order of an expert's pairs is left to chance: they are
// columns of one product, no result depends on it.
#include <algorithm>
#include <string>
#include <utility>

#include "kernels/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/moe/expert_lists.cuh"
#include "kernels/router.h"

namespace warproll {
namespace {

__global__ void __launch_bounds__(moe::kListThreads)
    build_expert_lists_kernel(BuildExpertListsParams p) {
  __shared__ moe::ListScratch scratch;
  ptx::wait_for_previous_kernel();
  ptx::allow_next_kernel();
  moe::build_lists<moe::kListThreads>(p, scratch);
}

constexpr size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

int32_t max_expert_blocks(int32_t num_pairs, int32_t num_experts, int32_t block_pairs) {
  return std::min(num_pairs, num_experts + num_pairs / block_pairs);
}

size_t expert_lists_bytes(int32_t num_pairs, int32_t num_experts) {
  const auto pairs = static_cast<size_t>(num_pairs);
  const auto blocks = static_cast<size_t>(max_expert_blocks(num_pairs, num_experts));
  const auto large =
      static_cast<size_t>(max_expert_blocks(num_pairs, num_experts, kLargeBlockPairs));
  return aligned(sizeof(ExpertListCounts)) + aligned(blocks * sizeof(ExpertBlock)) +
         aligned(large * sizeof(ExpertBlock)) + aligned(pairs * sizeof(int32_t)) +
         aligned(pairs * sizeof(float)) + aligned(sizeof(unsigned));
}

ExpertLists expert_lists_at(void* memory, int32_t num_pairs, int32_t num_experts) {
  auto* at = static_cast<std::byte*>(memory);
  const auto take = [&at](size_t bytes) { return std::exchange(at, at + aligned(bytes)); };
  const auto pairs = static_cast<size_t>(num_pairs);
  const auto blocks = static_cast<size_t>(max_expert_blocks(num_pairs, num_experts));
  const auto large =
      static_cast<size_t>(max_expert_blocks(num_pairs, num_experts, kLargeBlockPairs));
  return {.counts = reinterpret_cast<ExpertListCounts*>(take(sizeof(ExpertListCounts))),
          .blocks = reinterpret_cast<ExpertBlock*>(take(blocks * sizeof(ExpertBlock))),
          .large_blocks = reinterpret_cast<ExpertBlock*>(take(large * sizeof(ExpertBlock))),
          .pairs = reinterpret_cast<int32_t*>(take(pairs * sizeof(int32_t))),
          .pair_weights = reinterpret_cast<float*>(take(pairs * sizeof(float))),
          .finished_ctas = reinterpret_cast<unsigned*>(take(sizeof(unsigned)))};
}

void build_expert_lists(const BuildExpertListsParams& p, cudaStream_t stream) {
  check_argument(p.num_tokens >= 0 && p.num_experts >= 1 && p.num_experts <= kMaxExperts &&
                     p.top_k >= 1 && p.top_k <= kMaxTopK,
                 [&] {
                   return "expert lists: T " + std::to_string(p.num_tokens) + ", E " +
                          std::to_string(p.num_experts) + ", K " + std::to_string(p.top_k) +
                          "; wanted T >= 0, E 1 .. " + std::to_string(kMaxExperts) + ", K 1 .. " +
                          std::to_string(kMaxTopK);
                 });
  if (p.num_tokens == 0) return;
  LaunchConfig config(dim3(1), moe::kListThreads, 0, stream);
  config.programmatic();
  config.run(build_expert_lists_kernel, p);
}

}  // namespace warproll
