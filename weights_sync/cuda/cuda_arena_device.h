// An ArenaDevice of one NVIDIA GPU: weight arenas in its memory, filled by kernels.
//
// Bytes of the host go through a ring of page-locked buffers to the device; bytes that a transport
// has on the device are read in place, or copied there. A tensor that comes in parts is put together
// in a device buffer of its size, unless it lies in the arena as rows: then it goes straight there.
// On the device it is digested and scanned, quantised, and packed into tiles: one launch of each for all
// tensors that a call of put_device() completes (kernels/fill_items.h), on a stream of low priority;
// tensors from the host have their own launches, on several streams. Nothing waits for that until
// finish(), which also tells what the device found (NaN, a wrong digest): the first tensor in layout
// order, in the words of ArenaFiller.
// An arena in host memory is written and read by copies alone: tiles are put together in slots on the
// device (tile_staging.h), rows gather there, and the arena's digest is made of pieces copied back.
//
// Memory beside the arenas, all of it kept from one fill to the next: to allocate or to free stops the
// whole GPU, and so whoever decodes there. Host: pinned_slots * pinned_slot_bytes, page-locked, from the
// first fill on. Device: buffers for tensors on their way, at most buffer_bytes altogether or what the
// largest tensors under way need (a tensor's size, rounded up to a power of two below 64 MiB; 0.52 of it
// more for one that is quantised), kFillListBytes (arena_device.h), and 40 bytes a tensor, 16 a MiB of
// weights; with host_staged kTileStagingBytes (tile_pieces.h) more.
#pragma once

#include <cstdint>

#include "protocol/status.h"
#include "weights_sync/arena_device.h"

namespace warproll {

struct CudaArenaOptions {
  int device = 0;
  // Arenas in page-locked host memory, written by the device: they serve through a ServingArena.
  bool host_staged = false;
  int num_streams = 8;
  int pinned_slots = 8;
  uint64_t pinned_slot_bytes = uint64_t{8} << 20;
  uint64_t buffer_bytes = uint64_t{256} << 20;
};

// kFailedPrecondition: there is no such GPU, with the driver's words. CUDA faults later on throw
// CudaError; a device out of memory is kResourceExhausted.
Result<ArenaDevicePtr> make_cuda_arena_device(const CudaArenaOptions& options = {});

}  // namespace warproll
