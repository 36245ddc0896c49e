// ArenaPacker: weights laid out in this process's GPU memory as workers on GPUs lay them out, to be sent as they
// lie (NcclSource::offer_arena). GPU memory: two arenas and what filling one takes. One that was packed
// keeps its arena for as long as anybody holds it, so only two can be held.
// Thread: one at a time.
#pragma once

#include <cstddef>

#include "protocol/status.h"
#include "weights_sync/checkpoint.h"
#include "weights_sync/manifest.h"
#include "weights_sync/nccl/nccl_source.h"
#include "weights_sync/weight_arenas.h"

namespace warproll {

class ArenaPacker {
 public:
  // Into the GPU's memory that `device` gives. quantise_to_mxfp8: as the workers' model.quantise.
  ArenaPacker(ArenaDevicePtr device, bool quantise_to_mxfp8);

  // kUnavailable: both arenas are held, and still are after half a minute. kResourceExhausted: no memory. kDataLoss: NaN, a wrong digest. The
  // manifest that comes back also says the weight digest of what was quantised.
  Result<OfferedArena> pack(const Checkpoint& checkpoint, const Manifest& manifest);
  // Of the manifest's stream in this GPU's memory.
  Result<OfferedArena> pack_stream(const Manifest& manifest, const std::byte* device_bytes);

 private:
  static Result<OfferedArena> offered(StagedWeightsPtr staged, const Manifest& manifest);

  WeightArenas arenas_;
  const LayoutFunction layout_;
};

}  // namespace warproll
