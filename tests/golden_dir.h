// golden_dir(): where tests/golden lies; the environment's WARPROLL_GOLDEN_DIR, for a test that was
// carried to another machine, or this source tree's.
#pragma once

#include <cstdlib>
#include <string>

namespace warproll {

inline std::string golden_dir() {
  const char* elsewhere = std::getenv("WARPROLL_GOLDEN_DIR");
  return elsewhere != nullptr ? elsewhere : WARPROLL_GOLDEN_DIR;
}

}  // namespace warproll
