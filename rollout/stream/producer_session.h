// ProducerSession: the connection state of one producer of trajectories (a worker or a replay)
// towards the trainer.
//
//   state       leaves it by
//   kGreeting   WELCOME -> kStreaming           (HELLO is restated every hello_retry_ms)
//   kStreaming  NEED_HELLO, other lineage, on_reconnected() -> kGreeting
//   kStopped    never: FENCED, fail() or bye()
//
// Silence longer than the trainer's liveness_ms makes reconnect_due() true: the io loop then makes
// a new connection and calls on_reconnected(). Further attempts come at growing intervals, up to
// reconnect_max_ms more than liveness, until a WELCOME.
// Thread: one; passive (wire.h).
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "protocol/status.h"
#include "rollout/stream/wire.h"

namespace warproll {

struct SessionOptions {
  uint32_t hello_retry_ms = 1000;
  uint32_t reconnect_min_ms = 200;  // added to liveness_ms before the second attempt, then doubled
  uint32_t reconnect_max_ms = 30'000;
  Limits until_welcome{.max_message_bytes = 0, .heartbeat_ms = 1000, .liveness_ms = 10'000};
};

enum class SessionState : uint8_t { kGreeting, kStreaming, kStopped };

class ProducerSession {
 public:
  // What the process knows; called whenever one is sent, on the io thread.
  struct Sources {
    std::function<Hello()> hello;
    std::function<Heartbeat()> heartbeat;
  };
  ProducerSession(const ProducerId& producer_id, uint64_t epoch, SessionOptions options,
                  Sources sources);

  // Notes that the trainer lives; handles NEED_HELLO and FENCED.
  void on_message(const Message& message, SteadyTime now);
  void on_welcomed(const Welcome& welcome);
  void greet_again();  // what the trainer says does not fit: start over with HELLO
  void on_reconnected(SteadyTime now);
  void fail(Status why);
  void bye(std::string reason, std::vector<std::string> open_task_ids);

  void tick(SteadyTime now);  // queues HELLO and HEARTBEAT when due
  [[nodiscard]] bool reconnect_due(SteadyTime now) const;

  void queue(Message message, uint64_t seq = 0);
  std::optional<WorkerMessage> next_outgoing();
  // The socket would not take it: first in the queue again.
  void put_back(WorkerMessage message);

  [[nodiscard]] SessionState state() const { return state_; }
  [[nodiscard]] const Status& stopped_because() const { return stopped_because_; }
  [[nodiscard]] const Limits& limits() const { return limits_; }
  [[nodiscard]] Envelope envelope(uint64_t seq) const { return {producer_id_, epoch_, seq}; }
  [[nodiscard]] uint64_t hellos() const { return hellos_; }

 private:
  const ProducerId producer_id_;
  const uint64_t epoch_;
  const SessionOptions options_;
  const Sources sources_;
  SessionState state_ = SessionState::kGreeting;
  Status stopped_because_;
  Limits limits_;
  std::deque<WorkerMessage> outgoing_;
  std::optional<SteadyTime> last_heard_;  // or connected; empty before the first tick
  SteadyTime next_hello_{};
  SteadyTime next_heartbeat_{};
  uint32_t backoff_ms_ = 0;
  uint64_t hellos_ = 0;
};

}  // namespace warproll
