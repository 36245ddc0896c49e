// UpdateReceiver on its real threads: one worker, the trainer's messages written by hand.
#include "weights_sync/update_receiver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/weights_sync/update_fixtures.h"
#include "weights_sync/arena_fill.h"
#include "weights_sync/directory_transport.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;
using namespace update_fixtures;
using testing::HasSubstr;

// Brings a checkpoint's bytes in parts and can stop before any of them.
class SteppedTransport final : public BroadcastTransport {
 public:
  [[nodiscard]] std::string_view name() const override { return "stepped"; }
  Status receive(const ReceiveRequest&, const Manifest& manifest, const StreamSink& sink,
                 const Cancellation& cancellation) override {
    parts_ = 0;
    const std::shared_ptr<const Checkpoint> checkpoint = brought();
    for (size_t i = 0; i < manifest.entries.size(); ++i) {
      const auto bytes = checkpoint->bytes(i);
      const uint64_t half = bytes.size() / 2;
      for (const uint64_t from : {uint64_t{0}, half}) {
        if (!wait_at(cancellation)) return aborted("cancelled");
        const uint64_t length = from == 0 ? half : bytes.size() - half;
        WARPROLL_TRY(
            sink(manifest.stream_offset(manifest.entries[i]) + from, bytes.subspan(from, length)));
        ++parts_;
      }
    }
    return wait_at(cancellation) ? ok_status() : aborted("cancelled");
  }
  // Stops before part `part` until it is cancelled or released.
  void stop_at(int part) { stop_at_ = part; }
  void release() { stop_at_ = -1; }
  [[nodiscard]] bool stopped() const { return stopped_; }

  // What the next receive brings; an aborted one may still be on its way out.
  void bring(std::shared_ptr<const Checkpoint> checkpoint) {
    const std::lock_guard lock(mutex_);
    checkpoint_ = std::move(checkpoint);
  }

