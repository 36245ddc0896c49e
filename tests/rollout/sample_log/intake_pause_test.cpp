// A disk that fills and empties, by a file system of the test's own: the log pauses, loses nothing,
// keeps serving the delivery side, and goes on by itself.
#include <gmock/gmock.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <atomic>
#include <thread>

#include "rollout/sample_log/log_check.h"
#include "rollout/sample_log/log_reader.h"
#include "rollout/sample_log/sample_log.h"
#include "tests/rollout/sample_log/fixture.h"

namespace warproll::testing {
namespace {

using ::testing::HasSubstr;

class FullableFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  FullableFile(std::unique_ptr<rocksdb::FSWritableFile> file, const std::atomic<bool>& full)
      : FSWritableFileOwnerWrapper(std::move(file)), full_(full) {}
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                           rocksdb::IODebugContext* debug) override {
    if (!full_) return FSWritableFileOwnerWrapper::Append(data, options, debug);
    // As a real disk does it: the first half still fits.
    (void)FSWritableFileOwnerWrapper::Append(rocksdb::Slice(data.data(), data.size() / 2), options,
                                             debug);
    return rocksdb::IOStatus::NoSpace("no space left on the test's device");
  }
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                           const rocksdb::DataVerificationInfo&,
                           rocksdb::IODebugContext* debug) override {
    return Append(data, options, debug);
  }

 private:
  const std::atomic<bool>& full_;
};

class FullableFileSystem : public rocksdb::FileSystemWrapper {
 public:
  explicit FullableFileSystem(const std::atomic<bool>& full)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), full_(full) {}
  const char* Name() const override { return "FullableFileSystem"; }
  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override {
    std::unique_ptr<rocksdb::FSWritableFile> real;
    auto status = FileSystemWrapper::NewWritableFile(name, options, &real, debug);
    if (status.ok()) *file = std::make_unique<FullableFile>(std::move(real), full_);
    return status;
  }

 private:
  const std::atomic<bool>& full_;
};

class IntakePause : public ::testing::Test {
 protected:
  void open(SampleLogOptions options) {
    env_ = rocksdb::NewCompositeEnv(std::make_shared<FullableFileSystem>(full_));
    options.env = env_.get();
    auto log = SampleLog::open(options);
    ASSERT_TRUE(log.ok()) << log.status().to_string();
    log_ = *std::move(log);
  }
  void TearDown() override { log_.reset(); }
  std::future<Result<Sealed>> append_one(int task) {
    return log_->append(
        make_trajectory({.task_id = "late-" + std::to_string(task), .group_id = {}}, rng_), soon());
  }
  bool paused() const { return log_->stats().intake == IntakeState::kPaused; }

  TempFolder folder_;
  std::mt19937_64 rng_{41};
  std::atomic<bool> full_{false};
  std::unique_ptr<rocksdb::Env> env_;
  std::unique_ptr<SampleLog> log_;
};

TEST_F(IntakePause, AFullDiskPausesIntakeLosesNothingAndResumesByItself) {
  open(test_options(folder_.path()));
  append_many(*log_, 20, rng_);
  ASSERT_TRUE(log_->rewind("L1", 0).ok());
  full_ = true;
  std::vector<std::future<Result<Sealed>>> waiting;
  for (int i = 0; i < 10; ++i) waiting.push_back(append_one(i));
  ASSERT_TRUE(wait_until([&] { return paused(); }));
  EXPECT_THAT(log_->stats().pause_reason, HasSubstr("no space left"));
  EXPECT_EQ(log_->stats().queued_samples, 10u);
  // Sending and committing go on.
  EXPECT_EQ(log_->read_outbox(1, 100)->size(), 20u);
  EXPECT_TRUE(log_->read(20).ok());
  EXPECT_TRUE(log_->note_sent({1, 2}).ok());
  EXPECT_TRUE(log_->mark_committed(15, "L1").ok());
  EXPECT_EQ(log_->read_outbox(1, 100)->size(), 5u);
  full_ = false;
  for (auto& future : waiting) {
    ASSERT_EQ(future.wait_until(soon()), std::future_status::ready);
    const auto sealed = future.get();
    EXPECT_TRUE(sealed.ok()) << sealed.status().to_string();
  }
  EXPECT_EQ(log_->stats().intake, IntakeState::kOpen);
  EXPECT_EQ(log_->last_seq(), 30u);
  ASSERT_TRUE(log_->close().ok());
  log_.reset();
  const auto report = verify_log(folder_.path());
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->clean()) << report->findings.at(0).text;
  EXPECT_EQ(report->samples, 30u);
  EXPECT_EQ(report->info.commit_upto, 15u);
}

