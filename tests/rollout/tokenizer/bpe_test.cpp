#include "rollout/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "test_tokenizers.h"

namespace warproll::testing {
namespace {

// The definition: scan for the pair of lowest rank, leftmost first, until there is none.
std::vector<int32_t> merged_by_scanning(std::vector<int32_t> ids,
                                        const std::vector<BpeMerge>& merges) {
  for (;;) {
    size_t best_rank = merges.size();
    size_t best_at = 0;
    for (size_t at = 0; at + 1 < ids.size(); ++at) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank].left != ids[at] || merges[rank].right != ids[at + 1]) continue;
        best_rank = rank;
        best_at = at;
      }
    }
    if (best_rank == merges.size()) return ids;
    ids[best_at] = merges[best_rank].merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

// Over the letters 0, 1, 2: each merge makes a new id of two that exist.
std::vector<BpeMerge> random_merges(std::mt19937* random) {
  std::vector<BpeMerge> merges;
  std::map<std::pair<int32_t, int32_t>, bool> seen;
  for (int32_t next = 3; next < 15;) {
    const auto left = static_cast<int32_t>((*random)() % next);
    const auto right = static_cast<int32_t>((*random)() % next);
    if (seen[{left, right}]) continue;
    seen[{left, right}] = true;
    merges.push_back({left, right, next++});
  }
  return merges;
}

TEST(Bpe, EqualsANaiveScanOnRandomMergesAndWords) {
  std::mt19937 random(20261129);
  BpeScratch scratch;
  for (int round = 0; round < 2000; ++round) {
    const std::vector<BpeMerge> merges = random_merges(&random);
    std::vector<int32_t> word(random() % 30);
    for (int32_t& id : word) id = static_cast<int32_t>(random() % 3);
    std::vector<int32_t> ids;
    BpeMerges(merges).apply(word, &scratch, &ids);
    ASSERT_EQ(ids, merged_by_scanning(word, merges)) << "round " << round;
  }
}

// Every merge removes one symbol and makes two candidates at most.
TEST(Bpe, AWordOfAMillionEqualLettersTakesFewerThanThreeCandidatesALetter) {
  std::vector<BpeMerge> merges;
  for (int32_t id = 0; id < 16; ++id) merges.push_back({id, id, id + 1});  // doubling
  const std::vector<int32_t> word(1 << 20, 0);
  BpeScratch scratch;
  std::vector<int32_t> ids;
  BpeMerges(merges).apply(word, &scratch, &ids);
  EXPECT_EQ(ids, std::vector<int32_t>(16, 16));
  EXPECT_GE(scratch.num_candidates, 1 << 20);
  EXPECT_LT(scratch.num_candidates, 3 << 20);
}

TEST(Bpe, AMegabyteOfOneLetterGoesThroughTheWholeTokenizer) {
  const auto tokenizer = golden_tokenizer("bpe-tokenizer");
  for (const char letter : {'a', ' ', '\n', '!'}) {
    const std::string text(1 << 20, letter);
    const auto ids = tokenizer->encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status().to_string();
    EXPECT_EQ(tokenizer->decode(*ids), text);
  }
}

}  // namespace
}  // namespace warproll::testing
