// `warproll bench sync` without a GPU: the trainer's half on a thread, over a real socket pair and
// FakeNccl; the worker's half as it is, on the CPU.
#include <sys/socket.h>

#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "tests/golden_dir.h"
#include "tests/weights_sync/nccl/fake_nccl.h"
#include "worker/commands/bench_sync_feed.h"
#include "worker/commands/bench_sync_mate.h"
#include "worker/commands/bench_sync_row.h"
#include "worker/commands/bench_sync_trainer.h"
#include "worker/commands/bench_sync_worker.h"
#include "worker/terminal/stop_signal.h"

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

const std::string kConfig = golden_dir() + "/qwen3moe-tiny/config.json";

std::pair<SyncLink, SyncLink> link_pair() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {SyncLink(UniqueFd(ends[0])), SyncLink(UniqueFd(ends[1]))};
}

StreamOptions stream_options() {
  StreamOptions options;
  options.model = {.config_path = kConfig, .weights = "bf16"};
  options.place = StreamPlace::kCpu;
  options.bucket_bytes = 64 << 10;
  return options;
}

Clock::time_point at_us(int64_t us) { return Clock::time_point(std::chrono::microseconds(us)); }

TEST(StepLog, TellsTheLongestGapAndTheRateOfAWindow) {
  StepLog log;
  for (const int64_t us : {0, 100, 200, 300, 1000, 1100, 1200}) log.add(at_us(us), 4);
  const StepWindow all = log.window(at_us(0), at_us(1200));
  EXPECT_EQ(all.num_gaps, 6U);
  EXPECT_DOUBLE_EQ(all.longest_gap_us, 700);
  EXPECT_EQ(all.longest_from, at_us(300));
  EXPECT_DOUBLE_EQ(all.median_gap_us, 100);
  EXPECT_DOUBLE_EQ(all.tokens_per_s, 1e6 * 24 / 1200);
  // A gap that only reaches into the window is seen; its tokens are not counted.
  const StepWindow part = log.window(at_us(900), at_us(1150));
  EXPECT_DOUBLE_EQ(part.longest_gap_us, 700);
  EXPECT_DOUBLE_EQ(part.tokens_per_s, 1e6 * 4 / 100);
  EXPECT_EQ(log.window(at_us(2000), at_us(3000)).num_gaps, 0U);
}

