// One worker, and fifty trainers that die one after the other in the middle of a TCP transfer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "protocol/bounded_queue.h"
#include "tests/weights_sync/update_fixtures.h"
#include "weights_sync/arena_fill.h"
#include "weights_sync/tcp_transport.h"
#include "weights_sync/update_receiver.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;
using namespace update_fixtures;
using testing::HasSubstr;

constexpr int kTrainers = 50;

// TCP; calls `at_half` once half of the stream is there.
class HalfwayTransport final : public BroadcastTransport {
 public:
  HalfwayTransport(ZmqContext& context, std::function<void()> at_half)
      : tcp_(context, {.chunk_bytes = 10'000, .retry_ms = 100, .keys = {}}),
        at_half_(std::move(at_half)) {}
  [[nodiscard]] std::string_view name() const override { return tcp_.name(); }
  Status receive(const ReceiveRequest& request, const Manifest& manifest, const StreamSink& sink,
                 const Cancellation& cancellation) override {
    uint64_t received = 0;
    bool is_past = false;
    const StreamSink counting = [&](uint64_t offset, std::span<const std::byte> bytes) {
      received += bytes.size();
      if (!is_past && 2 * received > manifest.stream_bytes()) {
        is_past = true;
        at_half_();
      }
      return sink(offset, bytes);
    };
    return tcp_.receive(request, manifest, counting, cancellation);
  }

 private:
  TcpTransport tcp_;
  const std::function<void()> at_half_;
};

TEST(DeadTrainers, FiftyThatDieInTheMiddleLeaveTheOldVersionAndLeakNothing) {
  ZmqContext context;
  std::unique_ptr<TcpSource> source;  // the trainer's; its death is the test's and the sink's
  std::atomic<bool> dies{false};
  std::atomic<int> deaths{0};
  HalfwayTransport transport(context, [&] {
    if (!dies) return;
    source.reset();
    ++deaths;
  });
  BoundedQueue<Message> answers(1024);
  UpdateReceiverOptions options;
  options.protocol.producer_id_hex = "aa";
  options.layout = model_layout();
  options.transports = {&transport};
  options.install = [](const StagedWeightsPtr&) -> Result<InstallReport> {
    return InstallReport{};
  };
  options.send = [&](const Message& message) {
    Message copy = message;
    EXPECT_EQ(answers.try_push(copy), QueueResult::kOk);
  };
  UpdateReceiver receiver(options);
  ASSERT_TRUE(receiver.load_initial(golden("arith-v1"), 1).ok());
  receiver.start();
  const Digest v1 = receiver.serving()->layout_digest;
  const OfferedCheckpoint v2 = arith(2, 2);

  // A new trainer begins the update, and its worker has started to receive.
  const auto begin = [&](uint64_t trainer_epoch) -> UpdateId {
    source = TcpSource::start(context, {}).value();
    const TransportRoute route = source->offer(v2).value();
    const UpdateId id{trainer_epoch, 2, 1};
    receiver.handle(
        UpdateBegin{id, "tcp", route.source, "", encode_manifest(*v2.manifest), 600'000});
    const auto accepted = answers.pop(in_ms(20'000));
    EXPECT_TRUE(accepted && std::holds_alternative<UpdateAccept>(*accepted));
    receiver.handle(UpdateStart{id, {}, ""});
    return id;
  };

  size_t fds = 0, threads = 0;
  dies = true;
  for (int trainer = 1; trainer <= kTrainers; ++trainer) {
    begin(static_cast<uint64_t>(trainer));
    for (const auto deadline = in_ms(20'000); deaths < trainer && Clock::now() < deadline;)
      std::this_thread::yield();
    ASSERT_EQ(deaths, trainer);
    receiver.set_trainer_epoch(static_cast<uint64_t>(trainer) + 1);
    const auto answer = answers.pop(in_ms(20'000));
    ASSERT_TRUE(answer);
    const auto* failed = std::get_if<UpdateFailed>(&*answer);
    ASSERT_NE(failed, nullptr) << message_name(*answer);
    EXPECT_THAT(failed->reason, HasSubstr("has replaced epoch"));
    ASSERT_EQ(receiver.serving()->weight_version, 1u);
    if (trainer == 5) {
      fds = open_fds();
      threads = settled_threads();
    }
  }
  dies = false;
  const StagedWeightsPtr serving = receiver.serving();
  EXPECT_EQ(layout_digest(serving->layout, serving->arena), v1);

  const UpdateId id = begin(kTrainers + 1);
  const auto ready = answers.pop(in_ms(20'000));
  ASSERT_TRUE(ready && std::holds_alternative<UpdateReady>(*ready))
      << receiver.stats().last_failure;
  receiver.handle(UpdateCommit{id});
  const auto committed = answers.pop(in_ms(20'000));
  ASSERT_TRUE(committed && std::holds_alternative<UpdateCommitted>(*committed));
  EXPECT_EQ(receiver.serving()->weight_version, 2u);
  source.reset();
  wait_for_at_most(fds, threads);
  EXPECT_LE(open_fds(), fds);
  EXPECT_LE(live_threads(), threads);
}

}  // namespace
}  // namespace warproll
