#include "rollout/model/batch_check.h"

#include <string>

#include "kernels/check.h"

namespace warproll {
namespace {

// `name()` is called only on failure: a step allocates no strings.
template <typename Name>
void require_range(int64_t got, int64_t low, int64_t high, const Name& name) {
  check_argument(got >= low && got <= high, [&] {
    return "forward: " + std::string(name()) + " is " + std::to_string(got) + ", wanted " +
           (low == high ? std::to_string(low)
                        : std::to_string(low) + " .. " + std::to_string(high));
  });
}

void require_size(const char* name, size_t got, size_t wanted) {
  check_argument(got == wanted, [&] {
    return std::string("forward: ") + name + " has " + std::to_string(got) + " elements, wanted " +
           std::to_string(wanted);
  });
}

// The new tokens are the last ones of their context, and write the slots that attention reads.
void check_sequence(const ForwardBatch& batch, const KvCache& kv, size_t b) {
  const int32_t begin = batch.cu_seqlens_q[b];
  const int32_t end = batch.cu_seqlens_q[b + 1];
  const auto of_sequence = [b](const char* what) {
    return [what, b] { return std::string(what) + " of sequence " + std::to_string(b); };
  };
  require_range(end - begin, 0, batch.context_lens[b], of_sequence("new tokens"));
  require_range(batch.context_lens[b], 0, int64_t{batch.blocks_per_sequence} * kv.block_tokens(),
                of_sequence("context_lens"));
  for (int32_t t = begin; t < end; ++t) {
    const auto of_token = [t](const char* what) {
      return [what, t] { return std::string(what) + " of token " + std::to_string(t); };
    };
    const int32_t position = batch.context_lens[b] - (end - t);
    require_range(batch.positions[static_cast<size_t>(t)], position, position,
                  of_token("position"));
    const int32_t block = batch.block_table[b * static_cast<size_t>(batch.blocks_per_sequence) +
                                            static_cast<size_t>(position / kv.block_tokens())];
    require_range(block, 0, kv.num_blocks() - 1, of_token("block"));
    const int64_t slot = int64_t{block} * kv.block_tokens() + position % kv.block_tokens();
    require_range(batch.slot_mapping[static_cast<size_t>(t)], slot, slot, of_token("slot"));
  }
}

}  // namespace

void check_batch(const ForwardBatch& batch, const ModelConfig& config, const ModelWeights& weights,
                 ActivationDtype activations, const KvCache& kv) {
  const size_t num_tokens = batch.token_ids.size();
  require_size("positions", batch.positions.size(), num_tokens);
  require_size("slot_mapping", batch.slot_mapping.size(), num_tokens);
  require_size("weights.layers", weights.layers.size(), static_cast<size_t>(config.num_layers));
  if (batch.cu_seqlens_q.empty()) require_size("cu_seqlens_q", 0, batch.context_lens.size() + 1);
  const size_t num_sequences = batch.cu_seqlens_q.size() - 1;
  require_size("context_lens", batch.context_lens.size(), num_sequences);
  require_range(batch.blocks_per_sequence, 0, kv.num_blocks(),
                [] { return "blocks_per_sequence"; });
  require_size("block_table", batch.block_table.size(),
               num_sequences * static_cast<size_t>(batch.blocks_per_sequence));
  const auto last = static_cast<int64_t>(num_tokens);
  require_range(batch.cu_seqlens_q.front(), 0, 0, [] { return "the first cu_seqlens_q"; });
  require_range(batch.cu_seqlens_q.back(), last, last, [] { return "the last cu_seqlens_q"; });
  for (size_t b = 0; b < num_sequences; ++b) {
    require_range(batch.cu_seqlens_q[b + 1], batch.cu_seqlens_q[b], last,
                  [b] { return "cu_seqlens_q " + std::to_string(b + 1); });
    check_sequence(batch, kv, b);
  }
  for (const int32_t row : batch.logits_rows) {
    require_range(row, 0, last - 1, [] { return "a logits row"; });
  }
  if (!batch.given_routes.empty()) {
    require_size("given_routes", batch.given_routes.size(),
                 num_tokens * static_cast<size_t>(config.num_moe_layers()) *
                     static_cast<size_t>(config.num_experts_per_tok));
  }
  check_argument(kv.dtype() == activations, [&] {
    return "forward: activations are " + std::string(to_string(activations)) + ", wanted " +
           std::string(to_string(kv.dtype())) + " as the KV cache";
  });
}

}  // namespace warproll
