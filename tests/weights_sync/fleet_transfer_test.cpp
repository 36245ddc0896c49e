// Broadcaster, UpdateReceivers and the real transports together, in one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/weights_sync/update_fixtures.h"
#include "weights_sync/arena_fill.h"
#include "weights_sync/broadcaster.h"
#include "weights_sync/checkpoint_writer.h"
#include "weights_sync/directory_transport.h"
#include "weights_sync/tcp_transport.h"
#include "weights_sync/update_receiver.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;
using namespace update_fixtures;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // their allocators keep freed memory; leaks are theirs to find
#else
constexpr bool kSanitized = false;
#endif

class TransferFleet {
 public:
  TransferFleet(int num_workers, std::string transport, LayoutFunction layout,
                const std::string& directory)
      : transport_(std::move(transport)),
        layout_(std::move(layout)),
        directory_source_(std::move(*VersionDirectory::open(directory))),
        tcp_source_(std::move(*TcpSource::start(context_, {}))),
        trainer_({.trainer_epoch = 1, .restate_ms = 200, .liveness_ms = 60'000}) {
    for (int i = 0; i < num_workers; ++i) add_worker();
  }

  void add_worker() {
    auto worker = std::make_unique<Worker>();
    worker->id[0] = static_cast<uint8_t>(workers_.size() + 1);
    worker->tcp = std::make_unique<TcpTransport>(context_, TcpTransportOptions{});
    UpdateReceiverOptions options;
    options.protocol.producer_id_hex = to_hex(Digest(worker->id));
    options.layout = layout_;
    options.transports = {worker->tcp.get(), &worker->directory};
    options.install = [w = worker.get()](const StagedWeightsPtr& weights) {
      w->engine = weights;
      return Result<InstallReport>(InstallReport{});
    };
    options.send = [this, id = worker->id](const Message& message) {
      const std::lock_guard lock(mutex_);
      to_trainer_.emplace_back(id, message);
      came_.notify_all();
    };
    worker->receiver = std::make_unique<UpdateReceiver>(options);
    worker->receiver->start();
    workers_.push_back(std::move(worker));
    hello(*workers_.back());
  }

  void hello(const auto& worker) {
    Hello hello;
    hello.weights = worker.receiver->weight_status();
    hello.transports = worker.receiver->transport_names();
    trainer_.on_message({worker.id, 1, 0}, hello, ms());
  }

  // Publishes and waits until everybody serves it.
  bool update(const OfferedCheckpoint& offered) {
    BroadcastSource& source =
        transport_ == "tcp" ? static_cast<BroadcastSource&>(*tcp_source_) : directory_source_;
    const auto route = source.offer(offered);
    if (!route.ok()) {
      ADD_FAILURE() << route.status().to_string();
      return false;
    }
    UpdateOffer offer;
    offer.weight_version = offered.manifest->weight_version;
    offer.weight_digest = offered.manifest->weight_digest;
    offer.manifest = encode_manifest(*offered.manifest);
    offer.stream_bytes = offered.manifest->stream_bytes();
    offer.routes = {*route};
    if (!trainer_.begin_update(offer, ms()).ok()) return false;
    return pump();
  }

  bool pump() {
    for (const auto deadline = in_ms(60'000); Clock::now() < deadline;) {
      std::deque<std::pair<ProducerId, Message>> inbox;
      {
        std::unique_lock lock(mutex_);
        came_.wait_until(lock, in_ms(20), [this] { return !to_trainer_.empty(); });
        inbox.swap(to_trainer_);
      }
      for (const auto& [id, message] : inbox) trainer_.on_message({id, 1, 0}, message, ms());
      trainer_.tick(ms());
      for (const BroadcastMessage& out : trainer_.take_outgoing()) {
        for (const auto& worker : workers_) {
          if (worker->id == out.to) worker->receiver->handle(out.message);
        }
      }
      if (!trainer_.has_pending() && !trainer_.report().committed) {
        ADD_FAILURE() << trainer_.report().reason;
        return false;
      }
      if (trainer_.converged()) return true;
    }
    return false;
  }

  [[nodiscard]] const StagedWeightsPtr& engine(int worker) { return workers_[worker]->engine; }
  [[nodiscard]] UpdateReceiver& receiver(int worker) { return *workers_[worker]->receiver; }
  [[nodiscard]] Broadcaster& trainer() { return trainer_; }
  static int64_t ms() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch())
        .count();
  }

