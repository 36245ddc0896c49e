// NcclSource: the trainer's side of the `nccl` transport. Its routes form groups (GroupTransfers):
// for each group a fresh communicator and a thread that broadcasts the offered bytes, out of the
// checkpoint's mapped files, or out of GPU memory that the caller has them in, as tensors or as an arena.
//
// A group ends by itself at its deadline, when NCCL reports a failure, or when nothing moves; stop,
// withdraw and the destructor end it at once. Groups run beside each other.
// Thread: any. Lifetime: routes may outlive the source; then they start no group.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "weights_sync/broadcast_transport.h"
#include "weights_sync/nccl/nccl_api.h"

namespace warproll {

struct NcclSourceOptions {
  int32_t max_ctas = 4;                       // of every rank
  std::chrono::milliseconds silence{30'000};  // a group in which nothing moves is given up
  std::chrono::milliseconds ending{5'000};    // see NcclLimits
  HelloEnvironment nccl_variables = {};       // this process's NCCL_*
};

// Where the tensor's bytes lie on the source's GPU, whole and at rest until the offer is withdrawn.
// Called on the groups' threads.
using DeviceTensors = std::function<Result<const void*>(const ManifestEntry& entry)>;

// Weights that are packed: `bytes`, [packed.bytes] on the source's GPU and at rest, are sent as they lie to
// workers whose layout it is.
struct OfferedArena {
  std::shared_ptr<const Manifest> manifest;  // of the tensors in it, with their weight digest
  PackedArena packed;
  std::shared_ptr<std::byte> bytes;  // held until the offer is withdrawn and its groups have ended
};

class NcclSource final : public BroadcastSource {
 public:
  NcclSource(std::shared_ptr<NcclApi> api, NcclSourceOptions options);
  ~NcclSource() override;  // ends all groups and waits for them

  Result<TransportRoute> offer(const OfferedCheckpoint& offered) override;
  // The same from GPU memory.
  TransportRoute offer_device(std::shared_ptr<const Manifest> manifest, DeviceTensors tensors);
  TransportRoute offer_arena(OfferedArena offered);
  // Returns before its groups have ended; `tensors` may be called until num_groups() says so.
  void withdraw(uint64_t weight_version) override;

  [[nodiscard]] size_t num_groups() const;  // whose threads have not ended

 private:
  struct Impl;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace warproll
