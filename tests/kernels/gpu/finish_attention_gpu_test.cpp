// Attention that does qkv_finish's work, bit for bit against the two kernels: out, both caches, the count of
// invalid tokens. Where few sequences are too many for the device, that it is refused.
#include <climits>
#include <stdexcept>
#include <string>

#include "finish_attention_support.h"
#include "kernels/cuda/graph.h"

namespace warproll {
namespace {

using namespace testing;  // finish_attention_support.h

// The first and the last row of chunks, splits and groups are among the new ones.
TEST(FinishAttentionGpu, EveryContextLengthHasTheBitsOfTwoKernels) {
  SKIP_WITHOUT_GPU();
  for (const Heads& heads : {kQwen3, Heads{8, 2, 64}}) {
    for (const int32_t context :
         {1,   2,    63,   64,   65,   127,  128,  129,  192,  193,  255,  256,
          257, 1023, 1024, 1025, 1026, 1151, 1152, 1153, 2047, 2048, 2049, 5000}) {
      SCOPED_TRACE(heads.name() + ", context " + std::to_string(context));
      const Step step(heads, {context - 1}, {}, static_cast<uint32_t>(context));
      // Five groups of four KV heads need more room than some devices have.
      const bool done = step.expect_equal_to_two();
      if (context <= 1024) {
        EXPECT_TRUE(done) << "not taken";
      }
    }
  }
}

TEST(FinishAttentionGpu, BatchesOfOneToEightHaveTheBitsOfTwoKernels) {
  SKIP_WITHOUT_GPU();
  const std::vector<int32_t> contexts = {1024, 1, 64, 129, 1000, 65, 128, 2};
  for (const Heads& heads : {kQwen3, Heads{16, 1, 128}, Heads{4, 2, 64}}) {
    for (const int32_t longest : {1024, 1025, 2500}) {
      for (size_t size = 1; size <= 8; ++size) {
        SCOPED_TRACE(heads.name() + ", longest " + std::to_string(longest) + ", B " +
                     std::to_string(size));
        std::vector<int32_t> positions;
        for (size_t i = 0; i < size; ++i) positions.push_back(contexts[i] - 1);
        positions[size / 2] = longest - 1;
        const Step step(heads, positions, {}, static_cast<uint32_t>(size), {.spare_blocks = 0});
        const bool done = step.expect_equal_to_two();
        if (size == 1 && longest == 1024) {
          EXPECT_TRUE(done) << "not taken";
        }
      }
    }
  }
}

TEST(FinishAttentionGpu, EveryShapeAndNormHasTheBitsOfTwoKernels) {
  SKIP_WITHOUT_GPU();
  std::vector<Heads> shapes;
  for (int32_t group = 1; group <= 16; ++group) {
    shapes.push_back({2 * group, 2, 128});
    shapes.push_back({group, 1, 64});
  }
  for (const int32_t dim : {16, 32, 48, 80, 96, 112}) shapes.push_back({6, 2, dim});
  uint32_t seed = 0;
  for (const Heads& heads : shapes) {
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16, Dtype::kF32}) {
      ++seed;
      // Both, or one of them; none below.
      const Norms norms{seed % 4 != 1, seed % 4 != 2, dtype};
      SCOPED_TRACE(heads.name() + ", norm " + std::string(to_string(dtype)) + ", seed " +
                   std::to_string(seed));
      const std::vector<int32_t> at = {static_cast<int32_t>(seed * 37 % 300), 127};
      EXPECT_TRUE(Step(heads, at, norms, seed).expect_equal_to_two()) << "not taken";
      EXPECT_TRUE(Step(heads, {at[0]}, {false, false, dtype}, seed, {.block_tokens = 7})
                      .expect_equal_to_two())
          << "not taken";
    }
  }
}

