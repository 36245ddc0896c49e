#include "weights_sync/cuda/fill_batch.h"

#include <algorithm>
#include <cstring>

#include "weights_sync/arena_device.h"

namespace warproll {
namespace {

constexpr int kNumSlots = 4;
constexpr uint64_t kLeastSlotBytes = uint64_t{256} << 10;
constexpr uint64_t kListAlignment = 16;
// Of a slot: the sums of 256 MiB, 64 bytes a KiB.
constexpr uint64_t kSumsBytes = uint64_t{16} << 20;
static_assert(kNumSlots * (kSumsBytes + 4 * kLeastSlotBytes) <= kFillListBytes);

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

// take_in_items() for as many items at a time as there is memory for sums, and digest_items() once that
// memory is needed again, or at the end: a digest takes long and reads little.
class Digester {
 public:
  struct Round {
    size_t begin = 0, count = 0;  // of the list
    int64_t num_ctas = 0;
    bool reuses = false;  // the memory of those before
  };
  using Rounds = std::vector<Round>;

  Digester(const DeviceBuffer<uint64_t>& sums, cudaStream_t stream)
      : sums_(sums), stream_(stream) {}

  // Before the list goes to the device, and in the order of take_in(): says where sums lie, and which CTAs
  // are an item's.
  Rounds plan(std::vector<TakeInItem>& items) {
    Rounds rounds;
    for (size_t i = 0; i < items.size(); ++i) {
      const uint64_t size = sums_bytes_of(items[i]) / sizeof(uint64_t);
      const bool full = planned_ + size > sums_.size();
      if (full) planned_ = 0;
      if (full || rounds.empty()) rounds.push_back({.begin = i, .reuses = full});
      Round& round = rounds.back();
      items[i].sums = sums_.data() + planned_;
      items[i].first_cta = round.num_ctas;
      planned_ += size;
      ++round.count;
      round.num_ctas += ctas_of(items[i]);
    }
    return rounds;
  }

  void take_in(const Rounds& rounds, const TakeInItem* items) {
    for (const Round& round : rounds) {
      if (round.reuses) digest();
      taken_in_.emplace_back(items + round.begin, round.count);
      take_in_items(taken_in_.back(), round.num_ctas, stream_);
    }
  }

  void digest() {
    for (const std::span<const TakeInItem> on_device : taken_in_) digest_items(on_device, stream_);
    taken_in_.clear();
  }

 private:
  const DeviceBuffer<uint64_t>& sums_;
  cudaStream_t stream_;
  size_t planned_ = 0;                                 // of sums_
  std::vector<std::span<const TakeInItem>> taken_in_;  // to digest
};

}  // namespace

ItemSlots::ItemSlots() {
  for (int i = 0; i < kNumSlots; ++i) {
    Slot& slot = slots_.emplace_back();
    slot.host = PinnedBuffer<std::byte>(kLeastSlotBytes);
    slot.device = DeviceBuffer<std::byte>(kLeastSlotBytes);
    slot.sums = DeviceBuffer<uint64_t>(kSumsBytes / sizeof(uint64_t));
    free_.push_back(&slot);
  }
}

ItemSlots::Lease ItemSlots::take(uint64_t bytes) {
  Lease slot(nullptr, {this});
  {
    std::unique_lock lock(mutex_);
    given_.wait(lock, [&] { return !free_.empty(); });
    slot.reset(free_.front());
    free_.pop_front();
  }
  slot->used.synchronize();
  if (slot->host.size() >= bytes) return slot;
  const uint64_t size = std::max(kLeastSlotBytes, bytes + bytes / 2);
  slot->host = PinnedBuffer<std::byte>(size);
  slot->device = DeviceBuffer<std::byte>(size);
  return slot;
}

void ItemSlots::give(Slot* slot) {
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(slot);
  }
  given_.notify_one();
}

void FillBatch::quantise(const QuantiseMxfp8Params& matrix) {
  check_quantise_mxfp8(matrix);
  if (!quantises_as_taken_in(matrix)) quantise_.add({matrix});
}

