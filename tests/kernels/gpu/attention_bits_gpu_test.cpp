// The bits of paged attention on the GPU against themselves: alone and in batches, decode and prefill,
// whole and in chunks, anywhere in the cache.
#include <array>
#include <span>
#include <string>

#include "attention_support.h"

namespace warproll {
namespace {

using namespace testing;  // gpu_support.h, attention_support.h

TEST(AttentionGpu, DecodePrefillAndChunksHaveTheSameBits) {
  SKIP_WITHOUT_GPU();
  for (const Shape& s : {kQwen3, Shape{6, 2, 64}, Shape{32, 2, 128}, Shape{4, 4, 16}}) {
    SCOPED_TRACE("heads " + std::to_string(s.heads) + ", D " + std::to_string(s.dim));
    const int32_t length = 1290;
    const Sequence a(s, length, 41), other(s, 400, 42);
    const std::vector<uint16_t> whole = run(s, {{&a, 0, length}});
    // Cuts on and off the tiles, chunks, splits and groups.
    for (const std::vector<int32_t>& cuts :
         {std::vector<int32_t>{64, 128, 1024}, {1, 3, 127, 640, 641, 1025}, {5, 333, 1289}}) {
      int32_t first = 0;
      std::vector<int32_t> ends = cuts;
      ends.push_back(length);
      for (const int32_t end : ends) {
        const auto out = run(s, {{&other, 70, 11}, {&a, first, end - first}, {&other, 399, 1}},
                             {.block_tokens = 8, .seed = static_cast<uint32_t>(end)});
        SCOPED_TRACE("chunk " + std::to_string(first) + " .. " + std::to_string(end));
        expect_same_rows(s, out, 11, whole, static_cast<size_t>(first),
                         static_cast<size_t>(end - first));
        first = end;
      }
    }
    for (const int32_t position :
         {0,   1,   14,  15,  16,  62,  63,   64,   65,   126,  127,  128,
          129, 255, 256, 510, 511, 512, 1022, 1023, 1024, 1025, 1150, 1289}) {
      SCOPED_TRACE("position " + std::to_string(position));
      const auto at = static_cast<size_t>(position);
      expect_same_rows(s, run(s, {{&a, position, 1}}, {.seed = 7}), 0, whole, at, 1);
      const auto mixed = run(s, {{&other, 0, 30}, {&a, position, 1}}, {.block_tokens = 3});
      expect_same_rows(s, mixed, 30, whole, at, 1);
    }
  }
}

TEST(AttentionGpu, BatchesOfEverySizeHaveTheSameBits) {
  SKIP_WITHOUT_GPU();
  const Shape s = kQwen3;
  const Sequence a(s, 2600, 51), b(s, 1024, 52), c(s, 77, 53);
  const std::vector<Piece> kinds = {{&a, 2599, 1}, {&b, 1023, 1}, {&c, 76, 1}, {&a, 1500, 1}};
  std::vector<std::vector<uint16_t>> alone;
  for (const Piece& p : kinds) alone.push_back(run(s, {p}));
  for (const size_t size : {2u, 5u, 16u, 33u, 64u, 130u}) {
    SCOPED_TRACE("B " + std::to_string(size));
    std::vector<Piece> pieces;
    for (size_t i = 0; i < size; ++i) pieces.push_back(kinds[i * 7 % 4]);
    const auto out = run(s, pieces, {.block_tokens = 32, .seed = static_cast<uint32_t>(size)});
    for (size_t i = 0; i < size; ++i) expect_same_rows(s, out, i, alone[i * 7 % 4], 0, 1);
  }
}

// More than 8192 splits: CTAs share groups of splits.
TEST(AttentionGpu, AVeryLargeBatchHasTheSameBits) {
  SKIP_WITHOUT_GPU();
  const Shape s{8, 8, 64};
  const Sequence a(s, 150, 54), b(s, 3000, 55);
  const auto short_alone = run(s, {{&a, 149, 1}}), long_alone = run(s, {{&b, 2999, 1}});
  std::vector<Piece> pieces(560, Piece{&a, 149, 1});
  pieces[3] = pieces[400] = {&b, 2999, 1};
  const auto out = run(s, pieces);
  for (size_t i = 0; i < pieces.size(); ++i) {
    expect_same_rows(s, out, i, pieces[i].sequence == &b ? long_alone : short_alone, 0, 1);
  }
}

TEST(AttentionGpu, BlockSizeTableWidthAndHintsDoNotChangeBits) {
  SKIP_WITHOUT_GPU();
  const Sequence a(kQwen3, 1111, 61), b(kQwen3, 300, 62);
  const std::vector<Piece> pieces = {{&a, 1110, 1}, {&b, 299, 1}};
  const auto want = run(kQwen3, pieces);
  for (const int32_t block_tokens : {1, 5, 16, 256, 2048}) {
    for (const int32_t spare : {0, 1, 1000}) {
      const Paging paging{block_tokens, static_cast<uint32_t>(spare + 9), spare};
      EXPECT_EQ(run(kQwen3, pieces, paging), want) << block_tokens << ", spare " << spare;
    }
  }
  DeviceBatch batch(kQwen3, Batch(kQwen3, pieces, {}), {});
  batch.params().indices_are_older = true;
  EXPECT_EQ(batch.run(), want);
  batch.params().past_is_older = true;
  EXPECT_EQ(batch.run(), want);
  batch.params().max_query_tokens = 0;  // unknown
  EXPECT_EQ(batch.run(), want);
}

TEST(AttentionGpu, TwentyRunsAreEqual) {
  SKIP_WITHOUT_GPU();
  const Sequence a(kQwen3, 3000, 71), b(kQwen3, 500, 72);
  const Paging paging{};
  const Batch host(kQwen3, {{&a, 2999, 1}, {&b, 200, 300}, {&a, 1400, 1}, {&b, 0, 17}}, paging);
  DeviceBatch batch(kQwen3, host, paging);
  const auto want = batch.run();
  for (int i = 0; i < 20; ++i) ASSERT_EQ(batch.run(), want) << "run " << i;
}

// A graph is captured once; lengths, positions and tables change under it.
TEST(AttentionGpu, AGraphReplaysOnOtherLengths) {
  SKIP_WITHOUT_GPU();
  const Sequence a(kQwen3, 1500, 81), b(kQwen3, 1500, 82);
  const Paging paging{};
  const std::vector<Piece> longest = {{&a, 1499, 1}, {&b, 1400, 1}},
                           now = {{&a, 99, 1}, {&b, 1300, 1}};
  const Batch first(kQwen3, longest, paging);
  Batch second(kQwen3, now, paging);
  DeviceBatch batch(kQwen3, first, paging), want_batch(kQwen3, second, paging);
  const auto want = want_batch.run();
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  WARPROLL_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  WARPROLL_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  paged_attention(batch.params(), stream);
  WARPROLL_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  WARPROLL_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  // The second step's values, in the first step's wider table.
  PagedAttentionParams& p = batch.params();
  const auto copy = [](const void* to, const auto& from) {
    WARPROLL_CUDA_CHECK(cudaMemcpy(const_cast<void*>(to), from.data(),
                                   from.size() * sizeof(from[0]), cudaMemcpyHostToDevice));
  };
  std::vector<int32_t> table(first.block_table.size(), kPoisonBlock);
  for (int32_t row = 0; row < 2; ++row) {
    std::copy_n(second.block_table.begin() + row * second.blocks_per_sequence,
                second.blocks_per_sequence, table.begin() + row * first.blocks_per_sequence);
  }
  ASSERT_LE(second.k_cache.size(), first.k_cache.size());
  copy(p.q, second.q);
  copy(p.k_cache, second.k_cache);
  copy(p.v_cache, second.v_cache);
  copy(p.positions, second.positions);
  copy(p.block_table, table);
  WARPROLL_CUDA_CHECK(cudaGraphLaunch(exec, stream));
  WARPROLL_CUDA_CHECK(cudaStreamSynchronize(stream));
  std::vector<uint16_t> out(want.size());
  WARPROLL_CUDA_CHECK(
      cudaMemcpy(out.data(), p.out, out.size() * sizeof(uint16_t), cudaMemcpyDeviceToHost));
  EXPECT_EQ(out, want);
  WARPROLL_CUDA_CHECK(cudaGraphExecDestroy(exec));
  WARPROLL_CUDA_CHECK(cudaGraphDestroy(graph));
  WARPROLL_CUDA_CHECK(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace warproll
