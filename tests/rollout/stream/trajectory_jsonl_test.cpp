#include "rollout/stream/trajectory_jsonl.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/rollout/stream/stream_fixture.h"

namespace warproll {
namespace {

using namespace stream_testing;

class TrajectoryJsonlTest : public ::testing::Test {
 protected:
  TrajectoryJsonlTest() {
    open_store();
    open_file();
  }
  void open_store() {
    file_.reset();
    store_.reset();
    store_ = *TrajectoryStore::open({folder_.path("store"), false});
  }
  void open_file() {
    file_.reset();
    auto opened = TrajectoryJsonl::open(options_, *store_);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    file_ = *std::move(opened);
  }
  // Takes samples of tasks "t<n>" and makes them durable.
  void take(int count) {
    for (int i = 0; i < count; ++i) {
      const uint64_t seq = ++seq_;
      const std::string task_id = "t" + std::to_string(seq);
      const Trajectory trajectory =
          identified(make_trajectory(task_id, 0, rng_), producer_id(1), 1, seq);
      store_->stage_taken({producer_id(1), seq, task_id, 0}, data_of(trajectory));
      store_->stage_watermark(producer_id(1), seq);
    }
    ASSERT_TRUE(store_->flush().ok());
  }
  void write_all() {
    while (true) {
      const auto complete = file_->write(2);
      ASSERT_TRUE(complete.ok()) << complete.status().to_string();
      if (*complete) return;
    }
  }
  std::vector<std::string> task_ids() {
    std::vector<std::string> found;
    for (const std::string& line : lines_of(path_)) {
      found.push_back(nlohmann::json::parse(line).at("task_id").get<std::string>());
    }
    return found;
  }
  static std::vector<std::string> names(int count) {
    std::vector<std::string> wanted;
    for (int i = 1; i <= count; ++i) wanted.push_back("t" + std::to_string(i));
    return wanted;
  }

  TempFolder folder_;
  std::mt19937_64 rng_{5};
  const std::string path_ = folder_.path("taken.jsonl");
  TrajectoryJsonlOptions options_{path_, 1 << 20, {}};
  std::unique_ptr<TrajectoryStore> store_;
  std::unique_ptr<TrajectoryJsonl> file_;
  uint64_t seq_ = 0;
};

TEST_F(TrajectoryJsonlTest, WritesEachTakenTrajectoryOnceInOrder) {
  take(3);
  write_all();
  take(2);
  write_all();
  EXPECT_EQ(task_ids(), names(5));
}

TEST_F(TrajectoryJsonlTest, CutsATornTailAndWritesTheLineAgain) {
  take(3);
  write_all();
  ASSERT_TRUE(file_->sync().ok());
  const std::string whole = contents_of(path_);
  take(2);
  write_all();
  const std::string longer = contents_of(path_);
  // Every place where the machine may have stopped in the two lines that were not yet recorded.
  for (size_t size = whole.size(); size <= longer.size(); size += 97) {
    file_.reset();
    ASSERT_TRUE(store_->set_file_progress({3, whole.size()}).ok());
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << longer.substr(0, size);
    open_file();
    write_all();
    ASSERT_EQ(contents_of(path_), longer) << "cut at byte " << size;
  }
}

TEST_F(TrajectoryJsonlTest, WritesAllAnewWhenTheFileIsShorterThanItsProgress) {
  take(4);
  write_all();
  ASSERT_TRUE(file_->sync().ok());
  const std::string whole = contents_of(path_);
  file_.reset();
  std::filesystem::resize_file(path_, whole.size() / 2);
  open_file();
  write_all();
  EXPECT_EQ(contents_of(path_), whole);
  file_.reset();
  std::filesystem::remove(path_);
  open_file();
  write_all();
  EXPECT_EQ(contents_of(path_), whole);
}

TEST_F(TrajectoryJsonlTest, TakesLinesBackAfterARollbackAndKeepsThemAside) {
  take(2);
  ASSERT_TRUE(store_->mark("m").ok());
  take(3);
  write_all();
  ASSERT_TRUE(file_->sync().ok());
  ASSERT_TRUE(store_->rollback("m").ok());
  ASSERT_TRUE(file_->write(0).ok());
  EXPECT_EQ(task_ids(), names(2));
  EXPECT_EQ(lines_of(path_ + ".rolled-back").size(), 3u);
  take(1);
  write_all();
  EXPECT_EQ(task_ids().back(), "t6");
}

TEST_F(TrajectoryJsonlTest, TakesLinesBackAtOpenWhenItCrashedInTheMiddleOfARollback) {
  take(2);
  ASSERT_TRUE(store_->mark("m").ok());
  take(3);
  write_all();
  ASSERT_TRUE(file_->sync().ok());
  ASSERT_TRUE(store_->rollback("m").ok());
  take(1);
  open_store();
  open_file();
  write_all();
  EXPECT_EQ(task_ids(), (std::vector<std::string>{"t1", "t2", "t6"}));
}

TEST_F(TrajectoryJsonlTest, AnnotatesTheLineAndNotTheStoredRecord) {
  options_.annotate = [](Trajectory& trajectory) { trajectory.reward = Reward{1.5, {}}; };
  open_file();
  take(1);
  write_all();
  EXPECT_NE(contents_of(path_).find("1.5"), std::string::npos);
  const auto taken = all_taken(*store_);
  EXPECT_FALSE(decode_trajectory(taken[0].record, taken[0].tensors)->reward.has_value());
}

TEST_F(TrajectoryJsonlTest, NamesThePathItCannotOpen) {
  const auto opened = TrajectoryJsonl::open({folder_.path("no/such/folder.jsonl"), 1, {}}, *store_);
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.status().message().find("no/such/folder.jsonl"), std::string::npos);
}

}  // namespace
}  // namespace warproll
