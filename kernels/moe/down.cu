// down: grid one CTA an SM (persistent), block 320 threads. A CTA produces sixteen outputs of
// down_e h, for every pair of an expert block, with each record it streams (expert_stream.cuh).
#include "kernels/moe/expert_stream.cuh"
#include "kernels/moe/launch.cuh"
#include "kernels/moe/with_format.cuh"

namespace warproll::moe {
namespace {

struct DownOp {
  static constexpr int kTerms = 2;
  const uint16_t* h;  // F16 [T * K, 2, I], tile order
  float* partials;    // [T * K, H]
  int intermediate_size, hidden_size;

  __device__ const uint4* row(int pair) const {
    return reinterpret_cast<const uint4*>(h + static_cast<int64_t>(pair) * 2 * intermediate_size);
  }
  __device__ int term_stride() const { return intermediate_size / 8; }
  __device__ void wait_for_rows() const { ptx::wait_for_previous_kernel(); }
  __device__ float scale(int) const { return 1.0f; }

  __device__ void store(int pair, float, int tile, float low, float high) const {
    float* out = partials + static_cast<int64_t>(pair) * hidden_size + tile * kTileRows +
                 threadIdx.x % 32 / 4;
    out[0] = low;
    out[8] = high;
  }
};

template <class Shape>
__global__ void __maxnreg__(Shape::kRegisters)
    down_kernel(const __grid_constant__ StreamParams p, DownOp op) {
  extern __shared__ __align__(128) std::byte memory[];
  const StreamShared<Shape> shared(memory, p.num_stages, p.stage_stride);
  if (threadIdx.x == 0) init_barriers(p, shared);
  // The lists are older than the previous kernel, which waited for them before it let us start.
  const int num_blocks = read_blocks(p, shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < kMultiplyWarps) {
    Multiplier<Shape, DownOp>(p, shared, op).run();  // waits in wait_for_rows()
  } else if (warp == kFinishWarp) {
    ptx::wait_for_previous_kernel();
    ptx::allow_next_kernel();
    if (blockIdx.x == 0 && threadIdx.x % 32 == 0) p.lists.counts->next_gate_up = 0;
    finish_records(p, shared, op);
  } else if (threadIdx.x % 32 == 0) {
    load_records(p, shared, num_blocks, -1);  // weights do not wait for h
  }
}

template <class Shape>
void launch(const WarpDecodeParams& p, cudaStream_t stream) {
  const StreamParams params = stream_params<Shape>(p.down, p.lists, &p.lists.counts->next_down,
                                                   p.num_tokens * p.top_k, kDownRingBytes);
  const DownOp op = {p.h, p.partials, p.down.cols, p.gate_up.cols};
  LaunchConfig config(
      dim3(static_cast<unsigned>(num_multiprocessors())), kStreamThreads,
      StreamShared<Shape>::bytes(params.num_stages, params.stage_stride, params.max_blocks),
      stream);
  config.programmatic();
  config.run(down_kernel<Shape>, params, op);
}

template <TileFormat kFormat>
void launch_format(const WarpDecodeParams& p, cudaStream_t stream) {
  // I = 768 has its activations in registers.
  constexpr int kSlice = 3;
  constexpr int kTiles = kFormat == TileFormat::kF16 ? 1 : 4;
  if (p.down.num_blocks() == kSlice * kMultiplyWarps && p.down.num_tiles % kTiles == 0) {
    return launch<StreamShape<kFormat, kSlice, kTiles>>(p, stream);
  }
  launch<StreamShape<kFormat, 0, 1>>(p, stream);
}

}  // namespace

void launch_down(const WarpDecodeParams& p, cudaStream_t stream) {
  with_format(p.down.format, [&]<TileFormat kFormat> { launch_format<kFormat>(p, stream); });
}

}  // namespace warproll::moe
