// ArenaFiller on an arena of two slots: where bytes land, parts, names, unsound layouts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "tests/weights_sync/checkpoint_fixtures.h"
#include "weights_sync/arena_fill.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;
using ::testing::AllOf;
using ::testing::HasSubstr;

class SmallArena : public ::testing::Test {
 protected:
  ArenaFiller filler() {
    auto made = ArenaFiller::create(layout_, arena_);
    return std::move(made).value();
  }
  std::string create_error() {
    const auto made = ArenaFiller::create(layout_, arena_);
    return made.ok() ? "no error" : made.status().message();
  }
  ArenaLayout layout_ = small_layout();
  std::vector<std::byte> arena_ = std::vector<std::byte>(300, std::byte{0xee});
  std::vector<std::byte> x0_ = bf16_ramp(1);
  std::vector<std::byte> x1_ = bf16_ramp(100);
  std::vector<std::byte> s_ = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4},
                               std::byte{5}};
};

TEST_F(SmallArena, tensors_land_at_their_places_and_nothing_else_is_touched) {
  ArenaFiller fill = filler();
  ASSERT_TRUE(fill.put("s", s_).ok());
  ASSERT_TRUE(fill.put("x.1", x1_).ok());
  ASSERT_TRUE(fill.put("x.tied", x0_).ok());
  ASSERT_TRUE(fill.put("x.0", x0_).ok());
  auto filled = fill.finish();
  ASSERT_TRUE(filled.ok()) << filled.status().to_string();
  EXPECT_EQ(filled->source_bytes, 64u * 3 + 5);
  const std::span<const std::byte> arena(arena_);
  EXPECT_TRUE(equal_bytes(arena.subspan(0, 64), x0_));
  EXPECT_TRUE(equal_bytes(arena.subspan(64, 64), x1_));
  EXPECT_TRUE(equal_bytes(arena.subspan(256, 5), s_));
  EXPECT_TRUE(equal_bytes(arena.subspan(128, 128), std::vector(128, std::byte{0xee})));
  EXPECT_TRUE(equal_bytes(arena.subspan(261), std::vector(300 - 261, std::byte{0xee})));
}

TEST_F(SmallArena, parts_in_any_order_give_what_whole_tensors_give) {
  constexpr uint64_t kSeed = 5;
  std::mt19937_64 random(kSeed);
  ArenaFiller whole = filler();
  for (const auto& [name, bytes] : {std::pair<const char*, std::vector<std::byte>&>{"x.0", x0_},
                                    {"x.1", x1_},
                                    {"s", s_},
                                    {"x.tied", x0_}}) {
    ASSERT_TRUE(whole.put(name, bytes).ok());
  }
  const auto wanted = whole.finish();
  ASSERT_TRUE(wanted.ok());
  const std::vector<std::byte> wanted_arena = arena_;

  std::fill(arena_.begin(), arena_.end(), std::byte{0xee});
  ArenaFiller parts = filler();
  struct Part {
    const char* name;
    uint64_t offset;
    std::span<const std::byte> bytes;
  };
  std::vector<Part> todo;
  for (const auto& [name, bytes] : {std::pair<const char*, std::vector<std::byte>&>{"x.0", x0_},
                                    {"x.1", x1_},
                                    {"s", s_},
                                    {"x.tied", x0_}}) {
    for (uint64_t at = 0; at < bytes.size();) {
      const uint64_t take = std::min<uint64_t>(bytes.size() - at, 1 + random() % 7);
      todo.push_back({name, at, std::span<const std::byte>(bytes).subspan(at, take)});
      at += take;
    }
  }
  std::shuffle(todo.begin(), todo.end(), random);
  for (const Part& part : todo) {
    const Status status = parts.put_part(part.name, part.offset, part.bytes);
    ASSERT_TRUE(status.ok()) << status.to_string() << " seed " << kSeed;
  }
  const auto got = parts.finish();
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  EXPECT_EQ(got->weight_digest, wanted->weight_digest);
  EXPECT_EQ(arena_, wanted_arena);
}

TEST_F(SmallArena, unknown_repeated_and_mis_sized_tensors_are_refused_by_name) {
  ArenaFiller fill = filler();
  EXPECT_THAT(fill.put("y", s_).message(), HasSubstr("tensor 'y' has no place in the layout"));
  EXPECT_THAT(fill.put("s", x0_).message(), HasSubstr("'s' came with 64 bytes, wanted 5"));
  EXPECT_THAT(fill.put("s", s_).message(), HasSubstr("'s' came before"));
  ASSERT_TRUE(fill.put("x.0", x0_).ok());
  EXPECT_THAT(fill.put("x.0", x0_).message(), HasSubstr("'x.0' came before"));
  EXPECT_THAT(fill.put_part("x.0", 0, x0_).message(), HasSubstr("'x.0' came before"));
}

