// load_kernels: puts kernels on the device before they are wanted. CUDA does it with a kernel's first launch, and
// then waits for what runs on the device first, as do other threads' launches: beside an NCCL kernel that
// waits for a bucket, decoding stood still for all of it (docs/decisions.md 97).
// Thread: any; the thread's device. Errors: CudaError.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/error.h"

namespace warproll {

template <class... Kernels>
void load_kernels(Kernels*... kernels) {
  cudaFuncAttributes unused = {};
  for (const void* const kernel : {reinterpret_cast<const void*>(kernels)...}) {
    WARPROLL_CUDA_CHECK(cudaFuncGetAttributes(&unused, kernel));
  }
}

}  // namespace warproll
