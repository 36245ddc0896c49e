// RandomExperts: one layer of expert weights drawn on the device, N(0, 0.02) from a seed, in a
// checkpoint's layout and as tiles. For benches and GPU tests.
#pragma once

#include <cstdint>

#include "kernels/bench/expert_shape.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/moe/tiles.h"

namespace warproll {

class RandomExperts {
 public:
  // Blocking. keep_rows: keep the checkpoint's layout too (gate, up, down below).
  RandomExperts(const ExpertShape& shape, WeightFormat format, uint64_t seed, bool keep_rows);

  WeightView gate, up, down;  // device; data null unless keep_rows
  TileMatrix gate_up_tiles, down_tiles;
  // What a checkpoint stores for one expert, weights and scales.
  [[nodiscard]] int64_t bytes_of_expert() const { return bytes_of_expert_; }

 private:
  DeviceBuffer<std::byte> rows_[3], scales_[3], tiles_[2];
  int64_t bytes_of_expert_ = 0;
};

// BF16 N(0, 1) * sigma at `out` [count].
void fill_normal(uint16_t* out, int64_t count, uint64_t seed, float sigma, cudaStream_t stream);

}  // namespace warproll
