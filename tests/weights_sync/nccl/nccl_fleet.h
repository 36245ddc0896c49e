// Broadcaster, UpdateReceivers and the nccl transport together, over a FakeCluster: a trainer and three workers.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/weights_sync/nccl/nccl_group.h"
#include "weights_sync/broadcaster.h"
#include "weights_sync/update_receiver.h"

namespace warproll {

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
    options.layout = checkpoint_fixtures::model_layout();
    options.device = device_;
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
    const OfferedCheckpoint offered = update_fixtures::arith(n, version);
    begin(*offered.manifest, source_.offer(offered).value());
  }
  void begin(const Manifest& manifest, TransportRoute route) {
    UpdateOffer offer;
    offer.weight_version = manifest.weight_version;
    offer.weight_digest = manifest.weight_digest;
    offer.manifest = encode_manifest(manifest);
    offer.routes = {std::move(route)};
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

  ArenaDevicePtr device_;  // of workers that start from now on; null: their weights are the host's
  FakeCluster cluster_;
  NcclSource source_{std::make_shared<FakeNccl>(cluster_),
                     {.silence = milliseconds(20'000), .ending = Patience{}.ending}};
  Broadcaster trainer_{{.trainer_epoch = 1, .restate_ms = 200, .liveness_ms = 60'000}};
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::pair<Envelope, Message>> to_trainer_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace warproll
