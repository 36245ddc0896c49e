#include "kernels/moe.h"

#include <algorithm>
#include <array>
#include <string>

#include "kernels/check.h"
#include "kernels/dequantise.h"
#include "kernels/lanes.h"
#include "kernels/parallel.h"
#include "kernels/rounding.h"
#include "kernels/router.h"
#include "kernels/weight_rows.h"

namespace warproll {
namespace {

// h = silu(g) * u, in place of g.
WARPROLL_VECTOR_CLONES void silu_mul(float (*g)[kRowTile], const float (*u)[kRowTile],
                                     int32_t count) {
  static_assert(kTokenTile * kRowTile % kLanes == 0);
  float* gate = &g[0][0];
  const float* up = &u[0][0];
  for (int32_t i = 0; i < count * kRowTile; i += kLanes) {
    Lanes x, y, e;
    load_lanes(x, gate + i);
    load_lanes(y, up + i);
    e = -x;
    exp_lanes(e);
    x = x / (e + 1.0f) * y;
    store_lanes(gate + i, x);
  }
}

// The (token, k) pairs of one token tile, grouped by expert: pairs of expert e are
// pairs[offsets[e] .. offsets[e + 1]), in token order.
struct ExpertLists {
  std::array<int32_t, kMaxExperts + 1> offsets;
  std::array<int32_t, kMaxExperts> active;  // experts with at least one pair
  int32_t num_active = 0;
  std::array<int32_t, kMoeTokenTile * kMaxTopK> pairs;

  ExpertLists(const int32_t* ids, int32_t num_pairs, int32_t num_experts) {
    std::fill_n(offsets.begin(), num_experts + 1, 0);
    for (int32_t i = 0; i < num_pairs; ++i) ++offsets[ids[i] + 1];
    for (int32_t e = 0; e < num_experts; ++e) {
      if (offsets[e + 1] > 0) active[num_active++] = e;
      offsets[e + 1] += offsets[e];
    }
    std::array<int32_t, kMaxExperts> next;
    std::copy_n(offsets.begin(), num_experts, next.begin());
    for (int32_t i = 0; i < num_pairs; ++i) pairs[next[ids[i]]++] = i;
  }
};

// One token tile.
class MoeTile {
 public:
  MoeTile(const MoeParams& p, int32_t first, int32_t count)
      : p_(p),
        first_(first),
        count_(count),
        hidden_size_(p.gate.cols),
        intermediate_size_(p.gate.rows),
        lists_(p.topk_ids + int64_t{first} * p.top_k, count * p.top_k, p.gate.num_matrices),
        h_(p.scratch),
        partial_(p.scratch + int64_t{count} * p.top_k * intermediate_size_) {}

  void run() const {
    const int64_t pair_work = int64_t{count_} * p_.top_k * hidden_size_ * intermediate_size_;
    for_units(intermediate_size_, 2 * pair_work,
              [this](int32_t e, int32_t row, int32_t rows) { gate_up(e, row, rows); });
    for_units(hidden_size_, pair_work,
              [this](int32_t e, int32_t row, int32_t rows) { down(e, row, rows); });
    parallel_ranges(count_, int64_t{count_} * p_.top_k * hidden_size_,
                    [this](int64_t begin, int64_t end) { combine(begin, end); });
  }

 private:
  // body(expert, row, row_count) for every active expert and tile of its `rows` weight rows.
  template <typename Body>
  void for_units(int32_t rows, int64_t work, const Body& body) const {
    const int64_t tiles = (rows + kRowTile - 1) / kRowTile;
    parallel_ranges(lists_.num_active * tiles, work, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        const auto row = static_cast<int32_t>(unit % tiles * kRowTile);
        body(lists_.active[unit / tiles], row, std::min(kRowTile, rows - row));
      }
    });
  }

  // body(pairs, count) for the pairs of an expert, at most kTokenTile at a time.
  template <typename Body>
  void for_pairs(int32_t expert, const Body& body) const {
    for (int32_t at = lists_.offsets[expert]; at < lists_.offsets[expert + 1]; at += kTokenTile) {
      body(lists_.pairs.data() + at, std::min(kTokenTile, lists_.offsets[expert + 1] - at));
    }
  }

