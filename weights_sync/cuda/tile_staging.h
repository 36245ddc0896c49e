// TileStaging: packs tiles for an arena in host memory in slots of GPU memory, a piece (tile_pieces.h) a slot,
// and copies each that is complete to the arena in two copies: over PCIe kernels write 8 bytes at a
// time, and keep their SMs meanwhile. TileSlots are its memory, kept from one fill to the next.
// A piece that finds no slot, or is larger than one, is packed straight into the arena as before: right,
// and slow. That takes an order of tensors that leaves more pieces unfinished than there are slots.
// Internal to weights_sync/cuda. Thread: any. Lifetime: slots, layout and arena outlive a staging, which
// is destroyed when its work has ended. Errors: CudaError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/event.h"
#include "kernels/cuda/stream_owner.h"
#include "weights_sync/tile_pieces.h"

namespace warproll {

class TileSlots {
 public:
  struct Slot {
    std::byte* memory = nullptr;  // [kTileSlotBytes]
    CudaEvent copied;             // the copy of what was in it
  };
  TileSlots();
  Slot* take();  // null: none is free. Writers wait for `copied` on the device.
  void give(Slot* slot);
  [[nodiscard]] const CudaStream& out() const { return out_; }  // the copies to the host

 private:
  DeviceBuffer<std::byte> memory_;
  CudaStream out_{CudaStream::Priority::kLow};
  std::mutex mutex_;
  std::deque<Slot> slots_;  // guarded by mutex_, as the next
  std::deque<Slot*> free_;  // the one given longest ago first
};

class TileStaging {
 public:
  TileStaging(const ArenaLayout& layout, const FillPlan& plan, std::span<std::byte> arena,
              TileSlots& slots);
  ~TileStaging();
  TileStaging(const TileStaging&) = delete;
  TileStaging& operator=(const TileStaging&) = delete;

  [[nodiscard]] const TilePieces& pieces() const { return pieces_; }
  // Where a part is packed by work on `stream`. None: no slot is free; launching parts whose pieces are
  // then complete may help, and with `straight` there always is a place.
  std::optional<TileTarget> place(const TilePart& part, cudaStream_t stream, bool straight);
  // These parts' pieces (one entry a part) are packed by what is enqueued on `stream` so far.
  void packed(std::span<const size_t> pieces, cudaStream_t stream);

 private:
  struct State {
    TileSlots::Slot* slot = nullptr;
    bool straight = false;
    uint32_t parts_left = 0;
  };
  void copy_out(const TilePiece& piece, TileSlots::Slot* slot) const;

  const ArenaLayout& layout_;
  const TilePieces pieces_;
  const std::span<std::byte> arena_;
  TileSlots& slots_;
  std::mutex mutex_;
  std::vector<State> states_;  // [pieces], guarded by mutex_
};

}  // namespace warproll