TEST(FinishAttentionGpu, WhatIsOlderAndBlockSizesDoNotChangeBits) {
  SKIP_WITHOUT_GPU();
  for (const int32_t block_tokens : {1, 5, 16, 256, 2048}) {
    SCOPED_TRACE("block_tokens " + std::to_string(block_tokens));
    const Step step(kQwen3, {700}, {}, 5, {.block_tokens = block_tokens, .spare_blocks = 0});
    ASSERT_TRUE(step.expect_equal_to_two());
    const StepOutputs want = step.run_two();
    expect_equal(step.run_one(false, false), want);
    expect_equal(step.run_one(true, false), want);
    for (int i = 0; i < 5; ++i) expect_equal(step.run_one(), want);
  }
}

// q is zeros, the cache keeps its row, which attention then reads.
TEST(FinishAttentionGpu, APositionOutsideTheTablesIsCountedAndNotStored) {
  SKIP_WITHOUT_GPU();
  for (const Heads& heads : {kQwen3, Heads{12, 1, 64}}) {
    SCOPED_TRACE(heads.name());
    Step step(heads, {300, 128}, {}, 7);
    step.fill_rows(0, 300, 301);
    step.finish.max_positions = 300;
    ASSERT_TRUE(step.expect_equal_to_two());
    const StepOutputs out = step.run_one();
    EXPECT_EQ(out.num_invalid, 1);
    EXPECT_EQ(std::count(out.out.begin(), out.out.end(), kNan), 0);
    step.finish.max_positions = 100;
    step.fill_rows(1, 128, 129);
    ASSERT_TRUE(step.expect_equal_to_two());
    EXPECT_EQ(step.run_one().num_invalid, 2);
    step.finish.num_invalid = nullptr;
    ASSERT_TRUE(step.expect_equal_to_two());
    step.finish.max_positions = kMaxPositions;
    ASSERT_TRUE(step.expect_equal_to_two());
  }
  // Several groups; then nothing of the token is written.
  Step step(Heads{4, 1, 128}, {1200, 5}, {}, 8);
  step.fill_rows(0, 1200, 1201);
  step.finish.max_positions = 1200;
  ASSERT_TRUE(step.expect_equal_to_two());
  EXPECT_EQ(step.run_one().num_invalid, 1);
  for (const int32_t position : {-1, INT_MIN}) {
    step.positions[0] = position;
    const StepOutputs got = step.run_one();
    expect_equal(got, step.run_two());
    EXPECT_EQ(got.num_invalid, 1);
    EXPECT_EQ(std::count(got.out.begin(), got.out.begin() + 4 * 128, kNan), 4 * 128);
    EXPECT_EQ(std::count(got.out.begin() + 4 * 128, got.out.end(), kNan), 0);
  }
}

TEST(FinishAttentionGpu, ASlotOutsideTheCacheOrOfAnotherPlaceIsAsWithTwoKernels) {
  SKIP_WITHOUT_GPU();
  for (const Heads& heads : {kQwen3, Heads{12, 1, 64}}) {
    for (const int32_t position : {0, 5, 63, 64, 127, 128, 383, 1023}) {
      SCOPED_TRACE(heads.name() + ", position " + std::to_string(position));
      Step step(heads, {position}, {}, 9);
      step.fill_rows(0, position, position + 1);
      const int32_t own = step.slots[0];
      for (const int32_t slot : {-1, step.num_slots(), INT_MAX, INT_MIN}) {
        step.slots[0] = slot;
        ASSERT_TRUE(step.expect_equal_to_two());
        EXPECT_TRUE(step.run_one().k_cache == step.k_cache) << "slot " << slot;
      }
      // Valid, but the table names another: that one is written, this one read.
      step.slots[0] = step.slot_of(0, position + 1);
      ASSERT_TRUE(step.expect_equal_to_two());
      step.slots[0] = own;
      step.finish.num_slots = own;
      ASSERT_TRUE(own == 0 || step.expect_equal_to_two());
    }
  }
}

