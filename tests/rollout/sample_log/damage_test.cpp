// Flipped bits, cut and deleted files: detected, or harmless. And what repair brings back.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <fstream>
#include <set>

#include "rollout/sample_log/log_check.h"
#include "rollout/sample_log/log_reader.h"
#include "tests/rollout/sample_log/fixture.h"

namespace warproll::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int kMutations = 120;
constexpr uint64_t kSamples = 60;

// A log of two runs whose second ended by a crash: tables and a write-ahead log with samples in it.
void make_crashed_log(const std::string& directory) {
  const Child child = start_child({"--crash", directory, std::to_string(kSamples)});
  int status = 0;
  ASSERT_EQ(waitpid(child.pid, &status, 0), child.pid);
  close(child.read_fd);
  ASSERT_TRUE(WIFSIGNALED(status));
}

std::vector<fs::path> data_files(const std::string& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name != "HOLDER" && name != "LOCK") files.push_back(entry);
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string mutate(const std::string& directory, std::mt19937_64& rng) {
  const auto files = data_files(directory);
  const fs::path file = files[rng() % files.size()];
  const std::string name = file.filename().string();
  const uint64_t size = fs::file_size(file);
  const uint64_t kind = rng() % 4;
  if (kind == 0) {
    fs::remove(file);
    return "deleted " + name;
  }
  if (size == 0) return "nothing (" + name + " is empty)";
  if (kind == 1) {
    const uint64_t keep = rng() % size;
    fs::resize_file(file, keep);
    return "cut " + name + " to " + std::to_string(keep);
  }
  const uint64_t at = rng() % size;
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(at));
  char byte = 0;
  stream.get(byte);
  byte = static_cast<char>(byte ^ (1 << (rng() % 8)));
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(byte);
  return "flipped a bit of " + name + " at " + std::to_string(at);
}

using Contents = std::vector<StoredRecord>;

Contents read_all(const std::string& directory) {
  Contents out;
  const auto reader = LogReader::open_for_inspection(directory);
  EXPECT_TRUE(reader.ok()) << reader.status().to_string();
  for (uint64_t seq = 1; seq <= kSamples; ++seq) {
    auto stored = (*reader)->read(seq);
    EXPECT_TRUE(stored.ok()) << stored.status().to_string();
    out.push_back(*std::move(stored));
  }
  return out;
}

// In words, or empty when the log holds every sample as it was.
std::string difference(SampleLog& log, const Contents& wanted) {
  for (const StoredRecord& sample : wanted) {
    const auto stored = log.read(sample.seq);
    if (!stored.ok()) return "seq " + std::to_string(sample.seq) + ": " + stored.status().message();
    if (*stored != sample) return "seq " + std::to_string(sample.seq) + " has other bytes";
  }
  return log.last_seq() == kSamples ? "" : "last_seq is " + std::to_string(log.last_seq());
}

TEST(Damage, EveryMutationOfADirectoryIsReportedOrHarmless) {
  TempFolder folder;
  make_crashed_log(folder.path("good"));
  const Contents wanted = read_all(folder.path("good"));
  int detected = 0;
  int harmless = 0;
  for (uint64_t seed = 1; seed <= kMutations; ++seed) {
    std::mt19937_64 rng(seed);
    const std::string directory = folder.path("mutated");
    fs::remove_all(directory);
    copy_folder(folder.path("good"), directory);
    const std::string what = mutate(directory, rng);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + what);
    const auto report = verify_log(directory);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    auto log = SampleLog::open(test_options(directory));
    const bool reported = !log.ok() || !report->clean();
    if (!log.ok()) {
      EXPECT_THAT(log.status().message(), HasSubstr("log repair"));
      EXPECT_FALSE(report->clean())
          << "open refused, verify saw nothing: " << log.status().to_string();
    }
    if (!reported) {
      EXPECT_EQ(difference(**log, wanted), "");
    }
    ++(reported ? detected : harmless);
  }
  EXPECT_GT(detected, kMutations / 4);
  RecordProperty("detected", detected);
  RecordProperty("harmless", harmless);
}

