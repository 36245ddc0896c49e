// Paged attention on the GPU against F64 sums and its CPU twin, and its bits against themselves: alone
// and in batches, decode and prefill, whole and in chunks, anywhere in the cache.
#include "kernels/step/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>

#include "gpu_support.h"
#include "kernels/attention.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/dtype.h"

namespace warproll {
namespace {

using namespace testing;  // gpu_support.h

constexpr uint16_t kNan = 0xffff;
constexpr uint16_t kCanary = 0x5aa5;
constexpr size_t kCanaries = 64;
constexpr int32_t kPoisonBlock = 0x7fffffff;

struct Shape {
  int32_t heads, kv_heads, dim;
  float query_sigma = 1.0f;

  [[nodiscard]] size_t q_row() const { return static_cast<size_t>(heads * dim); }
  [[nodiscard]] size_t kv_row() const { return static_cast<size_t>(kv_heads * dim); }
  [[nodiscard]] float scale() const { return 1.0f / std::sqrt(static_cast<float>(dim)); }
};
const Shape kQwen3{32, 4, 128};

std::vector<uint16_t> normal_bf16(size_t count, float sigma, std::mt19937& rng) {
  std::normal_distribution<float> normal(0.0f, sigma);
  std::vector<uint16_t> out(count);
  for (uint16_t& v : out) v = f32_to_bf16(normal(rng));
  return out;
}

// q, K and V of a sequence's positions, whatever runs them.
struct Sequence {
  std::vector<uint16_t> q, k, v;
  Sequence(const Shape& s, int32_t length, uint32_t seed) {
    std::mt19937 rng(seed);
    const auto rows = static_cast<size_t>(length);
    q = normal_bf16(rows * s.q_row(), s.query_sigma, rng);
    k = normal_bf16(rows * s.kv_row(), 1.0f, rng);
    v = normal_bf16(rows * s.kv_row(), 1.0f, rng);
  }
};

// `count` new tokens of a sequence, from position `first` on.
struct Piece {
  const Sequence* sequence;
  int32_t first, count;
};

struct Paging {
  int32_t block_tokens = 16;
  uint32_t seed = 1;
  int32_t spare_entries = 3;  // of a table row, behind the longest context
};

// A step's inputs. The cache is NaN but for the positions in use, the table poisoned behind them.
struct Batch {
  std::vector<uint16_t> q, k_cache, v_cache;
  std::vector<int32_t> positions, cu_seqlens{0}, block_table;
  int32_t num_blocks = 0, blocks_per_sequence = 0, max_query_tokens = 0;

  Batch(const Shape& s, const std::vector<Piece>& pieces, const Paging& paging) {
    int32_t used = 0;
    const auto blocks = [&](const Piece& p) {
      return p.count == 0 ? 0 : (p.first + p.count - 1) / paging.block_tokens + 1;
    };
    for (const Piece& p : pieces) {
      used += blocks(p);
      blocks_per_sequence = std::max(blocks_per_sequence, blocks(p) + paging.spare_entries);
      max_query_tokens = std::max(max_query_tokens, p.count);
      cu_seqlens.push_back(cu_seqlens.back() + p.count);
    }
    num_blocks = used + 5;
    std::vector<int32_t> free(static_cast<size_t>(num_blocks));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), std::mt19937(paging.seed));
    const size_t slots = static_cast<size_t>(num_blocks) * static_cast<size_t>(paging.block_tokens);
    k_cache.assign(slots * s.kv_row(), kNan);
    v_cache = k_cache;
    for (const Piece& p : pieces) {
      std::vector<int32_t> row(static_cast<size_t>(blocks_per_sequence), kPoisonBlock);
      for (int32_t i = 0; i < blocks(p); ++i) {
        row[static_cast<size_t>(i)] = free.back();
        free.pop_back();
      }
      for (int32_t i = 0; p.count > 0 && i < p.first + p.count; ++i) {
        const int32_t block = row[static_cast<size_t>(i / paging.block_tokens)];
        const auto slot = static_cast<size_t>(block) * static_cast<size_t>(paging.block_tokens) +
                          static_cast<size_t>(i % paging.block_tokens);
        const auto from = static_cast<int64_t>(static_cast<size_t>(i) * s.kv_row());
        const auto to = static_cast<int64_t>(slot * s.kv_row());
        const auto size = static_cast<int64_t>(s.kv_row());
        std::copy_n(p.sequence->k.begin() + from, size, k_cache.begin() + to);
        std::copy_n(p.sequence->v.begin() + from, size, v_cache.begin() + to);
      }
      block_table.insert(block_table.end(), row.begin(), row.end());
      for (int32_t i = 0; i < p.count; ++i) positions.push_back(p.first + i);
      const auto row_size = static_cast<int64_t>(s.q_row());
      q.insert(q.end(), p.sequence->q.begin() + p.first * row_size,
               p.sequence->q.begin() + (p.first + p.count) * row_size);
    }
  }
};

