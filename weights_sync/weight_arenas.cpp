#include "weights_sync/weight_arenas.h"

#include <array>
#include <mutex>
#include <string>
#include <utility>

#include "weights_sync/arena_buffer.h"

namespace warproll {

struct WeightArenas::State {
  struct Slot {
    ArenaBuffer buffer;     // touched without the mutex only by the holder of the lease
    uint64_t capacity = 0;  // of buffer, for readers of the state
    bool leased = false;
    bool occupied = false;  // some StagedWeightsPtr points into it; then these say which:
    const StagedWeights* contents = nullptr;   // for comparison only
    std::weak_ptr<const StagedWeights> count;  // never locked: its last release takes the mutex
    uint64_t weight_version = 0;
  };
  const uint64_t max_arena_bytes = 0;
  const ArenaDevicePtr device;
  mutable std::mutex mutex;
  std::array<Slot, 2> slots;
  StagedWeightsPtr serving;
  StagedWeightsPtr previous;
  bool closed = false;  // nothing may be kept here any more: it would keep the State for ever

  State(uint64_t limit, ArenaDevicePtr where) : max_arena_bytes(limit), device(std::move(where)) {}

  // Free, or held by `previous` alone.
  [[nodiscard]] bool is_takeable(const Slot& slot) const {
    if (slot.leased) return false;
    if (!slot.occupied) return true;
    return slot.contents == previous.get() && previous.use_count() == 1;
  }
};

struct StandbyArena::Lease {
  std::shared_ptr<WeightArenas::State> state;
  size_t slot_index = 0;
  StagedWeightsPtr previous;  // kept for a rollback until overwrite()
  bool overwritten = false;
};

StandbyArena::StandbyArena(std::unique_ptr<Lease> lease) : lease_(lease.release()) {}

void StandbyArena::LeaseDeleter::operator()(Lease* lease) const {
  {
    WeightArenas::State& state = *lease->state;
    const std::lock_guard lock(state.mutex);
    state.slots[lease->slot_index].leased = false;
    if (lease->previous && !state.closed) state.previous = std::move(lease->previous);
  }
  delete lease;
}

Result<std::span<std::byte>> StandbyArena::overwrite(uint64_t bytes) {
  WARPROLL_CHECK(lease_ != nullptr, "overwrite() of a standby arena that was given back");
  WeightArenas::State& state = *lease_->state;
  WeightArenas::State::Slot& slot = state.slots[lease_->slot_index];
  // The last reference: its release also orders all reads of earlier readers before our writes.
  lease_->previous.reset();
  {
    const std::lock_guard lock(state.mutex);
    WARPROLL_CHECK(!slot.occupied, "the standby arena still has readers");
  }
  lease_->overwritten = true;
  if (slot.buffer.capacity_bytes() < bytes) {
    slot.buffer = ArenaBuffer();
    auto larger = ArenaBuffer::allocate(bytes, state.device);
    if (larger.ok()) slot.buffer = std::move(*larger);
    {
      const std::lock_guard lock(state.mutex);
      slot.capacity = slot.buffer.capacity_bytes();
    }
    if (!larger.ok()) return larger.status().with_context("standby arena");
  }
  return slot.buffer.span();
}

ArenaDevicePtr StandbyArena::device() const {
  return lease_ == nullptr ? nullptr : lease_->state->device;
}

StagedWeightsPtr StandbyArena::publish(StagedWeights weights) && {
  WARPROLL_CHECK(lease_ && lease_->overwritten, "publish() of an arena that was not written");
  const std::shared_ptr<WeightArenas::State> state = lease_->state;
  const size_t index = lease_->slot_index;
  WeightArenas::State::Slot& slot = state->slots[index];
  WARPROLL_CHECK(weights.layout.total_bytes <= slot.buffer.capacity_bytes(),
                 "the layout is larger than the arena");
  weights.arena = slot.buffer.span().first(weights.layout.total_bytes);
  weights.device = state->device;
  const auto free_arena = [state, index](const StagedWeights* released) {
    {
      const std::lock_guard lock(state->mutex);
      state->slots[index].occupied = false;
      state->slots[index].count.reset();  // it would keep this function, and so the state, for ever
    }
    delete released;
  };
  const uint64_t version = weights.weight_version;
  StagedWeightsPtr published(new StagedWeights(std::move(weights)), free_arena);
  {
    const std::lock_guard lock(state->mutex);
    slot.occupied = true;
    slot.contents = published.get();
    slot.count = published;
    slot.weight_version = version;
  }
  lease_.reset();
  return published;
}

WeightArenas::WeightArenas(uint64_t max_arena_bytes, ArenaDevicePtr device)
    : state_(std::make_shared<State>(max_arena_bytes, std::move(device))) {}

WeightArenas::~WeightArenas() {
  StagedWeightsPtr serving, previous;  // released after the mutex
  const std::lock_guard lock(state_->mutex);
  state_->closed = true;
  serving = std::move(state_->serving);
  previous = std::move(state_->previous);
}

Result<StandbyArena> WeightArenas::acquire_standby(uint64_t bytes) {
  State& state = *state_;
  if (state.max_arena_bytes != 0 && bytes > state.max_arena_bytes) {
    return resource_exhausted("weight arena: " + std::to_string(bytes) + " bytes, limit " +
                              std::to_string(state.max_arena_bytes));
  }
  const std::lock_guard lock(state.mutex);
  int chosen = -1;
  for (int i = 0; i < 2; ++i) {
    const State::Slot& slot = state.slots[i];
    if (slot.leased) return failed_precondition("the standby arena is being written already");
    if (!state.is_takeable(slot)) continue;
    // An empty one before the previous version's.
    if (chosen < 0 || state.slots[chosen].occupied) chosen = i;
  }
  if (chosen < 0) {
    for (const State::Slot& slot : state.slots) {
      if (slot.contents == state.serving.get()) continue;
      return unavailable("the standby arena holds version " + std::to_string(slot.weight_version) +
                         ", which is still read");
    }
  }
  auto lease = std::make_unique<StandbyArena::Lease>();
  lease->state = state_;
  lease->slot_index = static_cast<size_t>(chosen);
  State::Slot& slot = state.slots[chosen];
  slot.leased = true;
  if (slot.occupied) lease->previous = std::move(state.previous);
  return StandbyArena(std::move(lease));
}

Status WeightArenas::reserve_standby(uint64_t bytes) {
  WARPROLL_TRY_ASSIGN(standby, acquire_standby(bytes));
  return standby.overwrite(bytes).status();
}

StandbyHolders WeightArenas::standby_holders() const {
  const State& state = *state_;
  const std::lock_guard lock(state.mutex);
  for (const State::Slot& slot : state.slots) {
    if (!slot.occupied || slot.contents == state.serving.get()) continue;
    const auto others = slot.count.use_count() - (slot.contents == state.previous.get() ? 1 : 0);
    if (others > 0) return {slot.weight_version, static_cast<uint32_t>(others)};
  }
  return {};
}

void WeightArenas::set_serving(StagedWeightsPtr weights) {
  StagedWeightsPtr dropped;  // its deleter takes the mutex
  const std::lock_guard lock(state_->mutex);
  dropped = std::move(state_->previous);
  state_->previous = std::move(state_->serving);
  state_->serving = std::move(weights);
}

Status WeightArenas::swap_with_previous() {
  const std::lock_guard lock(state_->mutex);
  if (!state_->previous) return failed_precondition("there is no previous version to go back to");
  std::swap(state_->serving, state_->previous);
  return ok_status();
}

StagedWeightsPtr WeightArenas::serving() const {
  const std::lock_guard lock(state_->mutex);
  return state_->serving;
}
StagedWeightsPtr WeightArenas::previous() const {
  const std::lock_guard lock(state_->mutex);
  return state_->previous;
}
uint64_t WeightArenas::allocated_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->slots[0].capacity + state_->slots[1].capacity;
}

}  // namespace warproll
