#include "weights_sync/arena_fill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "kernels/quantise.h"
#include "tests/weights_sync/checkpoint_fixtures.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Two slots: BF16 "x" stacked from x.0 and x.1 (32 values each), U8 "s" from "s"; alias x.tied.
ArenaLayout small_layout() {
  ArenaLayout layout;
  layout.slots = {{"x", Dtype::kBf16, {2, 32}, 0, 128, {}}, {"s", Dtype::kU8, {5}, 256, 5, {}}};
  layout.slots[0].sources = {
      {.tensor_name = "x.0", .dtype = Dtype::kBf16, .shape = {32}},
      {.tensor_name = "x.1", .dtype = Dtype::kBf16, .shape = {1, 32}, .slot_offset_bytes = 64}};
  layout.slots[1].sources = {{.tensor_name = "s", .dtype = Dtype::kU8, .shape = {5}}};
  layout.aliases = {{"x.tied", "x.0"}};
  layout.total_bytes = 261;
  return layout;
}

std::vector<std::byte> bf16_ramp(int first, int count = 32) {
  std::vector<std::byte> bytes;
  for (int i = 0; i < count; ++i) {
    const uint16_t bits = f32_to_bf16(static_cast<float>(first + i));
    bytes.push_back(static_cast<std::byte>(bits & 255));
    bytes.push_back(static_cast<std::byte>(bits >> 8));
  }
  return bytes;
}

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

struct BadValue {
  Dtype dtype;
  std::vector<uint8_t> element;
  bool bad;
};

TEST(ArenaFiller, nan_and_inf_of_every_dtype_are_found_and_named_with_their_index) {
  const std::vector<BadValue> cases = {
      {Dtype::kF32, {0, 0, 0x80, 0x7f}, true},         // Inf
      {Dtype::kF32, {1, 0, 0x80, 0xff}, true},         // NaN
      {Dtype::kF32, {0xff, 0xff, 0x7f, 0x7f}, false},  // the largest float
      {Dtype::kF16, {0, 0x7c}, true},
      {Dtype::kF16, {0xff, 0x7b}, false},
      {Dtype::kBf16, {0xc0, 0x7f}, true},
      {Dtype::kBf16, {0x80, 0xff}, true},
      {Dtype::kBf16, {0x7f, 0x7f}, false},
      {Dtype::kF8E4M3, {0x7f}, true},
      {Dtype::kF8E4M3, {0xff}, true},
      {Dtype::kF8E4M3, {0x7e}, false},
      {Dtype::kF8E8M0, {255}, true},
      {Dtype::kF8E8M0, {254}, false},
      {Dtype::kU8, {255}, false},
      {Dtype::kI32, {0, 0, 0x80, 0x7f}, false},
  };
  constexpr int64_t kCount = 5000;  // more than one block of the scan
  for (const BadValue& value : cases) {
    for (const int64_t at : {int64_t{0}, int64_t{4321}, kCount - 1}) {
      const size_t element_bytes = dtype_bytes(value.dtype);
      std::vector<std::byte> bytes(kCount * element_bytes);
      std::memcpy(bytes.data() + static_cast<size_t>(at) * element_bytes, value.element.data(),
                  element_bytes);
      ArenaLayout layout;
      layout.slots = {{"w", value.dtype, {kCount}, 0, bytes.size(), {}}};
      layout.slots[0].sources = {{.tensor_name = "w", .dtype = value.dtype, .shape = {kCount}}};
      layout.total_bytes = bytes.size();
      std::vector<std::byte> arena(bytes.size());
      auto filler = ArenaFiller::create(layout, arena);
      ASSERT_TRUE(filler.ok());
      const Status status = filler->put("w", bytes);
      EXPECT_EQ(status.ok(), !value.bad) << to_string(value.dtype);
      if (value.bad) {
        EXPECT_THAT(status.message(),
                    AllOf(HasSubstr("tensor 'w': element " + std::to_string(at) + " is NaN or Inf"),
                          HasSubstr(std::string(to_string(value.dtype)) + " 0x")));
      }
    }
  }
}

