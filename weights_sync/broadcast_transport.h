// How weight bytes travel. Two halves that meet in the manifest's byte stream (manifest.h):
//   BroadcastTransport  the worker's: brings the bytes of one update to a sink
//   BroadcastSource     the trainer's: offers checkpoints under a route until they are withdrawn
// `directory` (directory_transport.h) and `tcp` (tcp_transport.h) implement both.
//
// Memory of a worker: at most two buckets are under way at any time (W4), whatever the size of the
// checkpoint; the sink takes them in while the next ones come.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/messages.h"
#include "protocol/sockets.h"
#include "protocol/status.h"
#include "weights_sync/checkpoint.h"
#include "weights_sync/manifest.h"
#include "weights_sync/packed_arena.h"

namespace warproll {

// Ends a receive from another thread. Sticky: one object for each update. Thread: any.
class Cancellation {
 public:
  void cancel() {
    cancelled_.store(true, std::memory_order_release);
    waker_.wake();
  }
  [[nodiscard]] bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }
  [[nodiscard]] const Waker& waker() const { return waker_; }

 private:
  std::atomic<bool> cancelled_{false};
  Waker waker_;
};

// Takes bytes [stream_offset, + bytes.size()) of the manifest's stream, in any order, each byte
// once. A failure ends the receive with that Status.
using StreamSink = std::function<Status(uint64_t stream_offset, std::span<const std::byte> bytes)>;

// The same for bytes in device memory: enqueues on `stream` (a cudaStream_t) all that is to be done
// with them and returns; they may be overwritten once that work has ended. A failure that only the
// device finds comes from a later call or from verifying.
using DeviceSink = std::function<Status(uint64_t stream_offset,
                                        std::span<const std::byte> device_bytes, void* stream)>;

struct ReceiveRequest {
  UpdateId id;
  std::string source;      // as UpdateBegin
  std::string server_key;  // as UpdateBegin
  std::chrono::steady_clock::time_point deadline;
  // Of a transport that forms a group (as UpdateStart); rank = place in participants + 1, root = 0.
  std::vector<std::string> participants = {};
  std::string nccl_unique_id = {};
  int32_t rank = 0;             // this worker's; 0 = no group
  DeviceSink device_sink = {};  // null: this worker's weights are in host memory
  // As packed_arena() said: the stream is this arena instead of the manifest's tensors. With a device_sink
  // it is received in place, into `arena` on the device; the sink then only hears of it.
  std::optional<PackedArena> packed = {};
  std::span<std::byte> arena = {};  // [packed->bytes]
};

using HelloEnvironment = std::vector<std::pair<std::string, std::string>>;  // as Hello.environment

class BroadcastTransport {
 public:
  virtual ~BroadcastTransport() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;  // as HELLO and UpdateBegin have it
  // Can what the Begin names be received here? Not ok: why the update is rejected. Does not block.
  [[nodiscard]] virtual Status check(const UpdateBegin&) const { return ok_status(); }
  // Whether the stream of this Begin is an arena that the trainer has packed. Not ok: what it says of it is
  // no such thing. Does not block.
  [[nodiscard]] virtual Result<std::optional<PackedArena>> packed_arena(const UpdateBegin&) const {
    return std::optional<PackedArena>();
  }
  // What the trainer has to know of this end, for HELLO.
  [[nodiscard]] virtual HelloEnvironment environment() const { return {}; }
  // Blocks until every byte of the stream went to `sink`, or: kAborted = cancelled,
  // kDeadlineExceeded, kUnavailable = the source is silent, kNotFound = it does not have it,
  // kDataLoss = what it has is damaged, or the sink's Status. The fill between tensors need not be
  // delivered. Leaves nothing open behind. Thread: one receive at a time.
  virtual Status receive(const ReceiveRequest& request, const Manifest& manifest,
                         const StreamSink& sink, const Cancellation& cancellation) = 0;
  // Returns when nothing of an earlier receive is under way any more. Thread: as receive().
  virtual void settle() {}
};

// The trainer's side of a transport that forms a group: one transfer to all of its members at once,
// which a member that dies ends for all. The Broadcaster starts a group when its members have
// accepted, asks after it and stops it. A group goes by the newest UpdateId among its members'.
// No call blocks.
struct GroupTransfers {
  // Starts the root's part, of rank 0. Returns what UpdateStart.nccl_unique_id tells the members.
  std::function<Result<std::string>(
      const UpdateId& group, const std::vector<std::string>& participants, uint32_t deadline_ms)>
      start;
  // true = every member has every byte, false = under way; not ok: how it failed.
  std::function<Result<bool>(const UpdateId& group)> progress;
  // It is over, or not wanted any more: ends what still runs and forgets it.
  std::function<void(const UpdateId& group)> stop;
};

struct TransportRoute {
  std::string transport;   // BroadcastTransport::name()
  std::string source;      // as UpdateBegin.source
  std::string server_key;  // as UpdateBegin.server_key
  // May a worker with this HELLO take the route? Not ok: why not. Null: any may.
  std::function<Status(const HelloEnvironment& worker)> suits = {};
  std::optional<GroupTransfers> group = {};  // of a transport that forms groups
};

struct OfferedCheckpoint {
  std::shared_ptr<const Checkpoint> checkpoint;
  std::shared_ptr<const Manifest> manifest;  // made from it
};

class BroadcastSource {
 public:
  virtual ~BroadcastSource() = default;
  // The checkpoint can be received under the route until it is withdrawn. Offering a version again
  // replaces it.
  virtual Result<TransportRoute> offer(const OfferedCheckpoint& offered) = 0;
  virtual void withdraw(uint64_t weight_version) = 0;
};

}  // namespace warproll
