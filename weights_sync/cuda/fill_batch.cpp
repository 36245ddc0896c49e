#include "weights_sync/cuda/fill_batch.h"

#include <algorithm>
#include <cstring>

namespace warproll {
namespace {

constexpr size_t kMostSlots = 16;
constexpr uint64_t kLeastSlotBytes = uint64_t{256} << 10;
constexpr uint64_t kListAlignment = 16;

uint64_t rounded(uint64_t bytes) {
  return (bytes + kListAlignment - 1) / kListAlignment * kListAlignment;
}

template <class Item>
uint64_t bytes_of(const std::vector<Item>& items) {
  return rounded(items.size() * sizeof(Item));
}

// Puts lists into a slot, one behind the other, and says where they are on the device.
class ListWriter {
 public:
  explicit ListWriter(const ItemSlots::Slot& slot) : slot_(slot) {}
  template <class Item>
  const Item* add(const std::vector<Item>& items) {
    if (!items.empty()) {
      std::memcpy(slot_.host.data() + used_, items.data(), items.size() * sizeof(Item));
    }
    const auto* at = reinterpret_cast<const Item*>(slot_.device.data() + used_);
    used_ += bytes_of(items);
    return at;
  }
  [[nodiscard]] uint64_t used() const { return used_; }

 private:
  const ItemSlots::Slot& slot_;
  uint64_t used_ = 0;
};

}  // namespace

ItemSlots::ItemSlots() {
  for (int i = 0; i < 4; ++i) {
    Slot& slot = slots_.emplace_back();
    slot.host = PinnedBuffer<std::byte>(kLeastSlotBytes);
    slot.device = DeviceBuffer<std::byte>(kLeastSlotBytes);
    free_.push_back(&slot);
  }
}

ItemSlots::Slot* ItemSlots::take(uint64_t bytes) {
  Slot* slot = nullptr;
  {
    const std::lock_guard lock(mutex_);
    // Those in use are other threads': there are few, so a slot more is better than waiting.
    if (free_.empty() || (!free_.front()->used.ended() && slots_.size() < kMostSlots)) {
      slot = &slots_.emplace_back();
    } else {
      slot = free_.front();
      free_.pop_front();
    }
  }
  slot->used.synchronize();
  if (slot->host.size() >= bytes) return slot;
  const uint64_t size = std::max(kLeastSlotBytes, bytes + bytes / 2);
  slot->host = PinnedBuffer<std::byte>(size);
  slot->device = DeviceBuffer<std::byte>(size);
  return slot;
}

void ItemSlots::give(Slot* slot, cudaStream_t stream) {
  slot->used.record(stream);
  const std::lock_guard lock(mutex_);
  free_.push_back(slot);
}

void FillBatch::quantise(const QuantiseMxfp8Params& matrix) {
  check_quantise_mxfp8(matrix);
  const int64_t ctas = ctas_of(matrix);
  if (ctas == 0) return;
  quantise_.push_back({matrix, quantise_ctas_});
  quantise_ctas_ += ctas;
}

void FillBatch::pack(const WeightView& rows, const TileTarget& to) {
  if (rows.data != nullptr) add({rows, to, false});
  if (rows.scales != nullptr) add({rows, to, true});
}

void FillBatch::add(const PackItem& item) {
  check_pack(item.rows, item.to);
  const int64_t ctas = ctas_of(item);
  if (ctas == 0) return;
  packs_.push_back(item);
  packs_.back().first_cta = pack_ctas_;
  pack_ctas_ += ctas;
}

void FillBatch::copy(std::byte* to, const std::byte* from, uint64_t bytes) {
  copies_.push_back({to, from, bytes});
}

size_t FillBatch::num_items() const {
  return sources.size() + quantised.size() + quantise_.size() + packs_.size();
}

void FillBatch::launch(ItemSlots& slots, cudaStream_t stream) {
  const uint64_t bytes =
      bytes_of(sources) + bytes_of(quantise_) + bytes_of(quantised) + bytes_of(packs_);
  if (bytes > 0) {
    ItemSlots::Slot* const slot = slots.take(bytes);
    ListWriter writer(*slot);
    const TakeInItem* const on_sources = writer.add(sources);
    const QuantiseItem* const on_quantise = writer.add(quantise_);
    const TakeInItem* const on_quantised = writer.add(quantised);
    const PackItem* const on_packs = writer.add(packs_);
    WARPROLL_CUDA_CHECK(cudaMemcpyAsync(slot->device.data(), slot->host.data(), writer.used(),
                                        cudaMemcpyHostToDevice, stream));
    take_in_items(on_sources, static_cast<int64_t>(sources.size()), stream);
    quantise_items(on_quantise, static_cast<int64_t>(quantise_.size()), quantise_ctas_, stream);
    take_in_items(on_quantised, static_cast<int64_t>(quantised.size()), stream);
    for (const Copy& c : copies_) {
      WARPROLL_CUDA_CHECK(cudaMemcpyAsync(c.to, c.from, c.bytes, cudaMemcpyDefault, stream));
    }
    pack_items(on_packs, static_cast<int64_t>(packs_.size()), pack_ctas_, stream);
    slots.give(slot, stream);
  }
  sources.clear();
  quantised.clear();
  quantise_.clear();
  copies_.clear();
  packs_.clear();
  quantise_ctas_ = pack_ctas_ = 0;
}

}  // namespace warproll
