// PromptCache: the prefilled prompts that samples of a group share. One entry for each prompt object
// with live requests; the first sample to start becomes its leader, the others wait until the
// leader has computed positions [0, prompt_len - 1), then start from its blocks and forward the last
// prompt token themselves (each needs that token's logits anyway). Entries hold KV of the current
// weights only: clear() at every flip (W5: a prefix hit never crosses versions).
// Thread: the engine's only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "rollout/engine/block_manager.h"
#include "rollout/engine/sequence.h"

namespace warproll {

class PromptCache {
 public:
  PromptCache(BlockManager& blocks, int32_t block_tokens, bool enabled)
      : blocks_(blocks), block_tokens_(block_tokens), enabled_(enabled) {}

  void add_request(const Sequence& sequence);
  void remove_request(const Sequence& sequence);  // with the last one the entry goes

  enum class Start { kCompute, kAttached, kWait };
  // For a sequence without KV that would run under the current weights. kAttached: it owns the
  // entry's blocks now and num_computed says how far they reach. kWait: another sequence is
  // computing the same prompt.
  Start start(Sequence& sequence);
  // Blocks that start() would hand over whole (never written again), for admission.
  [[nodiscard]] int32_t num_shared_blocks(const Sequence& sequence) const;
  // The leader got further: publishes its blocks once they cover the prompt.
  void computed(const Sequence& sequence, int32_t route_ids_per_token);
  // The sequence lost its KV or ended; another one may lead.
  void resign(const Sequence& sequence);
  bool evict_one();  // gives back the blocks least recently attached to; false = none held
  void clear();      // gives back all blocks, no leaders

  [[nodiscard]] uint64_t num_hits() const { return num_hits_; }

 private:
  // Samples of one prompt that want routes do not start from blocks whose routes nobody kept.
  using Key = std::pair<const std::vector<int32_t>*, bool>;
  struct Entry {
    std::shared_ptr<const std::vector<int32_t>> prompt;  // so that the key's address stays taken
    int32_t num_requests = 0;
    const Sequence* leader = nullptr;
    bool leader_is_fresh = false;  // it had sampled nothing: the routes it records are this pass's
    int32_t num_tokens = 0;        // covered by blocks; 0 = nothing published
    std::vector<int32_t> blocks;
    std::vector<uint16_t> routes;
    uint64_t last_use = 0;
  };
  [[nodiscard]] static Key key_of(const Sequence& sequence) {
    return {sequence.request.prompt_ids.get(), sequence.request.return_routes};
  }
  void drop_blocks(Entry& entry);

  BlockManager& blocks_;
  const int32_t block_tokens_;
  const bool enabled_;
  std::map<Key, Entry> entries_;
  uint64_t clock_ = 0;
  uint64_t num_hits_ = 0;
};

}  // namespace warproll
