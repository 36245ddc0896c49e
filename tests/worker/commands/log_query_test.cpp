#include "worker/commands/log_query.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warproll {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNow = 1'764'424'800 * kSecond;  // 2025-11-29T14:00:00Z

TEST(ParseTime, UnderstandsUtcUnixSecondsAndAges) {
  EXPECT_EQ(parse_time("2025-11-29T14:00:00Z", 0).value(), kNow);
  EXPECT_EQ(parse_time("@1764424800", 0).value(), kNow);
  EXPECT_EQ(parse_time("90s", kNow).value(), kNow - 90 * kSecond);
  EXPECT_EQ(parse_time("15m", kNow).value(), kNow - 900 * kSecond);
  EXPECT_EQ(parse_time("2h", kNow).value(), kNow - 7200 * kSecond);
  EXPECT_EQ(parse_time("7d", kNow).value(), kNow - 7 * 86400 * kSecond);
}

TEST(ParseTime, RefusesAnythingElseAndListsWhatIsWanted) {
  for (const char* bad : {"", "m", "yesterday", "-5m", "5x", "@", "@-1", "2025-11-29",
                          "2025-11-29T14:00:00", "2025-11-29T14:00:00Zx", "99999999999999999d"}) {
    const Result<int64_t> time = parse_time(bad, kNow);
    ASSERT_FALSE(time.ok()) << bad;
    EXPECT_THAT(time.status().message(), ::testing::HasSubstr("wanted 2026-11-29T14:00:00Z"));
  }
}

TEST(LogSelection, BecomesAQueryWithOnlyWhatWasGiven) {
  LogSelection selection;
  const SampleQuery all = to_query(selection, kNow).value();
  EXPECT_FALSE(all.task_id || all.group_id || all.weight_version || all.from_ns || all.to_ns);
  selection.to_seq = 9;
  selection.group_id = "g";
  selection.weight_version = "3";
  selection.since = "1h";
  const SampleQuery some = to_query(selection, kNow).value();
  EXPECT_EQ(some.to_seq, 9u);
  EXPECT_EQ(some.group_id, "g");
  EXPECT_EQ(some.weight_version, 3u);
  EXPECT_EQ(some.from_ns, kNow - 3600 * kSecond);
  selection.weight_version = "v3";
  EXPECT_FALSE(to_query(selection, kNow).ok());
}

}  // namespace
}  // namespace warproll