// A batch on the device. out is NaN before each run, with canaries on both sides.
class DeviceBatch {
 public:
  DeviceBatch(const Shape& s, const Batch& b, const Paging& paging)
      : q_(b.q),
        k_(b.k_cache),
        v_(b.v_cache),
        positions_(b.positions),
        cu_seqlens_(b.cu_seqlens),
        table_(b.block_table),
        out_(b.q.size() + 2 * kCanaries) {
    params_.q = q_.data();
    params_.k_cache = k_.data();
    params_.v_cache = v_.data();
    params_.positions = positions_.data();
    params_.cu_seqlens_q = cu_seqlens_.data();
    params_.block_table = table_.data();
    params_.out = out_.data() + kCanaries;
    params_.num_sequences = static_cast<int32_t>(b.cu_seqlens.size()) - 1;
    params_.num_tokens = static_cast<int32_t>(b.positions.size());
    params_.max_query_tokens = b.max_query_tokens;
    params_.num_heads = s.heads;
    params_.num_kv_heads = s.kv_heads;
    params_.head_dim = s.dim;
    params_.num_blocks = b.num_blocks;
    params_.block_tokens = paging.block_tokens;
    params_.blocks_per_sequence = b.blocks_per_sequence;
    params_.scale = s.scale();
    const size_t bytes = paged_attention_workspace_bytes(params_);
    workspace_ = DeviceBuffer<uint8_t>(bytes);
    if (bytes > 0) {
      WARPROLL_CUDA_CHECK(cudaMemset(workspace_.data(), 0xff, bytes));
      WARPROLL_CUDA_CHECK(cudaMemset(workspace_.data(), 0, kAttentionTicketBytes));
    }
    params_.workspace = workspace_.data();
  }

  PagedAttentionParams& params() { return params_; }

  // The counts of CTAs are zero again.
  std::vector<uint16_t> run() {
    const std::vector<uint16_t> out = run_once();
    if (workspace_.size() > 0) {
      const std::vector<uint8_t> bytes = workspace_.to_host();
      EXPECT_EQ(std::count(bytes.begin(), bytes.begin() + kAttentionTicketBytes, 0),
                static_cast<int64_t>(kAttentionTicketBytes));
    }
    return out;
  }

 private:
  std::vector<uint16_t> run_once() {
    std::vector<uint16_t> host(out_.size(), kCanary);
    for (size_t i = kCanaries; i + kCanaries < host.size(); ++i) host[i] = kNan;
    out_.copy_from(host);
    paged_attention(params_, nullptr);
    WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
    host = out_.to_host();
    for (size_t i = 0; i < kCanaries; ++i) {
      EXPECT_EQ(host[i], kCanary) << "written before out";
      EXPECT_EQ(host[host.size() - 1 - i], kCanary) << "written behind out";
    }
    return {host.begin() + kCanaries, host.end() - kCanaries};
  }

  DeviceBuffer<uint16_t> q_, k_, v_;
  DeviceBuffer<int32_t> positions_, cu_seqlens_, table_;
  DeviceBuffer<uint16_t> out_;
  DeviceBuffer<uint8_t> workspace_;
  PagedAttentionParams params_;
};

std::vector<uint16_t> run(const Shape& s, const std::vector<Piece>& pieces,
                          const Paging& paging = {}) {
  return DeviceBatch(s, Batch(s, pieces, paging), paging).run();
}

double ulp_bf16(double x) {
  const double size = std::max(std::fabs(x), 0x1p-126);
  return std::ldexp(1.0, std::ilogb(size) - 7);
}

