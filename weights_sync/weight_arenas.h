// WeightArenas: the two arenas of a worker. One holds the serving weights; the other is the standby
// that the next version is written to, and until then it keeps the previous version for a rollback.
//
//   serving   what the engine runs on
//   previous  the version served before, whole until the next receive starts to overwrite it
//   standby   the arena nobody reads; at most one StandbyArena is out at a time
//
// A version is handed out as StagedWeightsPtr. Whoever may still read its bytes holds one (the
// engine, and each sequence pinned to it); the last release makes its arena free again. So an arena
// is never written while somebody reads it, and nobody has to be asked.
//
// Arenas are in host memory, or in that of an ArenaDevice: then nobody but kernels and the device's
// own calls may read or write their bytes, and who enqueued a kernel that reads holds its
// StagedWeightsPtr until that kernel has ended.
//
// Memory (W4): two arenas, each as large as the largest version it held. An arena that is too small
// is released before its larger one is allocated, so there are never three.
// Thread: any; one mutex, held for pointer moves only. Lifetime: StagedWeightsPtrs may outlive the
// WeightArenas. Errors: kUnavailable = held by readers, kResourceExhausted = no memory or over the
// limit, kFailedPrecondition = a standby is out already, or there is no version to roll back to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/arena.h"
#include "protocol/records.h"
#include "protocol/status.h"
#include "weights_sync/arena_device.h"
#include "weights_sync/checkpoint.h"

namespace warproll {

// One verified version of the weights, laid out in an arena. Immutable.
struct StagedWeights {
  uint64_t weight_version = 0;
  Digest weight_digest{};
  Digest source_digest{};  // differs from weight_digest when quantised on receipt
  Digest layout_digest{};  // on a device: the tensor_digest of the arena's bytes
  ArenaLayout layout;
  CheckpointFiles files;             // config.json and its like
  std::span<const std::byte> arena;  // [layout.total_bytes]
  ArenaDevicePtr device;             // whose memory `arena` is; null = host memory
};
using StagedWeightsPtr = std::shared_ptr<const StagedWeights>;

// The right to write the standby arena. Move-only; destroying it gives the right back, and as long
// as overwrite() was not called the previous version is still there for a rollback.
class StandbyArena {
 public:
  StandbyArena() = default;
  StandbyArena(StandbyArena&& other) noexcept = default;
  StandbyArena& operator=(StandbyArena&& other) noexcept = default;
  ~StandbyArena() = default;

  // The previous version is gone from here on. At least `bytes` bytes, with undefined contents.
  Result<std::span<std::byte>> overwrite(uint64_t bytes);
  // Whose memory it is; null = host memory.
  [[nodiscard]] ArenaDevicePtr device() const;
  // Ends the right: the arena now holds `weights`, whose `arena` and `device` are set here. After
  // overwrite(); nothing that writes it may be under way any more.
  StagedWeightsPtr publish(StagedWeights weights) &&;

 private:
  friend class WeightArenas;
  struct Lease;
  explicit StandbyArena(std::unique_ptr<Lease> lease);
  struct LeaseDeleter {
    void operator()(Lease* lease) const;
  };
  std::unique_ptr<Lease, LeaseDeleter> lease_;
};

// Why the standby arena cannot be had.
struct StandbyHolders {
  uint64_t weight_version = 0;  // of what it holds; 0 = it is free
  uint32_t num_holders = 0;     // StagedWeightsPtrs outside this class
};

class WeightArenas {
 public:
  // Refuses arenas above max_arena_bytes; 0 = no limit. device null = host memory.
  explicit WeightArenas(uint64_t max_arena_bytes = 0, ArenaDevicePtr device = nullptr);
  WeightArenas(const WeightArenas&) = delete;
  WeightArenas& operator=(const WeightArenas&) = delete;
  ~WeightArenas();

  Result<StandbyArena> acquire_standby(uint64_t bytes);
  // Allocates the standby arena now, if it is smaller than that: to allocate gigabytes takes a second
  // or more of page-locked host memory, in which nothing else is enqueued on the GPU. The previous
  // version, if there is one, is gone.
  Status reserve_standby(uint64_t bytes);
  [[nodiscard]] StandbyHolders standby_holders() const;

  // The engine runs on `weights` now; what it ran on becomes the previous version.
  void set_serving(StagedWeightsPtr weights);
  // The engine runs on the previous version again; it and the serving one change places.
  Status swap_with_previous();

  [[nodiscard]] StagedWeightsPtr serving() const;
  [[nodiscard]] StagedWeightsPtr previous() const;  // null = overwritten, or there was none
  [[nodiscard]] uint64_t allocated_bytes() const;   // of both arenas

 private:
  friend class StandbyArena;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace warproll