 private:
  std::shared_ptr<const Checkpoint> brought() {
    const std::lock_guard lock(mutex_);
    return checkpoint_;
  }
  bool wait_at(const Cancellation& cancellation) {
    const auto deadline = in_ms(30'000);
    while (stop_at_ == parts_ && !cancellation.cancelled() && Clock::now() < deadline) {
      stopped_ = true;
      std::this_thread::yield();
    }
    stopped_ = false;
    return !cancellation.cancelled();
  }
  std::mutex mutex_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::atomic<int> parts_{0};
  std::atomic<int> stop_at_{-1};
  std::atomic<bool> stopped_{false};
};

class Receiver : public testing::Test {
 protected:
  void SetUp() override {
    transport.bring(v2.checkpoint);
    options.protocol = {.producer_id_hex = "aa", .defer_retry_ms = 5, .pin_max_ms = 50};
    options.layout = model_layout();
    options.transports = {&transport};
    options.install = [this](const StagedWeightsPtr& weights) -> Result<InstallReport> {
      if (!install_error.empty()) return internal_error(install_error);
      const std::lock_guard lock(mutex);
      engine = weights;
      return InstallReport{7, 1, 3};
    };
    options.send = [this](const Message& message) {
      const std::lock_guard lock(mutex);
      sent.push_back(message);
      changed.notify_all();
    };
  }
  // Cold start on arith-v1 as version 1.
  void start() {
    receiver.emplace(options);
    auto loaded = receiver->load_initial(golden("arith-v1"), 1);
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    engine = *loaded;
    receiver->start();
  }
  UpdateId begin(const OfferedCheckpoint& offered, uint32_t deadline_ms = 20'000) {
    return begin(*offered.manifest, deadline_ms);
  }
  UpdateId begin(const Manifest& manifest, uint32_t deadline_ms = 20'000) {
    const UpdateId id{1, manifest.weight_version, ++attempt};
    receiver->handle(
        UpdateBegin{id, "stepped", "nowhere", "", encode_manifest(manifest), deadline_ms});
    return id;
  }
  // Waits for the next message, which should be a T.
  template <typename T>
  std::optional<T> next() {
    std::unique_lock lock(mutex);
    const bool came = changed.wait_until(lock, in_ms(20'000), [this] { return !sent.empty(); });
    if (!came) {
      ADD_FAILURE() << "no message came";
      return std::nullopt;
    }
    const Message message = sent.front();
    sent.pop_front();
    if (const T* wanted = std::get_if<T>(&message)) return *wanted;
    std::string text(message_name(message));
    if (const auto* failed = std::get_if<UpdateFailed>(&message)) text += ": " + failed->reason;
    if (const auto* rejected = std::get_if<UpdateReject>(&message)) text += ": " + rejected->reason;
    ADD_FAILURE() << "got " << text;
    return std::nullopt;
  }
  bool wait_for(const std::function<bool()>& done) {
    for (const auto deadline = in_ms(20'000); Clock::now() < deadline;) {
      if (done()) return true;
      std::this_thread::yield();
    }
    return done();
  }
  // A whole update; the layout digest that the worker reports.
  Digest update_to(const OfferedCheckpoint& offered) {
    transport.bring(offered.checkpoint);
    const UpdateId id = begin(offered);
    if (!next<UpdateAccept>()) return {};
    receiver->handle(UpdateStart{id, {}, ""});
    const auto ready = next<UpdateReady>();
    if (!ready) return {};
    receiver->handle(UpdateCommit{id});
    const auto committed = next<UpdateCommitted>();
    EXPECT_TRUE(committed && committed->stall_us == 7);
    return ready->layout_digest;
  }

  SteppedTransport transport;
  OfferedCheckpoint v2 = arith(2, 2);
  UpdateReceiverOptions options;
  std::string install_error;
  StagedWeightsPtr engine;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Message> sent;
  uint32_t attempt = 0;
  std::optional<UpdateReceiver> receiver;  // destroyed before what its callbacks use
};

Digest cold_layout_digest(int n) {
  const auto checkpoint = Checkpoint::open(golden("arith-v" + std::to_string(n)));
  const auto loaded = load_checkpoint(*checkpoint, model_layout());
  return layout_digest(loaded->layout, loaded->arena.span());
}

TEST_F(Receiver, AColdStartAndEveryReloadGiveTheSameArenaAsAColdLoad) {
  start();
  EXPECT_EQ(engine->layout_digest, cold_layout_digest(1));
  EXPECT_EQ(update_to(v2), cold_layout_digest(2));
  EXPECT_EQ(update_to(arith(3, 3)), cold_layout_digest(3));
  EXPECT_EQ(update_to(arith(1, 4)), cold_layout_digest(1));
  EXPECT_EQ(engine->weight_version, 4u);
  EXPECT_EQ(layout_digest(engine->layout, engine->arena), cold_layout_digest(1));
  EXPECT_EQ(receiver->weight_status().serving_digest, arith(1, 4).manifest->weight_digest);
}

TEST_F(Receiver, AReloadAfterPoisoningTheStandbyArenaGivesTheSameArena) {
  start();
  update_to(v2);
  StagedWeightsPtr old = receiver->serving();
  update_to(arith(3, 3));
  // The arena of v2 is the standby now; nobody reads it. Nothing of it may survive a reload.
  auto* bytes = const_cast<std::byte*>(old->arena.data());
  std::fill(bytes, bytes + old->arena.size(), std::byte{0xff});
  old.reset();
  EXPECT_EQ(update_to(arith(1, 4)), cold_layout_digest(1));
}

TEST_F(Receiver, AWorkerWithoutACheckpointServesNothingUntilItsFirstUpdate) {
  receiver.emplace(options);
  receiver->start();
  EXPECT_EQ(receiver->weight_status().serving_version, 0u);
  EXPECT_EQ(update_to(v2), cold_layout_digest(2));
  EXPECT_EQ(receiver->weight_status().serving_version, 2u);
  EXPECT_FALSE(receiver->weight_status().can_rollback);
}

TEST_F(Receiver, AnAbortBeforeAnyPartLeavesTheOldVersionAndTheNextUpdateWorks) {
  start();
  const int parts = 2 * static_cast<int>(v2.manifest->entries.size());
  for (int part = 0; part <= parts; ++part) {
    transport.stop_at(part);
    const UpdateId id = begin(v2);
    ASSERT_TRUE(next<UpdateAccept>());
    receiver->handle(UpdateStart{id, {}, ""});
    ASSERT_TRUE(wait_for([&] { return transport.stopped(); }));
    receiver->handle(UpdateAbort{id, "part " + std::to_string(part)});
    const auto failed = next<UpdateFailed>();
    ASSERT_TRUE(failed);
    EXPECT_THAT(failed->reason, HasSubstr("part " + std::to_string(part)));
    EXPECT_EQ(receiver->weight_status().serving_version, 1u);
    ASSERT_TRUE(wait_for([&] { return !transport.stopped(); }));
  }
  EXPECT_EQ(layout_digest(engine->layout, engine->arena), cold_layout_digest(1));
  transport.release();
  EXPECT_EQ(update_to(v2), cold_layout_digest(2));
}

TEST_F(Receiver, NoCallWaitsForATransferThatStandsStill) {
  start();
  transport.stop_at(3);
  const UpdateId id = begin(v2);
  ASSERT_TRUE(next<UpdateAccept>());
  receiver->handle(UpdateStart{id, {}, ""});
  ASSERT_TRUE(wait_for([&] { return transport.stopped(); }));
  const auto started = Clock::now();
  for (int i = 0; i < 1000; ++i) {
    receiver->handle(UpdateStart{id, {}, ""});
    receiver->set_trainer_epoch(1);
    (void)receiver->weight_status();
    (void)receiver->stats();
  }
  EXPECT_LT(Clock::now() - started, std::chrono::seconds(5));
  EXPECT_EQ(receiver->weight_status().update_state, UpdateState::kReceiving);
  EXPECT_EQ(receiver->progress().weight_version, 2u);
  EXPECT_GT(receiver->progress().received_bytes, 0u);
  EXPECT_EQ(receiver->progress().total_bytes, v2.manifest->stream_bytes());
}

TEST_F(Receiver, TheDeadlineEndsATransferThatStandsStill) {
  start();
  transport.stop_at(3);
  const UpdateId id = begin(v2, 100);
  ASSERT_TRUE(next<UpdateAccept>());
  receiver->handle(UpdateStart{id, {}, ""});
  const auto failed = next<UpdateFailed>();
  ASSERT_TRUE(failed);
  EXPECT_THAT(failed->reason, HasSubstr("deadline of 100 ms passed while it was receiving"));
  transport.release();
  EXPECT_EQ(update_to(v2), cold_layout_digest(2));
}

TEST_F(Receiver, DestroyingItEndsATransferThatStandsStill) {
  start();
  transport.stop_at(3);
  const UpdateId id = begin(v2);
  ASSERT_TRUE(next<UpdateAccept>());
  receiver->handle(UpdateStart{id, {}, ""});
  ASSERT_TRUE(wait_for([&] { return transport.stopped(); }));
  const auto started = Clock::now();
  receiver.reset();
  EXPECT_LT(Clock::now() - started, std::chrono::seconds(5));
}

TEST_F(Receiver, OtherBytesThanTheManifestNamesFailWithTheTensor) {
  start();
  transport.bring(arith(3, 2).checkpoint);
  const UpdateId id = begin(v2);
  ASSERT_TRUE(next<UpdateAccept>());
  receiver->handle(UpdateStart{id, {}, ""});
  const auto failed = next<UpdateFailed>();
  ASSERT_TRUE(failed);
  EXPECT_THAT(failed->reason, HasSubstr("tensor '"));
  EXPECT_EQ(receiver->weight_status().serving_version, 1u);
  EXPECT_THAT(receiver->stats().last_failure, HasSubstr("tensor '"));
  EXPECT_EQ(update_to(v2), cold_layout_digest(2));
}

TEST_F(Receiver, AManifestWithoutOneTensorIsRejectedAndMovesNothing) {
  start();
  Manifest manifest = *v2.manifest;
  const std::string name = manifest.entries[3].tensor.name;
  manifest.entries.erase(manifest.entries.begin() + 3);
  ASSERT_TRUE(seal_manifest(manifest).ok());
  begin(manifest);
  const auto rejected = next<UpdateReject>();
  ASSERT_TRUE(rejected);
  EXPECT_THAT(rejected->reason, HasSubstr(name));
  EXPECT_EQ(receiver->stats().received_bytes, 0u);
}

TEST_F(Receiver, AManifestOfAnotherArchitectureIsRejectedByName) {
  start();
  Manifest manifest = *v2.manifest;
  const auto at = manifest.files.config_json.find("Qwen3MoeForCausalLM");
  ASSERT_NE(at, std::string::npos);
  manifest.files.config_json.replace(at, 19, "LlamaForCausalLM");
  ASSERT_TRUE(seal_manifest(manifest).ok());
  begin(manifest);
  const auto rejected = next<UpdateReject>();
  ASSERT_TRUE(rejected);
  EXPECT_THAT(rejected->reason, HasSubstr("LlamaForCausalLM"));
}

TEST_F(Receiver, AManifestThatIsNoManifestIsRejected) {
  start();
  receiver->handle(UpdateBegin{{1, 2, 1}, "stepped", "", "", "garbage", 1000});
  EXPECT_TRUE(next<UpdateReject>());
}

TEST_F(Receiver, ATransportTheWorkerDoesNotHaveIsRejectedByName) {
  start();
  receiver->handle(UpdateBegin{{1, 2, 1}, "nccl", "", "", encode_manifest(*v2.manifest), 1000});
  const auto rejected = next<UpdateReject>();
  ASSERT_TRUE(rejected);
  EXPECT_THAT(rejected->reason, HasSubstr("transport 'nccl', this worker has stepped"));
}

TEST_F(Receiver, AManifestOfAnotherVersionThanItsUpdateIsRejected) {
  start();
  receiver->handle(UpdateBegin{{1, 9, 1}, "stepped", "", "", encode_manifest(*v2.manifest), 1000});
  const auto rejected = next<UpdateReject>();
  ASSERT_TRUE(rejected);
  EXPECT_THAT(rejected->reason, HasSubstr("it is of version 2, the update of version 9"));
}

TEST_F(Receiver, GoldenPromptsDecideBeforeReady) {
  std::atomic<bool> reproduced{false};
  options.golden_gate = [&](const StagedWeightsPtr& weights, const GoldenGate& gate) -> Status {
    EXPECT_EQ(weights->weight_version, 2u);
    EXPECT_EQ(gate.prompts.size(), 1u);
    return reproduced ? ok_status() : data_loss("prompt 0: logprob -3.5, wanted -0.1");
  };
  start();
  Manifest manifest = *v2.manifest;
  manifest.gate = GoldenGate{{GoldenPrompt{{1, 2}, {3}, {-0.1f}}}, 0.01f};
  UpdateId id = begin(manifest);
  ASSERT_TRUE(next<UpdateAccept>());
  receiver->handle(UpdateStart{id, {}, ""});
  const auto failed = next<UpdateFailed>();
  ASSERT_TRUE(failed);
  EXPECT_THAT(failed->reason, HasSubstr("prompt 0: logprob -3.5"));
  reproduced = true;
  id = begin(manifest);
  ASSERT_TRUE(next<UpdateAccept>());
  receiver->handle(UpdateStart{id, {}, ""});
  EXPECT_TRUE(next<UpdateReady>());
}

TEST_F(Receiver, AGateThatNobodyCanRunIsRejectedNotSkipped) {
  start();
  Manifest manifest = *v2.manifest;
  manifest.gate = GoldenGate{{GoldenPrompt{{1, 2}, {3}, {-0.1f}}}, 0.01f};
  begin(manifest);
  const auto rejected = next<UpdateReject>();
  ASSERT_TRUE(rejected);
  EXPECT_THAT(rejected->reason, HasSubstr("golden prompts"));
}

TEST_F(Receiver, APinnedVersionDefersAndItsReleaseLetsTheUpdateGoOn) {
  options.pinned_sequences = [](uint64_t version) { return version == 1 ? 5u : 0u; };
  start();
  StagedWeightsPtr pinned = engine;
  update_to(v2);
  begin(arith(3, 3));
  const auto defer = next<UpdateDefer>();
  ASSERT_TRUE(defer);
  EXPECT_EQ(defer->pinned_sequences, 5u);
  EXPECT_EQ(layout_digest(pinned->layout, pinned->arena), cold_layout_digest(1));
  pinned.reset();
  EXPECT_TRUE(next<UpdateAccept>());
}

TEST_F(Receiver, PinsAreToldToLetGoAfterPinMax) {
  StagedWeightsPtr pinned;
  options.pin_fallback = [&](uint64_t version) {
    EXPECT_EQ(version, 1u);
    pinned.reset();
  };
  start();
  pinned = engine;
  update_to(v2);
  begin(arith(3, 3));
  EXPECT_TRUE(next<UpdateDefer>());
  EXPECT_TRUE(next<UpdateAccept>());
  EXPECT_EQ(receiver->stats().protocol.pin_fallbacks, 1u);
}

TEST_F(Receiver, AnEngineThatRefusesTheInstallGoesOnWithTheOldVersion) {
  start();
  install_error = "the engine is stopping";
  const UpdateId id = begin(v2);
  ASSERT_TRUE(next<UpdateAccept>());
  receiver->handle(UpdateStart{id, {}, ""});
  ASSERT_TRUE(next<UpdateReady>());
  receiver->handle(UpdateCommit{id});
  const auto failed = next<UpdateFailed>();
  ASSERT_TRUE(failed);
  EXPECT_THAT(failed->reason, HasSubstr("the engine is stopping"));
  EXPECT_EQ(receiver->weight_status().serving_version, 1u);
  install_error.clear();
  EXPECT_EQ(update_to(arith(3, 3)), cold_layout_digest(3));
}

TEST_F(Receiver, RollbackFlipsToTheWholeOldArena) {
  start();
  update_to(v2);
  const UpdateId back{1, 1, ++attempt};
  receiver->handle(Rollback{back});
  const auto done = next<RollbackDone>();
  ASSERT_TRUE(done);
  EXPECT_TRUE(done->done) << done->reason;
  EXPECT_EQ(engine->weight_version, 1u);
  EXPECT_EQ(layout_digest(engine->layout, engine->arena), cold_layout_digest(1));
  EXPECT_EQ(receiver->weight_status().serving_version, 1u);
  EXPECT_EQ(receiver->weight_status().rollback_version, 2u);
}

TEST_F(Receiver, UnchangedWeightsUnderANewVersionRaiseTheAlarm) {
  std::string alarm;
  options.alarm = [&](const std::string& text) { alarm = text; };
  start();
  update_to(arith(1, 2));
  EXPECT_THAT(alarm, HasSubstr("weight version 2 has the digest of the serving version 1"));
  EXPECT_EQ(receiver->stats().protocol.same_digest_alarms, 1u);
}

TEST_F(Receiver, ANewTrainerEndsTheUpdateOfTheDeadOne) {
  start();
  transport.stop_at(3);
  const UpdateId id = begin(v2);
  ASSERT_TRUE(next<UpdateAccept>());
  receiver->handle(UpdateStart{id, {}, ""});
  ASSERT_TRUE(wait_for([&] { return transport.stopped(); }));
  receiver->set_trainer_epoch(2);
  const auto failed = next<UpdateFailed>();
  ASSERT_TRUE(failed);
  EXPECT_THAT(failed->reason, HasSubstr("trainer epoch 2 has replaced epoch 1"));
}

TEST_F(Receiver, AnArenaLimitIsAFailureWithBothNumbers) {
  options.max_arena_bytes = 100;
  receiver.emplace(options);
  receiver->start();
  begin(v2);
  const auto failed = next<UpdateFailed>();
  ASSERT_TRUE(failed);
  EXPECT_THAT(failed->reason, HasSubstr("limit 100"));
}

TEST_F(Receiver, AMissingCheckpointIsACleanErrorOfTheColdStart) {
  receiver.emplace(options);
  const auto loaded = receiver->load_initial(golden("no-such-model"), 1);
  EXPECT_FALSE(loaded.ok());
  EXPECT_THAT(loaded.status().message(), HasSubstr("no-such-model"));
}

}  // namespace
}  // namespace warproll
