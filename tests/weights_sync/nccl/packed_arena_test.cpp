// A trainer that packs the arena itself: what workers make of it, over a FakeCluster.
#include "weights_sync/packed_arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/weights_sync/nccl/nccl_fleet.h"
#include "weights_sync/arena_fill.h"
#include "weights_sync/nccl/nccl_terms.h"

namespace warproll {
namespace {

using checkpoint_fixtures::model_layout;
using checkpoint_fixtures::small_layout;
using testing::AllOf;
using testing::HasSubstr;
using update_fixtures::arith;

// The device's way into an arena that is in host memory after all.
class HostedFiller final : public WeightFiller {
 public:
  explicit HostedFiller(ArenaFiller filler) : filler_(std::move(filler)) {}
  Status put(std::string_view name, std::span<const std::byte> bytes) override {
    return filler_.put(name, bytes);
  }
  Status put_part(std::string_view name, uint64_t offset,
                  std::span<const std::byte> bytes) override {
    return filler_.put_part(name, offset, bytes);
  }
  Status put_device(std::span<const DevicePart> parts, void*) override {
    for (const DevicePart& part : parts) {
      WARPROLL_TRY(filler_.put_part(part.tensor_name, part.offset_bytes, part.bytes));
    }
    return ok_status();
  }
  Result<FilledArena> finish() override { return filler_.finish(); }

 private:
  ArenaFiller filler_;
};

// A GPU's memory, in the host's as that of FakeNccl is.
class HostedDevice final : public ArenaDevice {
 public:
  explicit HostedDevice(bool in_device_memory) : in_device_memory_(in_device_memory) {}
  [[nodiscard]] bool in_device_memory() const override { return in_device_memory_; }
  Result<std::byte*> allocate(uint64_t bytes) override {
    return static_cast<std::byte*>(std::aligned_alloc(kArenaAlignment, align_to_arena(bytes)));
  }
  void release(std::byte* memory) noexcept override { std::free(memory); }
  Result<std::unique_ptr<WeightFiller>> make_filler(const ArenaLayout& layout,
                                                    std::span<std::byte> arena,
                                                    const Manifest* manifest) override {
    WARPROLL_TRY_ASSIGN(filler, ArenaFiller::create(layout, arena, manifest));
    return std::unique_ptr<WeightFiller>(std::make_unique<HostedFiller>(std::move(filler)));
  }
  Digest digest(std::span<const std::byte> bytes) override { return tensor_digest(bytes); }

