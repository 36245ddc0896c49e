#include "rollout/engine/prompt_cache.h"

#include <algorithm>

namespace warproll {

void PromptCache::add_request(const Sequence& sequence) {
  Entry& entry = entries_[key_of(sequence)];
  entry.prompt = sequence.request.prompt_ids;
  ++entry.num_requests;
}

void PromptCache::remove_request(const Sequence& sequence) {
  const auto found = entries_.find(key_of(sequence));
  WARPROLL_CHECK(found != entries_.end(), "prompt of an unknown request");
  resign(sequence);
  if (--found->second.num_requests > 0) return;
  drop_blocks(found->second);
  entries_.erase(found);
}

PromptCache::Start PromptCache::start(Sequence& sequence) {
  const int32_t shared_tokens = sequence.prompt_len() - 1;
  Entry& entry = entries_.at(key_of(sequence));
  if (!enabled_ || shared_tokens == 0 || entry.num_requests < 2) return Start::kCompute;
  if (entry.num_tokens > 0) {
    const bool lacks_routes = sequence.request.return_routes && sequence.num_routed == 0;
    if (lacks_routes && entry.routes.empty()) return Start::kCompute;
    for (const int32_t block : entry.blocks) blocks_.add_owner(block);
    sequence.blocks = entry.blocks;
    sequence.num_computed = entry.num_tokens;
    if (lacks_routes) {
      sequence.routes = entry.routes;
      sequence.num_routed = entry.num_tokens;
    }
    entry.last_use = ++clock_;
    ++num_hits_;
    return Start::kAttached;
  }
  if (entry.leader != nullptr && entry.leader != &sequence) return Start::kWait;
  entry.leader = &sequence;
  entry.leader_is_fresh = sequence.num_sampled() == 0;
  return Start::kCompute;
}

int32_t PromptCache::num_shared_blocks(const Sequence& sequence) const {
  return entries_.at(key_of(sequence)).num_tokens / block_tokens_;
}

void PromptCache::computed(const Sequence& sequence, int32_t route_ids_per_token) {
  Entry& entry = entries_.at(key_of(sequence));
  const int32_t shared_tokens = sequence.prompt_len() - 1;
  if (entry.leader != &sequence || sequence.num_computed < shared_tokens) return;
  entry.leader = nullptr;
  if (entry.num_requests < 2) return;
  const auto num_blocks =
      static_cast<ptrdiff_t>((shared_tokens + block_tokens_ - 1) / block_tokens_);
  entry.blocks.assign(sequence.blocks.begin(), sequence.blocks.begin() + num_blocks);
  for (const int32_t block : entry.blocks) blocks_.add_owner(block);
  entry.num_tokens = shared_tokens;
  entry.last_use = ++clock_;
  if (sequence.request.return_routes && entry.leader_is_fresh) {
    const auto num_ids = static_cast<ptrdiff_t>(shared_tokens) * route_ids_per_token;
    entry.routes.assign(sequence.routes.begin(), sequence.routes.begin() + num_ids);
  }
}

void PromptCache::resign(const Sequence& sequence) {
  Entry& entry = entries_.at(key_of(sequence));
  if (entry.leader == &sequence) entry.leader = nullptr;
}

bool PromptCache::evict_one() {
  Entry* oldest = nullptr;
  for (auto& [key, entry] : entries_) {
    if (entry.num_tokens > 0 && (oldest == nullptr || entry.last_use < oldest->last_use))
      oldest = &entry;
  }
  if (oldest == nullptr) return false;
  drop_blocks(*oldest);
  return true;
}

void PromptCache::clear() {
  for (auto& [key, entry] : entries_) {
    drop_blocks(entry);
    entry.leader = nullptr;
  }
}

void PromptCache::drop_blocks(Entry& entry) {
  for (const int32_t block : entry.blocks) blocks_.release(block);
  entry.blocks.clear();
  entry.routes.clear();
  entry.num_tokens = 0;
}

}  // namespace warproll
