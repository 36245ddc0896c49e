// Arenas in a GPU's memory: every golden checkpoint, in every way in, against the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/weights_sync/gpu/device_fill_support.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;
using ::testing::HasSubstr;

TEST(DeviceFillGpu, every_golden_checkpoint_gives_the_tiles_and_digests_of_the_cpu) {
  SKIP_WITHOUT_GPU();
  const ArenaDevicePtr device = make_cuda_arena_device().value();
  for (const std::string& name : golden_checkpoints()) {
    for (const bool quantise : {false, true}) {
      SCOPED_TRACE(name + (quantise ? ", quantised" : ""));
      const Golden golden(name, quantise);
      DeviceArena arena(device, golden.layout.total_bytes);
      auto filler = device->make_filler(golden.layout, arena.buffer.span(), nullptr);
      ASSERT_TRUE(filler.ok()) << filler.status().to_string();
      expect_filled(golden, arena, fill_from_checkpoint(golden.checkpoint, **filler));
    }
  }
}

// As a transport delivers them: host or device memory, pieces of the stream in any order.
TEST(DeviceFillGpu, parts_in_any_order_give_what_whole_tensors_give) {
  SKIP_WITHOUT_GPU();
  constexpr uint64_t kSeed = 17;
  std::mt19937_64 random(kSeed);
  const ArenaDevicePtr device = make_cuda_arena_device({.pinned_slot_bytes = 1000}).value();
  for (const char* name : {"qwen3moe-tiny", "qwen3moe-tiny-mxfp8-ct", "qwen3moe-tiny-tied",
                           "qwen3moe-tiny-fp8block-ragged", "qwen3moe-tiny-fused"}) {
    for (const bool quantise : {false, true}) {
      for (const bool on_device : {false, true}) {
        SCOPED_TRACE(std::string(name) + (quantise ? ", quantised" : "") +
                     (on_device ? ", from the device" : ""));
        const Golden golden(name, quantise);
        Manifest manifest = make_manifest(golden.checkpoint, 1, 16384).value();
        if (quantise) manifest.quantise = QuantiseRecipe::kMxfp8;
        if (quantise) manifest.weight_digest = golden.host.weight_digest;
        DeviceArena arena(device, golden.layout.total_bytes);
        auto filler = device->make_filler(golden.layout, arena.buffer.span(), &manifest);
        ASSERT_TRUE(filler.ok()) << filler.status().to_string();
        StreamOnDevice stream(golden.checkpoint, manifest);
        std::vector<uint64_t> pieces;
        constexpr uint64_t kPiece = 7000;  // not even aligned
        for (uint64_t at = 0; at < stream.bytes.size(); at += kPiece) pieces.push_back(at);
        std::shuffle(pieces.begin(), pieces.end(), random);
        for (const uint64_t at : pieces) {
          const Status status = on_device ? stream.put_device(**filler, at, kPiece)
                                          : stream.put_host(**filler, at, kPiece);
          ASSERT_TRUE(status.ok()) << status.to_string();
        }
        expect_filled(golden, arena, (*filler)->finish());
      }
    }
  }
}

TEST(DeviceFillGpu, whole_buckets_on_the_device_are_read_in_place_and_may_be_overwritten) {
  SKIP_WITHOUT_GPU();
  const ArenaDevicePtr device = make_cuda_arena_device().value();
  for (const bool quantise : {false, true}) {
    const Golden golden("qwen3moe-tiny-sharded", quantise);
    Manifest manifest = make_manifest(golden.checkpoint, 1, 1 << 20).value();
    if (quantise) manifest.quantise = QuantiseRecipe::kMxfp8;
    if (quantise) manifest.weight_digest = {};
    DeviceArena arena(device, golden.layout.total_bytes);
    auto filler = device->make_filler(golden.layout, arena.buffer.span(), &manifest);
    ASSERT_TRUE(filler.ok()) << filler.status().to_string();
    StreamOnDevice stream(golden.checkpoint, manifest);
    constexpr uint64_t kPiece = 1 << 16;
    for (uint64_t at = 0; at < stream.bytes.size(); at += kPiece) {
      ASSERT_TRUE(stream.put_device_through_slot(**filler, at, kPiece).ok());
    }
    expect_filled(golden, arena, (*filler)->finish());
  }
}

