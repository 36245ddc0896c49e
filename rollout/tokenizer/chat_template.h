// Recognises a Jinja chat template that renders plain ChatML, as Qwen 1.5's and 2's do. It is read
// as transformers does (trim_blocks, lstrip_blocks), brought to a canonical form (white space,
// quotes, a.b for a['b'], where text is cut into literals) and compared. Nothing is run.
// Internal to rollout/tokenizer. Thread: pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace warproll {

struct ChatMlTemplate {
  std::optional<std::string> default_system;  // content of the system message it adds if none is
};

// nullopt: some other template.
std::optional<ChatMlTemplate> recognize_chatml(std::string_view jinja);

}  // namespace warproll