TEST(ArenaFiller, a_nan_past_the_first_chunk_is_named_with_its_index_in_the_tensor) {
  constexpr int64_t kCount = 700'000;  // 1.4 MB, two chunks
  constexpr int64_t kAt = 600'001;
  std::vector<std::byte> bytes(kCount * 2);
  bytes[kAt * 2 + 1] = std::byte{0x7f};
  bytes[kAt * 2] = std::byte{0xc0};
  ArenaLayout layout;
  layout.slots = {{"w", Dtype::kBf16, {kCount}, 0, bytes.size(), {}}};
  layout.slots[0].sources = {{.tensor_name = "w", .dtype = Dtype::kBf16, .shape = {kCount}}};
  layout.total_bytes = bytes.size();
  std::vector<std::byte> arena(bytes.size());
  auto filler = ArenaFiller::create(layout, arena);
  ASSERT_TRUE(filler.ok());
  EXPECT_THAT(filler->put("w", bytes).message(), HasSubstr("element 600001 is NaN"));
}

TEST(ArenaFiller, u8_scales_are_scanned_as_e8m0) {
  ArenaLayout layout;
  layout.slots = {{"w.scale", Dtype::kF8E8M0, {2}, 0, 2, {}}};
  layout.slots[0].sources = {{.tensor_name = "any.name", .dtype = Dtype::kU8, .shape = {2}}};
  layout.total_bytes = 2;
  std::vector<std::byte> arena(2);
  auto filler = ArenaFiller::create(layout, arena);
  ASSERT_TRUE(filler.ok());
  EXPECT_THAT(filler->put("any.name", std::vector{std::byte{1}, std::byte{255}}).message(),
              HasSubstr("element 1 is NaN or Inf (F8_E8M0 0xff)"));
}

TEST(ArenaFiller, cold_loads_of_all_golden_checkpoints_have_their_weight_digest) {
  for (const std::string& name : golden_checkpoints()) {
    auto checkpoint = Checkpoint::open(golden(name));
    ASSERT_TRUE(checkpoint.ok());
    auto loaded = load_checkpoint(*checkpoint, model_layout());
    ASSERT_TRUE(loaded.ok()) << name << ": " << loaded.status().to_string();
    EXPECT_EQ(loaded->weight_digest, weight_digest(*checkpoint)) << name;
    EXPECT_EQ(loaded->source_digest, loaded->weight_digest);
    EXPECT_EQ(loaded->files.config_json, checkpoint->files().config_json);
  }
}

// What a worker receives: parts of the stream's buckets. The standby arena was used before.
TEST(ArenaFiller, an_update_gives_bit_for_bit_what_a_cold_load_gives) {
  for (const std::string& name : golden_checkpoints()) {
    auto checkpoint = Checkpoint::open(golden(name));
    ASSERT_TRUE(checkpoint.ok());
    auto cold = load_checkpoint(*checkpoint, model_layout());
    ASSERT_TRUE(cold.ok());
    auto manifest = make_manifest(*checkpoint, 1, 16384);
    ASSERT_TRUE(manifest.ok()) << manifest.status().to_string();

    auto standby = ArenaBuffer::allocate(cold->layout.total_bytes);
    ASSERT_TRUE(standby.ok());
    std::memset(standby->data(), 0xee, standby->capacity_bytes());
    auto filler = ArenaFiller::create(cold->layout, standby->span(), &*manifest);
    ASSERT_TRUE(filler.ok()) << filler.status().to_string();
    for (size_t i = 0; i < manifest->entries.size(); ++i) {
      const auto bytes = checkpoint->bytes(i);
      for (uint64_t at = 0; at < bytes.size(); at += 5000) {
        const auto part = bytes.subspan(at, std::min<uint64_t>(5000, bytes.size() - at));
        ASSERT_TRUE(filler->put_part(manifest->entries[i].tensor.name, at, part).ok());
      }
    }
    auto filled = filler->finish();
    ASSERT_TRUE(filled.ok()) << filled.status().to_string();
    EXPECT_EQ(filled->weight_digest, cold->weight_digest);
    EXPECT_EQ(layout_digest(cold->layout, standby->span()),
              layout_digest(cold->layout, cold->arena.span()))
        << name;
  }
}

