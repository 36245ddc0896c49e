// What the GPU tests of the MoE kernels share: a layer with random weights and routes, run by any
// path, and its distance from the F64 oracle. Thread: one test. Errors: CudaError.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/bench/moe_oracle.h"
#include "kernels/bench/random_experts.h"
#include "kernels/moe/expert_lists.h"
#include "kernels/moe/literal.h"
#include "kernels/moe/warp_decode.h"

namespace warproll::testing {

// Skips the test, loudly, where there is no GPU.
#define SKIP_WITHOUT_GPU() \
  if (!::warproll::testing::has_gpu()) GTEST_SKIP() << "NO GPU HERE: this test was not run"
bool has_gpu();

// `count` values of T from device memory.
template <typename T>
std::vector<T> from_device(const void* data, size_t count) {
  std::vector<T> host(count);
  WARPROLL_CUDA_CHECK(cudaMemcpy(host.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}

enum class Routing { kUniform, kSkewed, kSame };

struct Layer {
  ExpertShape shape;
  RandomExperts experts;
  Layer(const ExpertShape& s, WeightFormat format, uint64_t seed)
      : shape(s), experts(s, format, seed, /*keep_rows=*/true) {}
};

// T tokens for a layer, on the device.
struct Tokens {
  int32_t count;
  std::vector<int32_t> host_ids;
  DeviceBuffer<uint16_t> x;
  DeviceBuffer<int32_t> ids;
  DeviceBuffer<float> weights;

  Tokens(const ExpertShape& shape, int32_t tokens, Routing routing, uint64_t seed);
  // Those of `other` at `picks`, in that order.
  Tokens(const ExpertShape& shape, const Tokens& other, const std::vector<int32_t>& picks);
};

// y, as stored (BF16 bits) or before rounding. Outputs and workspaces are NaN before the run, the
// output has canaries on both sides, and a canary that changed fails the test.
std::vector<uint16_t> run_warp_decode(const Layer& layer, const Tokens& tokens);
// hidden (x before), then its norm, behind warp_decode or, with `partials`, warp_decode_partials.
std::vector<uint16_t> run_warp_decode_and_norm(const Layer& layer, const Tokens& tokens,
                                               bool partials);
std::vector<float> run_warp_decode_f32(const Layer& layer, const Tokens& tokens);
std::vector<uint16_t> run_expert_centric(const Layer& layer, const Tokens& tokens);
std::vector<uint16_t> run_literal(const Layer& layer, const Tokens& tokens);

std::vector<double> run_oracle(const Layer& layer, const Tokens& tokens,
                               OracleRounding rounding = OracleRounding::kNone);

struct Distance {
  double worst = 0;  // |y - oracle| / (0.5 ulp_bf16(oracle) + 1e-3 RMS(oracle)), the largest
  double cosine = 0;
  double largest = 0;  // |y - oracle|
};
Distance distance_to(const std::vector<uint16_t>& y, const std::vector<double>& oracle);
// RMS(y - oracle) / RMS(oracle)
double relative_error(const std::vector<float>& y, const std::vector<double>& oracle);
double relative_error(const std::vector<double>& y, const std::vector<double>& oracle);

}  // namespace warproll::testing
