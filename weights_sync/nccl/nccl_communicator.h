// NcclCommunicator: one rank's part in the group of one update attempt, from its forming to its end.
// Every wait is a poll with an end of its own: the deadline, the cancellation, and a watchdog for a
// group in which nothing moves, since NCCL may never report a peer that died. Afterwards the
// communicator is of no use: abort() or destroy it, and form a new one.
//
// Errors name the group, this rank, what was being done, NCCL's result and its last error text:
// kUnavailable = NCCL reports a failure, or nothing moved for silence_ms; kDeadlineExceeded;
// kAborted = cancelled.
// Thread: one, bound to the GPU. Lifetime: buffers given to broadcast() outlive it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weights_sync/broadcast_transport.h"
#include "weights_sync/nccl/nccl_api.h"

namespace warproll {

struct NcclLimits {
  std::chrono::steady_clock::time_point deadline;
  const Cancellation* cancellation = nullptr;  // outlives the communicator
  std::chrono::milliseconds silence{30'000};   // without a step forward
  std::chrono::milliseconds ending{5'000};     // for NCCL's finalize, and again for its abort
};

class NcclCommunicator {
 public:
  // Blocks until every rank is there. `name` as in messages: "version 3, attempt 7".
  static Result<std::unique_ptr<NcclCommunicator>> form(std::shared_ptr<NcclApi> api,
                                                        const NcclMembership& membership,
                                                        const std::string& name,
                                                        const NcclLimits& limits);
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  ~NcclCommunicator();  // abort()

  // Other ranks write into it themselves from now on, where they can: see NcclApi.
  Status register_buffer(void* buffer, uint64_t bytes);
  // Enqueued on the stream when it returns.
  Status broadcast(void* buffer, uint64_t bytes, GpuStream stream, const std::string& what);
  // The last step: when it has ended on the stream, every rank has got here and needs nobody any
  // more, so that whoever leaves first disturbs no one.
  Status meet(void* word, GpuStream stream);
  // Until the event has happened on the device.
  Status await(GpuEvent event, const std::string& what);

  // Leaves in good order; where that takes too long, aborts. Either way nothing is left.
  void close();
  // Ends the group for this rank, whatever state it is in: kernels that wait for a peer return.
  // At most `ending`; a call into NCCL that takes longer is left to itself, with what it holds.
  void abort();

 private:
  NcclCommunicator(std::shared_ptr<NcclApi> api, std::string name, const NcclLimits& limits)
      : api_(std::move(api)), name_(std::move(name)), limits_(limits) {}
  Status finished(NcclResult result, const std::string& what);
  Status poll(const std::string& what, const std::function<Result<bool>()>& is_done);
  [[nodiscard]] Status failure(const std::string& what, NcclResult result) const;
  [[nodiscard]] Status limit_passed(std::chrono::steady_clock::time_point since,
                                    const std::string& what) const;

  const std::shared_ptr<NcclApi> api_;
  const std::string name_;  // with the rank
  const NcclLimits limits_;
  NcclComm comm_ = nullptr;
  std::vector<NcclRegistration> registrations_;
};

}  // namespace warproll
