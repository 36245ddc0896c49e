// What NCCL is told of the environment.
#include "worker/config/nccl_variables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace warproll {
namespace {

std::string value_of(const std::string& name) {
  for (const auto& [key, value] : nccl_variables()) {
    if (key == name) return value;
  }
  return "";
}

TEST(NcclVariables, AreThoseOfTheProcessSorted) {
  setenv("NCCL_TEST_B", "2=3", 1);
  setenv("NCCL_TEST_A", "1", 1);
  setenv("NOT_NCCL_TEST", "1", 1);
  EXPECT_EQ(value_of("NCCL_TEST_A"), "1");
  EXPECT_EQ(value_of("NCCL_TEST_B"), "2=3");
  EXPECT_EQ(value_of("NOT_NCCL_TEST"), "");
  const auto all = nccl_variables();
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  for (const char* name : {"NCCL_TEST_A", "NCCL_TEST_B", "NOT_NCCL_TEST"}) unsetenv(name);
}

}  // namespace
}  // namespace warproll
