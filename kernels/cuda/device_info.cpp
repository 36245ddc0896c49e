#include "kernels/cuda/device_info.h"

#include "kernels/cuda/error.h"

namespace warproll {

std::vector<GpuInfo> list_gpus(std::string* why) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0) {
    if (why != nullptr) *why = code == cudaSuccess ? "no GPU" : cudaGetErrorString(code);
    return {};
  }
  int current = 0;
  WARPROLL_CUDA_CHECK(cudaGetDevice(&current));
  std::vector<GpuInfo> gpus;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    WARPROLL_CUDA_CHECK(cudaGetDeviceProperties(&properties, i));
    WARPROLL_CUDA_CHECK(cudaSetDevice(i));
    GpuInfo gpu;
    gpu.index = i;
    gpu.name = properties.name;
    gpu.compute_major = properties.major;
    gpu.compute_minor = properties.minor;
    gpu.num_multiprocessors = properties.multiProcessorCount;
    WARPROLL_CUDA_CHECK(cudaMemGetInfo(&gpu.free_bytes, &gpu.total_bytes));
    gpus.push_back(gpu);
  }
  WARPROLL_CUDA_CHECK(cudaSetDevice(current));
  return gpus;
}

void use_gpu(int32_t index) { WARPROLL_CUDA_CHECK(cudaSetDevice(index)); }

}  // namespace warproll
