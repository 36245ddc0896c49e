// From a task's prompt (ids, text or chat messages) to token ids and role spans.
// Thread: immutable; any. Lifetime: keeps the tokenizer alive.
// Errors: kInvalidArgument that names what is wrong with the prompt; kFailedPrecondition when the
// worker has no tokenizer, or no chat format, and the task needs one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/records.h"
#include "protocol/status.h"
#include "rollout/tokenizer/chat_format.h"
#include "rollout/tokenizer/tokenizer.h"

namespace warproll {

struct EncodedPrompt {
  std::vector<int32_t> ids;
  // Chat only. The last span is the assistant's generation prompt; its response goes on from there.
  std::vector<RoleSpan> role_spans;
};

class PromptEncoder {
 public:
  // Without a tokenizer only prompt_ids work. `chat_error` says why there is no chat format.
  PromptEncoder() = default;
  explicit PromptEncoder(std::shared_ptr<const Tokenizer> tokenizer,
                         std::optional<ChatFormat> chat = std::nullopt,
                         std::string chat_error = "the checkpoint has no chat format");

  [[nodiscard]] Result<EncodedPrompt> encode(const Task& task) const;

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<ChatFormat> chat_;
  std::string chat_error_;
};

}  // namespace warproll