// One head of one position in F64, and the largest |V| of its context.
struct Exact {
  std::vector<double> out;
  double largest_value = 0;
};
Exact exact(const Shape& s, const Sequence& sequence, int32_t position, int32_t head) {
  const auto dim = static_cast<size_t>(s.dim);
  const size_t kv_head = static_cast<size_t>(head / (s.heads / s.kv_heads));
  const uint16_t* q = sequence.q.data() + static_cast<size_t>(position) * s.q_row() +
                      static_cast<size_t>(head) * dim;
  std::vector<double> scores(static_cast<size_t>(position) + 1);
  for (size_t j = 0; j < scores.size(); ++j) {
    const uint16_t* k = sequence.k.data() + j * s.kv_row() + kv_head * dim;
    for (size_t d = 0; d < dim; ++d) scores[j] += double{bf16_to_f32(q[d])} * bf16_to_f32(k[d]);
    scores[j] *= s.scale();
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  Exact e{std::vector<double>(dim), 0};
  for (size_t j = 0; j < scores.size(); ++j) {
    const uint16_t* v = sequence.v.data() + j * s.kv_row() + kv_head * dim;
    const double p = std::exp(scores[j] - max);
    sum += p;
    for (size_t d = 0; d < dim; ++d) {
      e.out[d] += p * bf16_to_f32(v[d]);
      e.largest_value = std::max(e.largest_value, std::fabs(double{bf16_to_f32(v[d])}));
    }
  }
  for (double& x : e.out) x /= sum;
  return e;
}

// Every `stride`-th token, and the last of every piece.
void expect_near_f64(const Shape& s, const std::vector<Piece>& pieces,
                     const std::vector<uint16_t>& out, int32_t stride = 1) {
  size_t token = 0;
  double worst = 0;
  for (const Piece& p : pieces) {
    for (int32_t i = 0; i < p.count; ++i, ++token) {
      if (i % stride != 0 && i + 1 != p.count) continue;
      for (int32_t head = 0; head < s.heads; ++head) {
        const Exact want = exact(s, *p.sequence, p.first + i, head);
        for (size_t d = 0; d < want.out.size(); ++d) {
          const size_t at = token * s.q_row() + static_cast<size_t>(head) * want.out.size() + d;
          const double bound = 0.5 * ulp_bf16(want.out[d]) * (1 + 1e-6) +
                               double{kAttentionTolerance} * want.largest_value;
          const double error = std::fabs(bf16_to_f32(out[at]) - want.out[d]);
          worst = std::max(worst, error / bound);
          ASSERT_LE(error, bound) << "position " << p.first + i << ", head " << head << ", dim "
                                  << d << ", wanted " << want.out[d];
        }
      }
    }
  }
  ::testing::Test::RecordProperty("worst_error_over_bound", std::to_string(worst));
}

// Both are within their tolerance of F64, and rounded.
void expect_near_cpu(const Shape& s, const Batch& b, const Paging& paging,
                     const std::vector<uint16_t>& out) {
  const auto widen = [](const std::vector<uint16_t>& bits) {
    std::vector<float> values(bits.size());
    for (size_t i = 0; i < bits.size(); ++i) values[i] = bf16_to_f32(bits[i]);
    return values;
  };
  const std::vector<float> q = widen(b.q), k = widen(b.k_cache), v = widen(b.v_cache);
  std::vector<float> want(q.size());
  AttentionParams p;
  p.q = q.data();
  p.k_cache = k.data();
  p.v_cache = v.data();
  p.positions = b.positions.data();
  p.cu_seqlens_q = b.cu_seqlens.data();
  p.block_table = b.block_table.data();
  p.out = want.data();
  p.num_sequences = static_cast<int32_t>(b.cu_seqlens.size()) - 1;
  p.num_tokens = static_cast<int32_t>(b.positions.size());
  p.num_heads = s.heads;
  p.num_kv_heads = s.kv_heads;
  p.head_dim = s.dim;
  p.num_blocks = b.num_blocks;
  p.block_tokens = paging.block_tokens;
  p.blocks_per_sequence = b.blocks_per_sequence;
  p.scale = s.scale();
  p.round_to = Dtype::kBf16;
  attention_cpu(p);
  double largest = 0;
  for (const float x : v) {
    if (!std::isnan(x)) largest = std::max(largest, std::fabs(double{x}));
  }
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(bf16_to_f32(out[i]), want[i],
                ulp_bf16(want[i]) + (double{kAttentionTolerance} + 1e-5) * largest)
        << "element " << i;
  }
}

void expect_right(const Shape& s, const std::vector<Piece>& pieces, const Paging& paging,
                  int32_t stride = 1) {
  SCOPED_TRACE("heads " + std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + ", D " +
               std::to_string(s.dim) + ", block_tokens " + std::to_string(paging.block_tokens));
  const Batch batch(s, pieces, paging);
  const std::vector<uint16_t> out = DeviceBatch(s, batch, paging).run();
  expect_near_f64(s, pieces, out, stride);
  expect_near_cpu(s, batch, paging, out);
}

