// StagingSlots: what one rank needs on its GPU while a stream of buckets goes through: two slots of
// bucket size, a stream for communication (low priority: decode goes first) and one for what is done
// with the bytes, and the events between them. Bucket i lies in slot i % 2.
// The GPU memory is there for one transfer and freed after it, once nothing on the device can touch
// it any more; where that cannot be had (drain() says so), it is left allocated.
// Thread: one, bound to the GPU.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>

#include "protocol/status.h"
#include "weights_sync/nccl/nccl_api.h"

namespace warproll {

class NcclCommunicator;

class StagingSlots {
 public:
  struct Slot {
    std::byte* device = nullptr;
    std::byte* pinned = nullptr;  // on the host; null when not asked for
    GpuEvent moved = nullptr;     // on `communication`: its broadcast has ended
    GpuEvent used = nullptr;      // on `processing`: its copy or sink has ended
  };

  static Result<std::unique_ptr<StagingSlots>> make(std::shared_ptr<NcclApi> api,
                                                    uint64_t slot_bytes, bool with_pinned);
  StagingSlots(const StagingSlots&) = delete;
  StagingSlots& operator=(const StagingSlots&) = delete;
  ~StagingSlots();  // drain()s for a moment if that was not done

  [[nodiscard]] uint64_t slot_bytes() const { return slot_bytes_; }
  [[nodiscard]] bool has_pinned() const { return slots_[0].pinned != nullptr; }
  // For another stream. false: the last one's work may still be under way.
  [[nodiscard]] bool begin_again() { return std::exchange(drained_, false) && !abandoned_; }

  // With a group whose other ranks register theirs too: NCCL then needs no buffers between.
  Status register_with(NcclCommunicator& group);

  [[nodiscard]] Slot& slot_of(uint64_t bucket_index) { return slots_[bucket_index % 2]; }
  [[nodiscard]] GpuStream communication() const { return communication_; }
  [[nodiscard]] GpuStream processing() const { return processing_; }
  [[nodiscard]] GpuEvent ended() const { return ended_; }  // for the last step of a stream
  [[nodiscard]] void* word() const { return word_; }       // of the device, for the closing reduce

  // Until both streams are idle. Call it when the communicator is closed or aborted. false: they
  // are not after `limit`, and what they use is never freed.
  bool drain(std::chrono::milliseconds limit);

 private:
  explicit StagingSlots(std::shared_ptr<NcclApi> api) : api_(std::move(api)) {}
  Status allocate(uint64_t slot_bytes, bool with_pinned);
  bool is_idle(GpuStream stream, std::chrono::steady_clock::time_point until);

  const std::shared_ptr<NcclApi> api_;
  Slot slots_[2];
  GpuStream communication_ = nullptr;
  GpuStream processing_ = nullptr;
  GpuEvent ended_ = nullptr;
  void* word_ = nullptr;
  uint64_t slot_bytes_ = 0;
  bool drained_ = false;
  bool abandoned_ = false;
};

}  // namespace warproll
