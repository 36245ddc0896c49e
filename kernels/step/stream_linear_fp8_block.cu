// stream_linear of kFp8Block tiles: a file of its own, so that formats compile side by side.
#include "kernels/step/stream_linear.cuh"

namespace warproll::stream_linear_detail {

void launch_fp8_block(const StreamLinearParams& p, cudaStream_t stream) {
  launch_format<TileFormat::kFp8Block>(p, stream);
}

}  // namespace warproll::stream_linear_detail
