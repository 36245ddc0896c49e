#include "rollout/collector/prompt_encoder.h"

#include <utility>

namespace warproll {

PromptEncoder::PromptEncoder(std::shared_ptr<const Tokenizer> tokenizer,
                             std::optional<ChatFormat> chat, std::string chat_error)
    : tokenizer_(std::move(tokenizer)),
      chat_(std::move(chat)),
      chat_error_(std::move(chat_error)) {}

Result<EncodedPrompt> PromptEncoder::encode(const Task& task) const {
  if (!task.prompt_ids.empty()) return EncodedPrompt{task.prompt_ids, {}};
  if (!tokenizer_) {
    return failed_precondition("task '" + task.task_id +
                               "' has a prompt in text, this worker has no tokenizer; wanted "
                               "prompt_ids");
  }
  if (task.messages.empty()) {
    WARPROLL_TRY_ASSIGN(ids, tokenizer_->encode(task.prompt_text));
    return EncodedPrompt{std::move(ids), {}};
  }
  if (!chat_) {
    return failed_precondition("task '" + task.task_id + "' has chat messages: " + chat_error_ +
                               "; wanted prompt_ids or prompt_text");
  }
  WARPROLL_TRY_ASSIGN(chat, chat_->encode(task.messages));
  return EncodedPrompt{std::move(chat.ids), std::move(chat.role_spans)};
}

}  // namespace warproll
