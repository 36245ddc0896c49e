// One worker's UpdateReceiver on its real threads, the trainer's messages written by hand, and a
// transport that can stand still before any part.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "tests/weights_sync/update_fixtures.h"
#include "weights_sync/arena_fill.h"
#include "weights_sync/update_receiver.h"

namespace warproll::update_receiver_fixture {

using namespace checkpoint_fixtures;
using namespace update_fixtures;

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
        if (parts_ == throw_at_) throw std::runtime_error("unspecified launch failure");
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
  // As CUDA's faults do; -1: not.
  void throw_at(int part) { throw_at_ = part; }
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
  std::atomic<int> throw_at_{-1};
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

  // Why an update to v2 fails: before it is ready, or when it is committed.
  std::string failure_of_update(bool is_committed = false) {
    const UpdateId id = begin(v2);
    if (!next<UpdateAccept>()) return {};
    receiver->handle(UpdateStart{id, {}, ""});
    if (is_committed) {
      if (!next<UpdateReady>()) return {};
      receiver->handle(UpdateCommit{id});
    }
    const auto failed = next<UpdateFailed>();
    return failed ? failed->reason : "";
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

inline Digest cold_layout_digest(int n) {
  const auto checkpoint = Checkpoint::open(golden("arith-v" + std::to_string(n)));
  const auto loaded = load_checkpoint(*checkpoint, model_layout());
  return layout_digest(loaded->layout, loaded->arena.span());
}

}  // namespace warproll::update_receiver_fixture
