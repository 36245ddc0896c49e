// A writer process killed at random instants: nothing acknowledged is lost, no seq is used twice.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <sstream>
#include <thread>

#include "rollout/sample_log/log_check.h"
#include "rollout/sample_log/log_reader.h"
#include "tests/rollout/sample_log/fixture.h"

namespace warproll::testing {
namespace {

constexpr int kKills = 20;  // per durability, 60 in all

// What the killed writers said was durable.
using Oracle = std::map<uint64_t, std::string>;  // seq -> task_id

// Reads reports until the pipe ends; kills the child once `reports_before_kill` have come.
void read_and_kill(const Child& child, int reports_before_kill, std::chrono::microseconds delay,
                   Oracle* oracle, std::string* trouble) {
  std::string pending;
  char buffer[4096];
  int reports = 0;
  bool killed = false;
  const auto kill_now = [&] {
    if (killed) return;
    std::this_thread::sleep_for(delay);  // the random instant itself, nothing is awaited
    kill(child.pid, SIGKILL);
    killed = true;
  };
  if (reports_before_kill == 0) kill_now();
  while (true) {
    const ssize_t length = read(child.read_fd, buffer, sizeof(buffer));
    if (length <= 0) break;
    pending.append(buffer, static_cast<size_t>(length));
    size_t end = 0;
    while ((end = pending.find('\n')) != std::string::npos) {
      std::istringstream line(pending.substr(0, end));
      pending.erase(0, end + 1);
      uint64_t seq = 0;
      std::string task;
      if (!(line >> seq >> task)) {
        *trouble = line.str();
        kill_now();
        break;
      }
      const auto [entry, inserted] = oracle->emplace(seq, task);
      if (!inserted) *trouble = "seq " + std::to_string(seq) + " given out twice";
      if (++reports >= reports_before_kill) kill_now();
    }
  }
  close(child.read_fd);
  waitpid(child.pid, nullptr, 0);
}

void expect_oracle_holds(SampleLog& log, const Oracle& oracle, uint64_t retained_from) {
  for (auto it = oracle.lower_bound(retained_from); it != oracle.end(); ++it) {
    const auto stored = log.read(it->first);
    ASSERT_TRUE(stored.ok()) << "acknowledged seq " << it->first << ": "
                             << stored.status().to_string();
    const auto trajectory = decode_stored(*stored);
    ASSERT_TRUE(trajectory.ok()) << trajectory.status().to_string();
    EXPECT_EQ(trajectory->task_id, it->second) << "seq " << it->first << " holds another sample";
  }
}

class CrashTest : public ::testing::TestWithParam<Durability> {};

TEST_P(CrashTest, SigkillAtAnyInstantLosesNothingAcknowledgedAndReusesNoSeq) {
  const uint64_t seed = 1000 + static_cast<uint64_t>(GetParam());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 rng(seed);
  TempFolder folder;
  Oracle oracle;
  uint64_t epoch = 0;
  uint64_t retained_from = 1;
  for (int round = 0; round < kKills; ++round) {
    const Child child = start_child({"--writer", folder.path(), std::string(to_string(GetParam())),
                                     std::to_string(seed * 100 + static_cast<uint64_t>(round))});
    // Every fifth kill falls somewhere into start and recovery, the others into running.
    const int reports = round % 5 == 4 ? 0 : static_cast<int>(rng() % 300);
    const auto delay = std::chrono::microseconds(rng() % (reports == 0 ? 250'000 : 5'000));
    std::string trouble;
    read_and_kill(child, reports, delay, &oracle, &trouble);
    ASSERT_EQ(trouble, "") << "round " << round;
    auto options = test_options(folder.path());
    options.durability = GetParam();
    auto log = SampleLog::open(options);
    ASSERT_TRUE(log.ok()) << "round " << round << ": " << log.status().to_string();
    EXPECT_GT((*log)->epoch(), epoch);
    epoch = (*log)->epoch();
    retained_from = (*log)->info().retained_from;
    const uint64_t acknowledged = oracle.empty() ? 0 : oracle.rbegin()->first;
    EXPECT_GE((*log)->last_seq(), acknowledged);
    expect_oracle_holds(**log, oracle, retained_from);
    // A sample of this process, so that a reused seq would meet another task.
    auto sealed = append_many(**log, 1, rng, 1'000'000 + round);
    ASSERT_EQ(sealed.size(), 1u);
    EXPECT_TRUE(oracle.emplace(sealed[0].seq, "task-" + std::to_string(1'000'000 + round)).second)
        << "seq " << sealed[0].seq << " given out twice";
    const auto accounting = (*log)->accounting();
    ASSERT_TRUE(accounting.ok());
    EXPECT_TRUE(accounting->holds()) << accounting->to_string();
    EXPECT_EQ(accounting->gaps, 0u) << "no power was lost";
  }
  const auto report = verify_log(folder.path());
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  for (const Finding& finding : report->findings) {
    ADD_FAILURE() << to_string(finding.kind) << " seq " << finding.seq << ": " << finding.text;
  }
  EXPECT_GT(oracle.size(), 500u) << "the writers got little done: the test shows little";
}

INSTANTIATE_TEST_SUITE_P(SampleLog, CrashTest,
                         ::testing::Values(Durability::kEach, Durability::kGroup, Durability::kOs),
                         [](const auto& info) { return std::string(to_string(info.param)); });

// Power loss made by hand: back to what was synced, without the slot of the high-water file that
// counts only within one boot.
TEST(PowerLoss, UnderDurabilityOsLostSeqsBecomeAGapAndAreNeverReused) {
  TempFolder folder;
  std::mt19937_64 rng(5);
  auto options = test_options(folder.path("before"));
  options.durability = Durability::kOs;
  options.seq_block = 64;
  {
    auto log = SampleLog::open(options);
    ASSERT_TRUE(log.ok()) << log.status().to_string();
    append_many(**log, 1, rng);  // reserves 2..65
    copy_folder(folder.path("before"), folder.path("after"));
    EXPECT_EQ(append_many(**log, 30, rng, 1).back().seq, 31u);
  }
  std::filesystem::resize_file(folder.path("after") + "/HIGH_WATER", 2 * 4096);
  options.directory = folder.path("after");
  auto log = SampleLog::open(options);
  ASSERT_TRUE(log.ok()) << log.status().to_string();
  EXPECT_TRUE((*log)->read(1).ok());
  const auto gaps = *(*log)->reader()->gaps();
  ASSERT_EQ(gaps.size(), 1u);
  EXPECT_EQ(gaps[0].from, 2u);
  EXPECT_EQ(gaps[0].to, 65u);
  EXPECT_EQ((*log)->unsendable(1, 100).size(), 1u);
  EXPECT_EQ(append_many(**log, 1, rng, 100).at(0).seq, 66u);
  EXPECT_TRUE((*log)->accounting()->holds());
  ASSERT_TRUE((*log)->close().ok());
  const auto report = verify_log(options.directory);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->clean()) << report->findings.at(0).text;
}

}  // namespace
}  // namespace warproll::testing
