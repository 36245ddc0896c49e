// WeightStaging: one update's way from its manifest to verified weights in the standby arena:
//   plan()    decodes the manifest and holds it against the layout; nothing has moved yet
//   open()    starts to overwrite the standby arena
//   write()   bytes of the stream, each tensor checked when it is complete (weight_filler.h)
//   finish()  all tensors there, the digests right, the golden prompts reproduced: published
// The stream is the manifest's tensors, or an arena that the trainer has packed: then its digest is checked
// at the end, and that it holds the manifest's weights, finite ones, is the trainer's word.
// A failure at any point is final; destroying it gives the arena back.
// load_staged() is the cold start: the same filling, from a checkpoint on disk.
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "protocol/messages.h"
#include "protocol/status.h"
#include "weights_sync/arena_fill.h"
#include "weights_sync/checkpoint.h"
#include "weights_sync/manifest.h"
#include "weights_sync/packed_arena.h"
#include "weights_sync/weight_arenas.h"

namespace warproll {

// Does the model, run on these weights, reproduce the prompts? Not ok = the update fails.
using GoldenGateFunction =
    std::function<Status(const StagedWeightsPtr& weights, const GoldenGate& gate)>;

class WeightStaging {
 public:
  // kInvalidArgument says what does not fit. has_gate: a GoldenGateFunction will be there.
  static Result<WeightStaging> plan(const UpdateBegin& begin, const LayoutFunction& layout,
                                    bool has_gate, const std::optional<PackedArena>& packed = {});
  WeightStaging(WeightStaging&&) noexcept;
  WeightStaging& operator=(WeightStaging&&) noexcept;
  ~WeightStaging();

  [[nodiscard]] const Manifest& manifest() const;
  [[nodiscard]] uint64_t arena_bytes() const;   // wanted of the standby arena
  [[nodiscard]] uint64_t stream_bytes() const;  // that have to come
  [[nodiscard]] const std::optional<PackedArena>& packed() const;

  Status open(StandbyArena standby);
  [[nodiscard]] std::span<std::byte> arena() const;  // [arena_bytes()], after open()
  Status write(uint64_t stream_offset, std::span<const std::byte> bytes);
  // The same for bytes in device memory, as DeviceSink (broadcast_transport.h) has them; the standby
  // arena must be on that device. Of a packed arena: they have come to their place in arena().
  Status write_device(uint64_t stream_offset, std::span<const std::byte> device_bytes,
                      void* stream);
  Result<StagedWeightsPtr> finish(const GoldenGateFunction& gate);

 private:
  struct Impl;
  explicit WeightStaging(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// From the manifest's stream of tensors, which `write_all` writes, without a trainer.
Result<StagedWeightsPtr> stage_stream(const Manifest& manifest, const LayoutFunction& layout,
                                      WeightArenas& arenas,
                                      const std::function<Status(WeightStaging&)>& write_all);
Result<StagedWeightsPtr> load_staged(const Checkpoint& checkpoint, uint64_t weight_version,
                                     const LayoutFunction& layout, WeightArenas& arenas,
                                     const ByteProgress& progress = {});

}  // namespace warproll
