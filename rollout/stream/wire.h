// What the stream's state machines exchange with the io loop that owns the socket. They hold no
// socket, thread or clock: the loop hands them every message with the time it came, calls tick(),
// and sends what they give out. So one io thread serves them all and tests are deterministic.
// Thread: plain values.
#pragma once

#include <chrono>
#include <string>

#include "protocol/messages.h"

namespace warproll {

using SteadyTime = std::chrono::steady_clock::time_point;

// A message to or from one peer of the trainer's ROUTER. `peer` is the connection's routing id:
// it changes at every reconnect and identifies nothing else (streaming.md, fact 6).
struct PeerMessage {
  std::string peer;
  Envelope envelope;
  Message message;
};

// A message of the worker's DEALER, which has one peer.
struct WorkerMessage {
  Envelope envelope;
  Message message;
};

}  // namespace warproll
