// What the CUDA runtime says of the GPUs of this machine. Readable where there is no CUDA; the
// definitions are in warproll_kernels_cuda. Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace warproll {

struct GpuInfo {
  int32_t index = 0;
  std::string name;
  int32_t compute_major = 0, compute_minor = 0;
  int32_t num_multiprocessors = 0;
  size_t total_bytes = 0;
  size_t free_bytes = 0;
};

// Empty: no GPU, or no driver that this build's runtime works with; `why` then says which.
std::vector<GpuInfo> list_gpus(std::string* why = nullptr);
// For this thread. Throws CudaError.
void use_gpu(int32_t index);

}  // namespace warproll
