// Byte-pair merges in O(n log n): a linked list of symbols and a heap of candidate pairs. The pair
// with the lowest rank is merged first, of equal ones the leftmost (Sennrich et al. 2016; the order
// of Hugging Face's BPE). A naive scan is O(n^2) and hangs on one long word.
// Thread: BpeMerges is immutable; a BpeScratch belongs to one call at a time.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace warproll {

// left + right -> merged; the rank is the position in the list.
struct BpeMerge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t merged = 0;
};

// Working memory, kept between words so that a word does not allocate.
struct BpeScratch {
  struct Symbol {
    int32_t id;    // kDead once merged into its left neighbour
    int32_t prev;  // index, -1 at the ends
    int32_t next;
  };
  std::vector<Symbol> symbols;
  std::vector<uint64_t> heap;  // rank << 32 | index of the left symbol
  int64_t num_candidates = 0;  // pairs ever put on the heap: the measure of work
};

class BpeMerges {
 public:
  BpeMerges() = default;  // merges nothing
  // Pairs are distinct.
  explicit BpeMerges(std::vector<BpeMerge> merges);

  // Appends the merged ids of one word to *ids. [n] symbols, n < 2^31.
  void apply(const std::vector<int32_t>& symbols, BpeScratch* scratch,
             std::vector<int32_t>* ids) const;

 private:
  void push_candidate(BpeScratch* scratch, int32_t left_index) const;

  std::vector<BpeMerge> merges_;                         // by rank
  std::unordered_map<uint64_t, uint32_t> rank_of_pair_;  // left << 32 | right
};

}  // namespace warproll
