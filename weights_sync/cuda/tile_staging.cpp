#include "weights_sync/cuda/tile_staging.h"

#include <utility>

namespace warproll {

TileSlots::TileSlots() : memory_(kTileStagingBytes) {
  for (uint64_t i = 0; i < kNumTileSlots; ++i) {
    Slot& slot = slots_.emplace_back();
    slot.memory = memory_.data() + i * kTileSlotBytes;
    free_.push_back(&slot);
  }
}

TileSlots::Slot* TileSlots::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return nullptr;
  Slot* const slot = free_.front();
  free_.pop_front();
  return slot;
}

void TileSlots::give(Slot* slot) {
  const std::lock_guard lock(mutex_);
  free_.push_back(slot);
}

TileStaging::TileStaging(const ArenaLayout& layout, const FillPlan& plan,
                         std::span<std::byte> arena, TileSlots& slots)
    : layout_(layout),
      pieces_(layout, plan, kTileSlotBytes),
      arena_(arena),
      slots_(slots),
      states_(pieces_.all().size()) {
  for (size_t i = 0; i < states_.size(); ++i) states_[i].parts_left = pieces_.all()[i].num_parts;
}

TileStaging::~TileStaging() {
  for (const State& state : states_) {
    if (state.slot != nullptr) slots_.give(state.slot);
  }
}

std::optional<TileTarget> TileStaging::place(const TilePart& part, cudaStream_t stream,
                                             bool straight) {
  const TilePiece& piece = pieces_.all()[part.piece];
  TileSlots::Slot* slot = nullptr;
  {
    const std::lock_guard lock(mutex_);
    State& state = states_[part.piece];
    if (state.slot == nullptr && !state.straight) {
      if (piece.fits) state.slot = slots_.take();
      if (state.slot == nullptr && piece.fits && !straight) return std::nullopt;
      state.straight = state.slot == nullptr;
    }
    slot = state.slot;
  }
  TileTarget to = slot == nullptr ? part.to_arena : part.to_slot;
  if (slot == nullptr) {
    to.out = arena_.data() + layout_.tile_regions[piece.region].offset_bytes;
  } else {
    to.out = slot->memory;
    slot->copied.hold(stream);
  }
  return to;
}

void TileStaging::packed(std::span<const size_t> pieces, cudaStream_t stream) {
  if (pieces.empty()) return;
  // Before they are counted: whoever completes a piece finds the copies' stream waiting for all of it.
  const CudaEvent done;
  done.record(stream);
  done.hold(slots_.out().get());
  std::vector<std::pair<size_t, TileSlots::Slot*>> complete;
  {
    const std::lock_guard lock(mutex_);
    for (const size_t piece : pieces) {
      State& state = states_[piece];
      if (--state.parts_left > 0 || state.slot == nullptr) continue;
      complete.emplace_back(piece, std::exchange(state.slot, nullptr));
    }
  }
  for (const auto& [piece, slot] : complete) copy_out(pieces_.all()[piece], slot);
}

void TileStaging::copy_out(const TilePiece& piece, TileSlots::Slot* slot) const {
  const cudaStream_t out = slots_.out().get();
  WARPROLL_CUDA_CHECK(cudaMemcpyAsync(arena_.data() + piece.records_at, slot->memory,
                                      piece.records_bytes, cudaMemcpyDeviceToHost, out));
  WARPROLL_CUDA_CHECK(cudaMemcpyAsync(arena_.data() + piece.row_scales_at,
                                      slot->memory + piece.records_bytes, piece.row_scales_bytes,
                                      cudaMemcpyDeviceToHost, out));
  slot->copied.record(out);
  slots_.give(slot);
}

}  // namespace warproll
