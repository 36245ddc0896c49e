// The loading role of expert_stream.cuh: which records, in which order, into the ring.
// Internal to kernels/moe/*.cu.
#pragma once

#include "kernels/moe/stream_shared.cuh"

namespace warproll::moe {

// The work items of this CTA, one after the other.
class ItemSource {
 public:
  __device__ ItemSource(int num_items, int* next_item) : next_(next_item), total_(num_items) {
    const int ctas = static_cast<int>(gridDim.x), mine = num_items / ctas;
    const int even = max(0, mine - max(mine / 4, 2));
    fixed_ = even * ctas;
    at_ = even * static_cast<int>(blockIdx.x);
    end_ = at_ + even;
    if (even == 0) take_ticket();
  }
  // About how many are left for this CTA.
  __device__ int left() const {
    const int ctas = static_cast<int>(gridDim.x);
    if (at_ < end_) return end_ - at_ + (total_ - fixed_) / ctas;
    return max(0, total_ - fixed_ - ticket_) / ctas;
  }
  // -1: none left.
  __device__ int next() {
    if (at_ < end_) {
      if (at_ + 1 == end_) take_ticket();
      return at_++;
    }
    const int item = fixed_ + ticket_;
    if (item >= total_) return -1;
    take_ticket();
    return item;
  }

 private:
  // One item before it is needed: its latency is not waited for.
  __device__ void take_ticket() { ticket_ = atomicAdd(next_, 1); }

  int* next_;
  int total_, fixed_, at_, end_;
  int ticket_ = 0;
};

// One lane. An item is kTiles records of one expert block. The next kernel may start when about
// `start_next_at` items are left to load.
template <class Shape>
__device__ void load_records(const StreamParams& p, const StreamShared<Shape>& shared,
                             int num_blocks, int start_next_at) {
  const uint64_t policy = ptx::evict_first_policy();
  const int blocks_of_record = p.weights.num_blocks();
  const int items_of_block = p.weights.num_tiles / Shape::kTiles;
  const std::byte* row_scales = p.weights.row_scales();
  ItemSource source(num_blocks * items_of_block, p.next_item);
  RingPlace ring{.size = p.num_stages};
  for (bool started = false;;) {
    if (!started && source.left() <= start_next_at) {
      ptx::allow_next_kernel();
      started = true;
    }
    const int item = source.next();
    const int block = item / items_of_block;
    const int tile = item % items_of_block * Shape::kTiles;
    if (item < 0) {
      ptx::mbarrier_wait(shared.empty(ring.index), ring.parity ^ 1);
      shared.headers[ring.index] = {.block = -1, .tile = 0};
      ptx::mbarrier_arrive(shared.announced(ring.index));
      return;
    }
    const int64_t record =
        static_cast<int64_t>(shared.blocks[block].expert) * p.weights.num_tiles + tile;
    const std::byte* from = p.weights.data + record * p.weights.record_bytes();
    for (int first = 0; first < blocks_of_record; first += Shape::kPartBlocks) {
      const uint32_t bytes =
          Shape::kTiles * min(Shape::kPartBlocks, blocks_of_record - first) * Shape::kBlockBytes;
      const bool last = first + Shape::kPartBlocks >= blocks_of_record;
      constexpr int kScales = Shape::kTiles * kRowScaleBytes;
      ptx::mbarrier_wait(shared.empty(ring.index), ring.parity ^ 1);
      shared.headers[ring.index] = {.block = block, .tile = tile};
      ptx::mbarrier_arrive(shared.announced(ring.index));
      const uint32_t barrier = shared.full(ring.index);
      ptx::mbarrier_arrive_expect(barrier, bytes + (last ? kScales : 0));
      const uint32_t to = ptx::shared_address(shared.stages + ring.index * p.stage_stride);
      ptx::bulk_load(to, from, bytes, barrier, policy);
      if (last)
        ptx::bulk_load(to + bytes, row_scales + record * kRowScaleBytes, kScales, barrier, policy);
      from += bytes;
      ring.advance();
    }
  }
}

}  // namespace warproll::moe
