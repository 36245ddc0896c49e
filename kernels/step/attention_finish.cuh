// What qkv_finish does, on the way into attention of few sequences: sixteen threads a head, the query heads of
// a KV head and its new row of K and of V, all at once. Whatever does not depend on the QKV projection is
// ready before the wait. Internal to kernels/step/attention.cu.
#pragma once

#include "kernels/step/attention_cache.cuh"
#include "kernels/step/qkv_finish.h"
#include "kernels/step/qkv_head.cuh"

namespace warproll::attention {

// Where a finished head goes: row `row` of those at `rows` in shared memory, if in_shared, and a row of the
// cache, if not null.
struct FinishedRow {
  uint32_t rows = 0;
  int row = 0;
  bool in_shared = false;
  uint16_t* cache = nullptr;
};

template <int kD, bool kHigh>
class HeadFinisher {
 public:
  static constexpr int kQueryHeads = kHigh ? 16 : 8;
  static constexpr int kThreads = (kQueryHeads + 2) * head::kLanes;
  static_assert(kThreads % 32 == 0 && kQueryHeads % 2 == 0);

  __device__ __forceinline__ explicit HeadFinisher(const QkvFinishParams& p) : p_(p) {}

  // This thread's head: 0 .. of q, then K, then V. A warp has two.
  static __device__ __forceinline__ int item() {
    return static_cast<int>(threadIdx.x / head::kLanes);
  }
  static __device__ __forceinline__ bool is_query() { return item() < kQueryHeads; }
  static __device__ __forceinline__ bool is_value() { return item() > kQueryHeads; }

  __device__ __forceinline__ bool is_valid(int position) const {
    return position >= 0 && position < p_.max_positions;
  }
  // The slot the token writes, or kNoSlot.
  __device__ __forceinline__ int stored_slot(int position) const {
    return is_valid(position) && slot_ >= 0 && slot_ < p_.num_slots ? slot_ : kNoSlot;
  }
  // Of one thread.
  __device__ __forceinline__ void count(int position) const {
    if (!is_valid(position) && p_.num_invalid != nullptr) atomicAdd(p_.num_invalid, 1);
  }

  // As they are stored: nothing waits for them before run(). Of V they are not used.
  __device__ __forceinline__ void load_weights() {
    norm_ = is_query() ? p_.q_norm : p_.k_norm;
    low_weight_ = high_weight_ = make_uint4(0, 0, 0, 0);
    if (norm_ == nullptr || !has_columns()) return;
    low_weight_ = load_stored(column());
    high_weight_ = load_stored(column() + half());
  }
  __device__ __forceinline__ void load_slot(int token) { slot_ = p_.slot_mapping[token]; }
  __device__ __forceinline__ void load_angles(int position) {
    cos_ = sin_ = {};
    if (!is_valid(position) || !has_columns()) return;
    const int64_t angles = static_cast<int64_t>(position) * half() + column();
    cos_ = ptx::load_now(p_.cos + angles);
    sin_ = ptx::load_now(p_.sin + angles);
  }
  // What run() reads. `group`: G.
  __device__ __forceinline__ void find_head(int token, int kv_head, int group) {
    // Threads behind the last query head do it too: shuffles.
    const int head = is_query() ? kv_head * group + min(item(), group - 1)
                                : p_.num_heads + kv_head + (is_value() ? p_.num_kv_heads : 0);
    const int64_t all_heads = p_.num_heads + 2 * p_.num_kv_heads;
    from_ = p_.qkv + (token * all_heads + head) * p_.head_dim;
  }
  // Of K or V.
  __device__ __forceinline__ uint16_t* cache_row(int slot, int kv_head) const {
    const int64_t row = static_cast<int64_t>(slot) * p_.num_kv_heads + kv_head;
    return (is_value() ? p_.v_cache : p_.k_cache) + row * p_.head_dim;
  }

  // Zeros, for what run() does not write. By those who do: the warp meets before run().
  static __device__ __forceinline__ void clear(const FinishedRow& to) {
    if (lane() < kD / 8)
      ptx::store_shared(piece_address<kD>(to.rows, to.row, lane()), make_uint4(0, 0, 0, 0));
  }

  // After the wait, by whole warps. D is a multiple of 16: all lanes have as many columns for the sum.
  __device__ __forceinline__ void run(const FinishedRow& to) const {
    uint32_t bits[kD / head::kLanes];
#pragma unroll
    for (int i = 0; i < kD / head::kLanes; ++i) {
      bits[i] = i * head::kLanes < p_.head_dim ? from_[lane() + i * head::kLanes] : 0u;
    }
    uint2 low = make_uint2(0, 0), high = make_uint2(0, 0);
    if (has_columns()) {
      low = *reinterpret_cast<const uint2*>(from_ + column());
      high = *reinterpret_cast<const uint2*>(from_ + column() + half());
    }
    const float4 low_weight = to_floats(low_weight_), high_weight = to_floats(high_weight_);
    const float scale = head::inverse_rms_of(bits, p_.head_dim, p_.eps);
    head::HalfPair y = {low, high};
    if (!is_value()) {
      float4 a = step::bf16_to_float4(low), b = step::bf16_to_float4(high);
      if (norm_ != nullptr) {
        a = head::scaled(a, scale, low_weight);
        b = head::scaled(b, scale, high_weight);
      }
      y = head::rotate(a, b, cos_, sin_);
    }
    if (!has_columns()) return;
    if (to.in_shared) {
      ptx::store_shared(address(to, column()), y.low);
      ptx::store_shared(address(to, column() + half()), y.high);
    }
    if (to.cache != nullptr) {
      *reinterpret_cast<uint2*>(to.cache + column()) = y.low;
      *reinterpret_cast<uint2*>(to.cache + column() + half()) = y.high;
    }
  }

 private:
  static __device__ __forceinline__ int lane() {
    return static_cast<int>(threadIdx.x % head::kLanes);
  }
  static __device__ __forceinline__ int column() { return lane() * head::kCols; }
  __device__ __forceinline__ int half() const { return p_.head_dim / 2; }
  __device__ __forceinline__ bool has_columns() const { return column() < half(); }
  static __device__ __forceinline__ uint32_t address(const FinishedRow& to, int column) {
    return piece_address<kD>(to.rows, to.row, column / 8) + static_cast<uint32_t>(column % 8 * 2);
  }

  // Four weights from `index` on, as step::load_weights reads and converts them.
  __device__ __forceinline__ uint4 load_stored(int index) const {
    if (p_.norm_dtype == Dtype::kF32) return reinterpret_cast<const uint4*>(norm_)[index / 4];
    const uint2 four = reinterpret_cast<const uint2*>(norm_)[index / 4];
    return make_uint4(four.x, four.y, 0, 0);
  }
  __device__ __forceinline__ float4 to_floats(uint4 stored) const {
    if (p_.norm_dtype == Dtype::kF32) {
      return make_float4(__uint_as_float(stored.x), __uint_as_float(stored.y),
                         __uint_as_float(stored.z), __uint_as_float(stored.w));
    }
    const uint2 four = make_uint2(stored.x, stored.y);
    return p_.norm_dtype == Dtype::kF16 ? step::f16_to_float4(four) : step::bf16_to_float4(four);
  }

  const QkvFinishParams& p_;
  const std::byte* norm_;
  const uint16_t* from_;
  int slot_;
  uint4 low_weight_, high_weight_;
  float4 cos_, sin_;
};

}  // namespace warproll::attention
