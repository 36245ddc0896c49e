#include "rollout/collector/prompt_encoder.h"

#include <gtest/gtest.h>

#include "rollout/collector/trajectory_builder.h"
#include "tests/golden_dir.h"

namespace warproll {
namespace {

std::shared_ptr<const Tokenizer> tokenizer() {
  auto loaded = Tokenizer::from_file(golden_dir() + "/bpe-tokenizer/tokenizer.json");
  EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
  return *loaded;
}

TEST(PromptEncoder, TakesIdsAsTheyAre) {
  Task task;
  task.prompt_ids = {5, 6};
  const auto prompt = PromptEncoder().encode(task);
  ASSERT_TRUE(prompt.ok());
  EXPECT_EQ(prompt->ids, (std::vector<int32_t>{5, 6}));
  EXPECT_TRUE(prompt->role_spans.empty());
}

TEST(PromptEncoder, EncodesTextWithTheTokenizer) {
  Task task;
  task.prompt_text = "hello world";
  const auto prompt = PromptEncoder(tokenizer()).encode(task);
  ASSERT_TRUE(prompt.ok()) << prompt.status().to_string();
  EXPECT_EQ(tokenizer()->decode(prompt->ids), "hello world");
}

TEST(PromptEncoder, SaysWhyItHasNoChatFormat) {
  Task task;
  task.task_id = "a";
  task.messages = {{Role::kUser, "hi"}};
  const auto prompt =
      PromptEncoder(tokenizer(), std::nullopt, "chat template 'x' is not ChatML").encode(task);
  ASSERT_FALSE(prompt.ok());
  EXPECT_EQ(prompt.status().message(),
            "task 'a' has chat messages: chat template 'x' is not ChatML; wanted prompt_ids or "
            "prompt_text");
}

TEST(PromptEncoder, TheResponseExtendsTheAssistantsSpanOfAChat) {
  auto chat = ChatFormat::chatml(tokenizer());
  ASSERT_TRUE(chat.ok()) << chat.status().to_string();
  HeldTask held;
  held.task.task_id = "a";
  held.task.messages = {{Role::kUser, "hi"}};
  held.prompt = *PromptEncoder(tokenizer(), *chat).encode(held.task);
  held.prompt_ids = std::make_shared<const std::vector<int32_t>>(held.prompt.ids);
  ASSERT_EQ(held.prompt.role_spans.size(), 2u);
  GeneratedSample sample;
  sample.token_ids = {1, 2};
  sample.logprobs = sample.raw_logprobs = sample.support_logmass = {0.0f, 0.0f};
  sample.weight_versions = {1, 1};
  const Trajectory trajectory = build_trajectory(held, 0, sample, {});
  ASSERT_EQ(trajectory.role_spans.size(), 2u);
  EXPECT_EQ(trajectory.role_spans[1].role, Role::kAssistant);
  EXPECT_EQ(trajectory.role_spans[1].end, static_cast<int32_t>(trajectory.token_ids.size()));
}

}  // namespace
}  // namespace warproll
