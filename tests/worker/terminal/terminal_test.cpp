#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <set>
#include <thread>

#include "worker/terminal/exit_code.h"
#include "worker/terminal/progress.h"
#include "worker/terminal/stop_signal.h"
#include "worker/terminal/table.h"

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;

TEST(Progress, TheLineShowsShareAmountRateAndEta) {
  EXPECT_EQ(progress_line("copy", 512 << 20, 1 << 30, 4.0, ProgressUnit::kBytes),
            "copy [############............] 50% 512 MiB of 1.0 GiB, 128 MiB/s, ETA 0:04");
  EXPECT_EQ(progress_line("scan", 30, 0, 2.0, ProgressUnit::kItems), "scan 30, 15/s");
  EXPECT_EQ(progress_line("scan", 0, 10, 0.0, ProgressUnit::kItems),
            "scan [........................] 0% 0 of 10, 0/s");
}

TEST(Progress, DurationsAndBytesReadWell) {
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(42.4), "0:42");
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
}

TEST(Table, AlignsTextLeftAndNumbersRight) {
  Table table({"name", "count"});
  table.add({"a", "5"});
  table.add({"long name", "1234"});
  EXPECT_EQ(table.to_string(), "name       count\na              5\nlong name   1234\n");
}

TEST(ExitCode, FailuresMapToDocumentedCodes) {
  EXPECT_EQ(exit_code_of(ok_status()), kExitOk);
  EXPECT_EQ(exit_code_of(not_found("x")), kExitNotFound);
  EXPECT_EQ(exit_code_of(data_loss("x")), kExitBadInput);
  EXPECT_EQ(exit_code_of(unavailable("x")), kExitUnavailable);
  EXPECT_EQ(exit_code_of(internal_error("x")), kExitInternal);
}

TEST(StopSignal, SigtermIsSeenByTheWaiterAndNotFatal) {
  StopSignal stop;
  EXPECT_FALSE(stop.wait_until(Clock::now()));
  kill(getpid(), SIGTERM);
  EXPECT_TRUE(stop.wait_until(Clock::now() + std::chrono::seconds(10)));
  EXPECT_TRUE(stop.requested());
}

TEST(StopSignal, ARequestFromAnotherThreadWakesTheWaiter) {
  StopSignal stop;
  std::thread other([&] { stop.request(); });
  EXPECT_TRUE(stop.wait_until(Clock::now() + std::chrono::seconds(10)));
  other.join();
}

}  // namespace
}  // namespace warproll
