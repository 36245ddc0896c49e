// Chat messages -> token ids and role spans, in ChatML, Qwen's format:
//   <|im_start|>ROLE\nCONTENT<|im_end|>\n   for each message, then <|im_start|>assistant\n
// No Jinja is run. A checkpoint's chat_template is accepted when it says exactly this (with or
// without a default system prompt, as Qwen 2 has it); any other is an error that names it.
//
// Content is never control: text in a message that spells a special token (<|im_end|>) becomes
// ordinary tokens, so that no message can end its turn and speak for another role. (Hugging Face
// renders to one string and would match it.) Added tokens that are not special, such as <think> and
// <tool_call>, are found in content as usual.
//
// Thread: immutable; encode() may run on many threads at once. Lifetime: keeps the tokenizer alive.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/records.h"
#include "protocol/status.h"
#include "rollout/tokenizer/tokenizer.h"

namespace warproll {

struct EncodedChat {
  std::vector<int32_t> ids;
  // Tile ids: a message's span runs from <|im_start|> through the newline after <|im_end|>. The
  // generation prompt is the last span, of the assistant; whoever appends the response extends it.
  std::vector<RoleSpan> role_spans;
};

class ChatFormat {
 public:
  // The built-in ChatML. kInvalidArgument: the tokenizer has no special token <|im_start|> or
  // <|im_end|>.
  static Result<ChatFormat> chatml(std::shared_ptr<const Tokenizer> tokenizer);
  // The text of a tokenizer_config.json, called `name` in messages. Without a chat_template: chatml.
  static Result<ChatFormat> from_tokenizer_config(std::shared_ptr<const Tokenizer> tokenizer,
                                                  std::string_view config, std::string_view name);
  // DIR/chat_template.jinja (as transformers 5 writes it) if there is one, else
  // DIR/tokenizer_config.json if there is one, else chatml.
  static Result<ChatFormat> from_checkpoint(std::shared_ptr<const Tokenizer> tokenizer,
                                            const std::string& directory);

  // kInvalidArgument: no messages, or content that is not UTF-8 (with the message's index).
  [[nodiscard]] Result<EncodedChat> encode(std::span<const ChatMessage> messages,
                                           bool add_generation_prompt = true) const;

 private:
  ChatFormat(std::shared_ptr<const Tokenizer> tokenizer, int32_t start_id, int32_t end_id)
      : tokenizer_(std::move(tokenizer)), start_id_(start_id), end_id_(end_id) {}
  static Result<ChatFormat> from_template(std::shared_ptr<const Tokenizer> tokenizer,
                                          std::string_view text, std::string_view name);
  Status append_message(const ChatMessage& message, EncodedChat* chat) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  int32_t start_id_;
  int32_t end_id_;
  std::optional<std::string> default_system_;  // put first when the chat has no system message
};

}  // namespace warproll
