// gate_up: grid one CTA an SM (persistent), block 320 threads. A CTA produces eight neurons of h,
// for every pair of an expert block, with each record it streams (expert_stream.cuh).
#include <cuda_fp16.h>

#include "kernels/moe/expert_stream.cuh"
#include "kernels/moe/launch.cuh"
#include "kernels/moe/with_format.cuh"

namespace warproll::moe {
namespace {

struct GateUpOp {
  static constexpr int kTerms = 1;
  const uint16_t* x;  // F16 [T, H], tile order
  const float* x_scales;
  __half* h;  // [T * K, 2, I], tile order
  int hidden_size, intermediate_size, top_k;

  __device__ int term_stride() const { return 0; }

  __device__ const uint4* row(int pair) const {
    return reinterpret_cast<const uint4*>(x + static_cast<int64_t>(pair / top_k) * hidden_size);
  }
  __device__ void wait_for_rows() const {}
  __device__ float scale(int pair) const { return x_scales[pair / top_k]; }

  __device__ void store(int pair, float scale, int tile, float gate, float up) const {
    gate *= scale;
    up *= scale;
    const float value = gate / (1.0f + __expf(-gate)) * up * kHiddenScale;
    const int neuron = tile * 8 + static_cast<int>(threadIdx.x % 32 / 4);
    const float limit = 65504.0f;
    const float kept = value > limit ? limit : value < -limit ? -limit : value;
    __half* out = h + static_cast<int64_t>(pair) * 2 * intermediate_size + tile_position(neuron);
    const __half first = __float2half_rn(kept);
    out[0] = first;
    out[intermediate_size] = __float2half_rn(kept - __half2float(first));
  }
};

// kSmall: beside down_small on the SM, see launch.cuh.
template <class Shape, bool kSmall>
__global__ void __maxnreg__(kSmall ? kGateUpSmallRegisters : Shape::kRegisters)
    gate_up_kernel(const __grid_constant__ StreamParams p, GateUpOp op) {
  extern __shared__ __align__(128) std::byte memory[];
  const StreamShared<Shape> shared(memory, p.num_stages, p.stage_stride);
  if (threadIdx.x == 0) init_barriers(p, shared);
  ptx::wait_for_previous_kernel();
  const int num_blocks = read_blocks(p, shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < kMultiplyWarps) {
    Multiplier<Shape, GateUpOp>(p, shared, op).run();
  } else if (warp == kFinishWarp) {
    finish_records(p, shared, op);
  } else if (threadIdx.x % 32 == 0) {
    // down's first loads are to follow ours, not to share the memory with them.
    load_records(p, shared, num_blocks, kSmall ? 0 : 2);
  }
}

template <class Shape, bool kSmall>
void launch(const WarpDecodeParams& p, cudaStream_t stream) {
  const StreamParams params = stream_params<Shape>(
      p.gate_up, p.lists, &p.lists.counts->next_gate_up, p.num_tokens * p.top_k,
      kSmall && p.num_tokens * p.top_k > 8 ? kGateUpSmallRingBytes : kGateUpRingBytes);
  const GateUpOp op = {p.x.values,     p.x.scales,  reinterpret_cast<__half*>(p.h),
                       p.gate_up.cols, p.down.cols, p.top_k};
  LaunchConfig config(
      dim3(static_cast<unsigned>(num_multiprocessors())), kStreamThreads,
      StreamShared<Shape>::bytes(params.num_stages, params.stage_stride, params.max_blocks),
      stream);
  config.programmatic();
  if (kSmall) config.all_shared();
  config.run(gate_up_kernel<Shape, kSmall>, params, op);
}

template <TileFormat kFormat>
void launch_format(const WarpDecodeParams& p, cudaStream_t stream) {
  // H = 2048 has its activations in registers.
  constexpr int kSlice = 8;
  if (p.gate_up.num_blocks() != kSlice * kMultiplyWarps) {
    return launch<StreamShape<kFormat, 0, 1>, false>(p, stream);
  }
  if constexpr (kFormat != TileFormat::kF16) {
    if (down_is_small(p)) return launch<StreamShape<kFormat, kSlice, 1, 1>, true>(p, stream);
  }
  launch<StreamShape<kFormat, kSlice, 1>, false>(p, stream);
}

}  // namespace

void launch_gate_up(const WarpDecodeParams& p, cudaStream_t stream) {
  with_format(p.gate_up.format, [&]<TileFormat kFormat> { launch_format<kFormat>(p, stream); });
}

}  // namespace warproll::moe
