// stream_linear of kF16 tiles: a file of its own, so that formats compile side by side.
#include "kernels/step/stream_linear.cuh"

namespace warproll::stream_linear_detail {

void launch_f16(const StreamLinearParams& p, cudaStream_t stream) {
  launch_format<TileFormat::kF16>(p, stream);
}

}  // namespace warproll::stream_linear_detail
