#include "rollout/tokenizer/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <utility>

#include "rollout/tokenizer/pattern_dialect.h"

namespace warproll {
namespace {

// PCRE2's own default, named here because it bounds the time of one match: about a second.
constexpr uint32_t kMatchLimit = 10'000'000;

template <typename T, void (*free_function)(T*)>
struct Freed {
  void operator()(T* handle) const { free_function(handle); }
};
template <typename T, void (*free_function)(T*)>
using Owned = std::unique_ptr<T, Freed<T, free_function>>;
using OwnedCode = Owned<pcre2_code, pcre2_code_free>;
using OwnedCompileContext = Owned<pcre2_compile_context, pcre2_compile_context_free>;
using OwnedMatchContext = Owned<pcre2_match_context, pcre2_match_context_free>;
using OwnedMatchData = Owned<pcre2_match_data, pcre2_match_data_free>;

std::string pcre2_message(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct SplitPattern::Code {
  OwnedCode code;
  OwnedMatchContext match_context;
};

Result<SplitPattern> SplitPattern::compile(const std::string& pattern) {
  const auto context = [&] { return "the pattern \"" + pattern.substr(0, 200) + "\""; };
  const Result<std::string> translated = to_pcre2_pattern(pattern);
  if (!translated.ok()) return translated.status().with_context(context());

  const OwnedCompileContext compile_context(pcre2_compile_context_create(nullptr));
  auto code = std::make_shared<Code>();
  code->match_context.reset(pcre2_match_context_create(nullptr));
  if (compile_context == nullptr || code->match_context == nullptr) {
    return resource_exhausted("PCRE2 has no memory for a context");
  }
  pcre2_set_newline(compile_context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_match_limit(code->match_context.get(), kMatchLimit);
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  code->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()),
                                 translated->size(), PCRE2_UTF | PCRE2_UCP, &error, &error_offset,
                                 compile_context.get()));
  if (code->code == nullptr) {
    return invalid_argument(context() + ": PCRE2 says '" + pcre2_message(error) + "' at byte " +
                            std::to_string(error_offset) + " of \"" + translated->substr(0, 200) +
                            "\", wanted a pattern that compiles");
  }
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code->code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    return invalid_argument(context() + " can match nothing, wanted one that takes a character");
  }
  // Without JIT (PCRE2 built without it, or no memory for it) the interpreter matches the same.
  static_cast<void>(pcre2_jit_compile(code->code.get(), PCRE2_JIT_COMPLETE));
  return SplitPattern(std::move(code));
}

Status SplitPattern::split(std::string_view text, std::vector<std::string_view>* pieces) const {
  const OwnedMatchData match_data(pcre2_match_data_create_from_pattern(code_->code.get(), nullptr));
  if (match_data == nullptr) return resource_exhausted("PCRE2 has no memory for a match");
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(match_data.get());
  size_t done = 0;
  while (done < text.size()) {
    const auto match = [&](uint32_t options) {
      return pcre2_match(code_->code.get(), subject, text.size(), done,
                         options | PCRE2_NO_UTF_CHECK, match_data.get(),
                         code_->match_context.get());
    };
    int count = match(0);
    // JIT code has a small fixed stack; the interpreter's is on the heap.
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) count = match(PCRE2_NO_JIT);
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) {
      return resource_exhausted("splitting " + std::to_string(text.size()) + " bytes at byte " +
                                std::to_string(done) + ": PCRE2 says '" + pcre2_message(count) +
                                "'");
    }
    const size_t begin = offsets[0];
    const size_t end = offsets[1];
    // A lookbehind cannot take us back, and \K, which could, is not in the accepted dialect.
    WARPROLL_CHECK(begin >= done && end > begin && end <= text.size(), "a match out of order");
    if (begin > done) pieces->push_back(text.substr(done, begin - done));
    pieces->push_back(text.substr(begin, end - begin));
    done = end;
  }
  if (done < text.size()) pieces->push_back(text.substr(done));
  return ok_status();
}

}  // namespace warproll
