#include "rollout/tokenizer/pattern_dialect.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>

namespace warproll {
namespace {

constexpr size_t kMaxPatternBytes = 8192;  // real ones have about 200

// Scripts and binary properties are left out: PCRE2 reads \p{Han} with script extensions.
constexpr std::array<std::string_view, 37> kGeneralCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl",
    "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk",
    "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cs", "Co", "Cn"};
constexpr std::array<std::string_view, 7> kGroupOpenings = {"(?:",  "(?i:", "(?=", "(?!",
                                                            "(?<=", "(?<!", "(?>"};

class DialectReader {
 public:
  explicit DialectReader(std::string_view pattern) : rest_(pattern), size_(pattern.size()) {}

  Result<std::string> translate() {
    while (!rest_.empty()) {
      const char c = rest_[0];
      if (c == '\\') {
        WARPROLL_TRY(escape());
      } else if (in_class_) {
        WARPROLL_TRY(class_character());
      } else if (c == '[') {
        WARPROLL_TRY(class_opening());
      } else if (c == '(') {
        WARPROLL_TRY(group_opening());
      } else if (c == '{') {
        WARPROLL_TRY(repetition());
      } else if (c == '^' || c == '$') {
        return refuse(rest_.substr(0, 1), "no anchors");
      } else {
        copy(1);
      }
    }
    if (in_class_) return invalid_argument("a '[' without its ']'");
    return output_;
  }

 private:
  Status refuse(std::string_view got, std::string_view wanted) const {
    return invalid_argument("'" + std::string(got) + "' at byte " +
                            std::to_string(size_ - rest_.size()) + ", wanted " +
                            std::string(wanted) + " (see pattern_dialect.h for what is accepted)");
  }
  void copy(size_t count) {
    output_ += rest_.substr(0, count);
    rest_.remove_prefix(count);
  }
  void replace(size_t count, std::string_view by) {
    output_ += by;
    rest_.remove_prefix(count);
  }

  Status escape() {
    if (rest_.size() < 2) return refuse(rest_, "a character after the backslash");
    const char c = rest_[1];
    if (c == 's' || c == 'S') {
      replace(2, c == 's' ? "\\p{wspace}" : "\\P{wspace}");
      return ok_status();
    }
    if (c == 'p' || c == 'P') return property();
    if (c == 'x') return hex_character();
    const bool is_same_in_both = std::string_view("dDrntf").find(c) != std::string_view::npos;
    const bool is_letter_or_digit = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (is_letter_or_digit && !is_same_in_both) {
      return refuse(rest_.substr(0, 2), "an escape that means one thing everywhere");
    }
    copy(2);
    return ok_status();
  }

  Status property() {
    const size_t end = rest_.find('}');
    if (rest_.substr(2, 1) == "{" && end != std::string_view::npos) {
      const std::string_view name = rest_.substr(3, end - 3);
      if (std::find(kGeneralCategories.begin(), kGeneralCategories.end(), name) !=
          kGeneralCategories.end()) {
        copy(end + 1);
        return ok_status();
      }
    }
    return refuse(rest_.substr(0, std::min<size_t>(end, 15) + 1),
                  "a general category such as \\p{Lu}");
  }

  Status hex_character() {
    size_t digits = 2;
    const bool braced = rest_.substr(2, 1) == "{";
    while (digits + braced < rest_.size() && digits < 2 + (braced ? 6 : 2) &&
           std::isxdigit(static_cast<unsigned char>(rest_[digits + braced])) != 0) {
      ++digits;
    }
    const size_t end = digits + braced;
    const bool complete = braced ? digits > 2 && rest_.substr(end, 1) == "}" : digits == 4;
    if (!complete) return refuse(rest_.substr(0, 4), "\\xHH or \\x{H...}");
    copy(end + braced);
    return ok_status();
  }

  Status class_opening() {
    const size_t opening = rest_.substr(1, 1) == "^" ? 2 : 1;
    if (rest_.substr(opening, 1) == "]") {
      return refuse(rest_.substr(0, opening + 1), "an escaped ']' at the start of a class");
    }
    copy(opening);
    in_class_ = true;
    return ok_status();
  }

  Status class_character() {
    if (rest_[0] == '[') return refuse("[", "no '[' inside a class");
    if (rest_.substr(0, 2) == "&&") return refuse("&&", "no intersection of classes");
    if (rest_[0] == ']') in_class_ = false;
    copy(1);
    return ok_status();
  }

  Status group_opening() {
    if (rest_.substr(1, 1) == "*") return refuse("(*", "a group");
    if (rest_.substr(1, 1) != "?") {
      copy(1);
      return ok_status();
    }
    for (const std::string_view opening : kGroupOpenings) {
      if (rest_.substr(0, opening.size()) != opening) continue;
      copy(opening.size());
      return ok_status();
    }
    return refuse(rest_.substr(0, 4), "(?: (?i: (?= (?! (?<= (?<! or (?>");
  }

  // {n} {n,} {n,m}
  Status repetition() {
    size_t at = 1;
    const auto digits = [&] {
      const size_t begin = at;
      while (at < rest_.size() && std::isdigit(static_cast<unsigned char>(rest_[at])) != 0) ++at;
      return at - begin;
    };
    bool complete = digits() > 0;
    if (rest_.substr(at, 1) == ",") {
      ++at;
      digits();
    }
    complete = complete && rest_.substr(at, 1) == "}";
    if (!complete) return refuse(rest_.substr(0, 8), "{n}, {n,} or {n,m}");
    if (rest_.substr(at + 1, 1) == "+") {
      return refuse(rest_.substr(0, at + 2), "no '+' after a repetition in braces");
    }
    copy(at + 1);
    return ok_status();
  }

  std::string_view rest_;
  size_t size_;
  std::string output_;
  bool in_class_ = false;
};

}  // namespace

Result<std::string> to_pcre2_pattern(std::string_view pattern) {
  if (pattern.empty() || pattern.size() > kMaxPatternBytes) {
    return invalid_argument("a pattern of " + std::to_string(pattern.size()) +
                            " bytes, wanted 1.." + std::to_string(kMaxPatternBytes));
  }
  return DialectReader(pattern).translate();
}

}  // namespace warproll
