// What a sampled row's bits do not depend on, and what sampling refuses.
#include <random>
#include <stdexcept>
#include <vector>

#include "sample_support.h"

namespace warproll {
namespace {

using namespace testing;  // sample_support.h

TEST(SampleGpu, ARowsBitsDoNotDependOnItsBatchNorOnTheRun) {
  SKIP_WITHOUT_GPU();
  std::mt19937_64 random(15);
  std::vector<Row> rows;
  for (const Logits kind : kAllLogits) {
    for (int i = 0; i < 6; ++i) {
      rows.push_back(
          {make_logits(kind, 151936, random),
           {i == 0 ? 0.0f : 0.5f + 0.25f * static_cast<float>(i), i % 2 == 0 ? 0.95f : 1.0f,
            i % 3 == 0 ? 40 : 0, i == 5 ? 0.01f : 0.0f, random_uniform(random)}});
    }
  }
  const auto whole = run(rows);
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto again = run(rows);
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_TRUE(same_bits(again[i], whole[i]));
  }
  std::vector<Row> reversed(rows.rbegin(), rows.rend());
  const auto backwards = run(reversed);
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_TRUE(same_bits(backwards[rows.size() - 1 - i], whole[i])) << describe(rows[i]);
    ASSERT_TRUE(same_bits(run({rows[i]})[0], whole[i])) << describe(rows[i]);
  }
}

// The way in from memory (16 or 4 bytes at a time) must not show.
TEST(SampleGpu, ARowsBitsDoNotDependOnItsAlignment) {
  SKIP_WITHOUT_GPU();
  std::mt19937_64 random(16);
  const auto logits = make_logits(Logits::kNormal, 32000, random);
  const DeviceBuffer<RowSampling> row(std::vector<RowSampling>{{0.9f, 0.95f, 0, 0.0f, 0.77}});
  std::vector<SampledToken> results;
  for (size_t offset = 0; offset < 4; ++offset) {
    std::vector<float> moved(offset, kNan);
    moved.insert(moved.end(), logits.begin(), logits.end());
    moved.push_back(kNan);
    const DeviceBuffer<float> device(moved);
    const DeviceBuffer<SampledToken> out(size_t{1});
    SampleParams p;
    p.logits = device.data() + offset;
    p.rows = row.data();
    p.out = out.data();
    p.num_rows = 1;
    p.vocab_size = 32000;
    sample_tokens(p, nullptr);
    WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
    results.push_back(out.to_host()[0]);
    EXPECT_TRUE(same_bits(results.back(), results.front())) << "offset " << offset;
  }
}

TEST(SampleGpu, ReplaysFromAGraph) {
  SKIP_WITHOUT_GPU();
  std::mt19937_64 random(17);
  const Row one{make_logits(Logits::kNormal, 5000, random), {1.0f, 0.9f, 0, 0.0f, 0.4}};
  const SampledToken want = run({one})[0];
  const DeviceBuffer<float> logits(one.logits);
  const DeviceBuffer<RowSampling> rows(std::vector<RowSampling>{one.sampling});
  const DeviceBuffer<SampledToken> out(size_t{1});
  SampleParams p;
  p.logits = logits.data();
  p.rows = rows.data();
  p.out = out.data();
  p.num_rows = 1;
  p.vocab_size = 5000;
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  WARPROLL_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  WARPROLL_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < 3; ++i) sample_tokens(p, stream);
  WARPROLL_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  WARPROLL_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  WARPROLL_CUDA_CHECK(cudaGraphLaunch(executable, stream));
  WARPROLL_CUDA_CHECK(cudaStreamSynchronize(stream));
  EXPECT_TRUE(same_bits(out.to_host()[0], want));
  WARPROLL_CUDA_CHECK(cudaGraphExecDestroy(executable));
  WARPROLL_CUDA_CHECK(cudaGraphDestroy(graph));
  WARPROLL_CUDA_CHECK(cudaStreamDestroy(stream));
}

TEST(SampleGpu, RefusesShapesItDoesNotKnow) {
  SampleParams p;
  p.vocab_size = 10;
  EXPECT_NO_THROW(sample_tokens(p, nullptr));  // R 0
  p.num_rows = 1;
  EXPECT_THROW(sample_tokens(p, nullptr), std::invalid_argument);  // no pointers
  p.num_rows = -1;
  EXPECT_THROW(sample_tokens(p, nullptr), std::invalid_argument);
  p.num_rows = 0;
  for (const int32_t vocab_size : {0, -1, kMaxSampleVocab + 1}) {
    p.vocab_size = vocab_size;
    EXPECT_THROW(sample_tokens(p, nullptr), std::invalid_argument) << vocab_size;
  }
}

}  // namespace
}  // namespace warproll
