// step_linear: to_f16 (grid T, block 128: a CTA produces one row of F16, the first one also the list of
// token blocks), then the product (grid one CTA an SM, block 384: expert_centric_gemm.cuh).
#include "kernels/step/linear.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>
#include <utility>

#include "kernels/check.h"
#include "kernels/moe/convert_activations.cuh"
#include "kernels/moe/expert_centric_gemm.cuh"

namespace warproll {
namespace {

constexpr int kThreads = 128;
constexpr int32_t kMaxTokens = 8192;

struct Workspace {
  uint16_t* x = nullptr;    // F16 [T, K]
  float* scales = nullptr;  // [T]
  moe::TokenBlock* blocks = nullptr;
  int32_t* num_blocks = nullptr;
  size_t bytes = 0;
};

Workspace workspace_at(std::byte* memory, int32_t tokens, int32_t cols) {
  Workspace w;
  const auto take = [&w, memory](size_t bytes) {
    return memory + std::exchange(w.bytes, w.bytes + (bytes + 255) / 256 * 256);
  };
  const auto rows = static_cast<size_t>(tokens);
  const size_t blocks = (rows + moe::kMaxTokenBlock - 1) / moe::kMaxTokenBlock;
  w.x = reinterpret_cast<uint16_t*>(take(rows * static_cast<size_t>(cols) * 2));
  w.scales = reinterpret_cast<float*>(take(rows * 4));
  w.blocks = reinterpret_cast<moe::TokenBlock*>(take(blocks * sizeof(moe::TokenBlock)));
  w.num_blocks = reinterpret_cast<int32_t*>(take(sizeof(int32_t)));
  return w;
}

__global__ void __launch_bounds__(kThreads)
    to_f16_kernel(const uint16_t* x, Workspace w, int num_tokens, int cols) {
  __shared__ float largest_of_warp[kThreads / 32];
  const int me = static_cast<int>(threadIdx.x), token = static_cast<int>(blockIdx.x);
  ptx::wait_for_previous_kernel();
  ptx::allow_next_kernel();
  if (token == 0 && me == 0) {
    const int count = (num_tokens + moe::kMaxTokenBlock - 1) / moe::kMaxTokenBlock;
    for (int b = 0; b < count; ++b) {
      const int first = b * moe::kMaxTokenBlock;
      w.blocks[b] = {.first = first,
                     .count = static_cast<int16_t>(min(moe::kMaxTokenBlock, num_tokens - first)),
                     .expert = 0,
                     .head = 0,
                     .siblings = count};
    }
    *w.num_blocks = count;
  }
  moe::convert_row<kThreads, /*kTileOrder=*/false>({x, {w.x, w.scales}, num_tokens, cols}, token,
                                                   largest_of_warp);
}

struct LinearOp {
  const float* scales;  // [T]
  __nv_bfloat16* y;
  float* y_f32;  // instead of y, or null
  int rows;

  __device__ __forceinline__ void put(int token, int row, float value) const {
    const int64_t at = static_cast<int64_t>(token) * rows + row;
    if (y_f32 != nullptr) {
      y_f32[at] = value;
    } else {
      y[at] = __float2bfloat16_rn(value);
    }
  }

  // Rows g and g + 8 of the record, columns 2t and 2t + 1 of every eight.
  template <int kCount>
  __device__ __forceinline__ void store(int first, int count, int record, float low, float high,
                                        const float (&d)[kCount]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = record * kTileRows + lane / 4;
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int column = 8 * i + lane % 4 * 2 + j;
        if (column < count) {
          const float scale = scales[first + column];
          put(first + column, row, d[4 * i + j] * low * scale);
          put(first + column, row + 8, d[4 * i + 2 + j] * high * scale);
        }
      }
    }
  }
};

}  // namespace

size_t step_linear_workspace_bytes(int32_t num_tokens, int32_t cols) {
  return workspace_at(nullptr, num_tokens, cols).bytes;
}

void step_linear(const StepLinearParams& p, cudaStream_t stream) {
  check_argument(
      p.weight.num_experts == 1 && p.weight.num_tiles >= 1 && p.weight.cols >= kTileBlock &&
          p.weight.cols % kTileBlock == 0 && p.num_tokens >= 0 && p.num_tokens <= kMaxTokens,
      [&] {
        return "step linear: T " + std::to_string(p.num_tokens) + ", W " +
               std::to_string(p.weight.num_experts) + " x " + std::to_string(p.weight.num_tiles) +
               " tiles over " + std::to_string(p.weight.cols) + "; wanted T 0 .. " +
               std::to_string(kMaxTokens) + ", one matrix, columns a multiple of " +
               std::to_string(kTileBlock);
      });
  if (p.num_tokens == 0) return;
  const Workspace w = workspace_at(p.workspace, p.num_tokens, p.weight.cols);
  check_argument(p.workspace_bytes >= w.bytes, [&] {
    return "step linear: the workspace has " + std::to_string(p.workspace_bytes) +
           " bytes, wanted " + std::to_string(w.bytes);
  });
  LaunchConfig convert(dim3(static_cast<unsigned>(p.num_tokens)), kThreads, 0, stream);
  convert.programmatic();
  convert.run(to_f16_kernel, p.x, w, p.num_tokens, p.weight.cols);
  const LinearOp op = {w.scales, reinterpret_cast<__nv_bfloat16*>(p.y), p.y_f32,
                       p.weight.num_tiles * kTileRows};
  moe::launch_gemm({p.weight, w.blocks, w.num_blocks, w.x, nullptr, {}}, op, stream);
}

}  // namespace warproll
