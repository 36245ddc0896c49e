#include "rollout/collector/collector.h"

#include <algorithm>
#include <utility>

#include "rollout/sample_log/sample_log.h"

namespace warproll {
namespace {

int64_t unix_now_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::vector<int32_t> indices_of(const Task& task) {
  if (!task.sample_indices.empty()) return task.sample_indices;
  std::vector<int32_t> indices(static_cast<size_t>(std::max(task.group_size, 0)));
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int32_t>(i);
  return indices;
}

Task without_indices(Task task) {
  task.sample_indices.clear();
  return task;
}

std::string task_name(const Task& task) { return "task '" + task.task_id + "'"; }

}  // namespace

Collector::Collector(TokenGenerator& generator, SampleLog& log, PromptEncoder encoder,
                     CollectorOptions options, std::function<void()> on_answer)
    : generator_(generator),
      log_(log),
      encoder_(std::move(encoder)),
      options_(std::move(options)),
      on_answer_(std::move(on_answer)),
      intake_(options_.intake_tasks) {}

Collector::~Collector() { intake_.close(); }

// ---- any thread ----

void Collector::offer(TaskMessage message) {
  TaskAck busy{message.task.task_id, message.lease_id, TaskAnswer::kBusy, {}};
  // What a bad group_size says is not counted; run_once rejects it.
  const auto num_samples =
      static_cast<uint32_t>(std::min<size_t>(indices_of(message.task).size(), 1u << 20));
  {
    std::lock_guard lock(mutex_);
    if (paused_ || draining_) {
      busy.reason = draining_ ? "the worker is draining" : "the worker is paused";
    } else {
      ++held_[message.task.task_id];
      offered_samples_ += num_samples;
    }
  }
  if (!busy.reason.empty()) return reply(std::move(busy));
  Offered offered{std::move(message), unix_now_ns(), Clock::now()};
  if (intake_.try_push(offered) == QueueResult::kOk) return;
  {
    std::lock_guard lock(mutex_);
    forget(offered.message.task.task_id, 1);
    offered_samples_ -= num_samples;
  }
  busy.reason = "the intake queue holds " + std::to_string(intake_.capacity()) + " tasks, its most";
  reply(std::move(busy));
}

void Collector::cancel(const Cancel& cancel) {
  std::lock_guard lock(mutex_);
  cancels_.push_back(cancel);
}

void Collector::set_paused(bool paused) {
  std::lock_guard lock(mutex_);
  paused_ = paused;
}

void Collector::drain() {
  std::lock_guard lock(mutex_);
  draining_ = true;
}

std::vector<TaskAck> Collector::take_answers() {
  std::lock_guard lock(mutex_);
  return std::exchange(answers_, {});
}

CollectorLoad Collector::load() const {
  std::lock_guard lock(mutex_);
  CollectorLoad load;
  load.queued_samples = offered_samples_ + waiting_samples_;
  load.running_samples = open_samples_ - waiting_samples_;
  const uint32_t used = offered_samples_ + open_samples_;
  const bool takes = !paused_ && !draining_ && busy_because_.empty();
  load.free_task_slots =
      takes && used < options_.max_open_samples ? options_.max_open_samples - used : 0;
  return load;
}

std::vector<std::string> Collector::open_task_ids() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> task_ids;
  for (const auto& [task_id, count] : held_) task_ids.push_back(task_id);
  return task_ids;
}

bool Collector::idle() const {
  std::lock_guard lock(mutex_);
  return held_.empty();
}

CollectorStats Collector::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void Collector::reply(TaskAck ack) {
  {
    std::lock_guard lock(mutex_);
    switch (ack.answer) {
      case TaskAnswer::kAccepted:
        ++stats_.tasks_accepted;
        break;
      case TaskAnswer::kAlreadyHeld:
        ++stats_.tasks_already_held;
        break;
      case TaskAnswer::kAlreadySealed:
        ++stats_.tasks_already_sealed;
        break;
      case TaskAnswer::kRejected:
        ++stats_.tasks_rejected;
        stats_.last_rejection = ack.reason;
        break;
      case TaskAnswer::kBusy:
        ++stats_.tasks_busy;
        break;
    }
    answers_.push_back(std::move(ack));
  }
  if (on_answer_) on_answer_();
}

void Collector::forget(const std::string& task_id, uint32_t count) {
  const auto it = held_.find(task_id);
  if (it == held_.end()) return;
  it->second -= std::min(count, it->second);
  if (it->second == 0) held_.erase(it);
}

void Collector::publish_load() {
  const SampleLogStats log = log_.stats();
  std::lock_guard lock(mutex_);
  if (log.intake == IntakeState::kPaused) {
    busy_because_ = log.pause_reason;
  } else if (unsealed_.empty()) {
    busy_because_.clear();
  }
  waiting_samples_ = static_cast<uint32_t>(waiting_.size());
  open_samples_ = static_cast<uint32_t>(samples_.size());
  stats_.unsealed_waiting = unsealed_.size();
}

// ---- the collector's thread ----

