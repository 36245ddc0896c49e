// The tests, or with --writer or --crash a process that dies for them.
#include <gtest/gtest.h>

#include "tests/rollout/sample_log/fixture.h"

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--writer") {
    return warproll::testing::writer_main({argv + 2, argv + argc});
  }
  if (argc > 1 && std::string(argv[1]) == "--crash") {
    return warproll::testing::crash_main({argv + 2, argv + argc});
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
