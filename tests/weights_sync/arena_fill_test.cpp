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
      slot.offset_bytes = align_to_arena(end);
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