TEST(DeviceFillGpu, what_is_wrong_is_told_in_the_words_of_the_cpu) {
  SKIP_WITHOUT_GPU();
  const ArenaDevicePtr device = make_cuda_arena_device().value();
  const Golden golden("qwen3moe-tiny-mxfp8", false);
  const auto error_of = [&](WeightFiller& filler, const std::string& changed,
                            const std::function<void(std::vector<std::byte>&)>& change) {
    for (size_t i = 0; i < golden.checkpoint.tensors().size(); ++i) {
      const TensorInfo& tensor = golden.checkpoint.tensors()[i];
      const auto from = golden.checkpoint.bytes(i);
      std::vector<std::byte> bytes(from.begin(), from.end());
      if (tensor.name == changed) change(bytes);
      if (bytes.empty()) continue;  // left out
      const Status status = filler.put(tensor.name, bytes);
      if (!status.ok()) return status.to_string();
    }
    const auto filled = filler.finish();
    return filled.ok() ? std::string("no error") : filled.status().to_string();
  };
  const Manifest manifest = make_manifest(golden.checkpoint, 1, 16384).value();
  struct Case {
    std::string tensor;
    std::function<void(std::vector<std::byte>&)> change;
    std::string wanted;
  };
  const std::string expert = "model.layers.1.mlp.experts.3.up_proj.weight";
  const std::vector<Case> cases = {
      {expert, [](auto& b) { b[77] = std::byte{0x7f}; }, "element 77 is NaN or Inf"},
      {expert + "_scale_inv", [](auto& b) { b[5] = std::byte{255}; }, "element 5 is NaN or Inf"},
      {"model.norm.weight", [](auto& b) { b[7] = std::byte{0x7f}, b[6] = std::byte{0x80}; },
       "element 3 is NaN or Inf (BF16 0x7f80)"},
      {expert, [](auto& b) { b[77] ^= std::byte{1}; }, "digest is"},
      {"model.norm.weight", [](auto& b) { b[0] ^= std::byte{1}; }, "digest is"},
      {expert, [](auto& b) { b.clear(); }, "1 of"},
      {expert, [](auto& b) { b.pop_back(); }, "bytes, wanted"}};
  for (const Case& c : cases) {
    DeviceArena arena(device, golden.layout.total_bytes);
    auto filler = device->make_filler(golden.layout, arena.buffer.span(), &manifest).value();
    const std::string got = error_of(*filler, c.tensor, c.change);
    std::vector<std::byte> host_arena(golden.host.layout.total_bytes);
    ArenaFiller host = ArenaFiller::create(golden.host.layout, host_arena, &manifest).value();
    EXPECT_EQ(got, error_of(host, c.tensor, c.change));
    EXPECT_THAT(got, HasSubstr(c.wanted));
  }
  DeviceArena arena(device, golden.layout.total_bytes);
  auto filler = device->make_filler(golden.layout, arena.buffer.span(), nullptr).value();
  EXPECT_THAT(filler->put("nobody", {}).message(), HasSubstr("has no place"));
  ASSERT_TRUE(filler->put("model.norm.weight", golden.checkpoint.bytes(0).first(0)).code() ==
              StatusCode::kInvalidArgument);
  EXPECT_THAT(filler->put("model.norm.weight", {}).message(), HasSubstr("came before"));
}

// Rows alone, at odd places, and an alias: what the models' layouts do not have.
TEST(DeviceFillGpu, rows_lie_where_the_host_has_them_and_aliases_are_compared) {
  SKIP_WITHOUT_GPU();
  const ArenaDevicePtr device = make_cuda_arena_device().value();
  ArenaLayout layout = small_layout();
  layout.slots[1].shape = {12};
  layout.slots[1].bytes = 12;
  layout.slots[1].sources[0].shape = {5};
  layout.slots[1].sources.push_back(
      {.tensor_name = "t", .dtype = Dtype::kU8, .shape = {7}, .slot_offset_bytes = 5});
  layout.total_bytes = 268;
  const auto fill = [&](WeightFiller& filler, int tied) -> std::string {
    const std::vector<std::byte> five(5, std::byte{1}), seven(7, std::byte{2});
    EXPECT_TRUE(filler.put("t", seven).ok());
    EXPECT_TRUE(filler.put("x.tied", bf16_ramp(tied)).ok());
    EXPECT_TRUE(filler.put("x.1", bf16_ramp(100)).ok());
    EXPECT_TRUE(filler.put("x.0", bf16_ramp(1)).ok());
    EXPECT_TRUE(filler.put("s", five).ok());
    const auto filled = filler.finish();
    return filled.ok() ? to_hex(filled->weight_digest) : filled.status().to_string();
  };
  for (const int tied : {1, 2}) {
    std::vector<std::byte> host_arena(layout.total_bytes);
    ArenaFiller host = ArenaFiller::create(layout, host_arena).value();
    DeviceArena arena(device, layout.total_bytes);
    auto filler = device->make_filler(layout, arena.buffer.span(), nullptr).value();
    EXPECT_EQ(fill(*filler, tied), fill(host, tied));
    EXPECT_TRUE(equal_bytes(arena.bytes(), host_arena));
  }
}

