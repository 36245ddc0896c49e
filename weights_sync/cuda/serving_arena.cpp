#include "weights_sync/cuda/serving_arena.h"

#include <cuda_runtime.h>

#include "kernels/cuda/error.h"
#include "protocol/status.h"

namespace warproll {

ServingArena::ServingArena(int device, uint64_t bytes) : device_(device), bytes_(bytes) {
  WARPROLL_CUDA_CHECK(cudaSetDevice(device));
  WARPROLL_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&data_), bytes));
}

ServingArena::~ServingArena() {
  cudaSetDevice(device_);
  cudaFree(data_);
}

void ServingArena::upload(std::span<const std::byte> arena) {
  WARPROLL_CHECK(arena.size() <= bytes_, "a version of " + std::to_string(arena.size()) +
                                             " bytes for a serving arena of " +
                                             std::to_string(bytes_));
  WARPROLL_CUDA_CHECK(cudaSetDevice(device_));
  WARPROLL_CUDA_CHECK(cudaMemcpy(data_, arena.data(), arena.size(), cudaMemcpyHostToDevice));
}

}  // namespace warproll
