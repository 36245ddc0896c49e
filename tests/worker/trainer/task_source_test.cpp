#include "worker/trainer/task_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "worker/trainer/task_json.h"

namespace warproll {
namespace {

using ::testing::HasSubstr;

class TempFile {
 public:
  explicit TempFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("warproll-tasks-" + std::to_string(getpid()) + ".jsonl")) {
    std::ofstream(path_) << text;
  }
  ~TempFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::vector<Task> all_tasks(TaskSource& source) {
  std::vector<Task> tasks;
  for (;;) {
    Result<std::optional<Task>> task = source.next();
    EXPECT_TRUE(task.ok()) << task.status().message();
    if (!task.ok() || !task->has_value()) return tasks;
    tasks.push_back(**task);
  }
}

TEST(ArithmeticTasks, AreTheSameAfterARestartAndAllDifferent) {
  TrainerConfig config;
  config.tasks.count = 500;
  auto first = make_task_source(config).value();
  auto second = make_task_source(config).value();
  const std::vector<Task> tasks = all_tasks(*first);
  EXPECT_EQ(tasks, all_tasks(*second));
  ASSERT_EQ(tasks.size(), 500u);
  std::set<std::string> ids;
  std::set<uint64_t> seeds;
  for (const Task& task : tasks) {
    EXPECT_TRUE(validate(task).ok());
    ids.insert(task.task_id);
    seeds.insert(task.sampling.seed);
  }
  EXPECT_EQ(ids.size(), 500u);
  EXPECT_EQ(seeds.size(), 500u);
}

TEST(ArithmeticTasks, TheAnswerIsTheSumOfThePrompt) {
  TrainerConfig config;
  config.tasks.count = 100;
  auto source = make_task_source(config).value();
  for (const Task& task : all_tasks(*source)) {
    int a = 0;
    int b = 0;
    ASSERT_EQ(std::sscanf(task.prompt_text.c_str(), "%d+%d=", &a, &b), 2);
    EXPECT_EQ(task.metadata, "{\"answer\":\"" + std::to_string(a + b) + "\"}");
  }
}

TEST(ExactMatchReward, IsOneZeroOrAbsentAndAFailureIsNotZero) {
  Trajectory trajectory;
  trajectory.metadata = R"({"answer": "12"})";
  trajectory.text = "12";
  EXPECT_EQ(exact_match_reward(trajectory)->total, 1.0);
  trajectory.text = "12 ";
  EXPECT_EQ(exact_match_reward(trajectory)->total, 0.0);
  trajectory.finish_reason = FinishReason::kError;
  EXPECT_FALSE(exact_match_reward(trajectory).has_value());
  trajectory.finish_reason = FinishReason::kAbort;
  EXPECT_FALSE(exact_match_reward(trajectory).has_value());
  trajectory.finish_reason = FinishReason::kLength;
  trajectory.metadata = "not json";
  EXPECT_FALSE(exact_match_reward(trajectory).has_value());
}

TEST(JsonlTasks, ReadEveryFieldAndCountLines) {
  const TempFile file(
      R"({"task_id": "a", "prompt": "1+1=", "answer": "2", "group_size": 3,)"
      R"( "sampling": {"temperature": 0.5, "max_tokens": 9, "stop": ["\n"], "seed": 7}})"
      "\n\n"
      R"({"prompt_ids": [1, 2, 3], "in_flight": "pin", "return_routes": true, "metadata": {"k": 1}})"
      "\n");
  TrainerConfig config;
  config.tasks.source = "jsonl";
  config.tasks.file = file.path();
  auto source = make_task_source(config).value();
  EXPECT_EQ(source->num_tasks(), 2u);
  const std::vector<Task> tasks = all_tasks(*source);
  ASSERT_EQ(tasks.size(), 2u);
  EXPECT_EQ(tasks[0].task_id, "a");
  EXPECT_EQ(tasks[0].group_size, 3);
  EXPECT_EQ(tasks[0].sampling.temperature, 0.5f);
  EXPECT_EQ(tasks[0].sampling.seed, 7u);
  EXPECT_EQ(tasks[0].sampling.stop_strings, std::vector<std::string>{"\n"});
  EXPECT_EQ(tasks[0].metadata, R"({"answer":"2"})");
  EXPECT_EQ(tasks[1].task_id, "line-3");
  EXPECT_EQ(tasks[1].prompt_ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(tasks[1].in_flight, InFlightPolicy::kPin);
  EXPECT_NE(tasks[1].sampling.seed, 0u);
}

TEST(JsonlTasks, ABadLineNamesFileLineAndValue) {
  const TempFile file("{\"prompt\": \"x\"}\n{\"prompt\": 5}\n");
  TrainerConfig config;
  config.tasks.source = "jsonl";
  config.tasks.file = file.path();
  auto source = make_task_source(config).value();
  EXPECT_TRUE(source->next().ok());
  const auto bad = source->next();
  EXPECT_THAT(bad.status().message(), HasSubstr(file.path() + ":2: prompt is 5, wanted text"));
}

TEST(JsonlTasks, AMissingFileIsNamed) {
  TrainerConfig config;
  config.tasks.source = "jsonl";
  config.tasks.file = "/nowhere/tasks.jsonl";
  const auto source = make_task_source(config);
  EXPECT_EQ(source.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(source.status().message(), HasSubstr("/nowhere/tasks.jsonl"));
}

TEST(TaskFromJson, BadInputNamesKeyValueAndWhatWasWanted) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "not JSON"},
      {"[1]", "the line is [1], wanted a JSON object"},
      {R"({"promt": "x"})", "unknown key promt"},
      {R"({"group_size": 1.5})", "group_size is 1.5, wanted a whole number"},
      {R"({"group_size": 99999999999})", "wanted a whole number up to 2147483647"},
      {R"({"deadline_ms": -1})", "deadline_ms is -1, wanted a whole number"},
      {R"({"prompt_ids": [1, "x"]})", "prompt_ids is \"x\", wanted a whole number"},
      {R"({"prompt_ids": 1})", "prompt_ids is 1, wanted a list"},
      {R"({"sampling": {"temp": 1}})", "unknown key sampling.temp"},
      {R"({"sampling": {"temperature": "hot"}})", "sampling.temperature is \"hot\""},
      {R"({"sampling": []})", "sampling is [], wanted an object"},
      {R"({"messages": [{"role": "robot", "content": "x"}]})", "messages.role is \"robot\""},
      {R"({"messages": [{"role": "user"}]})", "wanted {\"role\": ..., \"content\": ...}"},
      {R"({"in_flight": "stay"})", "stay"},
      {R"({"answer": "1", "metadata": "m"})", "answer and metadata are both given"},
      {R"({"answer": 5})", "answer is 5, wanted text"},
  };
  for (const auto& [text, message] : cases) {
    const Result<Task> task = task_from_json(text, {});
    ASSERT_FALSE(task.ok()) << text;
    EXPECT_THAT(task.status().message(), HasSubstr(message)) << text;
  }
}

}  // namespace
}  // namespace warproll
