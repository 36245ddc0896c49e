#include "kernels/bench/step_layer.h"

#include <numeric>

#include "kernels/moe/route.h"
#include "kernels/moe/warp_decode.h"
#include "kernels/step/add_rmsnorm.h"
#include "kernels/step/attention.h"
#include "kernels/step/cluster_linear.h"
#include "kernels/step/qkv_finish.h"

namespace warproll {
namespace {

constexpr uint16_t kOne = 0x3f80;  // BF16

size_t product(int64_t a, int64_t b, int64_t c = 1) { return static_cast<size_t>(a * b * c); }

void fill(const DeviceBuffer<uint16_t>& buffer, uint64_t seed, float sigma) {
  fill_normal(buffer.data(), static_cast<int64_t>(buffer.size()), seed, sigma, nullptr);
}

PagedAttentionParams attention_shape(int32_t tokens, int32_t blocks_of_sequence) {
  PagedAttentionParams p;
  p.num_sequences = p.num_tokens = tokens;
  p.max_query_tokens = 1;
  p.num_heads = StepLayers::kHeads;
  p.num_kv_heads = StepLayers::kKvHeads;
  p.head_dim = StepLayers::kHeadDim;
  p.num_blocks = tokens * blocks_of_sequence;
  p.block_tokens = StepLayers::kBlockTokens;
  p.blocks_per_sequence = blocks_of_sequence;
  p.scale = 0.08838835f;
  p.indices_are_older = p.past_is_older = true;
  return p;
}

}  // namespace

std::unique_ptr<RandomExperts> StepLayers::matrix(int32_t rows, int32_t cols, WeightFormat format,
                                                  uint64_t seed) {
  return std::make_unique<RandomExperts>(ExpertShape{rows, cols, 1, 1}, format, seed,
                                         /*keep_rows=*/false);
}

StepLayers::StepLayers(int num_layers, WeightFormat format, int32_t max_batch, int32_t context)
    : max_batch_(max_batch),
      context_(context),
      blocks_of_sequence_((context + kBlockTokens - 1) / kBlockTokens) {
  const auto layers = static_cast<uint64_t>(num_layers);
  const int32_t pairs = max_batch * kExperts.top_k;
  for (uint64_t i = 0; i < layers; ++i) {
    qkv_.push_back(matrix(kQkvRows, kHidden, format, 100 + i));
    o_.push_back(matrix(kORows, kOCols, format, 200 + i));
    experts_.push_back(
        std::make_unique<RandomExperts>(kExperts, WeightFormat::kMxfp8, 300 + i, false));
    lists_memory_.emplace_back(expert_lists_bytes(pairs, kExperts.num_experts));
    WARPROLL_CUDA_CHECK(cudaMemset(lists_memory_.back().data(), 0, lists_memory_.back().size()));
    lists_.push_back(expert_lists_at(lists_memory_.back().data(), pairs, kExperts.num_experts));
  }
  const int64_t b = max_batch;
  router_weights_ = DeviceBuffer<uint16_t>(product(num_layers, kExperts.num_experts, kHidden));
  fill(router_weights_, 1, 0.02f);
  norm_weights_ = DeviceBuffer<uint16_t>(std::vector<uint16_t>(kHidden, kOne));
  caches_ = DeviceBuffer<uint16_t>(product(2 * num_layers, b * blocks_of_sequence_ * kBlockTokens,
                                           int64_t{kKvHeads} * kHeadDim));
  fill(caches_, 2, 1.0f);
  hidden_ = DeviceBuffer<uint16_t>(product(b, kHidden));
  hidden_next_ = DeviceBuffer<uint16_t>(product(b, kHidden));
  normed_ = DeviceBuffer<uint16_t>(product(b, kHidden));
  tile_ = DeviceBuffer<uint16_t>(product(b, kHidden));
  scales_ = DeviceBuffer<float>(product(b, 1));
  qkv_out_ = DeviceBuffer<uint16_t>(product(b, kQkvRows));
  q_ = DeviceBuffer<uint16_t>(product(b, kOCols));
  attention_ = DeviceBuffer<uint16_t>(product(b, kOCols));
  fill(attention_, 4, 1.0f);
  o_out_ = DeviceBuffer<uint16_t>(product(b, kHidden));
  fill(o_out_, 5, 1.0f);
  y_ = DeviceBuffer<uint16_t>(product(b, kHidden));
  refill();
  h_ = DeviceBuffer<uint16_t>(product(2 * pairs, kExperts.intermediate_size));
  partials_ = DeviceBuffer<float>(product(pairs, kHidden));
  logits_ = DeviceBuffer<float>(product(b, kExperts.num_experts));
  topk_weights_ = DeviceBuffer<float>(product(pairs, 1));
  topk_ids_ = DeviceBuffer<int32_t>(product(pairs, 1));
  std::vector<float> rope(product(2 * context, kHeadDim / 2));
  fill_rope_tables(context, kHeadDim, 1e6, rope.data(), rope.data() + rope.size() / 2);
  rope_ = DeviceBuffer<float>(rope);
  std::vector<int32_t> table(product(b, blocks_of_sequence_)), numbers(product(b + 1, 1));
  std::iota(table.begin(), table.end(), 0);
  std::iota(numbers.begin(), numbers.end(), 0);
  block_table_ = DeviceBuffer<int32_t>(table);
  cu_seqlens_ = DeviceBuffer<int32_t>(numbers);
  positions_ = DeviceBuffer<int32_t>(std::vector<int32_t>(product(b, 1), context - 1));
  std::vector<int32_t> slots;
  for (int32_t t = 0; t < max_batch; ++t)
    slots.push_back(t * blocks_of_sequence_ * kBlockTokens + context - 1);
  slots_ = DeviceBuffer<int32_t>(slots);
  attention_workspace_ = DeviceBuffer<std::byte>(
      paged_attention_workspace_bytes(attention_shape(max_batch, blocks_of_sequence_)));
  if (attention_workspace_.size() > 0) {
    WARPROLL_CUDA_CHECK(cudaMemset(attention_workspace_.data(), 0, attention_workspace_.size()));
  }
  restart(max_batch);
  // Something to read everywhere, and expert lists.
  for (size_t i = 0; i < layers; ++i) {
    input_norm(i, nullptr);
    post_norm(i, nullptr);
    route(i, nullptr);
  }
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
}

void StepLayers::set_batch(int32_t tokens, bool cluster) {
  restart(tokens);
  cluster_ = cluster;
  // What the first layer adds is the last one's.
  route(size() - 1, nullptr);
  experts(size() - 1, nullptr);
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
}

void StepLayers::refill() {
  fill(hidden_, 3, 1.0f);
  fill(hidden_next_, 3, 1.0f);
  fill(y_, 6, 1.0f);
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
}

void StepLayers::restart(int32_t tokens) {
  cluster_ = false;
  tokens_ = tokens;
  left_ = {};
  swapped_ = false;
}

std::span<const StepLayers::Op> StepLayers::ops() {
  static constexpr Op kOps[] = {{"input_norm", &StepLayers::input_norm},
                                {"qkv", &StepLayers::qkv},
                                {"qkv_finish", &StepLayers::qkv_finish},
                                {"attention", &StepLayers::attention},
                                {"o", &StepLayers::o},
                                {"post_norm", &StepLayers::post_norm},
                                {"route", &StepLayers::route},
                                {"experts", &StepLayers::experts}};
  return kOps;
}

void StepLayers::chain(cudaStream_t s) const {
  for (size_t i = 0; i < size(); ++i) {
    for (const Op& op : ops()) (this->*op.run)(i, s);
  }
}

StepLayers::State StepLayers::state() const {
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  const auto rows = [&](const auto& buffer, int64_t width) {
    auto all = buffer.to_host();
    all.resize(product(tokens_, width));
    return all;
  };
  return {rows(swapped_ ? hidden_next_ : hidden_, kHidden), rows(qkv_out_, kQkvRows),
          rows(attention_, kOCols), rows(o_out_, kHidden), rows(logits_, kExperts.num_experts)};
}

bool StepLayers::qkv_norms() const {
  return left_.partials == nullptr && stream_linear_can_norm(tokens_, qkv_[0]->down_tiles);
}

bool StepLayers::attention_finishes() const {
  return finish_attention_is_faster(attention_shape(tokens_, blocks_of_sequence_));
}

ResidualNorm StepLayers::take_norm(const uint16_t* addend) const {
  ResidualNorm n;
  n.hidden = swapped_ ? hidden_next_.data() : hidden_.data();
  n.hidden_out = swapped_ ? hidden_.data() : hidden_next_.data();
  n.addend = addend;
  n.weight = reinterpret_cast<const std::byte*>(norm_weights_.data());
  swapped_ = !swapped_;
  return n;
}

void StepLayers::input_norm(size_t, cudaStream_t s) const {
  if (qkv_norms()) return;
  AddRmsNormParams p;
  p.hidden = swapped_ ? hidden_next_.data() : hidden_.data();
  p.addend = left_.partials == nullptr ? y_.data() : nullptr;
  p.moe = left_;
  p.weight = reinterpret_cast<const std::byte*>(norm_weights_.data());
  p.normed_tile = {tile_.data(), scales_.data()};
  p.num_tokens = tokens_;
  p.hidden_size = kHidden;
  add_rmsnorm(p, s);
}

void StepLayers::linear(StreamLinearParams p, cudaStream_t s) const {
  p.num_tokens = tokens_;
  if (cluster_ && p.norm.hidden == nullptr &&
      cluster_linear_is_faster(tokens_, p.weight, p.x.values != nullptr)) {
    return cluster_linear(
        {.x = p.x, .x_bf16 = p.x_bf16, .weight = p.weight, .y = p.y, .num_tokens = p.num_tokens},
        s);
  }
  stream_linear(p, s);
}

void StepLayers::qkv(size_t i, cudaStream_t s) const {
  StreamLinearParams p;
  if (qkv_norms()) {
    p.norm = take_norm(y_.data());
  } else {
    p.x = {tile_.data(), scales_.data()};
  }
  p.weight = qkv_[i]->down_tiles;
  p.y = qkv_out_.data();
  linear(p, s);
}

QkvFinishParams StepLayers::finish_params(size_t i) const {
  const size_t cache = caches_.size() / size() / 2;
  QkvFinishParams p;
  p.qkv = qkv_out_.data();
  p.q_norm = p.k_norm = reinterpret_cast<const std::byte*>(norm_weights_.data());
  p.cos = rope_.data();
  p.sin = rope_.data() + rope_.size() / 2;
  p.positions = positions_.data();
  p.slot_mapping = slots_.data();
  p.q = q_.data();
  p.k_cache = caches_.data() + 2 * i * cache;
  p.v_cache = p.k_cache + cache;
  p.num_slots = int64_t{max_batch_} * blocks_of_sequence_ * kBlockTokens;
  p.max_positions = context_;
  p.num_tokens = tokens_;
  p.num_heads = kHeads;
  p.num_kv_heads = kKvHeads;
  p.head_dim = kHeadDim;
  p.indices_are_older = true;
  return p;
}

void StepLayers::qkv_finish(size_t i, cudaStream_t s) const {
  if (!attention_finishes()) warproll::qkv_finish(finish_params(i), s);
}

void StepLayers::attention(size_t i, cudaStream_t s) const {
  const size_t cache = caches_.size() / size() / 2;
  PagedAttentionParams p = attention_shape(tokens_, blocks_of_sequence_);
  p.q = q_.data();
  p.k_cache = caches_.data() + 2 * i * cache;
  p.v_cache = p.k_cache + cache;
  p.positions = positions_.data();
  p.cu_seqlens_q = cu_seqlens_.data();
  p.block_table = block_table_.data();
  p.out = attention_.data();
  p.workspace = attention_workspace_.data();
  if (attention_finishes()) return finish_attention(finish_params(i), p, s);
  paged_attention(p, s);
}

void StepLayers::o(size_t i, cudaStream_t s) const {
  StreamLinearParams p;
  p.x_bf16 = attention_.data();
  p.weight = o_[i]->down_tiles;
  p.y = o_out_.data();
  linear(p, s);
}

void StepLayers::post_norm(size_t, cudaStream_t s) const {
  AddRmsNormParams p;
  p.hidden = swapped_ ? hidden_next_.data() : hidden_.data();
  p.addend = o_out_.data();
  p.weight = reinterpret_cast<const std::byte*>(norm_weights_.data());
  p.normed = normed_.data();
  p.normed_tile = {tile_.data(), scales_.data()};
  p.num_tokens = tokens_;
  p.hidden_size = kHidden;
  add_rmsnorm(p, s);
}

void StepLayers::route(size_t i, cudaStream_t s) const {
  RouteParams p;
  p.x = normed_.data();
  p.weight = router_weights_.data() + i * product(kExperts.num_experts, kHidden);
  p.logits = logits_.data();
  p.topk_ids = topk_ids_.data();
  p.topk_weights = topk_weights_.data();
  p.lists = lists_[i];
  p.num_tokens = tokens_;
  p.hidden_size = kHidden;
  p.num_experts = kExperts.num_experts;
  p.top_k = kExperts.top_k;
  warproll::route(p, s);
}

void StepLayers::experts(size_t i, cudaStream_t s) const {
  WarpDecodeParams p;
  p.x = {tile_.data(), scales_.data()};
  p.lists = lists_[i];
  p.gate_up = experts_[i]->gate_up_tiles;
  p.down = experts_[i]->down_tiles;
  p.h = h_.data();
  p.partials = partials_.data();
  p.y = y_.data();
  p.num_tokens = tokens_;
  p.top_k = kExperts.top_k;
  left_ = warp_decode_partials(p, s);
}

double StepLayers::bytes_of_layer() const {
  double active = 0;
  for (const ExpertLists& lists : lists_) {
    ExpertListCounts counts;
    WARPROLL_CUDA_CHECK(cudaMemcpy(&counts, lists.counts, sizeof(counts), cudaMemcpyDeviceToHost));
    active += counts.num_active;
  }
  return active / static_cast<double>(size()) *
             static_cast<double>(experts_[0]->bytes_of_expert()) +
         static_cast<double>(qkv_[0]->down_tiles.bytes() + o_[0]->down_tiles.bytes()) + kv_bytes() +
         router_bytes();
}

}  // namespace warproll
