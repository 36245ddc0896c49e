// What NCCL says with NCCL_DEBUG, and where standard error is a file.
#include "worker/terminal/nccl_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace warproll {
namespace {

// Standard error is a file of its own, and the environment has neither variable.
class NcclOutputTest : public testing::Test {
 protected:
  void SetUp() override {
    unset();
    std::fflush(stderr);
    before_ = ::dup(STDERR_FILENO);
    const int file = ::open(path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    ASSERT_GE(file, 0);
    ::dup2(file, STDERR_FILENO);
    ::close(file);
  }
  void TearDown() override {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
    unset();
    std::filesystem::remove(path_);
  }
  static void unset() {
    unsetenv("NCCL_DEBUG");
    unsetenv("NCCL_DEBUG_FILE");
  }
  // As NCCL does.
  static void say(const std::string& text) {
    FILE* const file = std::fopen(std::getenv("NCCL_DEBUG_FILE"), "w");
    ASSERT_NE(file, nullptr);
    std::fputs(text.c_str(), file);
    std::fclose(file);
  }
  [[nodiscard]] std::string written() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const std::string path_ = testing::TempDir() + "nccl_output_test." + std::to_string(::getpid());
  int before_ = -1;
};

TEST_F(NcclOutputTest, GoesBehindWhatIsInTheLog) {
  setenv("NCCL_DEBUG", "WARN", 1);
  std::fputs("ours, before\n", stderr);
  const std::string much(100'000, 'x');
  {
    const NcclOutput output;
    say("NCCL WARN one\n");
    say(much);
  }
  std::fputs("ours, after\n", stderr);
  EXPECT_EQ(written(), "ours, before\nNCCL WARN one\n" + much + "ours, after\n");
}

TEST_F(NcclOutputTest, OfAChildProcessToo) {
  setenv("NCCL_DEBUG", "INFO", 1);
  {
    const NcclOutput output;
    ASSERT_EQ(std::system("echo child > $NCCL_DEBUG_FILE"), 0);
  }
  EXPECT_EQ(written(), "child\n");
}

TEST_F(NcclOutputTest, SomebodyElsesFileStays) {
  setenv("NCCL_DEBUG", "WARN", 1);
  setenv("NCCL_DEBUG_FILE", "/tmp/nccl.log", 1);
  const NcclOutput output;
  EXPECT_STREQ(std::getenv("NCCL_DEBUG_FILE"), "/tmp/nccl.log");
}

TEST_F(NcclOutputTest, NothingIsAskedForNothingIsSet) {
  const NcclOutput output;
  EXPECT_EQ(std::getenv("NCCL_DEBUG_FILE"), nullptr);
}

}  // namespace
}  // namespace warproll
