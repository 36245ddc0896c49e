// TrainerStream: receiver, task leases and JSONL file put together in the one right order, for the
// io loop of a trainer.
//
//   drain the socket:  on_message() for each; kSession and not the stream's own (UPDATE_*, HELLO and
//                      HEARTBEAT as well): the caller's broadcaster wants to see it
//   advance(now)       one durable write, then acknowledgements, leases, JSONL lines, heartbeats
//   next_outgoing()    until empty: send; a peer that is gone (kNotFound) may be ignored
//
// Thread: one; passive (wire.h). Errors: Status = store or file failed; nothing is lost, the next
// advance() tries again.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "rollout/stream/task_leases.h"
#include "rollout/stream/trajectory_jsonl.h"
#include "rollout/stream/trajectory_receiver.h"

namespace warproll {

struct TrainerStreamOptions {
  TrajectoryReceiverOptions receiver;
  TaskLeasesOptions leases;  // adopt_grace_ms counts only when the store is not new
  std::optional<TrajectoryJsonlOptions> jsonl;
  size_t jsonl_lines_per_round = 256;
};

class TrainerStream {
 public:
  static Result<std::unique_ptr<TrainerStream>> open(const TrainerStreamOptions& options,
                                                     SteadyTime now);

  Result<MessageVerdict> on_message(PeerMessage message, SteadyTime now);
  Status advance(SteadyTime now);
  std::optional<PeerMessage> next_outgoing();

  Status add_task(const Task& task);
  // What became durable in the last advance(), for the caller's own counts.
  [[nodiscard]] const std::vector<TakenPair>& just_taken() const { return just_taken_; }
  // The session changes that advance() handled, for the caller's broadcaster and display.
  std::vector<SessionChange> take_session_changes();
  // Forgets what was taken since the mark; the caller adds its tasks again.
  Status rollback(std::string_view mark);
  // JSONL complete and synced. Before exit.
  Status finish();

  [[nodiscard]] TrajectoryReceiver& receiver() { return *receiver_; }
  [[nodiscard]] TaskLeases& leases() { return leases_; }

 private:
  TrainerStream(const TrainerStreamOptions& options, std::unique_ptr<TrajectoryReceiver> receiver,
                SteadyTime now);

  const size_t jsonl_lines_per_round_;
  std::unique_ptr<TrajectoryReceiver> receiver_;
  std::unique_ptr<TrajectoryJsonl> jsonl_;
  TaskLeases leases_;
  std::vector<TakenPair> just_taken_;
  std::vector<SessionChange> changes_;
};

}  // namespace warproll
