#include "weights_sync/digest.h"

#include <gtest/gtest.h>
#include <stdio.h>

#include <algorithm>
#include <array>
#include <random>

#include "tests/weights_sync/checkpoint_fixtures.h"
#include "weights_sync/arena_buffer.h"
#include "weights_sync/parallel.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;

// Standard output of a Python script given on the command line.
std::string python(const std::string& script_path, const std::string& argument) {
  const std::string command =
      std::string(WARPROLL_TEST_PYTHON) + " " + script_path + " " + argument + " 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen failed");
  std::string output;
  std::array<char, 256> block;
  while (fgets(block.data(), block.size(), pipe) != nullptr) output += block.data();
  ::pclose(pipe);
  while (!output.empty() && output.back() == '\n') output.pop_back();
  return output;
}

TEST(Digest, weight_digests_of_all_golden_checkpoints_equal_an_independent_python_reader) {
  for (const std::string& name : golden_checkpoints()) {
    auto checkpoint = Checkpoint::open(golden(name));
    ASSERT_TRUE(checkpoint.ok());
    EXPECT_EQ(to_hex(weight_digest(*checkpoint)),
              python(std::string(WARPROLL_SOURCE_DIR) + "/tests/weights_sync/weight_digest.py",
                     golden(name)))
        << name;
  }
}

TEST(Digest, known_values_of_xxh3_128) {
  // From the xxHash specification's reference implementation: empty input, seed 0.
  EXPECT_EQ(to_hex(xxh3_128({})), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(tensor_digest({}), xxh3_128({}));  // no chunk, so the outer hash of nothing
}

TEST(Digest, streaming_in_any_pieces_gives_the_digest_of_the_whole) {
  constexpr uint64_t kSeed = 11;
  std::mt19937_64 random(kSeed);
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, kDigestChunkBytes - 1, kDigestChunkBytes,
                              kDigestChunkBytes + 1, 3 * kDigestChunkBytes + 12345}) {
    const std::vector<std::byte> bytes = random_bytes(size, random);
    std::vector<Digest> chunks;
    for (uint64_t at = 0; at < size; at += kDigestChunkBytes) {
      chunks.push_back(
          xxh3_128(std::span(bytes).subspan(at, std::min(kDigestChunkBytes, size - at))));
    }
    const Digest wanted = tensor_digest_from_chunks(chunks);
    EXPECT_EQ(tensor_digest(bytes), wanted) << size;
    for (int round = 0; round < 5; ++round) {
      TensorHasher hasher;
      uint64_t at = 0;
      while (at < size) {
        const uint64_t take = std::min<uint64_t>(size - at, random() % (size / 3 + 2));
        hasher.update(std::span(bytes).subspan(at, take));
        at += take;
        if (round == 0) static_cast<void>(hasher.finish());  // must not disturb
      }
      EXPECT_EQ(hasher.finish(), wanted) << "seed " << kSeed << " size " << size;
    }
  }
}

TEST(Digest, weight_digest_does_not_depend_on_order_and_depends_on_everything_else) {
  const std::vector<TensorInfo> tensors = {{"b", Dtype::kBf16, {2, 3}, 12},
                                           {"a", Dtype::kF32, {1}, 4}};
  const std::vector<Digest> digests = {xxh3_128(bytes_of("1")), xxh3_128(bytes_of("2"))};
  const Digest base = weight_digest(tensors, digests);
  EXPECT_EQ(weight_digest(std::vector{tensors[1], tensors[0]}, std::vector{digests[1], digests[0]}),
            base);
  const auto changed = [&](auto change) {
    auto other_tensors = tensors;
    auto other_digests = digests;
    change(other_tensors, other_digests);
    return weight_digest(other_tensors, other_digests) != base;
  };
  EXPECT_TRUE(changed([](auto& t, auto&) { t[0].name = "c"; }));
  EXPECT_TRUE(changed([](auto& t, auto&) { t[0].dtype = Dtype::kF16; }));
  EXPECT_TRUE(changed([](auto& t, auto&) { t[0].shape = {3, 2}; }));
  EXPECT_TRUE(changed([](auto& t, auto&) { t[0].shape = {6}; }));
  EXPECT_TRUE(changed([](auto&, auto& d) { d[0][15] ^= 1; }));
  EXPECT_TRUE(changed([](auto&, auto& d) { std::swap(d[0], d[1]); }));
  EXPECT_TRUE(changed([](auto& t, auto& d) { t.pop_back(), d.pop_back(); }));
}

TEST(Digest, layout_digest_sees_the_slots_and_not_the_padding) {
  ArenaLayout layout;
  layout.slots = {{"x", Dtype::kU8, {3}, 0, 3, {}}, {"y", Dtype::kU8, {2}, 256, 2, {}}};
  layout.total_bytes = 258;
  std::vector<std::byte> arena(258);
  const Digest base = layout_digest(layout, arena);
  arena[100] = std::byte{1};
  EXPECT_EQ(layout_digest(layout, arena), base);
  arena[257] = std::byte{1};
  EXPECT_NE(layout_digest(layout, arena), base);
  layout.total_bytes = 259;
  layout.slots[1].bytes = 3;
  EXPECT_THROW(static_cast<void>(layout_digest(layout, arena)), std::logic_error);
}

TEST(Digest, progress_ends_at_the_total_and_never_falls) {
  auto checkpoint = Checkpoint::open(golden("qwen3moe-tiny"));
  ASSERT_TRUE(checkpoint.ok());
  uint64_t last = 0;
  uint64_t total = 0;
  static_cast<void>(weight_digest(*checkpoint, [&](uint64_t done, uint64_t of) {
    EXPECT_GE(done, last);
    last = done;
    total = of;
  }));
  EXPECT_EQ(last, 577792u);
  EXPECT_EQ(total, 577792u);
}

TEST(ForEachIndex, does_every_index_once_and_rethrows_what_one_throws) {
  for (const int threads : {0, 1, 4}) {
    std::vector<int> done(1000);
    for_each_index(done.size(), threads, [&](size_t i) { ++done[i]; });
    EXPECT_EQ(std::count(done.begin(), done.end(), 1), 1000);
    EXPECT_THROW(for_each_index(100, threads,
                                [](size_t i) {
                                  if (i == 57) throw std::runtime_error("57");
                                }),
                 std::runtime_error);
  }
}

TEST(ArenaBuffer, is_aligned_zeroed_and_costs_nothing_until_touched) {
  constexpr uint64_t kHuge = uint64_t{64} << 30;  // more than test machines have
  auto buffer = ArenaBuffer::allocate(kHuge);
  ASSERT_TRUE(buffer.ok()) << buffer.status().to_string();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % kArenaAlignment, 0u);
  EXPECT_EQ(buffer->data()[kHuge - 1], std::byte{0});
  ArenaBuffer moved = std::move(buffer).value();
  EXPECT_EQ(moved.capacity_bytes(), kHuge);
  auto impossible = ArenaBuffer::allocate(uint64_t{1} << 62);
  EXPECT_EQ(impossible.status().code(), StatusCode::kResourceExhausted);
  auto empty = ArenaBuffer::allocate(0);
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->span().empty());
}

}  // namespace
}  // namespace warproll
