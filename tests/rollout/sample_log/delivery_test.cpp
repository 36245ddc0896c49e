// Outbox, commits, trainer rollbacks, dead letters, retention and S9.
#include <gmock/gmock.h>

#include "rollout/sample_log/log_check.h"
#include "rollout/sample_log/log_reader.h"
#include "rollout/sample_log/sample_log.h"
#include "tests/rollout/sample_log/fixture.h"

namespace warproll::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Delivery : public ::testing::Test {
 protected:
  void open(RetentionPolicy retention = {}) {
    log_.reset();
    auto options = test_options(folder_.path());
    options.retention = retention;
    auto log = SampleLog::open(options);
    ASSERT_TRUE(log.ok()) << log.status().to_string();
    log_ = *std::move(log);
  }
  void append(int count) { append_many(*log_, count, rng_, static_cast<int>(log_->last_seq())); }
  void welcome(const std::string& lineage, uint64_t commit_upto) {
    const auto gaps = log_->rewind(lineage, commit_upto);
    ASSERT_TRUE(gaps.ok()) << gaps.status().to_string();
  }
  std::vector<uint64_t> outbox(uint64_t from = 1, size_t max = 1000) {
    std::vector<uint64_t> seqs;
    const auto entries = log_->read_outbox(from, max);
    for (const OutboxEntry& entry : *entries) seqs.push_back(entry.seq);
    return seqs;
  }
  void expect_accounting(const Accounting& wanted) {
    const auto accounting = log_->accounting();
    ASSERT_TRUE(accounting.ok());
    EXPECT_EQ(*accounting, wanted) << accounting->to_string();
    EXPECT_TRUE(accounting->holds());
  }
  void expect_clean() {
    const auto report = verify_log(folder_.path());
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_TRUE(report->clean()) << to_string(report->findings.at(0).kind) << " seq "
                                 << report->findings.at(0).seq << ": "
                                 << report->findings.at(0).text;
  }

  TempFolder folder_;
  std::mt19937_64 rng_{21};
  std::unique_ptr<SampleLog> log_;
};

TEST_F(Delivery, TheOutboxIsReadFromACursorAndCarriesTheBytesOfEachSample) {
  open();
  append(10);
  EXPECT_THAT(outbox(4, 3), ElementsAre(4, 5, 6));
  EXPECT_THAT(outbox(9), ElementsAre(9, 10));
  EXPECT_THAT(outbox(11), IsEmpty());
  const auto entries = log_->read_outbox(1, 100);
  ASSERT_EQ(entries->size(), 10u);
  for (const OutboxEntry& entry : *entries) {
    const auto stored = log_->read(entry.seq);
    EXPECT_EQ(entry.bytes, stored->record.size() + stored->tensors.size());
    EXPECT_EQ(entry.attempts, 0u);
  }
}

TEST_F(Delivery, ACommitPrunesTheOutboxAndSurvivesReopening) {
  open();
  append(200);
  welcome("L1", 0);
  ASSERT_TRUE(log_->mark_committed(3, "L1").ok());
  EXPECT_EQ(outbox().front(), 4u);
  ASSERT_TRUE(log_->mark_committed(150, "L1").ok());  // long enough for a range delete
  EXPECT_EQ(outbox().front(), 151u);
  open();
  EXPECT_EQ(log_->commit_upto(), 150u);
  EXPECT_EQ(log_->lineage_id(), "L1");
  EXPECT_EQ(outbox().size(), 50u);
  expect_accounting({.produced = 200, .committed = 150, .outbox = 50});
  EXPECT_TRUE(log_->read(1).ok());
  expect_clean();
}