// Rows of `out` from token `first` on are those of `want` from `want_first` on.
void expect_same_rows(const Shape& s, const std::vector<uint16_t>& out, size_t first,
                      const std::vector<uint16_t>& want, size_t want_first, size_t count) {
  for (size_t i = 0; i < count * s.q_row(); ++i) {
    ASSERT_EQ(out[first * s.q_row() + i], want[want_first * s.q_row() + i])
        << "token " << i / s.q_row() << ", element " << i % s.q_row();
  }
}

TEST(AttentionGpu, DecodeOfEveryContextLengthIsRight) {
  SKIP_WITHOUT_GPU();
  const Sequence sequence(kQwen3, 3000, 11);
  for (const int32_t context :
       {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1023, 1024, 1025, 2049, 3000}) {
    SCOPED_TRACE("context " + std::to_string(context));
    expect_right(kQwen3, {{&sequence, context - 1, 1}}, {});
  }
}

TEST(AttentionGpu, EveryShapeIsRightInMixedBatches) {
  SKIP_WITHOUT_GPU();
  const int32_t block_sizes[] = {16, 1, 24, 64, 8, 128, 16, 16, 7, 16};
  int next = 0;
  for (const Shape& s : {kQwen3,
                         Shape{8, 8, 64},
                         {16, 1, 128},
                         {12, 1, 64},
                         {6, 2, 128},
                         {4, 2, 32},
                         {4, 4, 16},
                         {10, 2, 80},
                         {8, 2, 96},
                         {9, 1, 8}}) {
    const Sequence a(s, 300, 21), b(s, 1100, 22), c(s, 90, 23);
    expect_right(s,
                 {{&a, 0, 1},
                  {&a, 0, 2},
                  {&b, 1099, 1},
                  {&c, 0, 90},
                  {&a, 5, 0},
                  {&b, 1022, 9},
                  {&a, 299, 1},
                  {&b, 60, 8},
                  {&c, 63, 1},
                  {&a, 100, 129}},
                 {.block_tokens = block_sizes[next++]}, 13);
  }
}

TEST(AttentionGpu, LargeScoresAreRight) {
  SKIP_WITHOUT_GPU();
  Shape s = kQwen3;
  s.query_sigma = 6.0f;  // scores of +-20: nearly one-hot
  const Sequence a(s, 700, 31);
  const std::vector<Piece> pieces = {{&a, 699, 1}, {&a, 0, 33}};
  const std::vector<uint16_t> out = run(s, pieces);
  // A score's own F32 error moves its probability: |score| * 2^-23 and the tensor cores' sums.
  expect_near_f64(s, pieces, out);
}

TEST(AttentionGpu, EqualKeysGiveTheMeanOfTheValues) {
  SKIP_WITHOUT_GPU();
  Sequence a(kQwen3, 1200, 32);
  for (size_t i = kQwen3.kv_row(); i < a.k.size(); ++i) a.k[i] = a.k[i % kQwen3.kv_row()];
  expect_right(kQwen3, {{&a, 1199, 1}, {&a, 1190, 9}}, {});
}

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

TEST(AttentionGpu, NoTokensAreANoOpAndBadShapesAreRefused) {
  SKIP_WITHOUT_GPU();
  const Sequence a(kQwen3, 200, 91);
  DeviceBatch batch(kQwen3, Batch(kQwen3, {{&a, 199, 1}}, {}), {});
  const PagedAttentionParams good = batch.params();
  PagedAttentionParams p = good;
  p.num_tokens = 0;
  p.q = nullptr;
  EXPECT_NO_THROW(paged_attention(p, nullptr));
  const auto refused = [&](auto change) {
    PagedAttentionParams bad = good;
    change(bad);
    EXPECT_THROW(paged_attention(bad, nullptr), std::invalid_argument);
  };
  refused([](auto& q) { q.head_dim = 256; });
  refused([](auto& q) { q.head_dim = 36; });
  refused([](auto& q) { q.num_kv_heads = 5; });
  refused([](auto& q) { q.num_kv_heads = 1; });  // G = 32
  refused([](auto& q) { q.block_tokens = 0; });
  refused([](auto& q) { q.num_sequences = kMaxAttentionSequences + 1; });
  refused([](auto& q) { q.num_sequences = 0; });
  refused([](auto& q) { q.scale = 0.0f; });
  refused([](auto& q) { q.scale = std::numeric_limits<float>::quiet_NaN(); });
  refused([](auto& q) { q.v_cache = nullptr; });
  refused([](auto& q) { q.workspace = nullptr; });
  refused([](auto& q) { q.k_cache += 1; });
  refused([](auto& q) { q.num_blocks = 1 << 30; });
}

}  // namespace
}  // namespace warproll
