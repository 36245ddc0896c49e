#include "rollout/engine/batch_runner.h"

#include <algorithm>
#include <utility>

#include "kernels/philox.h"
#include "rollout/engine/row_sampling.h"

namespace warproll {
BatchRunner::BatchRunner(const ModelConfig& config, int32_t block_tokens, ModelBackend backend)
    : vocab_size_(config.vocab_size),
      route_ids_per_token_(config.num_moe_layers() * config.num_experts_per_tok),
      block_tokens_(block_tokens),
      backend_(std::move(backend)) {}

ForwardBatch BatchRunner::batch_of(std::span<const ScheduledChunk> chunks) {
  pack(chunks);
  plan_samples(chunks);
  ForwardBatch batch;
  batch.token_ids = token_ids_;
  batch.positions = positions_;
  batch.slot_mapping = slot_mapping_;
  batch.cu_seqlens_q = cu_seqlens_q_;
  batch.context_lens = context_lens_;
  batch.block_table = block_table_;
  batch.blocks_per_sequence = blocks_per_sequence_;
  batch.logits_rows = logits_rows_;
  return batch;
}

bool BatchRunner::want_routes(std::span<const ScheduledChunk> chunks) const {
  return route_ids_per_token_ > 0 &&
         std::any_of(chunks.begin(), chunks.end(),
                     [](const auto& chunk) { return chunk.sequence->request.return_routes; });
}

std::span<const SampledToken> BatchRunner::run(std::span<const ScheduledChunk> chunks) {
  const ForwardBatch batch = batch_of(chunks);
  output_.want_routes = want_routes(chunks);
  const WeightSet& weights = *chunks.front().sequence->weights;
  sampled_.resize(rows_.size());
  if (can_launch()) {
    backend_.launch(batch, weights, rows_, /*fed=*/false, output_.want_routes);
    backend_.collect(sampled_, output_);
  } else {
    backend_.forward(batch, weights, output_);
    sample_on_cpu();
  }
  record_routes(chunks);
  return sampled_;
}

void BatchRunner::launch(std::span<const ScheduledChunk> chunks) {
  const ForwardBatch batch = batch_of(chunks);
  backend_.launch(batch, *chunks.front().sequence->weights, rows_, chunks.front().ahead,
                  want_routes(chunks));
}

std::span<const SampledToken> BatchRunner::collect(size_t num_rows) {
  sampled_.resize(num_rows);
  backend_.collect(sampled_, output_);
  return sampled_;
}

void BatchRunner::record_route(Sequence& sequence, size_t row) {
  if (route_ids_per_token_ == 0 || !sequence.request.return_routes) return;
  const auto ids = static_cast<size_t>(route_ids_per_token_);
  sequence.record_routes(sequence.num_computed,
                         std::span<const uint16_t>(output_.routes).subspan(row * ids, ids),
                         route_ids_per_token_);
}

void BatchRunner::pack(std::span<const ScheduledChunk> chunks) {
  token_ids_.clear();
  positions_.clear();
  slot_mapping_.clear();
  cu_seqlens_q_.assign(1, 0);
  context_lens_.clear();
  logits_rows_.clear();
  size_t most_blocks = 0;
  for (const ScheduledChunk& chunk : chunks) {
    const Sequence& sequence = *chunk.sequence;
    const int32_t end = chunk.end();
    for (int32_t position = chunk.begin(); position < end; ++position) {
      token_ids_.push_back(chunk.ahead ? 0 : sequence.token_ids[static_cast<size_t>(position)]);
      positions_.push_back(position);
      const int32_t block = sequence.blocks[static_cast<size_t>(position / block_tokens_)];
      slot_mapping_.push_back(block * block_tokens_ + position % block_tokens_);
    }
    cu_seqlens_q_.push_back(static_cast<int32_t>(token_ids_.size()));
    context_lens_.push_back(end);
    if (chunk.reaches_end()) logits_rows_.push_back(static_cast<int32_t>(token_ids_.size()) - 1);
    most_blocks = std::max(most_blocks, sequence.blocks.size());
  }
  blocks_per_sequence_ = static_cast<int32_t>(most_blocks);
  block_table_.assign(chunks.size() * most_blocks, 0);  // padded with a block that nobody reads
  for (size_t i = 0; i < chunks.size(); ++i) {
    std::copy(chunks[i].sequence->blocks.begin(), chunks[i].sequence->blocks.end(),
              block_table_.begin() + static_cast<ptrdiff_t>(i * most_blocks));
  }
}

void BatchRunner::record_routes(std::span<const ScheduledChunk> chunks) {
  if (!output_.want_routes) return;
  const std::span<const uint16_t> routes = output_.routes;
  for (size_t i = 0; i < chunks.size(); ++i) {
    Sequence& sequence = *chunks[i].sequence;
    if (!sequence.request.return_routes) continue;
    const auto ids_per_token = static_cast<size_t>(route_ids_per_token_);
    const auto first = static_cast<size_t>(cu_seqlens_q_[i]) * ids_per_token;
    const auto count = static_cast<size_t>(chunks[i].num_tokens) * ids_per_token;
    sequence.record_routes(sequence.num_computed, routes.subspan(first, count),
                           route_ids_per_token_);
  }
}

void BatchRunner::plan_samples(std::span<const ScheduledChunk> chunks) {
  rows_.clear();
  for (const ScheduledChunk& chunk : chunks) {
    if (!chunk.reaches_end()) continue;
    const SampleRequest& request = chunk.sequence->request;
    rows_.push_back(row_sampling(
        request.sampling,
        sampling_uniform(request.sampling.seed, static_cast<uint32_t>(request.sample_index),
                         static_cast<uint32_t>(chunk.end()))));
  }
}

void BatchRunner::sample_on_cpu() {
  const auto vocab_size = static_cast<size_t>(vocab_size_);
  cpu_rows_.clear();
  for (size_t i = 0; i < rows_.size(); ++i) {
    cpu_rows_.push_back(with_logits(
        rows_[i], std::span<const float>(output_.logits).subspan(i * vocab_size, vocab_size)));
  }
  sample_tokens_cpu(cpu_rows_, sampled_);
}

}  // namespace warproll
