// LaunchConfig: one kernel launch with its attributes. Internal to kernels/*.cu. Errors: CudaError.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/error.h"
#include "kernels/cuda/spare_multiprocessors.h"

namespace warproll {

// That kernels which fill the GPU may count on: without those that are spared (spare_multiprocessors.h).
inline int num_multiprocessors() {
  int device = 0, count = 0;
  WARPROLL_CUDA_CHECK(cudaGetDevice(&device));
  WARPROLL_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count - spared_multiprocessors();
}

// Of one CTA, static and dynamic.
inline int max_shared_bytes() {
  int device = 0, bytes = 0;
  WARPROLL_CUDA_CHECK(cudaGetDevice(&device));
  WARPROLL_CUDA_CHECK(
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return bytes;
}

class LaunchConfig {
 public:
  LaunchConfig(dim3 grid, int threads, int shared_bytes, cudaStream_t stream) {
    config_.gridDim = grid;
    config_.blockDim = dim3(static_cast<unsigned>(threads));
    config_.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config_.stream = stream;
    config_.attrs = attributes_;
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;

  // May start before the previous kernel of the stream has ended (griddepcontrol).
  void programmatic() {
    cudaLaunchAttribute& a = attributes_[config_.numAttrs++];
    a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1;
  }

  void cluster(unsigned ctas) {
    cudaLaunchAttribute& a = attributes_[config_.numAttrs++];
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim = {ctas, 1, 1};
    is_large_cluster_ = ctas > 8;
  }

  // How many of this launch's clusters the GPU holds at once: SMs of one GPC, of which some have fewer.
  template <class... Params>
  int max_active_clusters(void (*kernel)(Params...)) {
    allow_shared(kernel);
    allow_cluster(kernel);
    int count = 0;
    WARPROLL_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&count, kernel, &config_));
    if (count == 0) return 0;
    return std::max(1, count - spared_multiprocessors());  // a spared SM may be any cluster's
  }

  // All of an SM's L1 that can be shared memory is. Kernels of a chain agree on it: an SM changes its
  // split only when it is empty, so one that differs could not start early.
  void all_shared() { all_shared_ = true; }

  template <class... Params, class... Args>
  void run(void (*kernel)(Params...), const Args&... args) {
    allow_shared(kernel);
    allow_cluster(kernel);
    if (all_shared_) {
      WARPROLL_CUDA_CHECK(cudaFuncSetAttribute(
          kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
    }
    WARPROLL_CUDA_CHECK(cudaLaunchKernelEx(&config_, kernel, args...));
  }

 private:
  // Where the kernel's limit is too low it becomes all that the device allows, never less: the limit is
  // the kernel's, not the launch's, and another thread that launches the same kernel with less would lower
  // it between here and the launch.
  template <class Kernel>
  void allow_shared(Kernel kernel) const {
    if (config_.dynamicSmemBytes == 0) return;
    cudaFuncAttributes of_kernel = {};
    WARPROLL_CUDA_CHECK(cudaFuncGetAttributes(&of_kernel, kernel));
    const auto allowed = static_cast<size_t>(of_kernel.maxDynamicSharedSizeBytes);
    if (config_.dynamicSmemBytes + of_kernel.sharedSizeBytes <= allowed) return;
    const int most = max_shared_bytes() - static_cast<int>(of_kernel.sharedSizeBytes);
    WARPROLL_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
  }

  // More than eight CTAs are not every GPU's; Hopper's and Blackwell's have up to sixteen.
  template <class Kernel>
  void allow_cluster(Kernel kernel) const {
    if (!is_large_cluster_) return;
    WARPROLL_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }

  cudaLaunchConfig_t config_ = {};
  cudaLaunchAttribute attributes_[2] = {};
  bool all_shared_ = false;
  bool is_large_cluster_ = false;
};

}  // namespace warproll