 private:
  struct Worker {
    ProducerId id{};
    std::unique_ptr<TcpTransport> tcp;
    DirectoryTransport directory;
    StagedWeightsPtr engine;
    std::unique_ptr<UpdateReceiver> receiver;
  };
  const std::string transport_;
  const LayoutFunction layout_;
  ZmqContext context_;
  DirectorySource directory_source_;
  std::unique_ptr<TcpSource> tcp_source_;
  Broadcaster trainer_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::pair<ProducerId, Message>> to_trainer_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

class FleetTransfer : public testing::TestWithParam<const char*> {
 protected:
  TempDir directory;
};

TEST_P(FleetTransfer, ReloadsOneTwoThreeOneEqualColdLoadsOnEveryWorker) {
  TransferFleet fleet(2, GetParam(), model_layout(), directory / "versions");
  uint64_t version = 0;
  for (const int n : {1, 2, 3, 1}) {
    const OfferedCheckpoint offered = arith(n, ++version);
    ASSERT_TRUE(fleet.update(offered)) << "version " << version;
    const auto cold = load_checkpoint(*offered.checkpoint, model_layout());
    const Digest want = layout_digest(cold->layout, cold->arena.span());
    for (int worker = 0; worker < 2; ++worker) {
      const StagedWeightsPtr& engine = fleet.engine(worker);
      EXPECT_EQ(engine->weight_version, version);
      EXPECT_EQ(engine->weight_digest, offered.manifest->weight_digest);
      EXPECT_EQ(layout_digest(engine->layout, engine->arena), want);
      EXPECT_EQ(engine->layout_digest, want);
    }
  }
}

TEST_P(FleetTransfer, ALateJoinerGetsTheCommittedVersion) {
  TransferFleet fleet(1, GetParam(), model_layout(), directory / "versions");
  ASSERT_TRUE(fleet.update(arith(2, 5)));
  fleet.add_worker();
  EXPECT_FALSE(fleet.trainer().converged());
  ASSERT_TRUE(fleet.pump());
  EXPECT_EQ(fleet.engine(1)->layout_digest, fleet.engine(0)->layout_digest);
}

// Three tensors of a model of its own, each in a slot of its own.
Result<ArenaLayout> one_slot_each(const CheckpointFiles&, std::span<const TensorInfo> tensors) {
  ArenaLayout layout;
  for (const TensorInfo& tensor : tensors) {
    ArenaSlot slot{tensor.name, tensor.dtype, tensor.shape, layout.total_bytes, tensor.bytes, {}};
    SlotSource source;
    source.tensor_name = tensor.name;
    source.dtype = tensor.dtype;
    source.shape = tensor.shape;
    slot.sources.push_back(source);
    layout.slots.push_back(slot);
    layout.total_bytes += align_to_arena(tensor.bytes);
  }
  return layout;
}

OfferedCheckpoint tiny(const std::string& path, uint64_t version, int32_t filling) {
  static const int kValues[] = {1, 700, 3000};
  std::vector<std::vector<int32_t>> values;
  CheckpointToWrite checkpoint;
  for (const int count : kValues) {
    values.emplace_back(count, filling);
    checkpoint.tensors.push_back(
        {"t" + std::to_string(count), Dtype::kI32, {count}, 4 * static_cast<uint64_t>(count)});
  }
  checkpoint.bytes = [&](size_t i) { return std::as_bytes(std::span(values[i])); };
  checkpoint.files.config_json = "{}";
  EXPECT_TRUE(write_checkpoint(path, checkpoint).ok());
  auto opened = Checkpoint::open(path);
  auto manifest = make_manifest(*opened, version, kMinBucketBytes);
  return {std::make_shared<const Checkpoint>(std::move(*opened)),
          std::make_shared<const Manifest>(std::move(*manifest))};
}

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0, resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * 4096;
}

TEST_P(FleetTransfer, AThousandUpdatesLeakNoDescriptorThreadOrMemory) {
  TransferFleet fleet(1, GetParam(), one_slot_each, directory / "versions");
  // Eight versions in turn: publishing syncs a disk, and it is the updates that are counted.
  std::vector<OfferedCheckpoint> versions;
  for (int i = 1; i <= 8; ++i) {
    versions.push_back(tiny(directory / ("c" + std::to_string(i)), static_cast<uint64_t>(i), i));
  }
  size_t fds = 0, threads = 0;
  int64_t resident = 0;
  for (int update = 1; update <= 1000; ++update) {
    const OfferedCheckpoint& offered = versions[update % 8];
    ASSERT_TRUE(fleet.update(offered)) << "update " << update;
    ASSERT_EQ(fleet.engine(0)->weight_digest, offered.manifest->weight_digest);
    if (update == 100) {
      fds = open_fds();
      threads = settled_threads();
      resident = resident_bytes();
    }
  }
  const size_t closing = 4;  // descriptors of a connection that was, or is not yet
  wait_for_at_most(fds + closing, threads);
  EXPECT_LE(open_fds(), fds + closing);
  EXPECT_EQ(live_threads(), threads);
  if (!kSanitized) {
    EXPECT_LT(resident_bytes(), resident + (8 << 20));
  }
  EXPECT_EQ(fleet.receiver(0).stats().protocol.committed, 1000u);
  EXPECT_EQ(fleet.receiver(0).stats().protocol.failed, 0u);
}

INSTANTIATE_TEST_SUITE_P(Transports, FleetTransfer, testing::Values("tcp", "directory"),
                         [](const auto& transport) { return std::string(transport.param); });

}  // namespace
}  // namespace warproll
