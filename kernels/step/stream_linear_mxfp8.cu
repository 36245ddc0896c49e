// stream_linear of kMxfp8 tiles: a file of its own, so that formats compile side by side.
#include "kernels/step/stream_linear.cuh"

namespace warproll::stream_linear_detail {

void launch_mxfp8(const StreamLinearParams& p, cudaStream_t stream) {
  launch_format<TileFormat::kMxfp8>(p, stream);
}

}  // namespace warproll::stream_linear_detail
