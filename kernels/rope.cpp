#include "kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/check.h"
#include "kernels/parallel.h"
#include "kernels/rounding.h"

namespace warproll {
namespace {

// out may be x.
void rotate(const float* x, const float* cos, const float* sin, int32_t half, float* out) {
  for (int32_t i = 0; i < half; ++i) {
    const float low = x[i];
    const float high = x[i + half];
    out[i] = low * cos[i] - high * sin[i];
    out[i + half] = high * cos[i] + low * sin[i];
  }
}

void check_dims(const char* what, int32_t num_tokens, int32_t head_dim) {
  check_argument(num_tokens >= 0 && head_dim >= 2 && head_dim % 2 == 0, [&] {
    return std::string(what) + ": num_tokens is " + std::to_string(num_tokens) +
           " and head_dim is " + std::to_string(head_dim) + ", wanted >= 0 and an even number >= 2";
  });
}

void check(const RopeKvWriteParams& p) {
  check_dims("rope_kv_write", p.num_tokens, p.head_dim);
  check_activation_dtype(p.round_to, "rope_kv_write");
  check_argument(p.num_heads >= 1 && p.num_kv_heads >= 1, [&] {
    return "rope_kv_write: num_heads is " + std::to_string(p.num_heads) + " and num_kv_heads is " +
           std::to_string(p.num_kv_heads) + ", wanted >= 1";
  });
  if (p.num_tokens == 0) return;
  check_argument(p.q != nullptr && p.k != nullptr && p.v != nullptr && p.cos != nullptr &&
                     p.sin != nullptr && p.slot_mapping != nullptr && p.k_cache != nullptr &&
                     p.v_cache != nullptr,
                 [] { return std::string("rope_kv_write: a pointer is null"); });
  for (int32_t t = 0; t < p.num_tokens; ++t) {
    check_argument(p.slot_mapping[t] >= 0 && p.slot_mapping[t] < p.num_slots, [&] {
      return "rope_kv_write: slot of token " + std::to_string(t) + " is " +
             std::to_string(p.slot_mapping[t]) + ", wanted 0 .. " + std::to_string(p.num_slots - 1);
    });
  }
}

}  // namespace

void rope_angles_cpu(const RopeAnglesParams& p) {
  check_dims("rope_angles", p.num_tokens, p.head_dim);
  check_argument(
      p.num_tokens == 0 || (p.positions != nullptr && p.cos != nullptr && p.sin != nullptr),
      [] { return std::string("rope_angles: a pointer is null"); });
  const int32_t half = p.head_dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    const double exponent = static_cast<double>(2 * i) / p.head_dim;
    const auto frequency = static_cast<float>(1.0 / std::pow(p.theta, exponent));
    for (int32_t t = 0; t < p.num_tokens; ++t) {
      const double angle = static_cast<float>(p.positions[t]) * frequency;
      p.cos[int64_t{t} * half + i] = static_cast<float>(std::cos(angle));
      p.sin[int64_t{t} * half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

void rope_kv_write_cpu(const RopeKvWriteParams& p) {
  check(p);
  const int32_t half = p.head_dim / 2;
  const int64_t kv_size = int64_t{p.num_kv_heads} * p.head_dim;
  const int64_t q_size = int64_t{p.num_heads} * p.head_dim;
  parallel_ranges(p.num_tokens, p.num_tokens * (q_size + 2 * kv_size),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t t = begin; t < end; ++t) {
                      const float* cos = p.cos + t * half;
                      const float* sin = p.sin + t * half;
                      float* q = p.q + t * q_size;
                      float* k = p.k_cache + p.slot_mapping[t] * kv_size;
                      float* v = p.v_cache + p.slot_mapping[t] * kv_size;
                      for (int64_t at = 0; at < q_size; at += p.head_dim) {
                        rotate(q + at, cos, sin, half, q + at);
                      }
                      for (int64_t at = 0; at < kv_size; at += p.head_dim) {
                        rotate(p.k + t * kv_size + at, cos, sin, half, k + at);
                      }
                      std::copy_n(p.v + t * kv_size, kv_size, v);
                      round_activations(q, q_size, p.round_to);
                      round_activations(k, kv_size, p.round_to);
                      round_activations(v, kv_size, p.round_to);
                    }
                  });
}

}  // namespace warproll
