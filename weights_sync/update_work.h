// UpdateWork: what an update needs done on real memory and transports, one step at a time, in the
// order the protocol core asks for it. Private to UpdateReceiver.
// Thread: all steps on the work thread; progress() from any. Errors: a Status; what is thrown beneath them
// passes through, but for receive().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weights_sync/update_receiver.h"

namespace warproll {

// What `work` returns, a Status or a Result. What it throws (a fault of the GPU, no memory) as a Status: it
// fails the update; whether the worker can go on is for its engine to say.
template <class Work>
auto attempt(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    return internal_error(std::string("a fault of this worker: ") + error.what());
  }
}

class UpdateWork {
 public:
  UpdateWork(const UpdateReceiverOptions& options, WeightArenas& arenas)
      : options_(options), arenas_(arenas) {}

  Status check(const UpdateBegin& begin);
  StandbyAnswer acquire(const UpdateId& id);
  Status receive(const UpdateStart& start, std::chrono::steady_clock::time_point deadline,
                 const Cancellation& cancellation);
  Result<VerifiedWeights> verify(const UpdateId& id);
  Result<InstallReport> install(const UpdateId& id);
  Result<InstallReport> roll_back();
  void discard(const UpdateId& id);

  [[nodiscard]] UpdateProgress progress() const;
  [[nodiscard]] uint64_t received_bytes() const { return all_received_bytes_; }

 private:
  // Of the update that was checked last; discarded by name.
  struct Current {
    UpdateBegin begin;  // without the manifest
    BroadcastTransport* transport = nullptr;
    std::optional<WeightStaging> staging;
    std::optional<StandbyArena> standby;
    StagedWeightsPtr staged;
    uint64_t received_bytes = 0;
    uint32_t receive_ms = 0;
  };
  Status want_current(const UpdateId& id) const;
  [[nodiscard]] BroadcastTransport* transport(const std::string& name) const;
  [[nodiscard]] std::string transport_names() const;

  const UpdateReceiverOptions& options_;
  WeightArenas& arenas_;
  std::optional<Current> current_;

  std::atomic<uint64_t> receiving_version_{0};
  std::atomic<uint64_t> received_bytes_{0};
  std::atomic<uint64_t> total_bytes_{0};
  std::atomic<uint64_t> all_received_bytes_{0};
};

}  // namespace warproll