  void gate_up(int32_t expert, int32_t row, int32_t rows) const {
    const WeightView gate = p_.gate.matrix(expert);
    const WeightView up = p_.up.matrix(expert);
    for_pairs(expert, [&](const int32_t* pairs, int32_t count) {
      const float* x[kTokenTile];
      float* g_rows[kTokenTile];
      float* u_rows[kTokenTile];
      float g[kTokenTile][kRowTile] = {};
      float u[kTokenTile][kRowTile] = {};
      for (int32_t i = 0; i < count; ++i) {
        x[i] = p_.x + int64_t{first_ + pairs[i] / p_.top_k} * hidden_size_;
        g_rows[i] = g[i];
        u_rows[i] = u[i];
      }
      dot_rows(gate, row, rows, x, count, g_rows);
      dot_rows(up, row, rows, x, count, u_rows);
      silu_mul(g, u, count);
      for (int32_t i = 0; i < count; ++i) {
        std::copy_n(g[i], rows, h_ + int64_t{pairs[i]} * intermediate_size_ + row);
      }
    });
  }

  void down(int32_t expert, int32_t row, int32_t rows) const {
    const WeightView weight = p_.down.matrix(expert);
    for_pairs(expert, [&](const int32_t* pairs, int32_t count) {
      const float* x[kTokenTile];
      float* y[kTokenTile];
      for (int32_t i = 0; i < count; ++i) {
        x[i] = h_ + int64_t{pairs[i]} * intermediate_size_;
        y[i] = partial_ + int64_t{pairs[i]} * hidden_size_ + row;
      }
      dot_rows(weight, row, rows, x, count, y);
    });
  }

  void combine(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      float* y = p_.y + (first_ + i) * hidden_size_;
      const float* weights = p_.topk_weights + (first_ + i) * p_.top_k;
      std::fill_n(y, hidden_size_, 0.0f);
      for (int32_t k = 0; k < p_.top_k; ++k) {
        const float* partial = partial_ + (i * p_.top_k + k) * hidden_size_;
        for (int32_t d = 0; d < hidden_size_; ++d) y[d] += weights[k] * partial[d];
      }
      round_activations(y, hidden_size_, p_.round_to);
    }
  }

  const MoeParams& p_;
  int32_t first_, count_;
  int32_t hidden_size_, intermediate_size_;
  ExpertLists lists_;
  float* h_;        // [count * K, I]
  float* partial_;  // [count * K, H]
};

std::string shape_of(const WeightView& w) {
  return "[" + std::to_string(w.num_matrices) + ", " + std::to_string(w.rows) + ", " +
         std::to_string(w.cols) + "]";
}

void check(const MoeParams& p) {
  check_activation_dtype(p.round_to, "moe");
  check_weight_view(p.gate, "moe gate");
  check_weight_view(p.up, "moe up");
  check_weight_view(p.down, "moe down");
  const bool same = p.gate.num_matrices == p.up.num_matrices && p.gate.rows == p.up.rows &&
                    p.gate.cols == p.up.cols && p.gate.num_matrices == p.down.num_matrices &&
                    p.gate.rows == p.down.cols && p.gate.cols == p.down.rows;
  check_argument(same && p.gate.num_matrices >= 1 && p.gate.num_matrices <= kMaxExperts, [&] {
    return "moe: gate " + shape_of(p.gate) + ", up " + shape_of(p.up) + ", down " +
           shape_of(p.down) + "; wanted [E, I, H], [E, I, H], [E, H, I] with E 1 .. " +
           std::to_string(kMaxExperts);
  });
  check_argument(p.num_tokens >= 0 && p.top_k >= 1 && p.top_k <= kMaxTopK, [&] {
    return "moe: T " + std::to_string(p.num_tokens) + ", K " + std::to_string(p.top_k) +
           "; wanted T >= 0, K 1 .. " + std::to_string(kMaxTopK);
  });
  check_argument(
      p.num_tokens == 0 || (p.x != nullptr && p.topk_ids != nullptr && p.topk_weights != nullptr &&
                            p.y != nullptr && p.scratch != nullptr),
      [] { return std::string("moe: a pointer is null"); });
  for (int64_t i = 0; i < int64_t{p.num_tokens} * p.top_k; ++i) {
    check_argument(p.topk_ids[i] >= 0 && p.topk_ids[i] < p.gate.num_matrices, [&] {
      return "moe: expert " + std::to_string(i % p.top_k) + " of token " +
             std::to_string(i / p.top_k) + " is " + std::to_string(p.topk_ids[i]) +
             ", wanted 0 .. " + std::to_string(p.gate.num_matrices - 1);
    });
  }
}

}  // namespace

int64_t moe_scratch_floats(const MoeParams& p) {
  const int64_t pairs = int64_t{std::min(p.num_tokens, kMoeTokenTile)} * p.top_k;
  return pairs * (int64_t{p.gate.rows} + p.gate.cols);
}

void moe_cpu(const MoeParams& p) {
  check(p);
  for (int32_t first = 0; first < p.num_tokens; first += kMoeTokenTile) {
    MoeTile(p, first, std::min(kMoeTokenTile, p.num_tokens - first)).run();
  }
}

}  // namespace warproll
