// The router on the GPU against router_cpu and F64 logits, and the lists it leaves.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "gpu_support.h"
#include "kernels/moe/route.h"
#include "kernels/router.h"

namespace warproll {
namespace {

using namespace testing;  // gpu_support.h

struct Routed {
  std::vector<float> logits, weights, pair_weights;
  std::vector<int32_t> ids, pairs;
  std::vector<ExpertBlock> blocks;
  ExpertListCounts counts;
  std::vector<ExpertBlock> large_blocks;
};

struct Shape {
  int32_t hidden, experts, top_k;
  bool renormalise = true;
};

Routed run(const Shape& s, const std::vector<uint16_t>& x, const std::vector<uint16_t>& weight,
           const std::vector<int32_t>* given = nullptr) {
  const auto tokens = static_cast<int32_t>(x.size()) / s.hidden;
  const auto pairs = static_cast<size_t>(tokens) * static_cast<size_t>(s.top_k);
  DeviceBuffer<uint16_t> device_x(x), device_weight(weight), x_tile(x.size());
  DeviceBuffer<float> logits(static_cast<size_t>(tokens) * static_cast<size_t>(s.experts)),
      weights(pairs), scales(static_cast<size_t>(tokens));
  DeviceBuffer<int32_t> ids(pairs);
  DeviceBuffer<int32_t> device_given =
      given == nullptr ? DeviceBuffer<int32_t>() : DeviceBuffer<int32_t>(*given);
  const auto num_pairs = static_cast<int32_t>(pairs);
  DeviceBuffer<std::byte> memory(expert_lists_bytes(num_pairs, s.experts));
  WARPROLL_CUDA_CHECK(cudaMemset(memory.data(), 0, memory.size()));
  RouteParams p;
  p.x = device_x.data();
  p.weight = device_weight.data();
  p.given_ids = device_given.data();
  p.logits = logits.data();
  p.topk_ids = ids.data();
  p.topk_weights = weights.data();
  p.lists = expert_lists_at(memory.data(), num_pairs, s.experts);
  p.x_tile = {x_tile.data(), scales.data()};
  p.num_tokens = tokens;
  p.hidden_size = s.hidden;
  p.num_experts = s.experts;
  p.top_k = s.top_k;
  p.renormalise = s.renormalise;
  for (int i = 0; i < 2; ++i) route(p, nullptr);  // twice: the second finds what the first left
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  Routed r{logits.to_host(),
           weights.to_host(),
           from_device<float>(p.lists.pair_weights, pairs),
           ids.to_host(),
           from_device<int32_t>(p.lists.pairs, pairs),
           {},
           from_device<ExpertListCounts>(p.lists.counts, 1)[0],
           {}};
  r.blocks = from_device<ExpertBlock>(p.lists.blocks, static_cast<size_t>(r.counts.num_blocks));
  r.large_blocks = from_device<ExpertBlock>(p.lists.large_blocks,
                                            static_cast<size_t>(r.counts.num_large_blocks));
  return r;
}

std::vector<uint16_t> normal_bf16(int64_t count, float sigma, std::mt19937& rng) {
  std::normal_distribution<float> normal(0.0f, sigma);
  std::vector<uint16_t> out(static_cast<size_t>(count));
  for (uint16_t& v : out) v = f32_to_bf16(normal(rng));
  return out;
}

// Every pair is in exactly one block, of its expert; blocks are full but for an expert's last.
void expect_blocks(const Routed& r, const std::vector<ExpertBlock>& blocks, int32_t most) {
  std::map<int32_t, int32_t> per_expert;
  std::set<int32_t> seen;
  int32_t last = -1;
  for (const ExpertBlock& block : blocks) {
    EXPECT_GE(block.expert, last);
    EXPECT_TRUE(block.expert != last || per_expert[block.expert] % most == 0);
    last = block.expert;
    EXPECT_GE(block.count, 1);
    EXPECT_LE(block.count, most);
    per_expert[block.expert] += block.count;
    for (int32_t i = block.first; i < block.first + block.count; ++i) {
      const int32_t pair = r.pairs[static_cast<size_t>(i)];
      EXPECT_TRUE(seen.insert(pair).second) << "pair " << pair << " twice";
      EXPECT_EQ(r.ids[static_cast<size_t>(pair)], block.expert);
    }
  }
  EXPECT_EQ(seen.size(), r.ids.size());
  EXPECT_EQ(r.counts.num_active, static_cast<int32_t>(per_expert.size()));
}

void expect_lists(const Routed& r, const Shape& s) {
  expect_blocks(r, r.blocks, kMaxBlockPairs);
  expect_blocks(r, r.large_blocks, kLargeBlockPairs);
  EXPECT_EQ(r.counts.num_pairs, static_cast<int32_t>(r.ids.size()));
  EXPECT_EQ(r.counts.num_invalid, 0);
  EXPECT_EQ(r.counts.next_gate_up, 0);
  EXPECT_EQ(r.counts.next_down, 0);
  EXPECT_EQ(r.pair_weights, r.weights);
  (void)s;
}

TEST(RouteGpu, AgreesWithTheCpuOnItsOwnLogitsAndTheLogitsWithF64) {
  SKIP_WITHOUT_GPU();
  std::mt19937 rng(41);
  for (const Shape& s : {Shape{2048, 128, 8},
                         {2048, 128, 8, false},
                         {96, 5, 2},
                         {256, 60, 6},
                         {512, 512, 16},
                         {64, 1, 1}}) {
    const auto weight = normal_bf16(int64_t{s.experts} * s.hidden, 0.05f, rng);
    for (const int32_t tokens : {1, 2, 9, 33, 200, 2000}) {
      const auto x = normal_bf16(int64_t{tokens} * s.hidden, 1.0f, rng);
      const Routed r = run(s, x, weight);
      for (int32_t t = 0; t < tokens; t += 1 + tokens / 20) {
        for (int32_t e = 0; e < s.experts; ++e) {
          double want = 0, size = 0;
          for (int32_t c = 0; c < s.hidden; ++c) {
            const double product = double{bf16_to_f32(x[static_cast<size_t>(t * s.hidden + c)])} *
                                   bf16_to_f32(weight[static_cast<size_t>(e * s.hidden + c)]);
            want += product;
            size += std::fabs(product);
          }
          ASSERT_NEAR(r.logits[static_cast<size_t>(t * s.experts + e)], want, 1e-6 * size + 1e-12);
        }
      }
      std::vector<int32_t> ids(r.ids.size());
      std::vector<float> weights(r.weights.size());
      RouterParams cpu;
      cpu.logits = r.logits.data();
      cpu.topk_ids = ids.data();
      cpu.topk_weights = weights.data();
      cpu.num_tokens = tokens;
      cpu.num_experts = s.experts;
      cpu.top_k = s.top_k;
      cpu.renormalise = s.renormalise;
      router_cpu(cpu);
      ASSERT_EQ(r.ids, ids) << "T " << tokens << ", E " << s.experts;
      for (size_t i = 0; i < weights.size(); ++i) ASSERT_NEAR(r.weights[i], weights[i], 2e-6);
      expect_lists(r, s);
    }
  }
}

TEST(RouteGpu, TiesGoToTheLowestExpert) {
  SKIP_WITHOUT_GPU();
  const Shape s{64, 128, 8};
  std::mt19937 rng(42);
  const auto one = normal_bf16(64, 0.05f, rng);
  std::vector<uint16_t> weight;
  for (int e = 0; e < 128; ++e) weight.insert(weight.end(), one.begin(), one.end());
  const Routed r = run(s, normal_bf16(5 * 64, 1.0f, rng), weight);
  for (int32_t t = 0; t < 5; ++t) {
    for (int32_t k = 0; k < 8; ++k) {
      EXPECT_EQ(r.ids[static_cast<size_t>(t * 8 + k)], k);
      EXPECT_NEAR(r.weights[static_cast<size_t>(t * 8 + k)], 0.125f, 1e-6);
    }
  }
}

TEST(RouteGpu, GivenExpertsGetThisRoutersWeights) {
  SKIP_WITHOUT_GPU();
  const Shape s{256, 60, 6};
  std::mt19937 rng(43);
  const auto weight = normal_bf16(60 * 256, 0.05f, rng);
  const auto x = normal_bf16(40 * 256, 1.0f, rng);
  std::vector<int32_t> given;
  for (int t = 0; t < 40; ++t) {
    std::set<int32_t> chosen;
    while (chosen.size() < 6) {
      const auto e = static_cast<int32_t>(rng() % 60);
      if (chosen.insert(e).second) given.push_back(e);
    }
  }
  const Routed r = run(s, x, weight, &given);
  EXPECT_EQ(r.ids, given);
  std::vector<int32_t> ids(given.size());
  std::vector<float> weights(given.size());
  RouterParams cpu;
  cpu.logits = r.logits.data();
  cpu.given_ids = given.data();
  cpu.topk_ids = ids.data();
  cpu.topk_weights = weights.data();
  cpu.num_tokens = 40;
  cpu.num_experts = 60;
  cpu.top_k = 6;
  router_cpu(cpu);
  for (size_t i = 0; i < weights.size(); ++i) ASSERT_NEAR(r.weights[i], weights[i], 2e-6);
  expect_lists(r, s);
}

// A token alone has its lists from the warp that chose, unless what was given is no set of experts.
TEST(RouteGpu, OneTokensGivenExpertsHaveTheListsThatBuildExpertListsMakes) {
  SKIP_WITHOUT_GPU();
  const Shape s{256, 60, 6};
  std::mt19937 rng(46);
  const auto weight = normal_bf16(60 * 256, 0.05f, rng);
  const auto x = normal_bf16(256, 1.0f, rng);
  for (const std::vector<int32_t>& given : {std::vector<int32_t>{7, 3, 59, 0, 12, 4},
                                            {7, 3, 7, 0, 12, 4},
                                            {5, 5, 5, 5, 5, 5},
                                            {7, 3, -1, 0, 12, 4},
                                            {7, 3, 60, 0, 2'000'000'000, 4},
                                            {-1, -1, 8, -1, -1, -1}}) {
    SCOPED_TRACE(::testing::PrintToString(given));
    const Routed r = run(s, x, weight, &given);
    DeviceBuffer<int32_t> ids(given);
    DeviceBuffer<float> weights(r.weights);
    DeviceBuffer<std::byte> memory(expert_lists_bytes(6, 60));
    const ExpertLists lists = expert_lists_at(memory.data(), 6, 60);
    build_expert_lists({ids.data(), weights.data(), lists, 1, 60, 6}, nullptr);
    WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
    const auto want = from_device<ExpertListCounts>(lists.counts, 1)[0];
    EXPECT_EQ(r.counts.num_pairs, want.num_pairs);
    EXPECT_EQ(r.counts.num_active, want.num_active);
    EXPECT_EQ(r.counts.num_invalid, want.num_invalid);
    ASSERT_EQ(r.counts.num_blocks, want.num_blocks);
    ASSERT_EQ(r.counts.num_large_blocks, want.num_large_blocks);
    EXPECT_EQ(r.pair_weights, from_device<float>(lists.pair_weights, 6));
    const auto blocks = from_device<ExpertBlock>(lists.blocks, r.blocks.size());
    auto pairs = from_device<int32_t>(lists.pairs, 6);
    auto got_pairs = r.pairs;
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(r.blocks[i].expert, blocks[i].expert);
      ASSERT_EQ(r.blocks[i].first, blocks[i].first);
      ASSERT_EQ(r.blocks[i].count, blocks[i].count);
      const auto sorted =
          [&](std::vector<int32_t>& p) {  // their order in a block is left to chance
            const auto begin = p.begin() + blocks[i].first, end = begin + blocks[i].count;
            std::sort(begin, end);
            return std::vector<int32_t>(begin, end);
          };
      EXPECT_EQ(sorted(got_pairs), sorted(pairs));
    }
  }
}

TEST(RouteGpu, ATokensBitsDoNotDependOnItsBatch) {
  SKIP_WITHOUT_GPU();
  const Shape s{2048, 128, 8};
  std::mt19937 rng(44);
  const auto weight = normal_bf16(128 * 2048, 0.05f, rng);
  const auto x = normal_bf16(130 * 2048, 1.0f, rng);
  const Routed whole = run(s, x, weight);
  for (int32_t t = 0; t < 130; t += 13) {
    const Routed one = run(s, {x.begin() + t * 2048, x.begin() + (t + 1) * 2048}, weight);
    for (int32_t e = 0; e < 128; ++e)
      ASSERT_EQ(one.logits[static_cast<size_t>(e)], whole.logits[static_cast<size_t>(t * 128 + e)]);
    for (int32_t k = 0; k < 8; ++k)
      ASSERT_EQ(one.weights[static_cast<size_t>(k)], whole.weights[static_cast<size_t>(t * 8 + k)]);
  }
}

}  // namespace
}  // namespace warproll