TEST_F(IntakePause, WhereResumingIsNotEnoughTheDatabaseIsClosedAndReopened) {
  auto options = test_options(folder_.path());
  options.reopen_after_ms = 1;  // every retry reopens
  open(options);
  append_many(*log_, 20, rng_);
  const auto reader = log_->reader();
  auto cursor = reader->query({});
  full_ = true;
  auto waiting = append_one(0);
  ASSERT_TRUE(wait_until([&] { return log_->stats().reopens > 0; }));
  full_ = false;
  ASSERT_EQ(waiting.wait_until(soon()), std::future_status::ready);
  EXPECT_EQ(waiting.get()->seq, 21u);
  append_many(*log_, 20, rng_, 100);
  int found = 0;
  while (true) {
    const auto next = cursor.next();
    ASSERT_TRUE(next.ok()) << next.status().to_string();
    if (!next->has_value()) break;
    ++found;
  }
  EXPECT_EQ(found, 41) << "a reader made before the reopen sees what came after";
  ASSERT_TRUE(log_->close().ok());
  EXPECT_TRUE(verify_log(folder_.path())->clean());
}

TEST_F(IntakePause, BelowTheFreeSpaceMarkIntakePausesBeforeTheDiskIsFull) {
  std::atomic<uint64_t> free_bytes{1000};
  auto options = test_options(folder_.path());
  options.min_free_bytes = 500;
  options.free_bytes = [&] { return free_bytes.load(); };
  open(options);
  append_many(*log_, 5, rng_);
  free_bytes = 499;
  auto waiting = append_one(0);
  ASSERT_TRUE(wait_until([&] { return paused(); }));
  EXPECT_THAT(log_->stats().pause_reason, HasSubstr("499 bytes free, wanted 500"));
  ASSERT_TRUE(log_->rewind("L1", 3).ok());
  EXPECT_EQ(log_->accounting()->committed, 3u);
  free_bytes = 500;
  ASSERT_EQ(waiting.wait_until(soon()), std::future_status::ready);
  EXPECT_EQ(waiting.get()->seq, 6u);
  EXPECT_EQ(log_->stats().pauses, 1u);
  log_.reset();  // the probe must outlive it
}

TEST_F(IntakePause, AFullQueueMakesAppendWaitAndThenSayWhy) {
  auto options = test_options(folder_.path());
  options.queue_samples = 2;
  options.close_timeout_ms = 50;
  open(options);
  full_ = true;
  std::vector<std::future<Result<Sealed>>> waiting;
  waiting.push_back(append_one(0));
  ASSERT_TRUE(wait_until([&] { return paused(); }));
  for (int i = 1; i <= 2; ++i) waiting.push_back(append_one(i));
  const auto begin = Clock::now();
  const Status status = log_->append(make_trajectory({.group_id = {}}, rng_),
                                     begin + std::chrono::milliseconds(30), nullptr);
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(30));
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("queue of 2 samples is full, intake is paused"));
  EXPECT_THAT(status.message(), HasSubstr("no space left"));
}

TEST_F(IntakePause, ClosingOnAFullDiskGivesUpInTimeAndTellsEveryCaller) {
  auto options = test_options(folder_.path());
  options.close_timeout_ms = 50;
  open(options);
  append_many(*log_, 3, rng_);
  full_ = true;
  std::vector<std::future<Result<Sealed>>> waiting;
  for (int i = 0; i < 5; ++i) waiting.push_back(append_one(i));
  ASSERT_TRUE(wait_until([&] { return paused(); }));
  EXPECT_EQ(log_->close().code(), StatusCode::kAborted);
  for (auto& future : waiting) {
    ASSERT_EQ(future.wait_until(soon()), std::future_status::ready);
    EXPECT_EQ(future.get().status().code(), StatusCode::kAborted);
  }
  log_.reset();
  full_ = false;
  open(test_options(folder_.path()));
  for (uint64_t seq = 1; seq <= 3; ++seq) EXPECT_TRUE(log_->read(seq).ok());
  EXPECT_GE(append_many(*log_, 1, rng_, 50).at(0).seq, 4u);
  EXPECT_TRUE(log_->accounting()->holds());
}

}  // namespace
}  // namespace warproll::testing
