#include "rollout/tokenizer/chat_template.h"

#include <cctype>
#include <utility>
#include <vector>

namespace warproll {
namespace {

struct Piece {
  enum class Kind : uint8_t {
    kText,   // output as it is
    kValue,  // output of an expression, such as message['role']
    kBlock,  // a statement
  };
  Kind kind;
  std::string text;
  bool operator==(const Piece&) const = default;
};
using Pieces = std::vector<Piece>;

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

Piece text_piece(std::string text) { return {Piece::Kind::kText, std::move(text)}; }
Piece value_piece(std::string text) { return {Piece::Kind::kValue, std::move(text)}; }
Piece block_piece(std::string text) { return {Piece::Kind::kBlock, std::move(text)}; }

// Index after the string literal that begins at `at`; npos when it does not end.
size_t literal_end(std::string_view code, size_t at) {
  for (size_t i = at + 1; i < code.size(); ++i) {
    if (code[i] == '\\') {
      ++i;
    } else if (code[i] == code[at]) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

// What a literal (with its quotes) means.
std::string literal_value(std::string_view literal) {
  std::string value;
  for (size_t i = 1; i + 1 < literal.size(); ++i) {
    char c = literal[i];
    if (c == '\\') {
      c = literal[++i];
      if (c == 'n') c = '\n';
      if (c == 't') c = '\t';
    }
    value += c;
  }
  return value;
}

// A term or statement without white space, subscripts as ['name'].
std::string canonical_code(std::string_view code) {
  std::string canonical;
  for (size_t i = 0; i < code.size(); ++i) {
    if (code[i] == '\'' || code[i] == '"') {
      const size_t end = literal_end(code, i);
      canonical += "'" + literal_value(code.substr(i, end - i)) + "'";
      i = end - 1;
    } else if (!is_space(code[i])) {
      canonical += code[i];
    }
  }
  for (const char* name : {"role", "content"}) {
    const std::string attribute = std::string(".") + name;
    for (size_t at; (at = canonical.find(attribute)) != std::string::npos;) {
      canonical.replace(at, attribute.size(), std::string("['") + name + "']");
    }
  }
  return canonical;
}

void append_text(std::string text, Pieces* pieces) {
  if (text.empty()) return;
  if (!pieces->empty() && pieces->back().kind == Piece::Kind::kText) {
    pieces->back().text += text;
  } else {
    pieces->push_back(text_piece(std::move(text)));
  }
}

// The terms of a sum: literals are text, the rest are values.
void append_expression(std::string_view code, Pieces* pieces) {
  size_t begin = 0;
  size_t at = 0;
  while (begin <= code.size()) {
    if (at < code.size() && code[at] != '+') {
      at = code[at] == '\'' || code[at] == '"' ? literal_end(code, at) : at + 1;
      continue;
    }
    std::string_view term = code.substr(begin, at - begin);
    while (!term.empty() && is_space(term.front())) term.remove_prefix(1);
    while (!term.empty() && is_space(term.back())) term.remove_suffix(1);
    const bool is_literal =
        !term.empty() && (term[0] == '\'' || term[0] == '"') && literal_end(term, 0) == term.size();
    if (is_literal) {
      append_text(literal_value(term), pieces);
    } else {
      pieces->push_back(value_piece(canonical_code(term)));
    }
    begin = ++at;
  }
}

// A tag {% %}, {{ }} or {# #} and the text before it, as Jinja's lexer cuts them.
class JinjaReader {
 public:
  explicit JinjaReader(std::string_view source) : rest_(source) {
    if (!rest_.empty() && rest_.back() == '\n')
      rest_.remove_suffix(1);  // keep_trailing_newline off
  }

  std::optional<Pieces> read() {
    while (!rest_.empty()) {
      const size_t tag = next_tag();
      std::string_view text = rest_.substr(0, tag);
      rest_.remove_prefix(text.size());
      if (!rest_.empty()) text = trimmed_before_tag(text);
      append_text(std::string(text), &pieces_);
      if (!rest_.empty() && !read_tag()) return std::nullopt;
    }
    return std::move(pieces_);
  }

 private:
  [[nodiscard]] size_t next_tag() const {
    for (size_t at = rest_.find('{'); at != std::string_view::npos; at = rest_.find('{', at + 1)) {
      if (at + 1 < rest_.size() && std::string_view("{%#").find(rest_[at + 1]) < 3) return at;
    }
    return std::string_view::npos;
  }

  // lstrip_blocks, and the '-' of "{%-".
  [[nodiscard]] std::string_view trimmed_before_tag(std::string_view text) const {
    if (rest_.substr(2, 1) == "-") {
      while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
      return text;
    }
    if (rest_[1] == '{') return text;
    size_t end = text.size();
    while (end > 0 && (text[end - 1] == ' ' || text[end - 1] == '\t')) --end;
    const bool begins_line = end > 0 ? text[end - 1] == '\n' : at_line_start_;
    return begins_line ? text.substr(0, end) : text;
  }

  bool read_tag() {
    const char kind = rest_[1];
    const std::string closing = kind == '{' ? "}}" : std::string(1, kind) + "}";
    size_t end = 2;
    while (end < rest_.size() && rest_.substr(end, 2) != closing) {
      const bool is_literal = kind != '#' && (rest_[end] == '\'' || rest_[end] == '"');
      end = is_literal ? literal_end(rest_, end) : end + 1;
    }
    if (end >= rest_.size()) return false;
    std::string_view code = rest_.substr(2, end - 2);
    rest_.remove_prefix(end + 2);
    if (!code.empty() && code.front() == '-') code.remove_prefix(1);
    const bool trims_after = !code.empty() && code.back() == '-';
    if (trims_after) code.remove_suffix(1);
    if (kind == '{') append_expression(code, &pieces_);
    if (kind == '%') pieces_.push_back(block_piece(canonical_code(code)));
    trim_after_tag(kind, trims_after);
    return true;
  }

  // trim_blocks, and the '-' of "-%}".
  void trim_after_tag(char kind, bool trims_all) {
    at_line_start_ = false;
    if (trims_all) {
      while (!rest_.empty() && is_space(rest_.front())) {
        at_line_start_ = rest_.front() == '\n' || (at_line_start_ && rest_.front() != '\n');
        rest_.remove_prefix(1);
      }
    } else if (kind != '{' && rest_.substr(0, 1) == "\n") {
      rest_.remove_prefix(1);
      at_line_start_ = true;
    }
  }

  std::string_view rest_;
  Pieces pieces_;
  bool at_line_start_ = true;
};

// Removes `part` from the place `at` on, if it is there.
bool take(const Pieces& part, size_t at, Pieces* pieces) {
  if (pieces->size() < at + part.size()) return false;
  for (size_t i = 0; i < part.size(); ++i) {
    if ((*pieces)[at + i] != part[i]) return false;
  }
  const auto begin = pieces->begin() + static_cast<std::ptrdiff_t>(at);
  pieces->erase(begin, begin + static_cast<std::ptrdiff_t>(part.size()));
  return true;
}

// The content X of "<|im_start|>system\nX<|im_end|>\n", which has no control tokens of its own.
std::optional<std::string> system_content(std::string_view text) {
  constexpr std::string_view kBefore = "<|im_start|>system\n";
  constexpr std::string_view kAfter = "<|im_end|>\n";
  if (text.size() < kBefore.size() + kAfter.size() || text.substr(0, kBefore.size()) != kBefore ||
      text.substr(text.size() - kAfter.size()) != kAfter) {
    return std::nullopt;
  }
  text.remove_prefix(kBefore.size());
  text.remove_suffix(kAfter.size());
  if (text.find("<|") != std::string_view::npos) return std::nullopt;
  return std::string(text);
}

}  // namespace

std::optional<ChatMlTemplate> recognize_chatml(std::string_view jinja) {
  std::optional<Pieces> read = JinjaReader(jinja).read();
  if (!read) return std::nullopt;
  Pieces& pieces = *read;
  take({block_piece("ifnotadd_generation_promptisdefined"),
        block_piece("setadd_generation_prompt=false"), block_piece("endif")},
       0, &pieces);

  ChatMlTemplate result;
  const Piece no_system = block_piece("ifloop.firstandmessages[0]['role']!='system'");
  if (pieces.size() > 3 && pieces[1] == no_system && pieces[3] == block_piece("endif")) {
    result.default_system = system_content(pieces[2].text);
    if (!result.default_system || pieces[2].kind != Piece::Kind::kText) return std::nullopt;
    pieces.erase(pieces.begin() + 1, pieces.begin() + 4);
  }
  const Pieces chatml = {block_piece("formessageinmessages"),
                         text_piece("<|im_start|>"),
                         value_piece("message['role']"),
                         text_piece("\n"),
                         value_piece("message['content']"),
                         text_piece("<|im_end|>\n"),
                         block_piece("endfor"),
                         block_piece("ifadd_generation_prompt"),
                         text_piece("<|im_start|>assistant\n"),
                         block_piece("endif")};
  if (pieces != chatml) return std::nullopt;
  return result;
}

}  // namespace warproll
