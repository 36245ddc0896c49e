// FillBatch: what the kernels of a fill are to do next (kernels/fill_items.h), gathered for any number of
// tensors and launched together. ItemSlots: the memory by which the lists of items get to the device.
// Internal to weights_sync/cuda. Thread: a FillBatch one; ItemSlots any. Errors: std::invalid_argument
// (a shape that a kernel does not take), CudaError.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/event.h"
#include "kernels/cuda/pinned_buffer.h"
#include "kernels/fill_items.h"
#include "weights_sync/whole_tiles.h"

namespace warproll {

// Page-locked memory and its copy on the device, used again and again: nothing is allocated while
// weights come, but for a list that is longer than any before. And memory for digests under way.
class ItemSlots {
 public:
  struct Slot {
    PinnedBuffer<std::byte> host;
    DeviceBuffer<std::byte> device;
    DeviceBuffer<uint64_t> sums;
    CudaEvent used;  // the work that reads it has ended
  };
  struct GiveBack {
    ItemSlots* slots = nullptr;
    void operator()(Slot* slot) const { slots->give(slot); }
  };
  // Of one thread; whoever has it records in `used` what reads it.
  using Lease = std::unique_ptr<Slot, GiveBack>;

  ItemSlots();
  // At least `bytes`, which nothing reads any more. Blocking where other threads have all slots.
  Lease take(uint64_t bytes);

 private:
  void give(Slot* slot);

  std::mutex mutex_;
  std::condition_variable given_;
  std::deque<Slot> slots_;
  std::deque<Slot*> free_;  // guarded by mutex_; the one given longest ago first
};

class FillBatch {
 public:
  std::vector<TakeInItem> sources;    // of what came
  std::vector<TakeInItem> quantised;  // of what was made of it

  // In one pass with taking it in, if it is of BF16 and its chunks are the last of `sources`.
  void quantise(const QuantiseMxfp8Params& matrix);
  // Elements, scales or both: those that are not null.
  void pack(const WeightView& rows, const TileTarget& to);
  // Behind the lists above and quantise(). `to` may be page-locked memory of the host.
  void copy(std::byte* to, const std::byte* from, uint64_t bytes);

  [[nodiscard]] size_t num_items() const;
  // In the order: sources, quantise, quantised, copies, packs, whole tiles where they can be had
  // (whole_tiles.h). The batch is empty then.
  void launch(ItemSlots& slots, cudaStream_t stream);

 private:
  struct Copy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    uint64_t bytes = 0;
  };
  // Of a launch.
  template <class Item>
  struct ItemList {
    std::vector<Item> items;
    int64_t num_ctas = 0;
    void add(Item item) {
      const int64_t ctas = ctas_of(item);
      if (ctas == 0) return;
      item.first_cta = num_ctas;
      items.push_back(item);
      num_ctas += ctas;
    }
  };
  struct Packs {
    ItemList<TileItem> tiles;
    ItemList<PackItem> halves;
    void add(const PackRequest& request);
    void add(const TileItem& whole);
  };
  bool quantises_as_taken_in(const QuantiseMxfp8Params& matrix);
  [[nodiscard]] Packs planned_packs() const;

  ItemList<QuantiseItem> quantise_;
  std::vector<Copy> copies_;
  std::vector<PackRequest> packs_;
};

}  // namespace warproll
