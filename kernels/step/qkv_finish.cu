// qkv_finish: grid (T, heads / 8), heads of q, k and v together; block 128 threads. A CTA produces
// eight heads of a token, sixteen lanes a head: each rotates four pairs of columns, or twice four.
#include "kernels/step/qkv_finish.h"

#include <numeric>
#include <string>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/rope.h"
#include "kernels/step/qkv_head.cuh"

namespace warproll {
namespace {

using namespace head;  // qkv_head.cuh

constexpr int kThreads = 128;
constexpr int kHeads = kThreads / kLanes;  // of a CTA
constexpr int kMaxHeadDim = 256;

// kTimes: granules of a lane, 1 for D up to 128.
template <int kTimes>
__global__ void __launch_bounds__(kThreads)
    qkv_finish_kernel(const __grid_constant__ QkvFinishParams p) {
  ptx::allow_next_kernel();
  const int me = static_cast<int>(threadIdx.x);
  const int64_t token = blockIdx.x;
  const int all_heads = p.num_heads + 2 * p.num_kv_heads;
  const int asked = static_cast<int>(blockIdx.y) * kHeads + me / kLanes;
  const int head = min(asked, all_heads - 1);  // lanes behind the last head do it too: shuffles
  const int half = p.head_dim / 2;
  const bool is_q = head < p.num_heads;
  const bool is_v = head >= p.num_heads + p.num_kv_heads;
  const std::byte* norm = is_q ? p.q_norm : is_v ? nullptr : p.k_norm;
  float4 low_weight[kTimes], high_weight[kTimes];
#pragma unroll
  for (int i = 0; i < kTimes; ++i) {
    const int col = (i * kLanes + me % kLanes) * kCols;
    low_weight[i] = high_weight[i] = {};
    if (norm != nullptr && col < half) {
      low_weight[i] = step::load_weights(norm, p.norm_dtype, col);
      high_weight[i] = step::load_weights(norm, p.norm_dtype, col + half);
    }
  }
  if (!p.indices_are_older) ptx::wait_for_previous_kernel();
  const int position = p.positions[token];
  const int slot = p.slot_mapping[token];
  const bool valid = position >= 0 && position < p.max_positions;
  float4 cos[kTimes], sin[kTimes];
#pragma unroll
  for (int i = 0; i < kTimes; ++i) {
    const int col = (i * kLanes + me % kLanes) * kCols;
    cos[i] = sin[i] = {};
    if (!is_v && valid && col < half) {
      const int64_t angles = static_cast<int64_t>(position) * half + col;
      cos[i] = ptx::load_now(p.cos + angles);
      sin[i] = ptx::load_now(p.sin + angles);
    }
  }
  if (p.indices_are_older) ptx::wait_for_previous_kernel();
  const uint16_t* x = p.qkv + (token * all_heads + head) * p.head_dim;
  if (!valid && asked == 0 && me == 0 && p.num_invalid != nullptr) atomicAdd(p.num_invalid, 1);
  uint2 low[kTimes], high[kTimes];
#pragma unroll
  for (int i = 0; i < kTimes; ++i) {
    const int col = (i * kLanes + me % kLanes) * kCols;
    low[i] = high[i] = make_uint2(0, 0);
    if (col < half) {
      low[i] = *reinterpret_cast<const uint2*>(x + col);
      high[i] = *reinterpret_cast<const uint2*>(x + col + half);
    }
  }
  const float scale = inverse_rms<kTimes>(x, p.head_dim, p.eps);
  const bool stored = valid && slot >= 0 && slot < p.num_slots;
  if (asked != head || (!is_q && !stored)) return;
  const int64_t kv_row = static_cast<int64_t>(slot) * p.num_kv_heads - p.num_heads + head;
  uint16_t* out = is_q   ? p.q + (token * p.num_heads + head) * p.head_dim
                  : is_v ? p.v_cache + (kv_row - p.num_kv_heads) * p.head_dim
                         : p.k_cache + kv_row * p.head_dim;
#pragma unroll
  for (int i = 0; i < kTimes; ++i) {
    const int col = (i * kLanes + me % kLanes) * kCols;
    if (col >= half) continue;
    HalfPair y = {low[i], high[i]};
    if (!valid) {
      y = {make_uint2(0, 0), make_uint2(0, 0)};
    } else if (!is_v) {
      float4 a = step::bf16_to_float4(low[i]), b = step::bf16_to_float4(high[i]);
      if (norm != nullptr) {
        a = scaled(a, scale, low_weight[i]);
        b = scaled(b, scale, high_weight[i]);
      }
      y = rotate(a, b, cos[i], sin[i]);
    }
    *reinterpret_cast<uint2*>(out + col) = y.low;
    *reinterpret_cast<uint2*>(out + col + half) = y.high;
  }
}

void check_pointers(const QkvFinishParams& p, bool writes_q) {
  check_argument(p.qkv != nullptr && p.cos != nullptr && p.sin != nullptr &&
                     p.positions != nullptr && p.slot_mapping != nullptr &&
                     (p.q != nullptr || !writes_q) && p.k_cache != nullptr && p.v_cache != nullptr,
                 [] { return std::string("qkv_finish: a pointer is null"); });
  check_argument(step::is_aligned(p.qkv) && step::is_aligned(p.q_norm) &&
                     step::is_aligned(p.k_norm) && step::is_aligned(p.cos) &&
                     step::is_aligned(p.sin) && step::is_aligned(p.q) &&
                     step::is_aligned(p.k_cache) && step::is_aligned(p.v_cache),
                 [] { return std::string("qkv_finish: a pointer is not 16-byte aligned"); });
}

void check_shapes(const QkvFinishParams& p) {
  check_argument(p.num_tokens >= 0 && p.num_heads >= 1 && p.num_kv_heads >= 1 && p.head_dim >= 16 &&
                     p.head_dim <= kMaxHeadDim && p.head_dim % 16 == 0,
                 [&] {
                   return "qkv_finish: T " + std::to_string(p.num_tokens) + ", " +
                          std::to_string(p.num_heads) + " heads, " +
                          std::to_string(p.num_kv_heads) + " kv heads, D " +
                          std::to_string(p.head_dim) +
                          "; wanted T >= 0, heads >= 1, D a multiple of 16 up to " +
                          std::to_string(kMaxHeadDim);
                 });
  check_argument(p.num_slots >= 1 && p.max_positions >= 1, [&] {
    return "qkv_finish: num_slots is " + std::to_string(p.num_slots) + " and max_positions is " +
           std::to_string(p.max_positions) + ", wanted >= 1";
  });
  check_argument(
      p.norm_dtype == Dtype::kBf16 || p.norm_dtype == Dtype::kF16 || p.norm_dtype == Dtype::kF32,
      [&] {
        return "qkv_finish: norm dtype is " + std::string(to_string(p.norm_dtype)) +
               ", wanted BF16, F16 or F32";
      });
}

}  // namespace

void fill_rope_tables(int32_t max_positions, int32_t head_dim, double theta, float* cos,
                      float* sin) {
  check_argument(max_positions >= 1, [&] {
    return "fill_rope_tables: max_positions is " + std::to_string(max_positions) + ", wanted >= 1";
  });
  std::vector<int32_t> positions(static_cast<size_t>(max_positions));
  std::iota(positions.begin(), positions.end(), 0);
  rope_angles_cpu({.positions = positions.data(),
                   .cos = cos,
                   .sin = sin,
                   .num_tokens = max_positions,
                   .head_dim = head_dim,
                   .theta = theta});
}

void check_qkv_finish(const QkvFinishParams& p, bool writes_q) {
  check_shapes(p);
  if (p.num_tokens > 0) check_pointers(p, writes_q);
}

void qkv_finish(const QkvFinishParams& p, cudaStream_t stream) {
  check_qkv_finish(p);
  if (p.num_tokens == 0) return;
  const int all_heads = p.num_heads + 2 * p.num_kv_heads;
  LaunchConfig config(dim3(static_cast<unsigned>(p.num_tokens),
                           static_cast<unsigned>((all_heads + kHeads - 1) / kHeads)),
                      kThreads, 0, stream);
  config.programmatic();
  config.all_shared();
  if (p.head_dim <= kLanes * kCols * 2) return config.run(qkv_finish_kernel<1>, p);
  config.run(qkv_finish_kernel<2>, p);
}

}  // namespace warproll
