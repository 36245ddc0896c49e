#include "rollout/model/cuda/step_inputs.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/check.h"
#include "kernels/step_exchange.h"

namespace warproll {

// Offsets in the block, in bytes.
struct StepInputBuffer::Places {
  size_t token_ids, positions, slot_mapping, cu_seqlens_q, block_table, logits_rows, given_ids,
      rows;
  size_t bytes;
};

StepInputBuffer::Places StepInputBuffer::places(const StepShape& shape) const {
  size_t end = 0;
  const auto take = [&end](int64_t count, size_t bytes) {
    return std::exchange(end, end + (static_cast<size_t>(count) * bytes + 15) / 16 * 16);
  };
  const int64_t tokens = shape.num_tokens, sequences = shape.num_sequences;
  Places p;
  p.token_ids = take(tokens, sizeof(int32_t));
  p.positions = take(tokens, sizeof(int32_t));
  p.slot_mapping = take(tokens, sizeof(int32_t));
  p.cu_seqlens_q = take(sequences + 1, sizeof(int32_t));
  p.block_table = take(sequences * shape.blocks_per_sequence, sizeof(int32_t));
  p.logits_rows = take(shape.num_logits, sizeof(int32_t));
  p.rows = take(shape.sampled ? shape.num_logits : 0, sizeof(RowSampling));
  p.given_ids = take(shape.given_routes ? tokens * num_moe_layers_ * top_k_ : 0, sizeof(int32_t));
  p.bytes = end;
  return p;
}

StepInputBuffer::StepInputBuffer(int32_t num_moe_layers, int32_t top_k, const StepShape& largest)
    : num_moe_layers_(num_moe_layers), top_k_(top_k) {
  StepShape all = largest;
  all.given_routes = all.sampled = true;
  const size_t bytes = places(all).bytes;
  device_ = DeviceBuffer<std::byte>(bytes);
  host_ = PinnedBuffer<std::byte>(bytes * kStepSlots);
}

StepInputs StepInputBuffer::in(std::byte* base, const StepShape& shape) const {
  const Places p = places(shape);
  const auto ints = [base](size_t offset) { return reinterpret_cast<int32_t*>(base + offset); };
  StepInputs inputs;
  inputs.token_ids = ints(p.token_ids);
  inputs.positions = ints(p.positions);
  inputs.slot_mapping = ints(p.slot_mapping);
  inputs.cu_seqlens_q = ints(p.cu_seqlens_q);
  inputs.block_table = ints(p.block_table);
  inputs.logits_rows = ints(p.logits_rows);
  if (shape.given_routes) inputs.given_ids = ints(p.given_ids);
  if (shape.sampled) inputs.rows = reinterpret_cast<RowSampling*>(base + p.rows);
  return inputs;
}

void StepInputBuffer::pack(const ForwardBatch& batch, const StepShape& shape,
                           std::span<const RowSampling> rows, uint64_t step) {
  const Places p = places(shape);
  std::byte* const base = host_.data() + step % kStepSlots * device_.size();
  check_argument(p.bytes <= device_.size(), [&] {
    return "step inputs: " + std::to_string(p.bytes) + " bytes for " +
           std::to_string(shape.num_tokens) + " tokens of " + std::to_string(shape.num_sequences) +
           " sequences, wanted at most " + std::to_string(device_.size());
  });
  const auto copy = [&](size_t offset, std::span<const int32_t> values) {
    std::copy(values.begin(), values.end(), reinterpret_cast<int32_t*>(base + offset));
  };
  copy(p.token_ids, batch.token_ids);
  copy(p.positions, batch.positions);
  copy(p.slot_mapping, batch.slot_mapping);
  copy(p.cu_seqlens_q, batch.cu_seqlens_q);
  copy(p.logits_rows, batch.logits_rows);
  const auto width = static_cast<size_t>(batch.blocks_per_sequence);
  const auto wide = static_cast<size_t>(shape.blocks_per_sequence);
  auto* table = reinterpret_cast<int32_t*>(base + p.block_table);
  for (size_t b = 0; b < static_cast<size_t>(shape.num_sequences); ++b) {
    const auto row = batch.block_table.subspan(b * width, width);
    std::fill(std::copy(row.begin(), row.end(), table + b * wide), table + (b + 1) * wide, 0);
  }
  if (shape.sampled)
    std::copy(rows.begin(), rows.end(), reinterpret_cast<RowSampling*>(base + p.rows));
  if (shape.given_routes) {  // [T, L, K] -> [L, T, K]
    auto* ids = reinterpret_cast<int32_t*>(base + p.given_ids);
    const auto tokens = static_cast<size_t>(shape.num_tokens), k = static_cast<size_t>(top_k_);
    const auto layers = static_cast<size_t>(num_moe_layers_);
    for (size_t layer = 0; layer < layers; ++layer) {
      for (size_t t = 0; t < tokens; ++t, ids += k)
        std::copy_n(batch.given_routes.data() + (t * layers + layer) * k, k, ids);
    }
  }
  packed_ = base;
  used_bytes_ = p.bytes;
}

void StepInputBuffer::upload(cudaStream_t stream) const {
  WARPROLL_CUDA_CHECK(
      cudaMemcpyAsync(device_.data(), packed_, used_bytes_, cudaMemcpyHostToDevice, stream));
}

void StepInputBuffer::take(const StepShape& shape, const uint64_t* step,
                           cudaStream_t stream) const {
  copy_slot({.step = step,
             .from = host_.data(),
             .to = device_.data(),
             .from_stride_bytes = device_.size(),
             .bytes = places(shape).bytes},
            stream);
}

StepInputs StepInputBuffer::at(const StepShape& shape) const { return in(device_.data(), shape); }

}  // namespace warproll