// An update that failed half way, then one with another manifest: only gaps are cleared, everything else
// must be overwritten.
TEST(DeviceFillGpu, a_fill_over_half_of_another_layout_leaves_nothing_of_it) {
  SKIP_WITHOUT_GPU();
  const ArenaDevicePtr device = make_cuda_arena_device().value();
  const Golden other("qwen3moe-tiny-fused", true), golden("qwen3moe-tiny-tied", false);
  const uint64_t bytes = golden.layout.total_bytes;
  DeviceArena arena(device, std::max(other.layout.total_bytes, bytes));
  auto half = device->make_filler(other.layout, arena.buffer.span(), nullptr).value();
  for (size_t i = 0; i < other.checkpoint.tensors().size(); i += 2) {
    const std::string& name = other.checkpoint.tensors()[i].name;
    ASSERT_TRUE(half->put(name, other.checkpoint.bytes(i)).ok()) << name;
  }
  half.reset();
  auto filler = device->make_filler(golden.layout, arena.buffer.span(), nullptr).value();
  const auto filled = fill_from_checkpoint(golden.checkpoint, *filler);
  ASSERT_TRUE(filled.ok()) << filled.status().to_string();
  EXPECT_TRUE(equal_bytes(std::span<const std::byte>(arena.bytes()).first(bytes), golden.wanted));
  EXPECT_EQ(to_hex(device->digest(arena.buffer.span().first(bytes))),
            to_hex(tensor_digest(golden.wanted)));
}

// The device keeps its buffers; how many there are depends on how far the host runs ahead, until there
// are enough for one fill.
TEST(DeviceFillGpu, a_thousand_fills_leave_no_memory_behind) {
  SKIP_WITHOUT_GPU();
  constexpr int kFills = 1000;
  constexpr size_t kMoreBuffers =
      16 << 20;  // a buffer is 64 KiB: one lost a fill would be four times that
  const ArenaDevicePtr device = make_cuda_arena_device().value();
  const Golden golden("qwen3moe-tiny", true);
  size_t before = 0, after = 0, total = 0;
  for (int i = 0; i < kFills; ++i) {
    DeviceArena arena(device, golden.layout.total_bytes);
    auto filler = device->make_filler(golden.layout, arena.buffer.span(), nullptr).value();
    if (i % 4 == 3) {  // given up half way
      ASSERT_TRUE(filler->put("model.norm.weight", std::vector<std::byte>(128)).ok());
    } else {
      ASSERT_TRUE(fill_from_checkpoint(golden.checkpoint, *filler).ok());
    }
    filler.reset();
    if (i == 20) WARPROLL_CUDA_CHECK(cudaMemGetInfo(&before, &total));
  }
  WARPROLL_CUDA_CHECK(cudaMemGetInfo(&after, &total));
  EXPECT_GE(after + kMoreBuffers, before);  // free bytes
}

TEST(DeviceFillGpu, an_arena_that_does_not_fit_is_a_status) {
  SKIP_WITHOUT_GPU();
  const ArenaDevicePtr device = make_cuda_arena_device().value();
  const auto buffer = ArenaBuffer::allocate(uint64_t{1} << 42, device);
  EXPECT_EQ(buffer.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(buffer.status().message(),
              HasSubstr("weight arena of 4398046511104 bytes: memory of GPU 0 is exhausted"));
  EXPECT_TRUE(ArenaBuffer::allocate(1 << 20, device).ok());
}

// Cold start, then an update over a transport that has the bytes in host memory.
TEST(DeviceFillGpu, load_staged_and_weight_staging_fill_arenas_on_the_device) {
  SKIP_WITHOUT_GPU();
  const ArenaDevicePtr device = make_cuda_arena_device().value();
  const Golden golden("qwen3moe-tiny", false);
  WeightArenas arenas(0, device);
  auto cold = load_staged(golden.checkpoint, 1, device_layout_function(), arenas);
  ASSERT_TRUE(cold.ok()) << cold.status().to_string();
  EXPECT_EQ((*cold)->device, device);
  EXPECT_EQ((*cold)->weight_digest, golden.host.weight_digest);
  arenas.set_serving(*cold);

  const Manifest manifest = make_manifest(golden.checkpoint, 2, 16384).value();
  UpdateBegin begin;
  begin.id.weight_version = 2;
  begin.manifest = encode_manifest(manifest);
  auto staging = WeightStaging::plan(begin, device_layout_function(), false);
  ASSERT_TRUE(staging.ok()) << staging.status().to_string();
  ASSERT_TRUE(staging->open(arenas.acquire_standby(staging->arena_bytes()).value()).ok());
  StreamOnDevice stream(golden.checkpoint, manifest);
  ASSERT_TRUE(staging->write_device(0, stream.device_bytes(0, 50'000), nullptr).ok());
  ASSERT_TRUE(staging->write(50'000, std::span(stream.bytes).subspan(50'000)).ok());
  auto update = staging->finish({});
  ASSERT_TRUE(update.ok()) << update.status().to_string();
  EXPECT_EQ((*update)->layout_digest, (*cold)->layout_digest);
  EXPECT_NE((*update)->arena.data(), (*cold)->arena.data());
}

}  // namespace
}  // namespace warproll