// Captured once; positions, slots, tables and qkv change under it, and the rows it wrote are read later.
TEST(FinishAttentionGpu, AGraphReplaysAsPositionsGrow) {
  SKIP_WITHOUT_GPU();
  for (const Heads& heads : {Heads{8, 1, 128}, Heads{16, 1, 64}}) {
    SCOPED_TRACE(heads.name());
    // Tables as wide as the last step needs.
    Step one(heads, {70, 133, 1030}, {}, 11, {.spare_blocks = 3}),
        two(heads, {70, 133, 1030}, {}, 11, {.spare_blocks = 3});
    ASSERT_TRUE(attention_can_finish(one.attention));
    one.attention.indices_are_older = one.attention.past_is_older = true;
    one.finish.indices_are_older = true;
    one.positions = two.positions = {60, 123, 1020};
    for (Step* step : {&one, &two}) {
      const auto row = static_cast<int64_t>(count_of(heads.kv_heads, heads.dim));
      for (int32_t b = 0; b < 3; ++b) {  // poison from the first new token on
        for (int32_t at = step->position_of(b); at < step->position_of(b) + 16; ++at) {
          std::fill_n(step->k_cache.begin() + step->slot_of(b, at) * row, row, kNan);
          std::fill_n(step->v_cache.begin() + step->slot_of(b, at) * row, row, kNan);
        }
      }
      step->upload_caches();
    }
    const CudaGraph graph =
        CudaGraph::capture([&](cudaStream_t s) { finish_attention(one.finish, one.attention, s); });
    const CudaStream stream;
    for (int32_t i = 0; i < 10; ++i) {
      for (Step* step : {&one, &two}) {
        for (int32_t b = 0; b < 3; ++b)
          step->slots[static_cast<size_t>(b)] = step->slot_of(b, step->position_of(b));
        step->new_qkv();
        step->upload_inputs();
      }
      graph.launch(stream.get());
      WARPROLL_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
      qkv_finish(two.finish, nullptr);
      paged_attention(two.attention, nullptr);
      SCOPED_TRACE("step " + std::to_string(i));
      const StepOutputs got = one.download();
      expect_equal(got, two.download());
      EXPECT_EQ(std::count(got.out.begin(), got.out.end(), kNan), 0);
      for (Step* step : {&one, &two}) {
        for (int32_t& position : step->positions) ++position;
      }
    }
  }
}

TEST(FinishAttentionGpu, WhatDoesNotFitIsRefused) {
  SKIP_WITHOUT_GPU();
  const Step step(kQwen3, {100, 200}, {}, 13);
  ASSERT_TRUE(attention_can_finish(step.attention));
  const auto refused = [&](const auto& change) {
    QkvFinishParams f = step.finish;
    PagedAttentionParams p = step.attention;
    change(f, p);
    EXPECT_THROW(finish_attention(f, p, nullptr), std::invalid_argument);
  };
  using F = QkvFinishParams;
  using P = PagedAttentionParams;
  refused([](F&, P& p) { p.max_query_tokens = 0; });
  refused([](F&, P& p) { p.max_query_tokens = 2; });
  refused([](F&, P& p) { p.num_sequences = 1; });
  refused([](F& f, P& p) { f.num_tokens = p.num_tokens = 3; });
  refused([](F& f, P&) { f.num_tokens = 1; });
  refused([](F& f, P&) { f.num_heads = 28; });
  refused([](F& f, P& p) { f.head_dim = p.head_dim = 72; });
  refused([](F& f, P& p) { f.head_dim = p.head_dim = 144; });
  refused([](F& f, P&) { f.positions = f.slot_mapping; });
  refused([](F& f, P& p) { f.k_cache = const_cast<uint16_t*>(p.v_cache); });
  refused([](F& f, P&) { f.qkv = nullptr; });
  refused([](F& f, P&) { f.max_positions = 0; });
  refused([](F&, P& p) { p.out = nullptr; });
  refused([](F&, P& p) { p.workspace = nullptr; });
  refused([](F& f, P& p) { f.num_tokens = p.num_tokens = p.num_sequences = 1000; });
  QkvFinishParams f = step.finish;
  PagedAttentionParams p = step.attention;
  f.num_tokens = p.num_tokens = p.num_sequences = 0;
  EXPECT_FALSE(attention_can_finish(p));
  EXPECT_NO_THROW(finish_attention(f, p, nullptr));
}

}  // namespace
}  // namespace warproll
