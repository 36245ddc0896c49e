// find_not_finite_key: grid-stride over 16-byte vectors, block 256 threads; the tail by one thread.
#include "kernels/not_finite.h"

#include <algorithm>
#include <string>

#include "kernels/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/not_finite_search.cuh"

namespace warproll {
namespace {

constexpr int kThreads = 256;
constexpr int kVectors = 4;  // a thread has under way

template <int kBits>
__global__ void __launch_bounds__(kThreads)
    find_kernel(const std::byte* data, uint64_t bytes, uint32_t mask, uint64_t* key) {
  const auto* vectors = reinterpret_cast<const uint4*>(data);
  const uint64_t count = bytes / 16;
  const uint64_t step = uint64_t{gridDim.x} * kThreads;
  const uint64_t me = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  constexpr uint64_t kElements = 128 / kBits;
  for (uint64_t i = me; i < count; i += step * kVectors) {
    uint4 v[kVectors];
#pragma unroll
    for (int u = 0; u < kVectors; ++u) v[u] = vectors[min(i + u * step, count - 1)];
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      if (!any_bad<kBits>(v[u], mask)) continue;
      const uint64_t at = min(i + u * step, count - 1) * kElements;
      search<kBits>(uint64_t{v[u].y} << 32 | v[u].x, mask, at, key);
      search<kBits>(uint64_t{v[u].w} << 32 | v[u].z, mask, at + kElements / 2, key);
    }
  }
  if (me != 0) return;
  for (uint64_t i = count * kElements; i < bytes * 8 / kBits; ++i) {
    uint64_t word = 0;
    for (int b = kBits / 8 - 1; b >= 0; --b) {
      word = word << 8 | static_cast<uint64_t>(data[i * (kBits / 8) + b]);
    }
    if ((static_cast<uint32_t>(word) & mask) == mask) {
      search<kBits>(word, mask, i, key);
      return;
    }
  }
}

template <int kBits>
void launch(const FindNotFiniteParams& p, uint32_t mask, cudaStream_t stream) {
  constexpr uint64_t kBytes = kThreads * 16 * kVectors;
  const uint64_t ctas = std::clamp<uint64_t>((p.bytes + kBytes - 1) / kBytes, 1, 4096);
  LaunchConfig config(dim3(static_cast<unsigned>(ctas)), kThreads, 0, stream);
  config.run(find_kernel<kBits>, p.data, p.bytes, mask, p.key);
}

}  // namespace

void find_not_finite_key(const FindNotFiniteParams& p, cudaStream_t stream) {
  check_argument(reinterpret_cast<uintptr_t>(p.data) % 16 == 0 &&
                     p.bytes % dtype_bytes(p.dtype) == 0 &&
                     (p.dtype != Dtype::kF32 || p.bytes >> 34 == 0),
                 [&] {
                   return "find_not_finite_key: " + std::to_string(p.bytes) + " bytes of " +
                          std::string(to_string(p.dtype)) +
                          ", wanted whole elements, 16-byte aligned, F32 below 2^34 bytes";
                 });
  if (p.bytes == 0) return;
  const NotFiniteRule rule = not_finite_rule(p.dtype);
  if (rule.bits_each == 32) launch<32>(p, rule.mask, stream);
  if (rule.bits_each == 16) launch<16>(p, rule.mask, stream);
  if (rule.bits_each == 8) launch<8>(p, rule.mask, stream);
}

}  // namespace warproll
