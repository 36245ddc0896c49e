// check_argument: how every op refuses bad shapes and dtypes, printing the values.
// Thread: any. Errors: std::invalid_argument.
#pragma once

#include <stdexcept>
#include <string>

namespace warproll {

// `message` is called only on failure, so checks cost nothing in the step loop.
template <typename Message>
void check_argument(bool ok, const Message& message) {
  if (!ok) throw std::invalid_argument(message());
}

}  // namespace warproll
