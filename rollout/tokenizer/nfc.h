// Unicode normalisation form C (ICU). Thread: pure.
#pragma once

#include <string>
#include <string_view>

#include "protocol/status.h"

namespace warproll {

// `text` is well-formed UTF-8.
Result<std::string> to_nfc(std::string_view text);

}  // namespace warproll