TEST(SyncRow, CountsTheStreamAndNamesWhatTheStallWasIn) {
  StepLog log;
  for (int64_t us = 0; us <= 10'000; us += 100) {
    if (us < 6'100 || us > 6'900) log.add(at_us(us), 8);
  }
  SyncUpdate update;
  update.begun = at_us(4'000);
  update.receive = {at_us(4'500), at_us(5'000), at_us(7'000), at_us(7'500),
                    at_us(8'800), 1'000'000,    9'000'000};
  update.ready = at_us(8'000);
  update.committed = at_us(8'500);
  SyncRow row = make_sync_row(update, log, {at_us(0), at_us(4'000)}, at_us(9'000));
  EXPECT_DOUBLE_EQ(row.stall_us, 900);
  EXPECT_DOUBLE_EQ(row.stall_steps, 9);
  EXPECT_EQ(row.stall_phase, SyncPhase::kStream);
  EXPECT_DOUBLE_EQ(row.noise_us, 0);
  EXPECT_NEAR(row.gb_per_s, 8e6 / 1e9 / 3e-3, 1e-9);
  EXPECT_NEAR(row.closing_s, 1.3e-3, 1e-9);
  EXPECT_NEAR(row.seconds, 4.5e-3, 1e-9);
  EXPECT_NEAR(row.tokens_per_s_before, 80'000, 1);
  EXPECT_NEAR(row.tokens_per_s_during, 1e6 * 8 * 11 / 2000, 1);
}

TEST(SyncLink, CarriesAFrameAndAnAnswersFailure) {
  auto [mine, theirs] = link_pair();
  SyncFrame frame;
  frame.task = SyncTask::kStart;
  frame.id = {1, 7, 3};
  frame.deadline_ms = 55;
  frame.text = std::string("a\0b", 3) + std::string(1 << 20, 'x');
  std::thread other([&theirs = theirs] {
    const Result<SyncFrame> got = theirs.receive(seconds(10));
    ASSERT_TRUE(got.ok());
    EXPECT_TRUE(theirs.send(*got).ok());
    ASSERT_TRUE(theirs.receive(seconds(10)).ok());
    EXPECT_TRUE(theirs.send(failed_frame(SyncTask::kStart, not_found("no such thing"))).ok());
  });
  const Result<SyncFrame> echoed = mine.ask(frame, seconds(10));
  ASSERT_TRUE(echoed.ok()) << echoed.status().to_string();
  EXPECT_EQ(echoed->text, frame.text);
  EXPECT_EQ(echoed->id, frame.id);
  EXPECT_EQ(echoed->deadline_ms, 55U);
  const Status failed = mine.ask(frame, seconds(10)).status();
  EXPECT_EQ(failed.code(), StatusCode::kNotFound);
  EXPECT_NE(failed.message().find("no such thing"), std::string::npos);
  other.join();
  EXPECT_EQ(mine.receive(milliseconds(1)).status().code(), StatusCode::kDeadlineExceeded);
  theirs.close();
  EXPECT_EQ(mine.receive(seconds(10)).status().code(), StatusCode::kUnavailable);
}

TEST(SyncStream, IsTheManifestsAndAnotherForEachSeed) {
  const Result<DrawStream> draw = make_draw_stream(stream_options());
  ASSERT_TRUE(draw.ok()) << draw.status().to_string();
  const Digest first = (*draw)(1, 1)->manifest->weight_digest;
  const Digest second = (*draw)(2, 2)->manifest->weight_digest;
  EXPECT_NE(first, second);
  EXPECT_EQ((*draw)(3, 1)->manifest->weight_digest, first);
  const Result<DrawnStream> drawn = (*draw)(4, 2);
  for (const ManifestEntry& entry : drawn->manifest->entries) {
    const std::byte* at = drawn->bytes + drawn->manifest->stream_offset(entry);
    EXPECT_EQ(tensor_digest({at, entry.tensor.bytes}), entry.digest) << entry.tensor.name;
  }
}

TEST(RandomModel, CanHaveFewerLayersThanItsConfig) {
  RandomModel model{.config_path = kConfig, .weights = "bf16"};
  const Result<RandomCheckpoint> whole = describe_random_model(model);
  model.layers = 1;
  const Result<RandomCheckpoint> cut = describe_random_model(model);
  ASSERT_TRUE(whole.ok() && cut.ok());
  EXPECT_EQ(whole->config.num_layers, 3);
  EXPECT_EQ(cut->config.num_layers, 1);
  EXPECT_LT(cut->tensors.size(), whole->tensors.size());
}

Result<std::unique_ptr<SyncWorker>> start_worker(const StreamOptions& options, int32_t index,
                                                 TimedTransport& transport, StopSignal& stop) {
  SyncWorkerOptions worker_options;
  worker_options.index = index;
  worker_options.model = options.model;
  worker_options.quantise_to_mxfp8 = options.quantise_to_mxfp8;
  worker_options.batch = 2;
  worker_options.context = 8;
  worker_options.tokens = 256;
  WARPROLL_TRY_ASSIGN(device, open_model_device({.device = "cpu"}));
  WARPROLL_TRY_ASSIGN(draw, make_draw_stream(options));
  const auto load = [draw](uint64_t version, uint64_t seed, const LayoutFunction& layout,
                           WeightArenas& arenas) -> Result<StagedWeightsPtr> {
    WARPROLL_TRY_ASSIGN(drawn, draw(version, seed));
    return load_drawn(drawn, layout, arenas);
  };
  return SyncWorker::start(worker_options, std::move(device), load, 2, transport, stop);
}

// All of it, with threads in place of the trainer's and further workers' processes.
struct TwoHalves {
  explicit TwoHalves(bool quantise = false) {
    options = stream_options();
    options.quantise_to_mxfp8 = quantise;
    auto [here, there] = link_pair();
    mine = std::move(here);
    threads.emplace_back([this, theirs = std::move(there)]() mutable {
      static_cast<void>(serve_sync_trainer(theirs, std::make_shared<FakeNccl>(cluster),
                                           *make_draw_stream(options), {}));
    });
    feed = nccl_feed(mine, std::make_shared<FakeNccl>(cluster), 8, {}, mates);
    transport = std::make_unique<TimedTransport>(feed.transport);
  }
  ~TwoHalves() {
    worker.reset();
    mine.close();
    for (const auto& link : mate_links) link->close();
    for (std::thread& thread : threads) thread.join();
  }

  void add_mate() {
    const auto index = static_cast<int32_t>(mates.size()) + 1;
    auto [here, there] = link_pair();
    mate_links.push_back(std::make_unique<SyncLink>(std::move(here)));
    mates.push_back(std::make_unique<SyncMate>(*mate_links.back(), index));
    threads.emplace_back([this, index, theirs = std::move(there)]() mutable {
      StopSignal its_stop;
      const auto api = std::make_shared<FakeNccl>(cluster);
      SyncLink no_link;
      const SyncFeed its_feed = nccl_feed(no_link, api, 8, {}, {});
      TimedTransport its_transport(its_feed.transport);
      const auto its_worker = start_worker(options, index, its_transport, its_stop);
      ASSERT_TRUE(its_worker.ok()) << its_worker.status().to_string();
      EXPECT_TRUE(serve_sync_mate(theirs, **its_worker, api).ok());
    });
  }

  Status start() {
    WARPROLL_TRY_ASSIGN(started, start_worker(options, 0, *transport, stop));
    worker = std::move(started);
    for (const auto& mate : mates) {
      WARPROLL_TRY(worker->add_mate(*mate));
      WARPROLL_TRY(mate->decode(true));
    }
    return worker->start_decoding();
  }

  void expect_update(uint64_t version, uint64_t seed, int32_t max_ctas) {
    Result<UpdateOffer> offer = feed.offer(version, seed, max_ctas);
    ASSERT_TRUE(offer.ok()) << offer.status().to_string();
    const uint64_t bytes = offer->stream_bytes;
    const Result<SyncUpdate> done = worker->update(std::move(*offer));
    ASSERT_TRUE(done.ok()) << done.status().to_string();
    EXPECT_EQ(done->weight_digest, worker->cold_digests(seed).weight);
    EXPECT_EQ(done->layout_digest, worker->cold_digests(seed).layout);
    EXPECT_EQ(done->receive.bytes, bytes);
    EXPECT_LE(done->begun, done->receive.begun);
    EXPECT_LE(done->receive.begun, done->receive.first);
    EXPECT_LT(done->receive.first, done->receive.last);
    EXPECT_LE(done->receive.ended, done->ready);
    EXPECT_LE(done->ready, done->committed);
  }

  FakeCluster cluster;
  std::vector<std::unique_ptr<SyncMate>> mates;
  std::vector<std::unique_ptr<SyncLink>> mate_links;
  StreamOptions options;
  SyncLink mine;
  std::vector<std::thread> threads;
  SyncFeed feed;
  StopSignal stop;
  std::unique_ptr<TimedTransport> transport;
  std::unique_ptr<SyncWorker> worker;
};

TEST(BenchSync, BringsUpdatesOverNcclWhileTheWorkerDecodes) {
  TwoHalves halves;
  ASSERT_TRUE(halves.start().ok());
  halves.expect_update(2, 2, 4);
  halves.expect_update(3, 1, 8);
  halves.expect_update(4, 2, 1);
  EXPECT_TRUE(halves.worker->stop_decoding().ok());
  const size_t steps = halves.worker->steps().num_steps();
  EXPECT_TRUE(halves.worker->run_until(Clock::now() + milliseconds(20)).ok());
  EXPECT_EQ(halves.worker->steps().num_steps(), steps);
}

TEST(BenchSync, BringsUpdatesToFurtherWorkersToo) {
  TwoHalves halves;
  halves.add_mate();
  halves.add_mate();
  ASSERT_TRUE(halves.feed.offer(1, 2, 4).ok());
  ASSERT_TRUE(halves.start().ok());
  for (const uint64_t version : {2, 3}) {
    SyncRowOrder order;
    order.before.from = Clock::now();
    // Three engines share the machine: so long that each makes steps in it.
    EXPECT_TRUE(halves.worker->run_until(order.before.from + milliseconds(1000)).ok());
    order.before.to = Clock::now();
    order.seed = version == 2 ? 2 : 1;
    order.max_ctas = 4;
    const Result<BareTimes> bare = halves.feed.bare(4);
    ASSERT_TRUE(bare.ok()) << bare.status().to_string();
    halves.expect_update(version, order.seed, 4);
    EXPECT_TRUE(halves.worker->run_until(Clock::now() + milliseconds(20)).ok());
    order.settled = Clock::now();
    const Result<DrawStream> draw = make_draw_stream(halves.options);
    const Result<DrawnStream> drawn = (*draw)(version, order.seed);
    order.stream_bytes = drawn->manifest->stream_bytes();
    order.manifest_digest = drawn->manifest->weight_digest;
    EXPECT_TRUE(row_of(*halves.worker, order).digests_equal);
    int32_t index = 0;
    for (const auto& mate : halves.mates) {
      const Result<SyncRow> row = mate->row(order);
      ASSERT_TRUE(row.ok()) << row.status().to_string();
      EXPECT_TRUE(row->digests_equal);
      EXPECT_EQ(row->worker, ++index);
      EXPECT_GT(row->seconds, 0);
      EXPECT_GT(row->tokens_per_s_before, 0);
      EXPECT_EQ(row->stream_bytes, order.stream_bytes);
    }
    order.seed = 3 - order.seed;  // the other weights'
    EXPECT_FALSE(row_of(*halves.worker, order).digests_equal);
  }
}

TEST(BenchSync, ComparesQuantisedWeightsWithAColdStartToo) {
  TwoHalves halves(/*quantise=*/true);
  const Status started = halves.start();
  ASSERT_TRUE(started.ok()) << started.to_string();
  halves.expect_update(2, 2, 4);
}

TEST(BenchSync, MeasuresBareBroadcastsBetweenUpdates) {
  TwoHalves halves;
  EXPECT_FALSE(halves.feed.bare(4).ok());  // nothing is drawn yet
  ASSERT_TRUE(halves.feed.offer(2, 2, 4).ok());
  for (int i = 0; i < 2; ++i) {
    const Result<BareTimes> bare = halves.feed.bare(4);
    ASSERT_TRUE(bare.ok()) << bare.status().to_string();
    EXPECT_GT(bare->seconds, 0);
  }
  ASSERT_TRUE(halves.start().ok());
  halves.expect_update(3, 2, 4);
}

TEST(BenchSync, AnUpdateThatFailsSaysWhyAndTheNextOneComes) {
  TwoHalves halves;
  ASSERT_TRUE(halves.start().ok());
  FakeFaults faults;
  faults.error_from = 1;
  halves.cluster.set(faults);
  Result<UpdateOffer> offer = halves.feed.offer(2, 2, 4);
  ASSERT_TRUE(offer.ok());
  const Status failed = halves.worker->update(std::move(*offer)).status();
  EXPECT_FALSE(failed.ok());
  EXPECT_NE(failed.message().find("given up"), std::string::npos) << failed.message();
  halves.cluster.set({});
  halves.expect_update(3, 2, 4);
}

TEST(BenchSync, OfOwnMemoryNeedsNoTrainer) {
  TwoHalves halves;
  const Result<DrawStream> draw = make_draw_stream(halves.options);
  ASSERT_TRUE(draw.ok());
  halves.feed = memory_feed(*draw, nullptr);
  EXPECT_FALSE(halves.feed.bare);
  halves.transport = std::make_unique<TimedTransport>(halves.feed.transport);
  ASSERT_TRUE(halves.start().ok());
  halves.expect_update(2, 2, 0);
  halves.expect_update(3, 1, 0);
}

}  // namespace
}  // namespace warproll
