#include "protocol/messages.h"

#include "protocol/message_types.h"

namespace warproll {

std::string_view to_string(WorkerState state) {
  switch (state) {
    case WorkerState::kStarting:
      return "starting";
    case WorkerState::kServing:
      return "serving";
    case WorkerState::kPaused:
      return "paused";
    case WorkerState::kDraining:
      return "draining";
    case WorkerState::kStopping:
      return "stopping";
  }
  return "unknown";
}

std::string_view to_string(UpdateState state) {
  switch (state) {
    case UpdateState::kIdle:
      return "idle";
    case UpdateState::kReceiving:
      return "receiving";
    case UpdateState::kVerifying:
      return "verifying";
    case UpdateState::kReady:
      return "ready";
    case UpdateState::kCommitted:
      return "committed";
    case UpdateState::kAborted:
      return "aborted";
  }
  return "unknown";
}

std::string_view to_string(TaskAnswer answer) {
  switch (answer) {
    case TaskAnswer::kAccepted:
      return "accepted";
    case TaskAnswer::kAlreadyHeld:
      return "already_held";
    case TaskAnswer::kAlreadySealed:
      return "already_sealed";
    case TaskAnswer::kRejected:
      return "rejected";
    case TaskAnswer::kBusy:
      return "busy";
  }
  return "unknown";
}

std::string_view to_string(NackCode code) {
  switch (code) {
    case NackCode::kMalformed:
      return "malformed";
    case NackCode::kInvalid:
      return "invalid";
    case NackCode::kConflict:
      return "conflict";
    case NackCode::kTooLarge:
      return "too_large";
    case NackCode::kOutOfOrder:
      return "out_of_order";
    case NackCode::kRetry:
      return "retry";
  }
  return "unknown";
}

std::string_view message_name(const Message& message) {
  return kMessageTypes[message.index()].name;
}

}  // namespace warproll