TEST(ArenaFiller, quantise_on_receive_equals_a_cold_load_of_the_mxfp8_export) {
  auto source = Checkpoint::open(golden("qwen3moe-tiny"));
  auto exported = Checkpoint::open(golden("qwen3moe-tiny-mxfp8"));
  ASSERT_TRUE(source.ok() && exported.ok());
  auto received = load_checkpoint(*source, model_layout(true));
  auto cold = load_checkpoint(*exported, model_layout());
  ASSERT_TRUE(received.ok()) << received.status().to_string();
  ASSERT_TRUE(cold.ok()) << cold.status().to_string();
  EXPECT_EQ(to_hex(received->weight_digest), to_hex(cold->weight_digest));
  EXPECT_EQ(to_hex(received->source_digest), to_hex(weight_digest(*source)));
  EXPECT_EQ(to_hex(layout_digest(received->layout, received->arena.span())),
            to_hex(layout_digest(cold->layout, cold->arena.span())));
}

TEST(ArenaFiller, quantised_tensors_may_come_in_parts) {
  auto source = Checkpoint::open(golden("qwen3moe-tiny"));
  ASSERT_TRUE(source.ok());
  auto whole = load_checkpoint(*source, model_layout(true));
  ASSERT_TRUE(whole.ok());
  auto manifest = make_manifest(*source, 1, 16384);
  ASSERT_TRUE(manifest.ok());
  auto arena = ArenaBuffer::allocate(whole->layout.total_bytes);
  ASSERT_TRUE(arena.ok());
  EXPECT_THAT(ArenaFiller::create(whole->layout, arena->span(), &*manifest).status().message(),
              HasSubstr("the layout quantises, but the manifest's recipe is none"));
  manifest->quantise = QuantiseRecipe::kMxfp8;
  manifest->weight_digest = whole->weight_digest;
  auto filler = ArenaFiller::create(whole->layout, arena->span(), &*manifest);
  ASSERT_TRUE(filler.ok());
  for (size_t i = 0; i < source->tensors().size(); ++i) {
    const auto bytes = source->bytes(i);
    const auto half = bytes.size() / 2;
    ASSERT_TRUE(filler->put_part(source->tensors()[i].name, half, bytes.subspan(half)).ok());
    ASSERT_TRUE(filler->put_part(source->tensors()[i].name, 0, bytes.first(half)).ok());
  }
  auto filled = filler->finish();
  ASSERT_TRUE(filled.ok()) << filled.status().to_string();
  EXPECT_EQ(layout_digest(whole->layout, arena->span()),
            layout_digest(whole->layout, whole->arena.span()));
}

TEST(ArenaFiller, a_bad_byte_is_data_loss_that_names_the_tensor_and_both_digests) {
  auto checkpoint = Checkpoint::open(golden("qwen3moe-tiny"));
  ASSERT_TRUE(checkpoint.ok());
  auto manifest = make_manifest(*checkpoint, 1, 16384);
  auto layout = model_layout()(checkpoint->files(), checkpoint->tensors());
  ASSERT_TRUE(manifest.ok() && layout.ok());
  std::vector<std::byte> arena(layout->total_bytes);
  auto filler = ArenaFiller::create(*layout, arena, &*manifest);
  ASSERT_TRUE(filler.ok());
  std::vector<std::byte> bytes(checkpoint->bytes(1).begin(), checkpoint->bytes(1).end());
  bytes[777] ^= std::byte{1};
  const Status status = filler->put(checkpoint->tensors()[1].name, bytes);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("'model.embed_tokens.weight': digest is "),
                                      HasSubstr("wanted " + to_hex(manifest->entries[1].digest))));
}

TEST(ArenaFiller, a_manifest_of_other_tensors_than_the_layout_is_refused_by_name) {
  auto checkpoint = Checkpoint::open(golden("qwen3moe-tiny"));
  ASSERT_TRUE(checkpoint.ok());
  auto layout = model_layout()(checkpoint->files(), checkpoint->tensors());
  ASSERT_TRUE(layout.ok());
  std::vector<std::byte> arena(layout->total_bytes);
  const auto error_with = [&](auto change) {
    auto manifest = make_manifest(*checkpoint, 1, 16384);
    change(manifest->entries);
    return ArenaFiller::create(*layout, arena, &*manifest).status().message();
  };
  EXPECT_THAT(error_with([](auto& entries) { entries.pop_back(); }),
              HasSubstr("'model.norm.weight' of the layout is not in the manifest"));
  EXPECT_THAT(error_with([](auto& entries) { entries[0].tensor.name = "zz"; }),
              HasSubstr("manifest tensor 'zz' has no place in the layout"));
  EXPECT_THAT(error_with([](auto& entries) {
                entries[0].tensor.shape = {64, 512};
              }),
              HasSubstr("BF16 [64, 512], the layout wants BF16 [512, 64]"));
  EXPECT_THAT(error_with([](auto& entries) { entries.push_back(entries[0]); }),
              HasSubstr("'lm_head.weight' is listed twice"));
}

