// gather_rows: grid one CTA a row, block up to 256 threads, 16 bytes a thread at a time.
#include "kernels/step/gather_rows.h"

#include <algorithm>
#include <string>

#include "kernels/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

namespace warproll {
namespace {

constexpr int kValues = 8;  // of 16 bytes

__global__ void gather_rows_kernel(const uint16_t* x, const int32_t* rows, uint16_t* y, int width) {
  ptx::wait_for_previous_kernel();
  ptx::allow_next_kernel();
  const int64_t n = blockIdx.x;
  const auto* from = reinterpret_cast<const uint4*>(x + int64_t{rows[n]} * width);
  auto* to = reinterpret_cast<uint4*>(y + n * width);
  for (int i = static_cast<int>(threadIdx.x); i < width / kValues;
       i += static_cast<int>(blockDim.x))
    to[i] = from[i];
}

}  // namespace

void gather_rows(const GatherRowsParams& p, cudaStream_t stream) {
  check_argument(p.num_rows >= 0 && p.width >= kValues && p.width % kValues == 0, [&] {
    return "gather rows: N " + std::to_string(p.num_rows) + ", width " + std::to_string(p.width) +
           "; wanted N >= 0 and a width that is a multiple of " + std::to_string(kValues);
  });
  if (p.num_rows == 0) return;
  const int threads = std::clamp((p.width / kValues + 31) / 32 * 32, 32, 256);
  LaunchConfig launch(dim3(static_cast<unsigned>(p.num_rows)), threads, 0, stream);
  launch.programmatic();
  launch.run(gather_rows_kernel, p.x, p.rows, p.y, p.width);
}

}  // namespace warproll
