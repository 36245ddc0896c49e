#include "rollout/stream/trainer_stream.h"

#include <utility>

namespace warproll {
namespace {

TaskLeasesOptions leases_for(TaskLeasesOptions options, uint64_t trainer_epoch) {
  if (trainer_epoch == 1) options.adopt_grace_ms = 0;  // nobody can hold anything of ours
  return options;
}

}  // namespace

Result<std::unique_ptr<TrainerStream>> TrainerStream::open(const TrainerStreamOptions& options,
                                                           SteadyTime now) {
  WARPROLL_TRY_ASSIGN(receiver, TrajectoryReceiver::open(options.receiver));
  std::unique_ptr<TrainerStream> stream(new TrainerStream(options, std::move(receiver), now));
  if (options.jsonl) {
    WARPROLL_TRY_ASSIGN(jsonl, TrajectoryJsonl::open(*options.jsonl, stream->receiver_->store()));
    stream->jsonl_ = std::move(jsonl);
  }
  return stream;
}

TrainerStream::TrainerStream(const TrainerStreamOptions& options,
                             std::unique_ptr<TrajectoryReceiver> receiver, SteadyTime now)
    : jsonl_lines_per_round_(options.jsonl_lines_per_round),
      receiver_(std::move(receiver)),
      leases_(leases_for(options.leases, receiver_->store().trainer_epoch()),
              receiver_->store().trainer_epoch(), now) {}

Result<MessageVerdict> TrainerStream::on_message(PeerMessage message, SteadyTime now) {
  const ProducerId producer_id = message.envelope.producer_id;
  const bool is_lease_answer = std::holds_alternative<TaskAck>(message.message) ||
                               std::holds_alternative<Heartbeat>(message.message);
  Message copy;
  if (is_lease_answer) copy = message.message;
  WARPROLL_TRY_ASSIGN(verdict, receiver_->on_message(std::move(message), now));
  if (is_lease_answer && verdict == MessageVerdict::kSession) {
    leases_.on_message(producer_id, copy, now);
  }
  return verdict;
}

Status TrainerStream::advance(SteadyTime now) {
  // A store that cannot write takes and acknowledges nothing, and the worker must know that we live.
  Result<std::vector<TakenPair>> taken = receiver_->flush();
  just_taken_ = taken.ok() ? *std::move(taken) : std::vector<TakenPair>();
  receiver_->tick(now);
  leases_.on_taken(just_taken_);
  for (SessionChange& change : receiver_->take_session_changes()) {
    leases_.on_session_change(change, now);
    changes_.push_back(std::move(change));
  }
  for (const auto& [producer_id, session] : receiver_->sessions()) {
    leases_.on_watermark(producer_id, receiver_->store().producer(producer_id).commit_upto);
  }
  leases_.tick(now);
  while (auto message = leases_.next_outgoing()) {
    // Not connected any more: the lease is restated or released when that is noticed.
    (void)receiver_->send(message->producer_id, std::move(message->message));
  }
  WARPROLL_TRY(taken.status());
  if (jsonl_) WARPROLL_TRY(jsonl_->write(jsonl_lines_per_round_).status());
  return ok_status();
}

std::optional<PeerMessage> TrainerStream::next_outgoing() { return receiver_->next_outgoing(); }

Status TrainerStream::add_task(const Task& task) {
  return leases_.add(task, [this](const std::string& task_id, int32_t sample_index) {
    return receiver_->store().is_taken(task_id, sample_index);
  });
}

std::vector<SessionChange> TrainerStream::take_session_changes() {
  return std::exchange(changes_, {});
}

Status TrainerStream::rollback(std::string_view mark) {
  WARPROLL_TRY(receiver_->rollback(mark));
  if (jsonl_) WARPROLL_TRY(jsonl_->write(0).status());
  return ok_status();
}

Status TrainerStream::finish() {
  if (!jsonl_) return ok_status();
  while (true) {
    WARPROLL_TRY_ASSIGN(complete, jsonl_->write(jsonl_lines_per_round_));
    if (complete) return jsonl_->sync();
  }
}

}  // namespace warproll
