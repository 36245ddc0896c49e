#include "weights_sync/nccl/staging_slots.h"

#include <thread>

#include "weights_sync/nccl/nccl_communicator.h"

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds kPause(200);
constexpr std::chrono::milliseconds kMoment(2'000);

template <typename T>
Status keep(Result<void*> made, T** at) {
  if (made.ok()) *at = static_cast<T*>(*made);
  return made.status();
}

}  // namespace

Result<std::unique_ptr<StagingSlots>> StagingSlots::make(std::shared_ptr<NcclApi> api,
                                                         uint64_t slot_bytes, bool with_pinned) {
  std::unique_ptr<StagingSlots> slots(new StagingSlots(std::move(api)));
  const Status allocated = slots->allocate(slot_bytes, with_pinned);
  WARPROLL_TRY(
      allocated.with_context("two staging slots of " + std::to_string(slot_bytes) + " bytes"));
  return slots;
}

Status StagingSlots::allocate(uint64_t slot_bytes, bool with_pinned) {
  slot_bytes_ = slot_bytes;
  WARPROLL_TRY(keep(api_->make_stream(StreamPriority::kLow), &communication_));
  WARPROLL_TRY(keep(api_->make_stream(StreamPriority::kLow), &processing_));
  WARPROLL_TRY(keep(api_->make_event(), &ended_));
  WARPROLL_TRY(keep(api_->allocate(sizeof(uint32_t)), &word_));
  for (Slot& slot : slots_) {
    WARPROLL_TRY(keep(api_->make_event(), &slot.moved));
    WARPROLL_TRY(keep(api_->make_event(), &slot.used));
    WARPROLL_TRY(keep(api_->allocate(slot_bytes), &slot.device));
    if (with_pinned) WARPROLL_TRY(keep(api_->allocate_pinned(slot_bytes), &slot.pinned));
  }
  return ok_status();
}

Status StagingSlots::register_with(NcclCommunicator& group) {
  for (const Slot& slot : slots_) {
    WARPROLL_TRY(group.register_buffer(slot.device, slot_bytes_));
  }
  return ok_status();
}

bool StagingSlots::is_idle(GpuStream stream, Clock::time_point until) {
  if (stream == nullptr) return true;
  if (!api_->record(ended_, stream).ok()) return false;
  while (true) {
    const Result<bool> done = api_->done(ended_);
    if (!done.ok()) return false;
    if (*done) return true;
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(kPause);
  }
}

bool StagingSlots::drain(std::chrono::milliseconds limit) {
  drained_ = true;
  if (ended_ == nullptr) return true;  // nothing was ever enqueued
  const Clock::time_point until = Clock::now() + limit;
  abandoned_ = !is_idle(communication_, until) || !is_idle(processing_, until);
  return !abandoned_;
}

StagingSlots::~StagingSlots() {
  if (!drained_) (void)drain(kMoment);
  if (abandoned_) return;
  for (Slot& slot : slots_) {
    if (slot.device != nullptr) api_->free(slot.device);
    if (slot.pinned != nullptr) api_->free_pinned(slot.pinned);
    if (slot.moved != nullptr) api_->destroy_event(slot.moved);
    if (slot.used != nullptr) api_->destroy_event(slot.used);
  }
  if (word_ != nullptr) api_->free(word_);
  if (ended_ != nullptr) api_->destroy_event(ended_);
  if (processing_ != nullptr) api_->destroy_stream(processing_);
  if (communication_ != nullptr) api_->destroy_stream(communication_);
}

}  // namespace warproll
