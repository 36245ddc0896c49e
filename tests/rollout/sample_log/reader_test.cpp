// Queries, and inspection of a log while its worker writes.
#include "rollout/sample_log/log_reader.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "rollout/sample_log/log_check.h"
#include "rollout/sample_log/sample_log.h"
#include "tests/rollout/sample_log/fixture.h"

namespace warproll::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<uint64_t> seqs_of(const LogReader& reader, const SampleQuery& query) {
  std::vector<uint64_t> out;
  auto cursor = reader.query(query);
  while (true) {
    const auto next = cursor.next();
    EXPECT_TRUE(next.ok()) << next.status().to_string();
    if (!next.ok() || !next->has_value()) return out;
    out.push_back((*next)->seq);
  }
}

class Query : public ::testing::Test {
 protected:
  // seq:      1  2  3  4  5  6
  // task:     a  a  b  ab c  c
  // group:    g  g  g  h  h  h
  // version:  1  2  1  2  1  2
  void SetUp() override {
    log_ = *SampleLog::open(test_options(folder_.path()));
    const char* tasks[] = {"a", "a", "b", "ab", "c", "c"};
    for (int i = 0; i < 6; ++i) {
      const auto sealed = log_->append(make_trajectory({.task_id = tasks[i],
                                                        .group_id = i < 3 ? "g" : "h",
                                                        .sample_index = i % 2,
                                                        .weight_version = i % 2 == 0 ? 1u : 2u},
                                                       rng_),
                                       soon())
                              .get();
      ASSERT_TRUE(sealed.ok()) << sealed.status().to_string();
      sealed_ns_.push_back(sealed->sealed_ns);
    }
    reader_ = log_->reader();
  }
  SampleQuery query() const { return {}; }

  TempFolder folder_;
  std::mt19937_64 rng_{51};
  std::unique_ptr<SampleLog> log_;
  std::shared_ptr<LogReader> reader_;
  std::vector<int64_t> sealed_ns_;
};

TEST_F(Query, BySeqRange) {
  SampleQuery range = query();
  EXPECT_THAT(seqs_of(*reader_, range), ElementsAre(1, 2, 3, 4, 5, 6));
  range.from_seq = 3;
  range.to_seq = 5;
  EXPECT_THAT(seqs_of(*reader_, range), ElementsAre(3, 4, 5));
  range.from_seq = 7;
  range.to_seq = 100;
  EXPECT_THAT(seqs_of(*reader_, range), IsEmpty());
}

TEST_F(Query, ByTaskDoesNotMixIdsThatShareABeginning) {
  SampleQuery task = query();
  task.task_id = "a";
  EXPECT_THAT(seqs_of(*reader_, task), ElementsAre(1, 2));
  task.task_id = "ab";
  EXPECT_THAT(seqs_of(*reader_, task), ElementsAre(4));
  task.task_id = "abc";
  EXPECT_THAT(seqs_of(*reader_, task), IsEmpty());
}

TEST_F(Query, ByGroupAndByWeightVersion) {
  SampleQuery group = query();
  group.group_id = "h";
  EXPECT_THAT(seqs_of(*reader_, group), ElementsAre(4, 5, 6));
  SampleQuery version = query();
  version.weight_version = 2;
  EXPECT_THAT(seqs_of(*reader_, version), ElementsAre(2, 4, 6));
  version.weight_version = 3;
  EXPECT_THAT(seqs_of(*reader_, version), IsEmpty());
}

TEST_F(Query, ConditionsAreJoined) {
  SampleQuery both = query();
  both.group_id = "h";
  both.weight_version = 2;
  EXPECT_THAT(seqs_of(*reader_, both), ElementsAre(4, 6));
  both.from_seq = 5;
  EXPECT_THAT(seqs_of(*reader_, both), ElementsAre(6));
  both.task_id = "c";
  both.from_seq = 1;
  EXPECT_THAT(seqs_of(*reader_, both), ElementsAre(6));
  both.group_id = "g";
  EXPECT_THAT(seqs_of(*reader_, both), IsEmpty());
}

TEST_F(Query, ByTimeIsExactToTheNanosecond) {
  SampleQuery time = query();
  time.from_ns = sealed_ns_[1];
  time.to_ns = sealed_ns_[4];
  EXPECT_THAT(seqs_of(*reader_, time), ElementsAre(2, 3, 4));
  time.weight_version = 2;
  EXPECT_THAT(seqs_of(*reader_, time), ElementsAre(2, 4));
  SampleQuery before = query();
  before.to_ns = sealed_ns_[0];
  EXPECT_THAT(seqs_of(*reader_, before), IsEmpty());
}

