// UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing past U+10FFFF.
// Thread: any.
#pragma once

#include <string_view>

namespace warproll {

[[nodiscard]] bool is_valid_utf8(std::string_view text);

}  // namespace warproll