TEST_F(SmallArena, parts_past_the_end_or_twice_are_refused) {
  const std::span<const std::byte> x(x0_);
  ArenaFiller fill = filler();
  EXPECT_THAT(fill.put_part("x.0", 60, x.first(5)).message(),
              HasSubstr("part of 5 bytes at 60 ends past its 64 bytes"));
  EXPECT_THAT(filler().put_part("x.0", UINT64_MAX, x.first(5)).message(), HasSubstr("ends past"));
  ArenaFiller overlap = filler();
  ASSERT_TRUE(overlap.put_part("x.0", 10, x.first(10)).ok());
  EXPECT_THAT(overlap.put_part("x.0", 19, x.first(2)).message(),
              HasSubstr("bytes [19, 21) came before"));
  ArenaFiller before = filler();
  ASSERT_TRUE(before.put_part("x.0", 10, x.first(10)).ok());
  EXPECT_THAT(before.put_part("x.0", 9, x.first(2)).message(), HasSubstr("bytes [9, 11) came"));
  ArenaFiller mixed = filler();
  ASSERT_TRUE(mixed.put_part("x.0", 10, x.first(10)).ok());
  EXPECT_THAT(mixed.put("x.0", x0_).message(), HasSubstr("'x.0' came before"));
}

TEST_F(SmallArena, finish_counts_and_names_what_is_missing) {
  ArenaFiller fill = filler();
  ASSERT_TRUE(fill.put("x.1", x1_).ok());
  ASSERT_TRUE(fill.put_part("x.0", 0, std::span(x0_).first(63)).ok());
  EXPECT_THAT(fill.finish().status().message(),
              AllOf(HasSubstr("3 of 4 tensors did not come whole"), HasSubstr("'x.0'"),
                    HasSubstr("'s'"), HasSubstr("'x.tied'")));
}

TEST_F(SmallArena, a_tied_tensor_that_differs_is_refused_with_both_names) {
  ArenaFiller fill = filler();
  ASSERT_TRUE(fill.put("x.0", x0_).ok());
  ASSERT_TRUE(fill.put("x.1", x1_).ok());
  ASSERT_TRUE(fill.put("s", s_).ok());
  ASSERT_TRUE(fill.put("x.tied", x1_).ok());
  EXPECT_THAT(fill.finish().status().message(),
              AllOf(HasSubstr("'x.tied' has digest"), HasSubstr("'x.0', which it is tied to")));
}

TEST_F(SmallArena, layouts_that_are_unsound_are_refused) {
  arena_.resize(260);
  EXPECT_THAT(create_error(), HasSubstr("wants 261 bytes, the arena has 260"));
  arena_.resize(300);
  layout_.slots[1].offset_bytes = 250;
  EXPECT_THAT(create_error(), HasSubstr("slot 's' at 250 + 5 is not aligned"));
  layout_.slots[1].offset_bytes = 0;
  EXPECT_THAT(create_error(), HasSubstr("slot 's' at 0 + 5 overlaps"));
  layout_.slots[1].offset_bytes = 512;
  EXPECT_THAT(create_error(), HasSubstr("leaves the layout of 261 bytes"));
  layout_ = small_layout();
  layout_.slots[0].sources[1].slot_offset_bytes = 62;
  EXPECT_THAT(create_error(), HasSubstr("tensor 'x.1' starts at byte 62, wanted 64"));
  layout_.slots[0].sources[1].slot_offset_bytes = 66;
  EXPECT_THAT(create_error(), HasSubstr("tensor 'x.1' starts at byte 66, wanted 64"));
  layout_ = small_layout();
  layout_.slots[0].sources.pop_back();
  EXPECT_THAT(create_error(), HasSubstr("slot 'x' is filled to byte 64, wanted 128"));
  layout_ = small_layout();
  layout_.slots[0].sources[1].shape = {33};
  EXPECT_THAT(create_error(), HasSubstr("'x.1' has 66 bytes"));
  layout_ = small_layout();
  layout_.slots[0].sources[1].tensor_name = "x.0";
  EXPECT_THAT(create_error(), HasSubstr("'x.0' is twice in the layout"));
  layout_ = small_layout();
  layout_.aliases[0].same_as = "none";
  EXPECT_THAT(create_error(), HasSubstr("the same as 'none'"));
  layout_.aliases[0] = {"s", "x.0"};
  EXPECT_THAT(create_error(), HasSubstr("'s' is twice in the layout"));
  layout_ = small_layout();
  layout_.slots[0].sources[1].transform = FillTransform::kQuantiseMxfp8;
  EXPECT_THAT(create_error(), HasSubstr("scale slot is -1"));
}

}  // namespace
}  // namespace warproll