TEST_F(Query, ManySamplesAreWalkedInChunksWithoutLossOrRepeat) {
  append_many(*log_, 1000, rng_, 10);
  std::vector<uint64_t> wanted;
  for (uint64_t seq = 1; seq <= 1006; ++seq) wanted.push_back(seq);
  EXPECT_EQ(seqs_of(*reader_, query()), wanted);
  SampleQuery time = query();
  time.from_ns = 0;
  EXPECT_EQ(seqs_of(*reader_, time), wanted);
}

TEST_F(Query, TheSummaryCountsWhatIsStored) {
  const auto summary = summarize_log(folder_.path());
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_EQ(summary->samples, 6u);
  EXPECT_EQ(summary->groups, 2u);
  EXPECT_EQ(summary->tasks, 4u);
  EXPECT_EQ(summary->oldest_ns, sealed_ns_[0]);
  EXPECT_EQ(summary->newest_ns, sealed_ns_[5]);
  EXPECT_THAT(summary->samples_by_weight_version,
              ElementsAre(std::make_pair(1, 3), std::make_pair(2, 3)));
  EXPECT_EQ(summary->info, log_->info());
}

TEST_F(Query, InspectionOfALogInUseGivesTheSameBytesAndLeavesNoFiles) {
  const auto inspected = LogReader::open_for_inspection(folder_.path());
  ASSERT_TRUE(inspected.ok()) << inspected.status().to_string();
  for (uint64_t seq = 1; seq <= 6; ++seq) {
    EXPECT_EQ(*(*inspected)->read(seq), *log_->read(seq));
  }
  append_many(*log_, 1, rng_, 10);
  EXPECT_EQ((*inspected)->info()->last_seq, 6u) << "a snapshot does not move";
}

TEST(Inspection, ScratchFoldersGoWithTheReaderAndDeadReadersAreSweptAtTheNextStart) {
  namespace fs = std::filesystem;
  TempFolder folder;
  std::mt19937_64 rng(61);
  const auto scratch_folders = [&] {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      if (entry.path().filename().string().rfind(".inspect-", 0) == 0) ++count;
    }
    return count;
  };
  {
    auto log = SampleLog::open(test_options(folder.path()));
    ASSERT_TRUE(log.ok());
    auto reader = LogReader::open_for_inspection(folder.path());
    ASSERT_TRUE(reader.ok());
    EXPECT_EQ(scratch_folders(), 1);
  }
  EXPECT_EQ(scratch_folders(), 0);
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  waitpid(dead, nullptr, 0);
  fs::create_directories(folder.path() + "/.inspect-" + std::to_string(dead) + "-1-0");
  ASSERT_TRUE(SampleLog::open(test_options(folder.path())).ok());
  EXPECT_EQ(scratch_folders(), 0);
}

TEST(Inspection, ADirectoryWithoutALogIsNotFound) {
  TempFolder folder;
  EXPECT_EQ(LogReader::open_for_inspection(folder.path("nowhere")).status().code(),
            StatusCode::kNotFound);
}

// The writer is another process that appends, commits, removes and flushes as fast as it can.
TEST(Inspection, WhileAWorkerWritesEverySnapshotIsCleanAndHoldsAllThatWasAcknowledgedBefore) {
  constexpr int kSnapshots = 15;
  TempFolder folder;
  const Child child = start_child({"--writer", folder.path(), "os", "91"});
  std::atomic<uint64_t> acknowledged{0};
  std::atomic<bool> ended{false};
  std::thread oracle([&] {
    char buffer[4096];
    std::string pending;
    while (true) {
      const ssize_t length = read(child.read_fd, buffer, sizeof(buffer));
      if (length <= 0) break;
      pending.append(buffer, static_cast<size_t>(length));
      const size_t end = pending.rfind('\n');
      if (end == std::string::npos) continue;
      const size_t begin = pending.rfind('\n', end - 1);
      const std::string last = pending.substr(begin == std::string::npos ? 0 : begin + 1, end);
      acknowledged = std::stoull(last);
      pending.erase(0, end + 1);
    }
    ended = true;
  });
  uint64_t seen = 0;
  for (int i = 0; i < kSnapshots; ++i) {
    // Some progress between two snapshots.
    EXPECT_TRUE(wait_until([&] { return acknowledged > seen + 20 || ended; }));
    ASSERT_FALSE(ended) << "the writer died";
    const uint64_t before = acknowledged;
    const auto report = verify_log(folder.path());
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_TRUE(report->clean()) << to_string(report->findings.at(0).kind) << " seq "
                                 << report->findings.at(0).seq << ": "
                                 << report->findings.at(0).text;
    EXPECT_GE(report->info.last_seq, before);
    seen = report->info.last_seq;
  }
  kill(child.pid, SIGKILL);
  oracle.join();
  waitpid(child.pid, nullptr, 0);
  close(child.read_fd);
  EXPECT_GT(seen, 300u);
}

}  // namespace
}  // namespace warproll::testing
