// Every message between worker and trainer as a plain struct; messages.capnp is the wire form,
// codec.h converts. Who sends what: W = worker (DEALER, connects), T = trainer (ROUTER, binds).
// Every message is idempotent and may be restated; counters are absolute.
// Thread: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "protocol/records.h"

namespace warproll {

// ---- session ----
enum class WorkerState : uint8_t { kStarting, kServing, kPaused, kDraining, kStopping };
enum class UpdateState : uint8_t { kIdle, kReceiving, kVerifying, kReady, kCommitted, kAborted };
std::string_view to_string(WorkerState state);
std::string_view to_string(UpdateState state);

struct WeightStatus {  // which weights a worker serves, and what it does about new ones
  uint64_t serving_version = 0;
  Digest serving_digest{};
  UpdateState update_state = UpdateState::kIdle;
  uint64_t update_version = 0;  // of the update in progress or last ended, 0 = none
  uint32_t update_attempt = 0;
  bool can_rollback = false;
  uint64_t rollback_version = 0;
  bool operator==(const WeightStatus&) const = default;
};

// W: first message of every connection and the answer to NeedHello.
struct Hello {
  std::string worker_name;
  std::string engine_version;
  std::string model;
  Digest model_config_digest{};
  Digest tokenizer_digest{};
  int32_t vocab_size = 0;
  int32_t max_context_tokens = 0;
  WorkerState state = WorkerState::kStarting;
  WeightStatus weights;
  uint64_t last_seq = 0;                   // highest sealed
  uint64_t commit_upto = 0;                // as the worker knows it
  std::string lineage_id;                  // of that commit_upto, empty = never welcomed
  std::vector<std::string> transports;     // "tcp", "directory", "nccl"
  std::vector<std::string> open_task_ids;  // tasks held and not sealed
  std::vector<std::pair<std::string, std::string>> environment;  // NCCL version and NCCL_*
  bool operator==(const Hello&) const = default;
};
struct Limits {
  uint64_t max_message_bytes = 0;
  uint32_t heartbeat_ms = 0;
  uint32_t liveness_ms = 0;  // silent longer than this = gone
  bool operator==(const Limits&) const = default;
};
// T: answers Hello. After a trainer rollback lineage_id is new and commit_upto may be lower.
struct Welcome {
  std::string lineage_id;
  uint64_t trainer_epoch = 0;
  uint64_t commit_upto = 0;
  uint64_t credit_seq = 0;
  uint64_t credit_bytes = 0;
  Limits limits;
  bool operator==(const Welcome&) const = default;
};
struct Heartbeat {  // both ways
  WorkerState state = WorkerState::kServing;
  WeightStatus weights;
  uint64_t last_seq = 0;
  uint32_t queued_samples = 0;
  uint32_t running_samples = 0;
  uint32_t free_task_slots = 0;  // how many more samples the worker would take now
  uint64_t trainer_epoch = 0;    // T only
  bool operator==(const Heartbeat&) const = default;
};
struct Bye {  // W: clean leave
  std::string reason;
  std::vector<std::string> open_task_ids;  // given back, to be reissued
  bool operator==(const Bye&) const = default;
};
struct NeedHello {  // T: "I do not know you"
  std::string reason;
  bool operator==(const NeedHello&) const = default;
};
struct Fenced {  // T: a newer epoch of this producer exists; the old process must stop
  uint64_t epoch = 0;
  bool operator==(const Fenced&) const = default;
};
struct Pause {  // T: paused = true stops admission, false resumes
  bool paused = true;
  bool operator==(const Pause&) const = default;
};
struct Drain {  // T: finish what runs, send it, leave
  bool operator==(const Drain&) const = default;
};

// ---- tasks ----
struct TaskMessage {  // T
  Task task;
  uint64_t lease_id = 0;  // rises with every (re)issue
  bool operator==(const TaskMessage&) const = default;
};
enum class TaskAnswer : uint8_t { kAccepted, kAlreadyHeld, kAlreadySealed, kRejected, kBusy };
std::string_view to_string(TaskAnswer answer);
struct TaskAck {  // W
  std::string task_id;
  uint64_t lease_id = 0;
  TaskAnswer answer = TaskAnswer::kAccepted;
  std::string reason;  // with kRejected: object, value got, value wanted; with kBusy: what is full
  bool operator==(const TaskAck&) const = default;
};
struct Cancel {  // T
  std::string task_id;
  std::string reason;
  bool operator==(const Cancel&) const = default;
};

// ---- trajectories ----
// W: one trajectory; frame header seq = trajectory.seq. `record` is the canonical Cap'n Proto
// bytes exactly as logged (so replay is byte-identical); `tensors` the routed experts' bytes or
// empty, their checksum is in the record.
struct Data {
  std::vector<std::byte> record;
  std::vector<std::byte> tensors;
  bool replayed = false;  // sent again on purpose by `warproll replay`
  bool operator==(const Data&) const = default;
};
struct Gap {  // W: seqs [from, to] will never come
  uint64_t from = 0;
  uint64_t to = 0;
  std::string reason;
  bool operator==(const Gap&) const = default;
};
struct Ack {  // T: absolute, restated with every heartbeat
  std::string lineage_id;
  uint64_t recv_upto = 0;
  uint64_t commit_upto = 0;
  uint64_t credit_seq = 0;    // may send up to this seq
  uint64_t credit_bytes = 0;  // and this many uncommitted bytes
  bool operator==(const Ack&) const = default;
};
enum class NackCode : uint8_t { kMalformed, kInvalid, kConflict, kTooLarge, kOutOfOrder, kRetry };
std::string_view to_string(NackCode code);
struct Nack {  // T: permanent unless kRetry or kOutOfOrder
  uint64_t seq = 0;
  NackCode code = NackCode::kMalformed;
  std::string reason;
  bool operator==(const Nack&) const = default;
};

// ---- weight updates (weight_sync.md) ----
struct UpdateId {
  uint64_t trainer_epoch = 0;
  uint64_t weight_version = 0;
  uint32_t attempt = 0;
  auto operator<=>(const UpdateId&) const = default;
};
struct UpdateBegin {  // T
  UpdateId id;
  std::string transport;   // "tcp" | "directory" | "nccl"
  std::string source;      // tcp: endpoint of the byte server; directory: version folder
  std::string server_key;  // CURVE key of that endpoint, empty = none
  std::string manifest;    // zstd-compressed manifest JSON (weights_sync/manifest.h)
  uint32_t deadline_ms = 0;
  bool operator==(const UpdateBegin&) const = default;
};
struct UpdateAccept {  // W
  UpdateId id;
  bool operator==(const UpdateAccept&) const = default;
};
struct UpdateReject {  // W: the manifest does not fit; nothing moved
  UpdateId id;
  std::string reason;
  bool operator==(const UpdateReject&) const = default;
};
struct UpdateDefer {  // W: pinned sequences hold the standby arena; it will answer later
  UpdateId id;
  uint32_t pinned_sequences = 0;
  uint32_t retry_ms = 0;
  bool operator==(const UpdateDefer&) const = default;
};
struct UpdateStart {  // T: names those who accepted; bytes may flow
  UpdateId id;
  std::vector<std::string> participants;  // producer ids, hex; rank = index + 1, root = 0
  std::string nccl_unique_id;             // empty without NCCL
  bool operator==(const UpdateStart&) const = default;
};
struct UpdateReady {  // W: verified, in the standby arena
  UpdateId id;
  Digest weight_digest{};
  Digest layout_digest{};
  uint64_t received_bytes = 0;
  uint32_t receive_ms = 0;
  bool operator==(const UpdateReady&) const = default;
};
struct UpdateFailed {  // W: the old version serves on
  UpdateId id;
  std::string reason;
  bool operator==(const UpdateFailed&) const = default;
};
struct UpdateCommit {  // T
  UpdateId id;
  bool operator==(const UpdateCommit&) const = default;
};
struct UpdateAbort {  // T
  UpdateId id;
  std::string reason;
  bool operator==(const UpdateAbort&) const = default;
};
struct UpdateCommitted {  // W: the flip happened
  UpdateId id;
  Digest weight_digest{};
  uint64_t stall_us = 0;     // longest gap between two steps around the flip, less the median step
  uint32_t stall_steps = 0;  // decode steps that did not run because of the flip
  uint32_t in_flight_sequences = 0;  // sequences running at the flip
  bool operator==(const UpdateCommitted&) const = default;
};
struct Rollback {  // T: flip back to a version still whole on the worker
  UpdateId id;     // id.weight_version = the version to go back to
  bool operator==(const Rollback&) const = default;
};
struct RollbackDone {  // W
  UpdateId id;
  bool done = false;
  std::string reason;
  bool operator==(const RollbackDone&) const = default;
};

using Message =
    std::variant<Hello, Welcome, Heartbeat, Bye, NeedHello, Fenced, Pause, Drain, TaskMessage,
                 TaskAck, Cancel, Data, Gap, Ack, Nack, UpdateBegin, UpdateAccept, UpdateReject,
                 UpdateDefer, UpdateStart, UpdateReady, UpdateFailed, UpdateCommit, UpdateAbort,
                 UpdateCommitted, Rollback, RollbackDone>;

std::string_view message_name(const Message& message);  // "HELLO", "UPDATE_BEGIN", ...

// What the frame header says of a message.
struct Envelope {
  ProducerId producer_id{};  // of the worker this message is from or to
  uint64_t epoch = 0;        // of that worker process
  uint64_t seq = 0;          // Data: the trajectory's seq; otherwise 0
  bool operator==(const Envelope&) const = default;
};

}  // namespace warproll
