// Broadcaster, UpdateReceivers and the nccl transport together, over a FakeCluster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/weights_sync/nccl/nccl_group.h"
#include "weights_sync/arena_fill.h"
#include "weights_sync/broadcaster.h"
#include "weights_sync/update_receiver.h"

namespace warproll {
namespace {

using checkpoint_fixtures::model_layout;
using update_fixtures::arith;

class NcclFleet : public testing::Test {
 protected:
  struct Worker {
    ProducerId id{};
    uint64_t epoch = 1;
    std::unique_ptr<NcclTransport> transport;
    StagedWeightsPtr engine;
    std::unique_ptr<UpdateReceiver> receiver;
  };

  NcclFleet() { add_worker(), add_worker(), add_worker(); }
  ~NcclFleet() override {
    cluster_.release();
    for (auto& worker : workers_) worker->receiver.reset();
  }

  void add_worker() {
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->id[0] = static_cast<uint8_t>(workers_.size());
    start(*workers_.back());
  }

  void start(Worker& worker) {
    worker.transport = std::make_unique<NcclTransport>(
        std::make_shared<FakeNccl>(cluster_),
        NcclTransportOptions{.silence = milliseconds(20'000), .ending = Patience{}.ending});
    UpdateReceiverOptions options;
    options.protocol.producer_id_hex = to_hex(Digest(worker.id));
    options.layout = model_layout();
    options.transports = {worker.transport.get()};
    options.install = [&worker](const StagedWeightsPtr& weights) {
      worker.engine = weights;
      return Result<InstallReport>(InstallReport{});
    };
    options.send = [this, id = worker.id, epoch = worker.epoch](const Message& message) {
      const std::lock_guard lock(mutex_);
      to_trainer_.push_back({{id, epoch, 0}, message});
      came_.notify_all();
    };
    worker.receiver = std::make_unique<UpdateReceiver>(options);
    worker.receiver->start();
    Hello hello;
    hello.transports = worker.receiver->transport_names();
    hello.environment = worker.transport->environment();
    trainer_.on_message({worker.id, worker.epoch, 0}, hello, ms());
  }

  // As after a SIGKILL: nothing of it is left, and it begins with nothing.
  void restart(Worker& worker) {
    worker.receiver.reset();
    worker.engine.reset();
    ++worker.epoch;
    start(worker);
  }

  void begin(int n, uint64_t version) {
    const OfferedCheckpoint offered = arith(n, version);
    UpdateOffer offer;
    offer.weight_version = version;
    offer.weight_digest = offered.manifest->weight_digest;
    offer.manifest = encode_manifest(*offered.manifest);
    offer.routes = {source_.offer(offered).value()};
    ASSERT_TRUE(trainer_.begin_update(std::move(offer), ms()).ok());
  }

  bool pump_until(const std::function<bool()>& done) {
    for (const auto end = in_ms(30'000); Clock::now() < end;) {
      std::deque<std::pair<Envelope, Message>> inbox;
      {
        std::unique_lock lock(mutex_);
        came_.wait_until(lock, in_ms(5), [this] { return !to_trainer_.empty(); });
        inbox.swap(to_trainer_);
      }
      for (const auto& [from, message] : inbox) trainer_.on_message(from, message, ms());
      trainer_.tick(ms());
      for (const BroadcastMessage& out : trainer_.take_outgoing()) {
        for (const auto& worker : workers_) {
          if (worker->id == out.to) worker->receiver->handle(out.message);
        }
      }
      if (done()) return true;
    }
    return false;
  }
  bool pump() {
    return pump_until([this] { return trainer_.converged(); });
  }

  static int64_t ms() {
    return std::chrono::duration_cast<milliseconds>(Clock::now().time_since_epoch()).count();
  }

  FakeCluster cluster_;
  NcclSource source_{std::make_shared<FakeNccl>(cluster_),
                     {.silence = milliseconds(20'000), .ending = Patience{}.ending}};
  Broadcaster trainer_{{.trainer_epoch = 1, .restate_ms = 200, .liveness_ms = 60'000}};
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::pair<Envelope, Message>> to_trainer_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

TEST_F(NcclFleet, ReloadsEqualColdLoadsOnEveryWorker) {
  uint64_t version = 0;
  for (const int n : {1, 2, 3, 1}) {
    begin(n, ++version);
    ASSERT_TRUE(pump()) << trainer_.report().reason;
    const auto cold = load_checkpoint(*arith(n, version).checkpoint, model_layout());
    const Digest want = layout_digest(cold->layout, cold->arena.span());
    for (const auto& worker : workers_) {
      EXPECT_EQ(worker->engine->weight_version, version);
      EXPECT_EQ(worker->engine->layout_digest, want);
    }
  }
}

TEST_F(NcclFleet, AWorkerThatDiesInTheMiddleIsBackInTheNextGroupWithAllOthers) {
  begin(1, 1);
  ASSERT_TRUE(pump());
  cluster_.set({.death_is_noticed = false, .hold_from = 6});
  begin(2, 2);
  ASSERT_TRUE(pump_until([this] {
    return workers_[1]->receiver->progress().received_bytes > 0 &&
           workers_[1]->receiver->progress().weight_version == 2;
  }));
  cluster_.set({.death_is_noticed = false});
  restart(*workers_[1]);
  ASSERT_TRUE(pump()) << trainer_.report().reason;
  for (const auto& worker : workers_) {
    EXPECT_EQ(worker->engine->weight_version, 2u);
    EXPECT_EQ(worker->engine->layout_digest, workers_[0]->engine->layout_digest);
  }
}

TEST_F(NcclFleet, ALateJoinerGetsTheVersionInAGroupOfItsOwn) {
  begin(3, 7);
  ASSERT_TRUE(pump());
  add_worker();
  EXPECT_FALSE(trainer_.converged());
  ASSERT_TRUE(pump());
  EXPECT_EQ(workers_[3]->engine->layout_digest, workers_[0]->engine->layout_digest);
}

}  // namespace
}  // namespace warproll