TEST(Damage, ALostTailOfTheWriteAheadLogIsRefusedWithTheNumbers) {
  TempFolder folder;
  make_crashed_log(folder.path("good"));
  for (const auto& file : data_files(folder.path("good"))) {
    if (file.extension() == ".log") fs::resize_file(file, fs::file_size(file) / 2);
  }
  const auto log = SampleLog::open(test_options(folder.path("good")));
  ASSERT_FALSE(log.ok());
  EXPECT_EQ(log.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(log.status().message(), HasSubstr("up to seq 60 was acknowledged"));
  EXPECT_THAT(log.status().message(), HasSubstr("warproll log repair"));
  const auto report = verify_log(folder.path("good"));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->findings.at(0).kind, FindingKind::kHighWater);
}

TEST(Damage, RepairOfAnIntactLogCopiesEverySampleByteForByte) {
  TempFolder folder;
  make_crashed_log(folder.path("good"));
  const Contents wanted = read_all(folder.path("good"));
  const auto repaired = repair_log_to(folder.path("good"), folder.path("out"));
  ASSERT_TRUE(repaired.ok()) << repaired.status().to_string();
  EXPECT_EQ(repaired->samples_copied, kSamples);
  EXPECT_TRUE(repaired->lost.empty());
  const auto report = verify_log(folder.path("out"));
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->clean()) << report->findings.at(0).text;
  auto log = SampleLog::open(test_options(folder.path("out")));
  ASSERT_TRUE(log.ok()) << log.status().to_string();
  EXPECT_EQ(difference(**log, wanted), "");
  EXPECT_EQ((*log)->commit_upto(), 20u);
  EXPECT_EQ((*log)->lineage_id(), "L1");
  EXPECT_EQ((*log)->epoch(), 3u);
}

TEST(Damage, RepairAlwaysGivesACleanLogAndSaysWhatIsLost) {
  TempFolder folder;
  make_crashed_log(folder.path("good"));
  const Contents wanted = read_all(folder.path("good"));
  int repairs = 0;
  for (uint64_t seed = 500; seed < 520; ++seed) {
    std::mt19937_64 rng(seed);
    const std::string directory = folder.path("mutated");
    const std::string out = folder.path("out");
    fs::remove_all(directory);
    fs::remove_all(out);
    copy_folder(folder.path("good"), directory);
    const std::string what = mutate(directory, rng);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + what);
    // The worker tried first and was refused, or not: either way repair must find what is there.
    (void)SampleLog::open(test_options(directory)).ok();
    const auto repaired = repair_log_to(directory, out);
    ASSERT_TRUE(repaired.ok()) << repaired.status().to_string();
    ++repairs;
    std::set<uint64_t> lost;
    for (const GapRange& range : repaired->lost) {
      for (uint64_t seq = range.from; seq <= range.to; ++seq) lost.insert(seq);
    }
    const auto report = verify_log(out);
    ASSERT_TRUE(report.ok());
    EXPECT_TRUE(report->clean()) << report->findings.at(0).text;
    auto log = SampleLog::open(test_options(out));
    ASSERT_TRUE(log.ok()) << log.status().to_string();
    EXPECT_GE((*log)->last_seq(), kSamples);
    for (const StoredRecord& sample : wanted) {
      const auto stored = (*log)->read(sample.seq);
      EXPECT_EQ(stored.ok(), lost.count(sample.seq) == 0) << sample.seq;
      if (stored.ok()) {
        EXPECT_EQ(*stored, sample);
      }
    }
  }
  EXPECT_EQ(repairs, 20);
}

TEST(Damage, RepairRefusesATargetWithFilesAndASourceWithout) {
  TempFolder folder;
  make_crashed_log(folder.path("good"));
  EXPECT_EQ(repair_log_to(folder.path("good"), folder.path("good")).status().code(),
            StatusCode::kAlreadyExists);
  EXPECT_EQ(repair_log_to(folder.path("nowhere"), folder.path("out")).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(verify_log(folder.path("nowhere")).status().code(), StatusCode::kNotFound);
}

TEST(Damage, AHighWaterFileThatIsNoneIsRefusedByName) {
  TempFolder folder;
  fs::create_directories(folder.path());
  std::ofstream(folder.path() + "/HIGH_WATER") << "not one";
  const auto log = SampleLog::open(test_options(folder.path()));
  EXPECT_EQ(log.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(log.status().message(), HasSubstr("HIGH_WATER"));
}

}  // namespace
}  // namespace warproll::testing
