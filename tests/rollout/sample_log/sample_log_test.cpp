// Intake: numbering, durability, reopening, locking, refusing.
#include "rollout/sample_log/sample_log.h"

#include <gmock/gmock.h>
#include <rocksdb/write_batch.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <thread>

#include "protocol/codec.h"
#include "rollout/sample_log/log_reader.h"
#include "rollout/sample_log/store.h"
#include "tests/rollout/sample_log/fixture.h"

namespace warproll::testing {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<SampleLog> open_ok(const SampleLogOptions& options) {
  auto log = SampleLog::open(options);
  EXPECT_TRUE(log.ok()) << log.status().to_string();
  return log.ok() ? *std::move(log) : nullptr;
}

TEST(SampleLog, ANewDirectoryBeginsAtSeqOneEpochOne) {
  TempFolder folder;
  std::mt19937_64 rng(1);
  auto log = open_ok(test_options(folder.path()));
  EXPECT_EQ(log->epoch(), 1u);
  EXPECT_EQ(log->last_seq(), 0u);
  EXPECT_NE(log->producer_id(), ProducerId{});
  const auto sealed = append_many(*log, 1, rng);
  ASSERT_EQ(sealed.size(), 1u);
  EXPECT_EQ(sealed[0].seq, 1u);
  EXPECT_EQ(sealed[0].trajectory_id, to_hex(log->producer_id()) + "-1");
  EXPECT_EQ(log->last_seq(), 1u);
}

TEST(SampleLog, AStoredSampleDecodesToWhatWasAppendedWithItsIdentity) {
  TempFolder folder;
  std::mt19937_64 rng(2);
  auto log = open_ok(test_options(folder.path()));
  for (bool routes : {false, true}) {
    Trajectory wanted = make_trajectory({.task_id = "t", .group_id = "g", .routes = routes}, rng);
    auto sealed = log->append(wanted, soon()).get();
    ASSERT_TRUE(sealed.ok()) << sealed.status().to_string();
    wanted.seq = sealed->seq;
    wanted.epoch = 1;
    wanted.producer_id = log->producer_id();
    wanted.trajectory_id = sealed->trajectory_id;
    wanted.timings.sealed_ns = sealed->sealed_ns;
    const auto stored = log->read(sealed->seq);
    ASSERT_TRUE(stored.ok()) << stored.status().to_string();
    EXPECT_EQ(stored->sealed_ns, sealed->sealed_ns);
    EXPECT_EQ(stored->record.size() + stored->tensors.size(), sealed->bytes);
    EXPECT_EQ(stored->tensors.empty(), !routes);
    const auto decoded = decode_stored(*stored);
    ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
    EXPECT_EQ(*decoded, wanted);
    Bytes record;
    Bytes tensors;
    ASSERT_TRUE(encode_trajectory(wanted, &record, &tensors).ok());
    EXPECT_EQ(stored->record, record);
    EXPECT_EQ(stored->tensors, tensors);
  }
}

TEST(SampleLog, CompressedRecordsReadBackTheSameBytes) {
  TempFolder folder;
  std::mt19937_64 rng(3);
  auto options = test_options(folder.path());
  options.compress_records = true;
  auto log = open_ok(options);
  Trajectory wanted = make_trajectory({.group_id = {}, .response_tokens = 50, .routes = true}, rng);
  wanted.metadata = std::string(20000, 'm');
  const auto sealed = log->append(wanted, soon()).get();
  ASSERT_TRUE(sealed.ok());
  const auto stored = log->read(1);
  ASSERT_TRUE(stored.ok()) << stored.status().to_string();
  EXPECT_EQ(stored->record.size() + stored->tensors.size(), sealed->bytes);
  EXPECT_EQ(decode_stored(*stored)->metadata, wanted.metadata);
}

class EveryDurability : public ::testing::TestWithParam<Durability> {};

TEST_P(EveryDurability, ConcurrentAppendsGetGapFreeSeqsInCallbackOrder) {
  TempFolder folder;
  auto options = test_options(folder.path());
  options.durability = GetParam();
  options.queue_samples = 8;
  options.seq_block = 16;
  auto log = open_ok(options);
  constexpr int kThreads = 4;
  constexpr int kEach = 50;
  std::vector<uint64_t> seqs;  // callbacks come from one thread
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 rng(static_cast<uint64_t>(t));
      for (int i = 0; i < kEach; ++i) {
        const auto status = log->append(
            make_trajectory({.task_id = std::to_string(t * kEach + i), .group_id = {}}, rng),
            soon(), [&seqs](Result<Sealed> sealed) { seqs.push_back(sealed->seq); });
        ASSERT_TRUE(status.ok()) << status.to_string();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE(log->close().ok());
  ASSERT_EQ(seqs.size(), static_cast<size_t>(kThreads * kEach));
  for (size_t i = 0; i < seqs.size(); ++i) EXPECT_EQ(seqs[i], i + 1);
}

TEST_P(EveryDurability, AReopenedLogKeepsItsSamplesAndProducerAndRaisesTheEpoch) {
  TempFolder folder;
  std::mt19937_64 rng(4);
  auto options = test_options(folder.path());
  options.durability = GetParam();
  ProducerId producer{};
  uint64_t count = 0;
  for (uint64_t epoch = 1; epoch <= 4; ++epoch) {
    auto log = open_ok(options);
    if (epoch == 1) producer = log->producer_id();
    EXPECT_EQ(log->epoch(), epoch);
    EXPECT_EQ(log->producer_id(), producer);
    EXPECT_EQ(log->last_seq(), count);
    append_many(*log, 10, rng, static_cast<int>(count));
    count += 10;
    for (uint64_t seq = 1; seq <= count; ++seq) EXPECT_TRUE(log->read(seq).ok()) << seq;
    const auto accounting = log->accounting();
    ASSERT_TRUE(accounting.ok());
    EXPECT_TRUE(accounting->holds()) << accounting->to_string();
    EXPECT_EQ(accounting->gaps, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(SampleLog, EveryDurability,
                         ::testing::Values(Durability::kEach, Durability::kGroup, Durability::kOs),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST(SampleLog, SamplesQueuedTogetherShareABatch) {
  TempFolder folder;
  std::mt19937_64 rng(5);
  auto options = test_options(folder.path());
  options.batch_wait_ms = 200;
  auto log = open_ok(options);
  append_many(*log, 100, rng);
  EXPECT_LT(log->stats().batches, 20u);
  EXPECT_EQ(log->stats().sealed_samples, 100u);
}

TEST(SampleLog, TheListenerHearsOfEachBatchAfterItIsInTheOutbox) {
  TempFolder folder;
  std::mt19937_64 rng(6);
  auto log = open_ok(test_options(folder.path()));
  std::atomic<uint64_t> heard{0};
  std::atomic<bool> in_outbox{true};
  log->set_sealed_listener([&](uint64_t last_seq) {
    const auto outbox = log->read_outbox(last_seq, 1);
    if (!outbox.ok() || outbox->empty() || outbox->front().seq != last_seq) in_outbox = false;
    heard = last_seq;
  });
  append_many(*log, 30, rng);
  EXPECT_TRUE(wait_until([&] { return heard == 30; }));
  EXPECT_TRUE(in_outbox);
  log->set_sealed_listener(nullptr);
  append_many(*log, 1, rng, 30);
  EXPECT_EQ(heard, 30u);
}

TEST(SampleLog, ADirectoryInUseIsRefusedWithItsNameAndTheHoldersPid) {
  TempFolder folder;
  auto log = open_ok(test_options(folder.path()));
  const auto second = SampleLog::open(test_options(folder.path()));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr(folder.path()));
  EXPECT_THAT(second.status().message(), HasSubstr("pid " + std::to_string(getpid())));
  ASSERT_TRUE(log->close().ok());
  log.reset();
  EXPECT_TRUE(SampleLog::open(test_options(folder.path())).ok());
}

TEST(SampleLog, AnInvalidTrajectoryIsRefusedAndTakesNoSeq) {
  TempFolder folder;
  std::mt19937_64 rng(7);
  auto log = open_ok(test_options(folder.path()));
  Trajectory bad = make_trajectory({.group_id = {}}, rng);
  bad.logprobs[10] = std::numeric_limits<float>::quiet_NaN();
  bool called = false;
  const Status status = log->append(bad, soon(), [&](const Result<Sealed>&) { called = true; });
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("logprobs[10]"));
  EXPECT_EQ(append_many(*log, 1, rng).at(0).seq, 1u);
  ASSERT_TRUE(log->close().ok());
  EXPECT_FALSE(called);
}

TEST(SampleLog, AClosedLogTakesNothingMore) {
  TempFolder folder;
  std::mt19937_64 rng(8);
  auto log = open_ok(test_options(folder.path()));
  ASSERT_TRUE(log->close().ok());
  ASSERT_TRUE(log->close().ok());
  const auto sealed = log->append(make_trajectory({.group_id = {}}, rng), soon()).get();
  EXPECT_EQ(sealed.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(log->read(1).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(log->stats().intake, IntakeState::kClosed);
}

TEST(SampleLog, IsSealedKnowsTaskAndSampleIndex) {
  TempFolder folder;
  std::mt19937_64 rng(9);
  auto log = open_ok(test_options(folder.path()));
  for (int i : {0, 2}) {
    ASSERT_TRUE(
        log->append(make_trajectory({.task_id = "a", .group_id = {}, .sample_index = i}, rng),
                    soon())
            .get()
            .ok());
  }
  EXPECT_TRUE(*log->is_sealed("a", 0));
  EXPECT_FALSE(*log->is_sealed("a", 1));
  EXPECT_TRUE(*log->is_sealed("a", 2));
  EXPECT_FALSE(*log->is_sealed("aa", 0));
  EXPECT_FALSE(*log->is_sealed("", 0));
}

TEST(SampleLog, AnUnknownFormatVersionIsRefusedByNumber) {
  TempFolder folder;
  ASSERT_TRUE(SampleLog::open(test_options(folder.path())).ok());
  {
    auto store = Store::open({.directory = folder.path(), .on_warning = {}});
    ASSERT_TRUE(store.ok()) << store.status().to_string();
    rocksdb::WriteBatch batch;
    batch.Put((*store)->session().family(Family::kMeta), kMetaFormat, be64(2));
    ASSERT_TRUE((*store)->write(&batch, true).ok());
  }
  const auto log = SampleLog::open(test_options(folder.path()));
  EXPECT_EQ(log.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(log.status().message(), HasSubstr("format version 2, this program reads 1"));
}

TEST(SampleLog, OptionsOutOfRangeAreNamed) {
  auto options = test_options("/nonexistent");
  options.queue_samples = 0;
  const auto log = SampleLog::open(options);
  EXPECT_EQ(log.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(log.status().message(), HasSubstr("queue_samples"));
  EXPECT_FALSE(durability_from("fsync").ok());
  EXPECT_THAT(durability_from("fsync").status().message(), HasSubstr("each, group or os"));
}

}  // namespace
}  // namespace warproll::testing
