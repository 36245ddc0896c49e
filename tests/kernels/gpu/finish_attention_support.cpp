#include "finish_attention_support.h"

#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>

namespace warproll::testing {
namespace {

constexpr int32_t kPoisonBlock = 0x7fffffff;
constexpr double kTheta = 1e6;

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

}  // namespace

void expect_equal(const StepOutputs& got, const StepOutputs& want) {
  EXPECT_TRUE(got.out == want.out) << "out differs";
  EXPECT_TRUE(got.k_cache == want.k_cache) << "K differs";
  EXPECT_TRUE(got.v_cache == want.v_cache) << "V differs";
  EXPECT_EQ(got.num_invalid, want.num_invalid);
}

Step::Step(const Heads& heads, const std::vector<int32_t>& at, const Norms& norms, uint32_t seed,
           const Pages& pages)
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
  q_norm_ = DeviceBuffer<std::byte>(
      random_weights(static_cast<size_t>(heads.dim), norms.dtype, rng_, 1.0f, 0.3f));
  k_norm_ = DeviceBuffer<std::byte>(
      random_weights(static_cast<size_t>(heads.dim), norms.dtype, rng_, 1.0f, 0.3f));
  for (int32_t b = 0; b < batch; ++b) slots.push_back(slot_of(b, position_of(b)));
  allocate(norms);
}

int32_t Step::slot_of(int32_t b, int32_t position) const {
  if (position < 0) return 0;
  const int32_t block =
      blocks_of_[static_cast<size_t>(b * blocks_ + position / paging_.block_tokens)];
  return block * paging_.block_tokens + position % paging_.block_tokens;
}

void Step::fill_rows(int32_t b, int32_t first, int32_t last) {
  const auto row = count_of(heads_.kv_heads, heads_.dim);
  for (int32_t position = first; position < last; ++position) {
    const auto to = static_cast<int64_t>(static_cast<size_t>(slot_of(b, position)) * row);
    const Bits k = random_bf16(row, rng_, 1.0f), v = random_bf16(row, rng_, 1.0f);
    std::copy(k.begin(), k.end(), k_cache.begin() + to);
    std::copy(v.begin(), v.end(), v_cache.begin() + to);
  }
}

void Step::upload_inputs() const {
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

void Step::upload_caches() const {
  overwrite(k_, k_cache);
  overwrite(v_, v_cache);
  overwrite(out_, Bits(out_.size(), kNan));
  overwrite(q_, Bits(q_.size(), kNan));
  overwrite(invalid_, {0});
}

StepOutputs Step::download() const {
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  if (workspace_.size() > 0) {
    const std::vector<uint8_t> bytes = workspace_.to_host();
    EXPECT_EQ(std::count(bytes.begin(), bytes.begin() + kAttentionTicketBytes, 0),
              static_cast<int64_t>(kAttentionTicketBytes));
  }
  return {out_.to_host(), k_.to_host(), v_.to_host(), invalid_.to_host()[0]};
}

StepOutputs Step::run_two() const {
  upload_inputs();
  upload_caches();
  qkv_finish(finish, nullptr);
  paged_attention(attention, nullptr);
  return download();
}

StepOutputs Step::run_one(bool indices_are_older, bool past_is_older) const {
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

bool Step::expect_equal_to_two() const {
  if (!attention_can_finish(attention)) {
    EXPECT_THROW(finish_attention(finish, attention, nullptr), std::invalid_argument);
    return false;
  }
  expect_equal(run_one(), run_two());
  return true;
}

void Step::allocate(const Norms& norms) {
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

}  // namespace warproll::testing
