// Collector, the life of one sample: its task held, submitted, generated, sealed.
#include <algorithm>
#include <utility>

#include "rollout/collector/collector.h"
#include "rollout/sample_log/sample_log.h"

namespace warproll {
namespace {

int64_t steady_ns(Collector::Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

Task without_indices(Task task) {
  task.sample_indices.clear();
  return task;
}

std::string task_name(const Task& task) { return "task '" + task.task_id + "'"; }

}  // namespace

Result<std::shared_ptr<const HeldTask>> Collector::hold(const Offered& offered) const {
  auto held = std::make_shared<HeldTask>();
  held->task = without_indices(offered.message.task);
  const Task& task = held->task;
  WARPROLL_TRY_ASSIGN(prompt, encoder_.encode(task));
  const int64_t prompt_len = static_cast<int64_t>(prompt.ids.size());
  if (prompt_len == 0) return invalid_argument(task_name(task) + " has a prompt of 0 tokens");
  for (size_t i = 0; options_.vocab_size > 0 && i < prompt.ids.size(); ++i) {
    if (prompt.ids[i] >= 0 && prompt.ids[i] < options_.vocab_size) continue;
    return invalid_argument(task_name(task) + ": prompt id [" + std::to_string(i) + "] is " +
                            std::to_string(prompt.ids[i]) + ", wanted 0.." +
                            std::to_string(options_.vocab_size - 1));
  }
  if (options_.max_context_tokens > 0 && prompt_len >= options_.max_context_tokens) {
    return invalid_argument(task_name(task) + " has a prompt of " + std::to_string(prompt_len) +
                            " tokens, wanted at most " +
                            std::to_string(options_.max_context_tokens - 1) +
                            " (the context holds " + std::to_string(options_.max_context_tokens) +
                            ", one of them sampled)");
  }
  held->prompt = std::move(prompt);
  held->prompt_ids = std::make_shared<const std::vector<int32_t>>(held->prompt.ids);
  held->received_ns = offered.received_ns;
  if (task.deadline_ms > 0) {
    held->deadline_steady_ns =
        steady_ns(offered.received_at + std::chrono::milliseconds(task.deadline_ms));
  }
  return std::shared_ptr<const HeldTask>(std::move(held));
}

// Not ok: the generator refused the first sample for good, and nothing of the task is held.
Status Collector::start(const std::shared_ptr<const HeldTask>& held,
                        const std::vector<int32_t>& indices) {
  const std::string& task_id = held->task.task_id;
  for (size_t i = 0; i < indices.size(); ++i) {
    Sample sample{held, indices[i], next_request_id_++, false};
    Status submitted = unavailable("others wait already");
    if (waiting_.empty()) submitted = generator_.submit(request_for(sample));
    const bool refused = is_refusal(submitted);
    if (refused && i == 0) return submitted;
    sample.submitted = submitted.ok();
    const uint64_t request_id = sample.request_id;
    TaskRecord& record = tasks_[task_id];
    record.held = held;
    record.request_ids[sample.sample_index] = request_id;
    samples_[request_id] = std::move(sample);
    if (refused) {
      end_unsubmitted(request_id, FinishReason::kError, "refused", submitted.message());
    } else if (!submitted.ok()) {
      waiting_.push_back(request_id);
    }
  }
  std::lock_guard lock(mutex_);
  held_[task_id] += static_cast<uint32_t>(indices.size());
  stats_.samples_started += indices.size();
  return ok_status();
}

// Of the request. A generator that is full takes it later; one that has failed refuses everything.
bool Collector::is_refusal(const Status& submitted) const {
  return !submitted.ok() && submitted.code() != StatusCode::kUnavailable &&
         generator_.failure().ok();
}

SampleRequest Collector::request_for(const Sample& sample) const {
  const HeldTask& held = *sample.held;
  SampleRequest request;
  request.request_id = sample.request_id;
  request.prompt_ids = held.prompt_ids;
  request.sample_index = sample.sample_index;
  request.sampling = held.task.sampling;
  request.in_flight = held.task.in_flight;
  request.return_routes = held.task.return_routes;
  request.deadline_ns = held.deadline_steady_ns;
  return request;
}

void Collector::submit_waiting() {
  while (!waiting_.empty()) {
    const uint64_t request_id = waiting_.front();
    Sample& sample = samples_.at(request_id);
    const int64_t deadline_ns = sample.held->deadline_steady_ns;
    if (deadline_ns != 0 && steady_ns(Clock::now()) > deadline_ns) {
      waiting_.pop_front();
      end_unsubmitted(request_id, FinishReason::kAbort, "deadline",
                      "deadline_ms passed before generation began");
      continue;
    }
    const Status submitted = generator_.submit(request_for(sample));
    if (!submitted.ok() && !is_refusal(submitted)) return;
    waiting_.pop_front();
    sample.submitted = submitted.ok();
    if (!submitted.ok()) {
      end_unsubmitted(request_id, FinishReason::kError, "refused", submitted.message());
    }
  }
}

void Collector::apply_cancels() {
  std::vector<Cancel> cancels;
  {
    std::lock_guard lock(mutex_);
    cancels.swap(cancels_);
  }
  for (Cancel& cancel : cancels) {
    const auto record = tasks_.find(cancel.task_id);
    if (record == tasks_.end()) {
      // Its task may still be in the intake queue; it is held or answered after the next offers.
      std::lock_guard lock(mutex_);
      if (held_.contains(cancel.task_id)) cancels_.push_back(std::move(cancel));
      continue;
    }
    for (const auto& [sample_index, request_id] : record->second.request_ids) {
      if (samples_.at(request_id).submitted) {
        generator_.cancel(request_id, cancel.reason);
      } else if (std::erase(waiting_, request_id) > 0) {
        end_unsubmitted(request_id, FinishReason::kAbort, "cancelled", cancel.reason);
      }
    }
  }
}

void Collector::end_unsubmitted(uint64_t request_id, FinishReason reason,
                                const std::string& error_type, const std::string& message) {
  GeneratedSample ended;
  ended.request_id = request_id;
  ended.finish_reason = reason;
  ended.error_type = error_type;
  ended.error_message = message;
  unsealed_.push_back(std::move(ended));
}

// In order; stops where the log takes no more, and the rest waits here.
Status Collector::seal_finished() {
  while (!unsealed_.empty()) {
    WARPROLL_TRY_ASSIGN(taken, seal(unsealed_.front()));
    if (!taken) return ok_status();
    unsealed_.pop_front();
  }
  return ok_status();
}

// False when the log takes nothing now.
Result<bool> Collector::seal(const GeneratedSample& generated) {
  const auto it = samples_.find(generated.request_id);
  if (it == samples_.end()) return true;  // not ours, or told twice
  const Sample& sample = it->second;
  Status appended = append(generated.request_id, build_trajectory(*sample.held, sample.sample_index,
                                                                  generated, options_.identity));
  if (appended.code() == StatusCode::kInvalidArgument) {
    const std::string why = appended.message();
    appended = append(
        generated.request_id,
        build_failure(*sample.held, sample.sample_index, "invalid_sample", why, options_.identity));
    if (appended.code() == StatusCode::kInvalidArgument) {
      return internal_error("sample " + std::to_string(sample.sample_index) + " of task '" +
                            sample.held->task.task_id +
                            "' cannot be sealed even as a failure: " + appended.message());
    }
    std::lock_guard lock(mutex_);
    if (appended.ok()) ++stats_.samples_invalid;
  }
  if (appended.ok()) return true;
  std::lock_guard lock(mutex_);
  busy_because_ = appended.message();
  return false;
}

Status Collector::append(uint64_t request_id, Trajectory trajectory) {
  SealResult result;
  result.request_id = request_id;
  result.finish_reason = trajectory.finish_reason;
  result.sampled_tokens = trajectory.token_ids.size() - static_cast<size_t>(trajectory.prompt_len);
  const auto deadline = Clock::now() + std::chrono::milliseconds(options_.poll_ms);
  return log_.append(std::move(trajectory), deadline,
                     [mailbox = mailbox_, result](const Result<Sealed>& sealed) mutable {
                       result.durable = sealed.ok();
                       std::lock_guard lock(mailbox->mutex);
                       mailbox->results.push_back(result);
                     });
}

void Collector::collect_seal_results() {
  std::vector<SealResult> results;
  {
    std::lock_guard lock(mailbox_->mutex);
    results.swap(mailbox_->results);
  }
  for (const SealResult& result : results) {
    const auto it = samples_.find(result.request_id);
    if (it == samples_.end()) continue;
    std::lock_guard lock(mutex_);
    if (!result.durable) {  // stays held, so that BYE gives it back
      ++stats_.samples_unsealed;
      continue;
    }
    ++stats_.samples_sealed;
    stats_.sampled_tokens += result.sampled_tokens;
    if (result.finish_reason == FinishReason::kError) ++stats_.samples_failed;
    if (result.finish_reason == FinishReason::kAbort) ++stats_.samples_aborted;
    const std::string& task_id = it->second.held->task.task_id;
    forget(task_id, 1);
    TaskRecord& record = tasks_.at(task_id);
    record.request_ids.erase(it->second.sample_index);
    if (record.request_ids.empty()) tasks_.erase(task_id);
    samples_.erase(it);
  }
}

}  // namespace warproll
