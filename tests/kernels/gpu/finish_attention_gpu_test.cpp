// Attention that does qkv_finish's work, bit for bit against the two kernels: out, both caches, the count of
// invalid tokens. Where few sequences are too many for the device, that it is refused.
#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>

#include "gpu_support.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/graph.h"
#include "kernels/dtype.h"
#include "kernels/step/attention.h"
#include "kernels/step/qkv_finish.h"

namespace warproll {
namespace {

using namespace testing;  // gpu_support.h

constexpr uint16_t kNan = 0xffff;
constexpr int32_t kPoisonBlock = 0x7fffffff;
constexpr int32_t kMaxPositions = 5200;
constexpr double kTheta = 1e6;

using Bits = std::vector<uint16_t>;

size_t count_of(int64_t a, int64_t b, int64_t c = 1) { return static_cast<size_t>(a * b * c); }

struct Heads {
  int32_t heads, kv_heads, dim;
  [[nodiscard]] int32_t all() const { return heads + 2 * kv_heads; }
  [[nodiscard]] std::string name() const {
    return std::to_string(heads) + "/" + std::to_string(kv_heads) + ", D " + std::to_string(dim);
  }
};
const Heads kQwen3{32, 4, 128};

struct Norms {
  bool q = true, k = true;
  Dtype dtype = Dtype::kBf16;
};

Bits random_bf16(size_t count, std::mt19937& rng, float sigma) {
  std::normal_distribution<float> normal(0.0f, sigma);
  Bits out(count);
  for (uint16_t& v : out) v = f32_to_bf16(normal(rng));
  return out;
}

std::vector<std::byte> random_weights(int32_t count, Dtype dtype, std::mt19937& rng) {
  std::normal_distribution<float> normal(1.0f, 0.3f);
  std::vector<std::byte> out(static_cast<size_t>(count) * dtype_bytes(dtype));
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const float v = normal(rng);
    const uint16_t half = dtype == Dtype::kF16 ? f32_to_f16(v) : f32_to_bf16(v);
    if (dtype == Dtype::kF32) {
      std::memcpy(out.data() + i * 4, &v, 4);
    } else {
      std::memcpy(out.data() + i * 2, &half, 2);
    }
  }
  return out;
}

// cos, then sin, of all positions on the device.
const DeviceBuffer<float>& rope_tables(int32_t dim) {
  static std::map<int32_t, DeviceBuffer<float>> tables;
  const auto found = tables.find(dim);
  if (found != tables.end()) return found->second;
  const size_t size = count_of(kMaxPositions, dim / 2);
  std::vector<float> host(2 * size);
  fill_rope_tables(kMaxPositions, dim, kTheta, host.data(), host.data() + size);
  return tables.emplace(dim, DeviceBuffer<float>(host)).first->second;
}

template <typename T>
void overwrite(const DeviceBuffer<T>& to, const std::vector<T>& from) {
  ASSERT_EQ(to.size(), from.size());
  WARPROLL_CUDA_CHECK(
      cudaMemcpy(to.data(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
}

struct Outputs {
  Bits out, k_cache, v_cache;
  int32_t num_invalid = 0;
};
void expect_equal(const Outputs& got, const Outputs& want) {
  EXPECT_TRUE(got.out == want.out) << "out differs";
  EXPECT_TRUE(got.k_cache == want.k_cache) << "K differs";
  EXPECT_TRUE(got.v_cache == want.v_cache) << "V differs";
  EXPECT_EQ(got.num_invalid, want.num_invalid);
}

struct Paging {
  int32_t block_tokens = 16;
  int32_t spare_blocks = 2;  // of a sequence, behind its last position
};

// A step of one new token each, at `positions`. The caches are NaN but for positions before the new ones: the
// new rows come from qkv, or are never read. Tables are poisoned behind the last block in use.
class Step {
 public:
  Step(const Heads& heads, const std::vector<int32_t>& at, const Norms& norms, uint32_t seed,
       const Paging& pages = {})
      : heads_(heads), paging_(pages), rng_(seed), positions(at) {
    for (const int32_t position : positions) {
      const int32_t used = std::max(position, 0) / paging_.block_tokens + 1;
      blocks_ = std::max(blocks_, used + paging_.spare_blocks);
    }
    const auto batch = static_cast<int32_t>(positions.size());
    num_blocks_ = batch * blocks_ + 3;
    std::vector<int32_t> free(static_cast<size_t>(num_blocks_));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), rng_);
    blocks_of_ = std::vector<int32_t>(free.begin(), free.begin() + int64_t{batch} * blocks_);
    const size_t cache = count_of(num_slots(), heads.kv_heads, heads.dim);
    k_cache = v_cache = Bits(cache, kNan);
    for (int32_t b = 0; b < batch; ++b) fill_rows(b, 0, positions[static_cast<size_t>(b)]);
    qkv = random_bf16(count_of(batch, heads.all(), heads.dim), rng_, 2.0f);
    q_norm_ = DeviceBuffer<std::byte>(random_weights(heads.dim, norms.dtype, rng_));
    k_norm_ = DeviceBuffer<std::byte>(random_weights(heads.dim, norms.dtype, rng_));
    for (int32_t b = 0; b < batch; ++b) slots.push_back(slot_of(b, position_of(b)));
    allocate(norms);
  }

  [[nodiscard]] int32_t batch() const { return static_cast<int32_t>(positions.size()); }
  [[nodiscard]] int32_t num_slots() const { return num_blocks_ * paging_.block_tokens; }
  [[nodiscard]] int32_t position_of(int32_t b) const { return positions[static_cast<size_t>(b)]; }
  [[nodiscard]] int32_t slot_of(int32_t b, int32_t position) const {
    if (position < 0) return 0;
    const int32_t block =
        blocks_of_[static_cast<size_t>(b * blocks_ + position / paging_.block_tokens)];
    return block * paging_.block_tokens + position % paging_.block_tokens;
  }
  // Random K and V at positions [first, last) of a sequence.
  void fill_rows(int32_t b, int32_t first, int32_t last) {
    const auto row = count_of(heads_.kv_heads, heads_.dim);
    for (int32_t position = first; position < last; ++position) {
      const auto to = static_cast<int64_t>(static_cast<size_t>(slot_of(b, position)) * row);
      const Bits k = random_bf16(row, rng_, 1.0f), v = random_bf16(row, rng_, 1.0f);
      std::copy(k.begin(), k.end(), k_cache.begin() + to);
      std::copy(v.begin(), v.end(), v_cache.begin() + to);
    }
  }
  void new_qkv() { qkv = random_bf16(qkv.size(), rng_, 2.0f); }

  // What changes from step to step: all but the caches and the rest of the outputs.
  void upload_inputs() const {
    overwrite(qkv_, qkv);
    overwrite(positions_, positions);
    overwrite(slots_, slots);
    std::vector<int32_t> table(blocks_of_.size(), kPoisonBlock);
    for (int32_t b = 0; b < batch(); ++b) {
      for (int32_t i = 0; i <= std::max(position_of(b), 0) / paging_.block_tokens; ++i) {
        const auto at = static_cast<size_t>(b * blocks_ + i);
        table[at] = blocks_of_[at];
      }
    }
    overwrite(table_, table);
  }
  void upload_caches() const {
    overwrite(k_, k_cache);
    overwrite(v_, v_cache);
    overwrite(out_, Bits(out_.size(), kNan));
    overwrite(q_, Bits(q_.size(), kNan));
    overwrite(invalid_, {0});
  }
  // Waits for the device. The counts of CTAs are zero again.
  [[nodiscard]] Outputs download() const {
    WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
    if (workspace_.size() > 0) {
      const std::vector<uint8_t> bytes = workspace_.to_host();
      EXPECT_EQ(std::count(bytes.begin(), bytes.begin() + kAttentionTicketBytes, 0),
                static_cast<int64_t>(kAttentionTicketBytes));
    }
    return {out_.to_host(), k_.to_host(), v_.to_host(), invalid_.to_host()[0]};
  }

  [[nodiscard]] Outputs run_two() const {
    upload_inputs();
    upload_caches();
    qkv_finish(finish, nullptr);
    paged_attention(attention, nullptr);
    return download();
  }
  [[nodiscard]] Outputs run_one(bool indices_are_older = true, bool past_is_older = true) const {
    upload_inputs();
    upload_caches();
    PagedAttentionParams p = attention;
    p.q = nullptr;
    p.indices_are_older = indices_are_older;
    p.past_is_older = past_is_older;
    QkvFinishParams f = finish;
    f.q = nullptr;
    f.indices_are_older = indices_are_older;
    finish_attention(f, p, nullptr);
    return download();
  }
  // False, and that it is refused, where there are too many clusters.
  [[nodiscard]] bool expect_equal_to_two() const {
    if (!attention_can_finish(attention)) {
      EXPECT_THROW(finish_attention(finish, attention, nullptr), std::invalid_argument);
      return false;
    }
    expect_equal(run_one(), run_two());
    return true;
  }

  QkvFinishParams finish;
  PagedAttentionParams attention;

 private:
  void allocate(const Norms& norms) {
    qkv_ = DeviceBuffer<uint16_t>(qkv.size());
    positions_ = DeviceBuffer<int32_t>(positions.size());
    slots_ = DeviceBuffer<int32_t>(slots.size());
    table_ = DeviceBuffer<int32_t>(blocks_of_.size());
    std::vector<int32_t> numbers(positions.size() + 1);
    std::iota(numbers.begin(), numbers.end(), 0);
    cu_seqlens_ = DeviceBuffer<int32_t>(numbers);
    k_ = DeviceBuffer<uint16_t>(k_cache.size());
    v_ = DeviceBuffer<uint16_t>(v_cache.size());
    q_ = DeviceBuffer<uint16_t>(count_of(batch(), heads_.heads, heads_.dim));
    out_ = DeviceBuffer<uint16_t>(q_.size());
    invalid_ = DeviceBuffer<int32_t>(1);
    const DeviceBuffer<float>& rope = rope_tables(heads_.dim);
    finish = {.qkv = qkv_.data(),
              .q_norm = norms.q ? q_norm_.data() : nullptr,
              .k_norm = norms.k ? k_norm_.data() : nullptr,
              .norm_dtype = norms.dtype,
              .cos = rope.data(),
              .sin = rope.data() + rope.size() / 2,
              .positions = positions_.data(),
              .slot_mapping = slots_.data(),
              .q = q_.data(),
              .k_cache = k_.data(),
              .v_cache = v_.data(),
              .num_invalid = invalid_.data(),
              .num_slots = num_slots(),
              .max_positions = kMaxPositions,
              .num_tokens = batch(),
              .num_heads = heads_.heads,
              .num_kv_heads = heads_.kv_heads,
              .head_dim = heads_.dim};
    attention = {.q = q_.data(),
                 .k_cache = k_.data(),
                 .v_cache = v_.data(),
                 .positions = positions_.data(),
                 .cu_seqlens_q = cu_seqlens_.data(),
                 .block_table = table_.data(),
                 .out = out_.data(),
                 .num_sequences = batch(),
                 .num_tokens = batch(),
                 .max_query_tokens = 1,
                 .num_heads = heads_.heads,
                 .num_kv_heads = heads_.kv_heads,
                 .head_dim = heads_.dim,
                 .num_blocks = num_blocks_,
                 .block_tokens = paging_.block_tokens,
                 .blocks_per_sequence = blocks_,
                 .scale = 1.0f / std::sqrt(static_cast<float>(heads_.dim))};
    workspace_ = DeviceBuffer<uint8_t>(paged_attention_workspace_bytes(attention));
    if (workspace_.size() > 0) {
      WARPROLL_CUDA_CHECK(cudaMemset(workspace_.data(), 0xff, workspace_.size()));
      WARPROLL_CUDA_CHECK(cudaMemset(workspace_.data(), 0, kAttentionTicketBytes));
      attention.workspace = workspace_.data();
    }
  }

  Heads heads_;
  Paging paging_;
  std::mt19937 rng_;
  int32_t blocks_ = 0, num_blocks_ = 0;  // of a sequence, of the cache
  std::vector<int32_t> blocks_of_;       // [B, blocks_]
  DeviceBuffer<uint16_t> qkv_, k_, v_, q_, out_;
  DeviceBuffer<int32_t> positions_, slots_, table_, cu_seqlens_, invalid_;
  DeviceBuffer<std::byte> q_norm_, k_norm_;
  DeviceBuffer<uint8_t> workspace_;

 public:
  // On the host; set, then run.
  std::vector<int32_t> positions, slots;
  Bits qkv, k_cache, v_cache;
};

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
    const Outputs want = step.run_two();
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
    const Outputs out = step.run_one();
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
    const Outputs got = step.run_one();
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
      const Outputs got = one.download();
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
