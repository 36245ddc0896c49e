#include "rollout/tokenizer/bpe.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace warproll {
namespace {

constexpr int32_t kDead = -1;

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

BpeMerges::BpeMerges(std::vector<BpeMerge> merges) : merges_(std::move(merges)) {
  rank_of_pair_.reserve(merges_.size());
  for (size_t rank = 0; rank < merges_.size(); ++rank) {
    rank_of_pair_.emplace(pair_key(merges_[rank].left, merges_[rank].right),
                          static_cast<uint32_t>(rank));
  }
}

void BpeMerges::push_candidate(BpeScratch* scratch, int32_t left_index) const {
  if (left_index < 0) return;
  const BpeScratch::Symbol& left = scratch->symbols[left_index];
  if (left.next < 0) return;
  const auto found = rank_of_pair_.find(pair_key(left.id, scratch->symbols[left.next].id));
  if (found == rank_of_pair_.end()) return;
  scratch->heap.push_back(static_cast<uint64_t>(found->second) << 32 |
                          static_cast<uint32_t>(left_index));
  std::push_heap(scratch->heap.begin(), scratch->heap.end(), std::greater<>());
  ++scratch->num_candidates;
}

void BpeMerges::apply(const std::vector<int32_t>& symbols, BpeScratch* scratch,
                      std::vector<int32_t>* ids) const {
  if (symbols.empty()) return;
  const auto n = static_cast<int32_t>(symbols.size());
  auto& list = scratch->symbols;
  list.resize(symbols.size());
  scratch->heap.clear();
  for (int32_t i = 0; i < n; ++i) list[i] = {symbols[i], i - 1, i + 1 < n ? i + 1 : -1};
  for (int32_t i = 0; i + 1 < n; ++i) push_candidate(scratch, i);

  while (!scratch->heap.empty()) {
    std::pop_heap(scratch->heap.begin(), scratch->heap.end(), std::greater<>());
    const uint64_t candidate = scratch->heap.back();
    scratch->heap.pop_back();
    const BpeMerge& merge = merges_[candidate >> 32];
    const auto index = static_cast<int32_t>(candidate & 0xFFFFFFFF);
    BpeScratch::Symbol& left = list[index];
    // A candidate goes stale when either of its symbols was merged with another one.
    if (left.id != merge.left || left.next < 0 || list[left.next].id != merge.right) continue;
    BpeScratch::Symbol& right = list[left.next];
    left.id = merge.merged;
    left.next = right.next;
    right.id = kDead;
    if (left.next >= 0) list[left.next].prev = index;
    push_candidate(scratch, left.prev);
    push_candidate(scratch, index);
  }
  for (int32_t i = 0; i >= 0; i = list[i].next) ids->push_back(list[i].id);
}

}  // namespace warproll