 private:
  const bool in_device_memory_;
};

struct Packed {
  OfferedCheckpoint offered;
  PackedArena arena;
  std::shared_ptr<std::byte> bytes;
  Digest layout_digest{};  // of a worker in host memory
  [[nodiscard]] OfferedArena offer() const { return {offered.manifest, arena, bytes}; }
};

Packed pack(int n, uint64_t version) {
  Packed packed;
  packed.offered = arith(n, version);
  auto loaded = std::make_shared<LoadedWeights>(
      std::move(*load_checkpoint(*packed.offered.checkpoint, model_layout())));
  const auto all = loaded->arena.span().first(loaded->layout.total_bytes);
  packed.arena = {layout_key(loaded->layout), all.size(), tensor_digest(all)};
  packed.layout_digest = layout_digest(loaded->layout, all);
  packed.bytes = {loaded, all.data()};
  return packed;
}

class PackedArenaFleet : public NcclFleet, public testing::WithParamInterface<bool> {
 protected:
  // On a device they receive in place, in host memory through slots.
  PackedArenaFleet() { use(GetParam() ? std::make_shared<HostedDevice>(true) : nullptr); }
  void use(ArenaDevicePtr device) {
    device_ = std::move(device);
    for (const auto& worker : workers_) restart(*worker);
  }
  void begin(const Packed& packed) {
    NcclFleet::begin(*packed.offered.manifest, source_.offer_arena(packed.offer()));
  }
  void expect_all_serve(const Packed& packed) {
    for (const auto& worker : workers_) {
      ASSERT_TRUE(worker->engine);
      EXPECT_EQ(worker->engine->weight_version, packed.offered.manifest->weight_version);
      EXPECT_EQ(worker->engine->weight_digest, packed.offered.manifest->weight_digest);
      EXPECT_EQ(worker->engine->layout_digest,
                GetParam() ? packed.arena.digest : packed.layout_digest);
      EXPECT_EQ(tensor_digest(worker->engine->arena), packed.arena.digest);
    }
  }
  // The update of `packed` is refused with `words`; what serves, serves on.
  void expect_refused(const Packed& packed, const testing::Matcher<std::string>& words) {
    begin(packed);
    ASSERT_TRUE(pump_until([this] { return !trainer_.has_pending(); }));
    EXPECT_THAT(trainer_.report().reason, words);
    EXPECT_NE(workers_[0]->engine->weight_version, packed.offered.manifest->weight_version);
  }
};

INSTANTIATE_TEST_SUITE_P(Arenas, PackedArenaFleet, testing::Bool(), [](const auto& on_device) {
  return on_device.param ? "InPlace" : "Host";
});

TEST_P(PackedArenaFleet, IsWhatEveryWorkerServes) {
  uint64_t version = 0;
  for (const int n : {1, 2, 3, 1}) {
    const Packed packed = pack(n, ++version);
    begin(packed);
    ASSERT_TRUE(pump()) << trainer_.report().reason;
    expect_all_serve(packed);
    const UpdateProgress progress = workers_[0]->receiver->progress();
    EXPECT_EQ(progress.received_bytes, packed.arena.bytes);
    EXPECT_EQ(progress.total_bytes, packed.arena.bytes);
  }
  // And tensors again: a worker packs them to the same bytes.
  NcclFleet::begin(2, ++version);
  ASSERT_TRUE(pump()) << trainer_.report().reason;
  expect_all_serve(pack(2, version));
}

TEST_P(PackedArenaFleet, AWorkerThatDiesInTheMiddleIsBackInTheNextGroup) {
  begin(pack(1, 1));
  ASSERT_TRUE(pump());
  const Packed second = pack(2, 2);
  cluster_.set({.death_is_noticed = false, .hold_from = 6});
  begin(second);
  ASSERT_TRUE(pump_until([this] {
    const UpdateProgress progress = workers_[1]->receiver->progress();
    return progress.received_bytes > 0 && progress.weight_version == 2;
  }));
  cluster_.set({.death_is_noticed = false});
  restart(*workers_[1]);
  ASSERT_TRUE(pump()) << trainer_.report().reason;
  expect_all_serve(second);
}

TEST_P(PackedArenaFleet, OneThatDoesNotFitIsRefusedWithBothValues) {
  begin(pack(1, 1));
  ASSERT_TRUE(pump());
  Packed packed = pack(2, 2);
  packed.arena.layout[0] ^= 1;
  expect_refused(packed, AllOf(HasSubstr("its layout is " + to_hex(packed.arena.layout)),
                               HasSubstr("this worker's " + to_hex(pack(2, 2).arena.layout))));
  packed = pack(2, 3);
  packed.arena.bytes -= 256;
  expect_refused(
      packed, HasSubstr(std::to_string(packed.arena.bytes) + " bytes, this worker's layout has " +
                        std::to_string(packed.arena.bytes + 256)));
  expect_all_serve(pack(1, 1));
  begin(pack(2, 4));
  ASSERT_TRUE(pump()) << trainer_.report().reason;
  expect_all_serve(pack(2, 4));
}

TEST_P(PackedArenaFleet, BytesThatAreNotTheTrainersNeverServe) {
  begin(pack(1, 1));
  ASSERT_TRUE(pump());
  Packed packed = pack(2, 2);
  packed.bytes.get()[packed.arena.bytes / 2] ^= std::byte{1};
  expect_refused(packed, HasSubstr("the packed arena's digest is"));
  begin(pack(3, 3));
  ASSERT_TRUE(pump()) << trainer_.report().reason;
  expect_all_serve(pack(3, 3));
}

class PackedArenaRefusal : public NcclFleet {};

TEST_F(PackedArenaRefusal, AWorkerWhoseWeightsAreStagedInHostMemoryWantsTensors) {
  device_ = std::make_shared<HostedDevice>(false);
  for (const auto& worker : workers_) restart(*worker);
  begin(1, 1);
  ASSERT_TRUE(pump());
  const Packed packed = pack(2, 2);
  NcclFleet::begin(*packed.offered.manifest, source_.offer_arena(packed.offer()));
  ASSERT_TRUE(pump_until([this] { return !trainer_.has_pending(); }));
  EXPECT_THAT(trainer_.report().reason, HasSubstr("weights.swap host_staged"));
  EXPECT_EQ(workers_[0]->engine->weight_version, 1u);
}

// A kernel that outlives its group may write into the standby arena at any time.
TEST(PackedArenaTransport, NothingIsReceivedWhileAnEndedGroupMayStillWrite) {
  const Packed packed = pack(1, 3);
  FakeFleet fleet(packed.offered);
  fleet.set(kImpatient);
  fleet.route() = fleet.source().offer_arena(packed.offer());
  fleet.cluster().set({.death_is_noticed = false, .hold_from = 2, .kernels_outlive_abort = true});
  fleet.start(1, 0);
  FakeMember member(fleet.cluster(), packed.arena.bytes, kImpatient);
  std::vector<std::byte> arena(packed.arena.bytes);
  ReceiveRequest request{fleet.id(), fleet.route().source, "", in_ms(10'000 * kSlow)};
  request.participants = {"worker 0"};
  request.nccl_unique_id = "id 1";
  request.rank = 1;
  request.packed = packed.arena;
  request.arena = arena;
  request.device_sink = [](uint64_t, std::span<const std::byte>, void*) { return ok_status(); };
  const auto receive = [&] {
    return member.transport->receive(request, *packed.offered.manifest, {}, member.cancellation);
  };
  EXPECT_EQ(receive().code(), StatusCode::kUnavailable);
  EXPECT_THAT(receive().message(), HasSubstr("restart this worker"));
  fleet.cluster().release();
}

TEST(PackedArenaTerms, AreReadBackAndWhatIsNotOneIsRefused) {
  const Packed packed = pack(1, 1);
  HelloEnvironment terms = nccl_terms("2.28.9", 1, {});
  EXPECT_FALSE(packed_arena_in(terms).value().has_value());
  EXPECT_EQ(check_nccl_terms(terms, terms).message(), "");
  const HelloEnvironment worker = terms;
  HelloEnvironment older = terms;
  std::erase_if(older, [](const auto& term) { return term.first == "nccl.arenas"; });
  EXPECT_EQ(check_nccl_terms(terms, older).message(), "");  // it can have tensors
  add_packed_arena(terms, packed.arena);
  const HelloEnvironment sent = decode_nccl_terms(encode_nccl_terms(terms));
  EXPECT_EQ(packed_arena_in(sent).value(), packed.arena);
  EXPECT_EQ(check_nccl_terms(sent, worker).message(), "");
  EXPECT_THAT(check_nccl_terms(sent, older).message(),
              HasSubstr("nccl.arenas is '' at the worker, wanted 'received'"));
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"nccl.arena.layout", "12"},
           {"nccl.arena.layout", ""},
           {"nccl.arena.digest", std::string(32, 'g')},
           {"nccl.arena.bytes", "0"},
           {"nccl.arena.bytes", "-1"},
           {"nccl.arena.bytes", "12 "},
           {"nccl.arena.bytes", "99999999999999999999"}}) {
    HelloEnvironment wrong = sent;
    for (auto& term : wrong) {
      if (term.first == key) term.second = value;
    }
    EXPECT_THAT(packed_arena_in(wrong).status().message(), HasSubstr(key)) << value;
  }
}

TEST(LayoutKey, ChangesWithEverythingThatPlacesBytes) {
  const ArenaLayout layout = small_layout();
  std::set<Digest> keys = {layout_key(layout)};
  const auto differs = [&](const std::function<void(ArenaLayout&)>& change) {
    ArenaLayout other = layout;
    change(other);
    return keys.insert(layout_key(other)).second;
  };
  EXPECT_EQ(layout_key(layout), layout_key(small_layout()));
  EXPECT_TRUE(differs([](auto& l) { l.total_bytes += 256; }));
  EXPECT_TRUE(differs([](auto& l) { l.slots[0].name += "x"; }));
  EXPECT_TRUE(differs([](auto& l) { l.slots[0].dtype = Dtype::kF16; }));
  EXPECT_TRUE(differs([](auto& l) { l.slots[0].shape.push_back(1); }));
  EXPECT_TRUE(differs([](auto& l) { l.slots[1].offset_bytes += 256; }));
  EXPECT_TRUE(differs([](auto& l) { l.slots[1].bytes += 1; }));
  EXPECT_TRUE(differs([](auto& l) { l.slots[0].form = SlotForm::kTiles; }));
  EXPECT_TRUE(differs([](auto& l) { l.slots[0].tile_region = 0; }));
  EXPECT_TRUE(differs([](auto& l) { l.slots[0].first_row = 1; }));
  EXPECT_TRUE(differs([](auto& l) { l.slots[0].num_rows = 1; }));
  EXPECT_TRUE(differs([](auto& l) { l.slots[0].sources.pop_back(); }));
  EXPECT_TRUE(differs([](auto& l) { std::swap(l.slots[0].sources[0], l.slots[0].sources[1]); }));
  EXPECT_TRUE(differs([](auto& l) { l.slots[0].sources[0].tensor_name += "x"; }));
  EXPECT_TRUE(
      differs([](auto& l) { l.slots[0].sources[0].transform = FillTransform::kQuantiseMxfp8; }));
  EXPECT_TRUE(differs([](auto& l) { l.slots[0].sources[0].slot_offset_bytes += 2; }));
  EXPECT_TRUE(differs([](auto& l) { l.slots[0].sources[0].scale_slot = 1; }));
  EXPECT_TRUE(differs([](auto& l) { l.slots[0].sources[0].scale_offset_bytes += 2; }));
  EXPECT_TRUE(differs([](auto& l) { l.aliases.clear(); }));
  EXPECT_TRUE(differs([](auto& l) { l.tile_regions.push_back({.name = "r"}); }));
  EXPECT_TRUE(differs([](auto& l) { l.tile_regions.push_back({.name = "r", .rows = 16}); }));
  EXPECT_TRUE(differs([](auto& l) { l.tile_regions.push_back({.name = "r", .gate_up = true}); }));
  EXPECT_TRUE(differs([](auto& l) { l.tile_regions.push_back({.name = "r", .bytes = 16}); }));
}

}  // namespace
}  // namespace warproll
