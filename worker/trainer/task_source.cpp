#include "worker/trainer/task_source.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "worker/trainer/task_json.h"

namespace warproll {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): task i of a seed without keeping any state.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

Task task_defaults(const TrainerConfig& config) {
  Task task;
  task.group_size = static_cast<int32_t>(config.tasks.group_size);
  task.in_flight = in_flight_policy_from(config.tasks.in_flight).value();
  task.return_routes = config.tasks.return_routes;
  task.deadline_ms = static_cast<uint32_t>(config.tasks.deadline_ms);
  task.sampling.temperature = static_cast<float>(config.sampling.temperature);
  task.sampling.top_p = static_cast<float>(config.sampling.top_p);
  task.sampling.top_k = static_cast<int32_t>(config.sampling.top_k);
  task.sampling.min_p = static_cast<float>(config.sampling.min_p);
  task.sampling.max_tokens = static_cast<int32_t>(config.sampling.max_tokens);
  return task;
}

class ArithmeticTasks final : public TaskSource {
 public:
  explicit ArithmeticTasks(const TrainerConfig& config)
      : defaults_(task_defaults(config)),
        seed_(static_cast<uint64_t>(config.tasks.seed)),
        num_tasks_(static_cast<uint64_t>(config.tasks.count)) {}

  Result<std::optional<Task>> next() override {
    if (num_tasks_ != 0 && index_ == num_tasks_) return std::optional<Task>();
    const uint64_t random = mix(mix(seed_) ^ index_);
    const uint64_t a = (random & 0xFFFFFFFF) % 1000;
    const uint64_t b = (random >> 32) % 1000;
    Task task = defaults_;
    task.task_id = "arith-" + std::to_string(seed_) + "-" + std::to_string(index_);
    task.prompt_text = std::to_string(a) + "+" + std::to_string(b) + "=";
    task.metadata = nlohmann::json{{"answer", std::to_string(a + b)}}.dump();
    task.sampling.seed = mix(random);
    ++index_;
    return std::optional<Task>(std::move(task));
  }
  uint64_t num_tasks() const override { return num_tasks_; }

 private:
  const Task defaults_;
  const uint64_t seed_;
  const uint64_t num_tasks_;
  uint64_t index_ = 0;
};

class JsonlTasks final : public TaskSource {
 public:
  static Result<std::unique_ptr<TaskSource>> open(const TrainerConfig& config) {
    auto source = std::unique_ptr<JsonlTasks>(new JsonlTasks(config));
    std::ifstream file(config.tasks.file);
    if (!file)
      return not_found("tasks.file " + config.tasks.file + ": cannot be opened for reading");
    for (std::string line; std::getline(file, line);) {
      if (line.find_first_not_of(" \t\r") != std::string::npos) ++source->num_tasks_;
    }
    source->file_.open(config.tasks.file);
    return std::unique_ptr<TaskSource>(std::move(source));
  }

  Result<std::optional<Task>> next() override {
    for (std::string line; std::getline(file_, line);) {
      ++line_number_;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const std::string where = path_ + ":" + std::to_string(line_number_);
      Result<Task> task = task_from_json(line, defaults_);
      if (!task.ok()) return task.status().with_context(where);
      if (task->task_id.empty()) task->task_id = "line-" + std::to_string(line_number_);
      if (task->sampling.seed == 0) task->sampling.seed = mix(seed_ ^ line_number_);
      const Status valid = validate(*task);
      if (!valid.ok()) return valid.with_context(where);
      return std::optional<Task>(std::move(task).value());
    }
    return std::optional<Task>();
  }
  uint64_t num_tasks() const override { return num_tasks_; }

 private:
  explicit JsonlTasks(const TrainerConfig& config)
      : defaults_(task_defaults(config)),
        seed_(static_cast<uint64_t>(config.tasks.seed)),
        path_(config.tasks.file) {}

  const Task defaults_;
  const uint64_t seed_;
  const std::string path_;
  std::ifstream file_;
  uint64_t line_number_ = 0;
  uint64_t num_tasks_ = 0;
};

}  // namespace

Result<std::unique_ptr<TaskSource>> make_task_source(const TrainerConfig& config) {
  if (config.tasks.source == "jsonl") return JsonlTasks::open(config);
  return std::unique_ptr<TaskSource>(std::make_unique<ArithmeticTasks>(config));
}

std::optional<Reward> exact_match_reward(const Trajectory& trajectory) {
  if (trajectory.finish_reason == FinishReason::kError ||
      trajectory.finish_reason == FinishReason::kAbort) {
    return std::nullopt;
  }
  const nlohmann::json metadata = nlohmann::json::parse(trajectory.metadata, nullptr, false);
  if (!metadata.is_object() || !metadata.contains("answer") || !metadata["answer"].is_string()) {
    return std::nullopt;
  }
  Reward reward;
  reward.total = trajectory.text == metadata["answer"].get<std::string>() ? 1.0 : 0.0;
  reward.components.emplace_back("exact_match", reward.total);
  return reward;
}

}  // namespace warproll