TEST_F(Delivery, AStaleCommitChangesNothingAndAForeignOrImpossibleOneIsRefused) {
  open();
  append(10);
  welcome("L1", 5);
  EXPECT_TRUE(log_->mark_committed(2, "L1").ok());
  EXPECT_EQ(log_->commit_upto(), 5u);
  EXPECT_EQ(log_->mark_committed(6, "L2").code(), StatusCode::kFailedPrecondition);
  const Status beyond = log_->mark_committed(11, "L1");
  EXPECT_EQ(beyond.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(beyond.message(), HasSubstr("commit_upto 11"));
  EXPECT_THAT(beyond.message(), HasSubstr("up to 10"));
  EXPECT_EQ(log_->rewind("L2", 11).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(log_->commit_upto(), 5u);
}

TEST_F(Delivery, AttemptsAreCountedAndTheFirstSendIsRemembered) {
  open();
  append(3);
  ASSERT_TRUE(log_->note_sent({1, 2}).ok());
  const int64_t first = log_->read_outbox(1, 1)->front().first_sent_ns;
  EXPECT_GT(first, 0);
  ASSERT_TRUE(log_->note_sent({1}).ok());
  const auto entries = *log_->read_outbox(1, 10);
  EXPECT_EQ(entries[0].attempts, 2u);
  EXPECT_EQ(entries[0].first_sent_ns, first);
  EXPECT_EQ(entries[1].attempts, 1u);
  EXPECT_EQ(entries[2].attempts, 0u);
}

TEST_F(Delivery, NotingASendAfterTheCommitDoesNotBringTheEntryBack) {
  open();
  append(3);
  welcome("L1", 2);
  ASSERT_TRUE(log_->note_sent({1, 2, 3}).ok());
  EXPECT_THAT(outbox(), ElementsAre(3));
  expect_clean();
}

TEST_F(Delivery, AfterATrainerRollbackEverythingAboveItsCommitIsInTheOutboxAgain) {
  open();
  append(20);
  welcome("L1", 0);
  ASSERT_TRUE(log_->mark_committed(15, "L1").ok());
  ASSERT_TRUE(log_->dead_letter(9, NackCode::kInvalid, "bad").ok());
  const auto gaps = log_->rewind("L2", 7);
  ASSERT_TRUE(gaps.ok());
  EXPECT_THAT(*gaps, IsEmpty());
  EXPECT_THAT(outbox(), ElementsAre(8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20));
  expect_accounting({.produced = 20, .committed = 7, .outbox = 12, .dead_letters = 1});
  open();
  EXPECT_EQ(log_->lineage_id(), "L2");
  EXPECT_EQ(outbox().size(), 12u);
  expect_clean();
}

TEST_F(Delivery, ADeadLetterLeavesTheOutboxAndStaysReadable) {
  open();
  append(5);
  ASSERT_TRUE(log_->dead_letter(2, NackCode::kTooLarge, "9 MB").ok());
  ASSERT_TRUE(log_->dead_letter(2, NackCode::kTooLarge, "again").ok());
  EXPECT_THAT(outbox(), ElementsAre(1, 3, 4, 5));
  EXPECT_EQ(log_->dead_letter(6, NackCode::kInvalid, "").code(), StatusCode::kNotFound);
  EXPECT_TRUE(log_->read(2).ok());
  const auto letters = *log_->reader()->dead_letters();
  ASSERT_EQ(letters.size(), 1u);
  EXPECT_EQ(letters[0].seq, 2u);
  EXPECT_EQ(letters[0].code, NackCode::kTooLarge);
  EXPECT_EQ(letters[0].reason, "9 MB");
  const auto unsendable = log_->unsendable(1, 5);
  ASSERT_EQ(unsendable.size(), 1u);
  EXPECT_EQ(unsendable[0].from, 2u);
  EXPECT_THAT(unsendable[0].reason, HasSubstr("9 MB"));
  EXPECT_THAT(log_->unsendable(3, 5), IsEmpty());
  expect_accounting({.produced = 5, .outbox = 4, .dead_letters = 1});
  expect_clean();
}

TEST_F(Delivery, RetentionRemovesOnlyCommittedSamplesBeyondTheLimitAndKeepsDeadLetters) {
  open({.keep_samples = 10});
  append(100);
  welcome("L1", 0);
  EXPECT_EQ(log_->apply_retention()->removed_samples, 0u);
  ASSERT_TRUE(log_->dead_letter(7, NackCode::kInvalid, "bad").ok());
  ASSERT_TRUE(log_->mark_committed(60, "L1").ok());
  const auto result = log_->apply_retention();
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(result->retained_from, 51u);
  EXPECT_EQ(result->removed_samples, 49u);
  EXPECT_EQ(log_->read(50).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(log_->read(51).ok());
  EXPECT_TRUE(log_->read(7).ok());
  EXPECT_FALSE(*log_->is_sealed("task-0", 0));
  EXPECT_TRUE(*log_->is_sealed("task-6", 0));
  expect_accounting({.produced = 100, .committed = 59, .outbox = 40, .dead_letters = 1});
  open({.keep_samples = 10});
  EXPECT_EQ(log_->info().retained_from, 51u);
  expect_clean();
}

TEST_F(Delivery, RetentionByBytesKeepsTheNewestThatFit) {
  open();
  append(50);
  uint64_t keep_bytes = 0;
  for (uint64_t seq = 41; seq <= 50; ++seq) {
    const auto stored = log_->read(seq);
    keep_bytes += stored->record.size() + stored->tensors.size();
  }
  open({.keep_bytes = keep_bytes});
  welcome("L1", 50);
  EXPECT_EQ(log_->apply_retention()->retained_from, 41u);
  expect_clean();
}

TEST_F(Delivery, RetentionByAgeKeepsWhatIsYoung) {
  open({.keep_age_s = 3600});
  append(10);
  welcome("L1", 10);
  EXPECT_EQ(log_->apply_retention()->removed_samples, 0u);
}

TEST_F(Delivery, WhatRetentionRemovedIsAGapWhenATrainerRollsBackBehindIt) {
  open({.keep_samples = 10});
  append(40);
  welcome("L1", 40);
  ASSERT_TRUE(log_->dead_letter(12, NackCode::kInvalid, "bad").ok());
  ASSERT_EQ(log_->apply_retention()->retained_from, 31u);
  const auto gaps = log_->rewind("L2", 5);
  ASSERT_TRUE(gaps.ok()) << gaps.status().to_string();
  ASSERT_EQ(gaps->size(), 2u);
  EXPECT_EQ((*gaps)[0].from, 6u);
  EXPECT_EQ((*gaps)[0].to, 11u);
  EXPECT_EQ((*gaps)[1].from, 13u);
  EXPECT_EQ((*gaps)[1].to, 30u);
  EXPECT_EQ(outbox().front(), 31u);
  EXPECT_EQ(log_->unsendable(1, 40).size(), 3u);
  expect_accounting({.produced = 40, .committed = 5, .outbox = 10, .dead_letters = 1, .gaps = 24});
  // A second rollback to the same place finds the gaps and makes none twice.
  EXPECT_THAT(*log_->rewind("L3", 5), IsEmpty());
  open();
  expect_accounting({.produced = 40, .committed = 5, .outbox = 10, .dead_letters = 1, .gaps = 24});
  expect_clean();
}

}  // namespace
}  // namespace warproll::testing