// Where the chunks that were added last are the matrix, of BF16.
bool FillBatch::quantises_as_taken_in(const QuantiseMxfp8Params& matrix) {
  if (matrix.source_dtype != Dtype::kBf16) return false;
  constexpr uint32_t kBits = 16;
  const std::byte* begin = matrix.source + matrix.rows * matrix.cols * 2;
  size_t first = sources.size();
  while (begin != matrix.source && first > 0) {
    const TakeInItem& chunk = sources[--first];
    if (chunk.data + chunk.bytes != begin || chunk.rule.bits_each != kBits) return false;
    begin = chunk.data;
  }
  if (begin != matrix.source) return false;
  for (TakeInItem& chunk : std::span(sources).subspan(first)) {
    const int64_t element = (chunk.data - matrix.source) / 2;
    chunk.elements = matrix.elements + element;
    chunk.scales = matrix.scales + element / kMxfp8BlockCols;
  }
  return true;
}

void FillBatch::pack(const WeightView& rows, const TileTarget& to) {
  check_pack(rows, to);
  packs_.push_back({rows, to});
}

void FillBatch::Packs::add(const PackRequest& request) {
  if (request.rows.data != nullptr) halves.add({request.rows, request.to, false});
  if (request.rows.scales != nullptr) halves.add({request.rows, request.to, true});
}

void FillBatch::Packs::add(const TileItem& whole) {
  const bool gate_up = whole.to.gate_up;
  if (packs_whole_tiles(whole.rows, whole.to) &&
      (!gate_up || packs_whole_tiles(whole.up, whole.to))) {
    tiles.add(whole);
    return;
  }
  add(PackRequest{whole.rows, whole.to});
  if (!gate_up) return;
  TileTarget to = whole.to;
  to.first_row += to.tiles.num_tiles * 8;
  add(PackRequest{whole.up, to});
}

FillBatch::Packs FillBatch::planned_packs() const {
  Packs packs;
  const JoinedTiles joined = join_tiles(packs_);
  for (const TileItem& whole : joined.whole) packs.add(whole);
  for (const PackRequest& request : joined.rest) packs.add(request);
  return packs;
}

void FillBatch::copy(std::byte* to, const std::byte* from, uint64_t bytes) {
  copies_.push_back({to, from, bytes});
}

size_t FillBatch::num_items() const {
  return sources.size() + quantised.size() + quantise_.items.size() + packs_.size();
}

void FillBatch::launch(ItemSlots& slots, cudaStream_t stream) {
  const Packs packs = planned_packs();
  const uint64_t bytes = bytes_of(sources) + bytes_of(quantise_.items) + bytes_of(quantised) +
                         bytes_of(packs.tiles.items) + bytes_of(packs.halves.items);
  if (bytes > 0) {
    const ItemSlots::Lease slot = slots.take(bytes);
    Digester digester(slot->sums, stream);
    const Digester::Rounds source_rounds = digester.plan(sources);
    const Digester::Rounds quantised_rounds = digester.plan(quantised);
    ListWriter writer(*slot);
    const TakeInItem* const on_sources = writer.add(sources);
    const QuantiseItem* const on_quantise = writer.add(quantise_.items);
    const TakeInItem* const on_quantised = writer.add(quantised);
    const TileItem* const on_tiles = writer.add(packs.tiles.items);
    const PackItem* const on_halves = writer.add(packs.halves.items);
    WARPROLL_CUDA_CHECK(cudaMemcpyAsync(slot->device.data(), slot->host.data(), writer.used(),
                                        cudaMemcpyHostToDevice, stream));
    digester.take_in(source_rounds, on_sources);
    quantise_items(on_quantise, static_cast<int64_t>(quantise_.items.size()), quantise_.num_ctas,
                   stream);
    digester.take_in(quantised_rounds, on_quantised);
    for (const Copy& c : copies_) {
      WARPROLL_CUDA_CHECK(cudaMemcpyAsync(c.to, c.from, c.bytes, cudaMemcpyDefault, stream));
    }
    pack_tiles(on_tiles, static_cast<int64_t>(packs.tiles.items.size()), packs.tiles.num_ctas,
               stream);
    pack_items(on_halves, static_cast<int64_t>(packs.halves.items.size()), packs.halves.num_ctas,
               stream);
    digester.digest();
    slot->used.record(stream);
  }
  *this = {};
}

}  // namespace warproll