Status Collector::run_once(Clock::time_point deadline) {
  collect_seal_results();
  apply_cancels();
  WARPROLL_TRY(seal_finished());
  submit_waiting();
  const Clock::time_point slice =
      std::min(deadline, Clock::now() + std::chrono::milliseconds(options_.poll_ms));
  const bool generating = samples_.size() > waiting_.size() + unsealed_.size();
  // Waits where the next event is expected: for a task when nothing is held, else for the generator.
  const bool took = take_offers(samples_.empty() ? deadline : generating ? Clock::now() : slice);
  if (generating || took) {
    for (GeneratedSample& sample : generator_.poll(took ? Clock::now() : slice)) {
      // Not sealed: the task is not to blame, and whoever gets it next makes it.
      if (sample.error_type == kEngineFailure) continue;
      unsealed_.push_back(std::move(sample));
    }
    WARPROLL_TRY(seal_finished());
  }
  WARPROLL_TRY(generator_.failure());
  publish_load();
  return ok_status();
}

// Everything that is in the queue; waits for the first until `deadline`.
bool Collector::take_offers(Clock::time_point deadline) {
  std::optional<Offered> offered = intake_.pop(deadline);
  const bool took = offered.has_value();
  for (; offered; offered = intake_.try_pop()) {
    TaskAck ack = answer(*offered);
    const Task& task = offered->message.task;
    publish_load();  // first: what is counted twice for a moment promises no slot that is not there
    {
      std::lock_guard lock(mutex_);
      forget(task.task_id, 1);
      offered_samples_ -=
          static_cast<uint32_t>(std::min<size_t>(indices_of(task).size(), 1u << 20));
    }
    reply(std::move(ack));
  }
  return took;
}

TaskAck Collector::answer(const Offered& offered) {
  const Task& task = offered.message.task;
  TaskAck ack{task.task_id, offered.message.lease_id, TaskAnswer::kRejected, {}};
  const auto record = tasks_.find(task.task_id);
  Status status = validate(task);
  if (status.ok() && task.in_flight == InFlightPolicy::kPin && !options_.pin_refusal.empty()) {
    status = invalid_argument(task_name(task) + " wants in_flight = pin: " + options_.pin_refusal);
  }
  if (status.ok() && record != tasks_.end() && record->second.held->task != without_indices(task)) {
    status = already_exists(task_name(task) + " is held with other content");
  }
  if (!status.ok()) {
    ack.reason = status.message();
    return ack;
  }
  const Result<Wanted> wanted = wanted_of(task);
  if (!wanted.ok()) {  // the log cannot be read just now
    ack.answer = TaskAnswer::kBusy;
    ack.reason = wanted.status().message();
    return ack;
  }
  if (wanted->missing.empty()) {
    ack.answer = wanted->num_held > 0 ? TaskAnswer::kAlreadyHeld : TaskAnswer::kAlreadySealed;
    return ack;
  }
  return answer_new(offered, *wanted, std::move(ack));
}

TaskAck Collector::answer_new(const Offered& offered, const Wanted& wanted, TaskAck ack) {
  const Task& task = offered.message.task;
  if (wanted.missing.size() > options_.max_open_samples) {
    ack.reason = task_name(task) + " asks for " + std::to_string(wanted.missing.size()) +
                 " samples, this worker holds at most " + std::to_string(options_.max_open_samples);
    return ack;
  }
  ack.reason = busy_reason(wanted.missing.size());
  if (!ack.reason.empty()) {
    ack.answer = TaskAnswer::kBusy;
    return ack;
  }
  const auto record = tasks_.find(task.task_id);
  std::shared_ptr<const HeldTask> held;
  if (record != tasks_.end()) {
    held = record->second.held;
  } else {
    auto made = hold(offered);
    if (!made.ok()) {
      ack.reason = made.status().message();
      return ack;
    }
    held = *std::move(made);
  }
  if (const Status started = start(held, wanted.missing); !started.ok()) {
    ack.reason = started.message();
    return ack;
  }
  ack.answer = TaskAnswer::kAccepted;
  return ack;
}

Result<Collector::Wanted> Collector::wanted_of(const Task& task) const {
  Wanted wanted;
  const auto record = tasks_.find(task.task_id);
  for (const int32_t sample_index : indices_of(task)) {
    if (record != tasks_.end() && record->second.request_ids.contains(sample_index)) {
      ++wanted.num_held;
      continue;
    }
    WARPROLL_TRY_ASSIGN(sealed, log_.is_sealed(task.task_id, sample_index));
    if (!sealed) wanted.missing.push_back(sample_index);
  }
  return wanted;
}

std::string Collector::busy_reason(size_t num_samples) const {
  std::lock_guard lock(mutex_);
  if (draining_) return "the worker is draining";
  if (!busy_because_.empty()) return "the sample log takes no samples: " + busy_because_;
  if (samples_.size() + num_samples <= options_.max_open_samples) return {};
  return std::to_string(samples_.size()) + " samples are held, " + std::to_string(num_samples) +
         " more would exceed " + std::to_string(options_.max_open_samples);
}

}  // namespace warproll