TEST(ArenaFiller, threads_may_put_different_tensors_at_once) {
  auto checkpoint = Checkpoint::open(golden("qwen3moe-tiny"));
  ASSERT_TRUE(checkpoint.ok());
  auto one = load_checkpoint(*checkpoint, model_layout(true), {}, 1);
  auto many = load_checkpoint(*checkpoint, model_layout(true), {}, 8);
  ASSERT_TRUE(one.ok() && many.ok());
  EXPECT_EQ(one->weight_digest, many->weight_digest);
  EXPECT_TRUE(equal_bytes(one->arena.span(), many->arena.span()));
}

TEST(ArenaFiller, of_two_threads_with_the_same_tensor_one_is_refused) {
  const ArenaLayout layout = small_layout();
  const std::vector<std::byte> bytes = bf16_ramp(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::byte> arena(300);
    auto filler = ArenaFiller::create(layout, arena);
    ASSERT_TRUE(filler.ok());
    std::vector<Status> outcomes(2);
    {
      std::jthread other([&] { outcomes[1] = filler->put("x.0", bytes); });
      outcomes[0] = filler->put("x.0", bytes);
    }
    EXPECT_NE(outcomes[0].ok(), outcomes[1].ok());
  }
}

TEST(ArenaFiller, random_layouts_are_filled_as_a_plain_copy_would) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    std::mt19937_64 random(seed);
    ArenaLayout layout;
    std::vector<std::pair<std::string, std::vector<std::byte>>> tensors;
    uint64_t end = 0;
    for (uint64_t s = 0; s < 1 + random() % 6; ++s) {
      ArenaSlot slot{"slot" + std::to_string(s), Dtype::kU8, {}, 0, 0, {}};
      slot.offset_bytes = (end + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
      for (uint64_t t = 0; t < 1 + random() % 4; ++t) {
        const auto rows = static_cast<int64_t>(random() % 40);
        const auto cols = static_cast<int64_t>(random() % 40);
        SlotSource source;
        source.tensor_name = slot.name + "." + std::to_string(t);
        source.dtype = Dtype::kU8;
        source.shape = {rows, cols};
        source.slot_offset_bytes = slot.bytes;
        tensors.emplace_back(source.tensor_name,
                             random_bytes(static_cast<size_t>(rows * cols), random));
        slot.bytes += static_cast<uint64_t>(rows * cols);
        slot.sources.push_back(source);
      }
      slot.shape = {static_cast<int64_t>(slot.bytes)};
      end = slot.offset_bytes + slot.bytes;
      layout.slots.push_back(slot);
    }
    layout.total_bytes = end;
    std::vector<std::byte> wanted(end, std::byte{0xee});
    size_t next = 0;
    for (const ArenaSlot& slot : layout.slots) {
      for (const SlotSource& source : slot.sources) {
        const auto& bytes = tensors[next++].second;
        std::copy(bytes.begin(), bytes.end(),
                  wanted.begin() +
                      static_cast<std::ptrdiff_t>(slot.offset_bytes + source.slot_offset_bytes));
      }
    }
    std::vector<std::byte> arena(end, std::byte{0xee});
    auto filler = ArenaFiller::create(layout, arena);
    ASSERT_TRUE(filler.ok()) << filler.status().to_string() << " seed " << seed;
    std::shuffle(tensors.begin(), tensors.end(), random);
    for (const auto& [name, bytes] : tensors) {
      const Status status =
          random() % 2 == 0 ? filler->put(name, bytes) : filler->put_part(name, 0, bytes);
      ASSERT_TRUE(status.ok()) << status.to_string() << " seed " << seed;
    }
    ASSERT_TRUE(filler->finish().ok()) << "seed " << seed;
    EXPECT_EQ(arena, wanted) << "seed " << seed;
  }
}

}  // namespace
}  // namespace warproll
