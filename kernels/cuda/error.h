// CudaError and WARPROLL_CUDA_CHECK: a CUDA fault is not an expected failure, it throws to main.
// Thread: any.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace warproll {

class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t code, const char* call, const char* file, int line)
      : std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + call + ": " +
                           cudaGetErrorString(code)),
        code_(code) {}
  [[nodiscard]] cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

}  // namespace warproll

#define WARPROLL_CUDA_CHECK(call)                                            \
  do {                                                                       \
    const cudaError_t warproll_code = (call);                                \
    if (warproll_code != cudaSuccess) {                                      \
      throw ::warproll::CudaError(warproll_code, #call, __FILE__, __LINE__); \
    }                                                                        \
  } while (false)
