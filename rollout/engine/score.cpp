#include "rollout/engine/score.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "rollout/engine/row_sampling.h"

namespace warproll {
namespace {

constexpr int32_t kBlockTokens = 16;
constexpr int32_t kChunkTokens = 128;  // so that the logits of a long prompt are never all there

Status check(const ModelConfig& config, std::span<const int32_t> token_ids, int32_t first) {
  const auto num_tokens = static_cast<int64_t>(token_ids.size());
  if (num_tokens < 1 || num_tokens > config.max_position_embeddings) {
    return invalid_argument("score: " + std::to_string(num_tokens) + " tokens, wanted 1.." +
                            std::to_string(config.max_position_embeddings));
  }
  if (first < 1 || first > num_tokens) {
    return invalid_argument("score: the first token to score is " + std::to_string(first) +
                            ", wanted 1.." + std::to_string(num_tokens));
  }
  for (size_t i = 0; i < token_ids.size(); ++i) {
    if (token_ids[i] >= 0 && token_ids[i] < config.vocab_size) continue;
    return invalid_argument("score: token " + std::to_string(i) + " is " +
                            std::to_string(token_ids[i]) + ", wanted [0, " +
                            std::to_string(config.vocab_size) + ")");
  }
  return ok_status();
}

}  // namespace

Result<std::vector<SampledToken>> score_tokens(const WeightSet& weights, const ModelRunner& runner,
                                               std::span<const int32_t> token_ids, int32_t first,
                                               const SamplingParams& sampling) {
  const ModelConfig& config = weights.config;
  WARPROLL_TRY(check(config, token_ids, first));
  WARPROLL_TRY(validate(sampling));
  const auto num_forwarded = static_cast<int32_t>(token_ids.size()) - 1;
  const int32_t num_blocks = num_forwarded / kBlockTokens + 1;
  BackendSizes sizes;
  sizes.num_blocks = num_blocks;
  sizes.block_tokens = kBlockTokens;
  sizes.max_batch_tokens = sizes.max_logits = kChunkTokens;
  sizes.max_sequences = 1;
  sizes.max_context_tokens = num_blocks * kBlockTokens;
  const ModelBackend backend = runner.make_backend(config, sizes);
  std::vector<int32_t> positions(static_cast<size_t>(num_forwarded));  // also the KV slots
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<int32_t> block_table(static_cast<size_t>(num_blocks));
  std::iota(block_table.begin(), block_table.end(), 0);

  std::vector<SampledToken> scores;
  ForwardOutput out;
  for (int32_t begin = 0; begin < num_forwarded; begin += kChunkTokens) {
    const int32_t end = std::min(begin + kChunkTokens, num_forwarded);
    const auto offset = static_cast<size_t>(begin);
    const auto count = static_cast<size_t>(end - begin);
    const int32_t cu_seqlens_q[] = {0, end - begin};
    const int32_t context_lens[] = {end};
    std::vector<int32_t> rows;  // token p's logits come from position p - 1
    for (int32_t position = std::max(begin, first - 1); position < end; ++position)
      rows.push_back(position - begin);
    ForwardBatch batch;
    batch.token_ids = token_ids.subspan(offset, count);
    batch.positions = std::span<const int32_t>(positions).subspan(offset, count);
    batch.slot_mapping = batch.positions;
    batch.cu_seqlens_q = cu_seqlens_q;
    batch.context_lens = context_lens;
    batch.block_table = block_table;
    batch.blocks_per_sequence = num_blocks;
    batch.logits_rows = rows;
    backend.forward(batch, weights, out);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto vocab_size = static_cast<size_t>(config.vocab_size);
      const SamplingRow row =
          with_logits(row_sampling(sampling, /*uniform=*/0.0),
                      std::span<const float>(out.logits).subspan(i * vocab_size, vocab_size));
      scores.push_back(score_token_cpu(row, token_ids[static_cast<size_t>(begin + rows[i] + 1)]));
    }
  }
  return scores;
}

}  // namespace warproll
