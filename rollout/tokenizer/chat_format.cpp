#include "rollout/tokenizer/chat_format.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "protocol/strict_json.h"
#include "rollout/tokenizer/chat_template.h"
#include "rollout/tokenizer/file_text.h"
#include "rollout/tokenizer/json_fields.h"

namespace warproll {
namespace {

using nlohmann::json;

constexpr const char* kStart = "<|im_start|>";
constexpr const char* kEnd = "<|im_end|>";

Result<int32_t> control_token(const Tokenizer& tokenizer, const char* content) {
  const std::optional<int32_t> id = tokenizer.id_of_token(content);
  if (id && tokenizer.is_special(*id)) return *id;
  return invalid_argument(std::string("ChatML needs the special token ") + content +
                          ", the tokenizer " +
                          (id ? "has it, but not as a special one" : "does not have it"));
}

std::string first_line(std::string_view text) {
  constexpr size_t kMaxShown = 120;
  const std::string_view line = text.substr(0, text.find('\n'));
  return describe_json(json(std::string(line.substr(0, kMaxShown))));
}

struct NamedTemplate {
  std::string name;
  std::string text;
};

// chat_template is a string, or a list of {name, template} of which "default" is for plain chat.
Result<std::optional<NamedTemplate>> find_template(std::string_view config) {
  WARPROLL_TRY_ASSIGN(file, parse_strict_json(config));
  WARPROLL_TRY_ASSIGN(root, JsonFields::of(file, ""));
  const json& value = root.field("chat_template");
  if (value.is_null()) return std::optional<NamedTemplate>();
  if (value.is_string()) return std::optional(NamedTemplate{"", value.get<std::string>()});
  if (!value.is_array()) return json_mismatch("chat_template", value, "a string or a list");
  std::string names;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string path = "chat_template[" + std::to_string(i) + "]";
    WARPROLL_TRY_ASSIGN(entry, JsonFields::of(value[i], path));
    WARPROLL_TRY_ASSIGN(name, entry.string("name"));
    WARPROLL_TRY_ASSIGN(text, entry.string("template"));
    if (name == "default") return std::optional(NamedTemplate{"\"default\" ", std::move(text)});
    names += (names.empty() ? "" : ", ") + name;
  }
  return invalid_argument("chat_template is a list of [" + names +
                          "], wanted one named \"default\"");
}

}  // namespace

Result<ChatFormat> ChatFormat::chatml(std::shared_ptr<const Tokenizer> tokenizer) {
  WARPROLL_TRY_ASSIGN(start_id, control_token(*tokenizer, kStart));
  WARPROLL_TRY_ASSIGN(end_id, control_token(*tokenizer, kEnd));
  return ChatFormat(std::move(tokenizer), start_id, end_id);
}

Result<ChatFormat> ChatFormat::from_template(std::shared_ptr<const Tokenizer> tokenizer,
                                             std::string_view text, std::string_view name) {
  std::optional<ChatMlTemplate> recognized = recognize_chatml(text);
  if (!recognized) {
    return invalid_argument("the chat template " + std::string(name) + "of " +
                            std::to_string(text.size()) + " bytes, whose first line is " +
                            first_line(text) +
                            ", is not supported; wanted plain ChatML as in Qwen 2, or none");
  }
  WARPROLL_TRY_ASSIGN(format, chatml(std::move(tokenizer)));
  format.default_system_ = std::move(recognized->default_system);
  return format;
}

Result<ChatFormat> ChatFormat::from_tokenizer_config(std::shared_ptr<const Tokenizer> tokenizer,
                                                     std::string_view config,
                                                     std::string_view name) {
  const auto found = find_template(config);
  if (!found.ok()) return found.status().with_context(name);
  auto format = *found ? from_template(std::move(tokenizer), (*found)->text, (*found)->name)
                       : chatml(std::move(tokenizer));
  if (!format.ok()) return format.status().with_context(name);
  return format;
}

Result<ChatFormat> ChatFormat::from_checkpoint(std::shared_ptr<const Tokenizer> tokenizer,
                                               const std::string& directory) {
  const std::string jinja_path = directory + "/chat_template.jinja";
  const Result<std::string> jinja = read_file_text(jinja_path);
  if (jinja.ok()) {
    auto format = from_template(std::move(tokenizer), *jinja, "");
    if (!format.ok()) return format.status().with_context(jinja_path);
    return format;
  }
  if (jinja.status().code() != StatusCode::kNotFound) return jinja.status();
  const std::string config_path = directory + "/tokenizer_config.json";
  const Result<std::string> config = read_file_text(config_path);
  if (config.ok()) return from_tokenizer_config(std::move(tokenizer), *config, config_path);
  if (config.status().code() != StatusCode::kNotFound) return config.status();
  return chatml(std::move(tokenizer));
}

Result<EncodedChat> ChatFormat::encode(std::span<const ChatMessage> messages,
                                       bool add_generation_prompt) const {
  if (messages.empty()) return invalid_argument("a chat of 0 messages, wanted at least 1");
  EncodedChat chat;
  if (default_system_ && messages.front().role != Role::kSystem) {
    WARPROLL_TRY(append_message({Role::kSystem, *default_system_}, &chat));
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    WARPROLL_TRY(append_message(messages[i], &chat).with_context("message " + std::to_string(i)));
  }
  if (!add_generation_prompt) return chat;
  const auto start = static_cast<int32_t>(chat.ids.size());
  WARPROLL_TRY_ASSIGN(prompt, tokenizer_->encode("assistant\n", {.match_special = false}));
  chat.ids.push_back(start_id_);
  chat.ids.insert(chat.ids.end(), prompt.begin(), prompt.end());
  chat.role_spans.push_back({start, static_cast<int32_t>(chat.ids.size()), Role::kAssistant});
  return chat;
}

// Role, newline and content are one text, as in a rendered template: a newline at the start of the
// content may merge with the one before it.
Status ChatFormat::append_message(const ChatMessage& message, EncodedChat* chat) const {
  const std::string text = std::string(to_string(message.role)) + "\n" + message.content;
  WARPROLL_TRY_ASSIGN(body, tokenizer_->encode(text, {.match_special = false}));
  WARPROLL_TRY_ASSIGN(newline, tokenizer_->encode("\n"));
  const auto start = static_cast<int32_t>(chat->ids.size());
  chat->ids.push_back(start_id_);
  chat->ids.insert(chat->ids.end(), body.begin(), body.end());
  chat->ids.push_back(end_id_);
  chat->ids.insert(chat->ids.end(), newline.begin(), newline.end());
  chat->role_spans.push_back({start, static_cast<int32_t>(chat->ids.size()), message.role});
  return ok_status();
}

}  // namespace warproll
