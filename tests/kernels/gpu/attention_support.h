// What the GPU tests of attention share: sequences, their pieces in a paged cache, a step on the device.
// Thread: one test. Errors: CudaError.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "gpu_support.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/dtype.h"
#include "kernels/step/attention.h"

namespace warproll::testing {

inline constexpr uint16_t kNan = 0xffff;
inline constexpr uint16_t kCanary = 0x5aa5;
inline constexpr size_t kCanaries = 64;
inline constexpr int32_t kPoisonBlock = 0x7fffffff;

struct Shape {
  int32_t heads, kv_heads, dim;
  float query_sigma = 1.0f;

  [[nodiscard]] size_t q_row() const { return static_cast<size_t>(heads * dim); }
  [[nodiscard]] size_t kv_row() const { return static_cast<size_t>(kv_heads * dim); }
  [[nodiscard]] float scale() const { return 1.0f / std::sqrt(static_cast<float>(dim)); }
};
inline const Shape kQwen3{32, 4, 128};

inline std::vector<uint16_t> normal_bf16(size_t count, float sigma, std::mt19937& rng) {
  std::normal_distribution<float> normal(0.0f, sigma);
  std::vector<uint16_t> out(count);
  for (uint16_t& v : out) v = f32_to_bf16(normal(rng));
  return out;
}

// q, K and V of a sequence's positions, whatever runs them.
struct Sequence {
  std::vector<uint16_t> q, k, v;
  Sequence(const Shape& s, int32_t length, uint32_t seed) {
    std::mt19937 rng(seed);
    const auto rows = static_cast<size_t>(length);
    q = normal_bf16(rows * s.q_row(), s.query_sigma, rng);
    k = normal_bf16(rows * s.kv_row(), 1.0f, rng);
    v = normal_bf16(rows * s.kv_row(), 1.0f, rng);
  }
};

// `count` new tokens of a sequence, from position `first` on.
struct Piece {
  const Sequence* sequence;
  int32_t first, count;
};

struct Paging {
  int32_t block_tokens = 16;
  uint32_t seed = 1;
  int32_t spare_entries = 3;  // of a table row, behind the longest context
};

// A step's inputs. The cache is NaN but for the positions in use, the table poisoned behind them.
struct Batch {
  std::vector<uint16_t> q, k_cache, v_cache;
  std::vector<int32_t> positions, cu_seqlens{0}, block_table;
  int32_t num_blocks = 0, blocks_per_sequence = 0, max_query_tokens = 0;

  Batch(const Shape& s, const std::vector<Piece>& pieces, const Paging& paging) {
    int32_t used = 0;
    const auto blocks = [&](const Piece& p) {
      return p.count == 0 ? 0 : (p.first + p.count - 1) / paging.block_tokens + 1;
    };
    for (const Piece& p : pieces) {
      used += blocks(p);
      blocks_per_sequence = std::max(blocks_per_sequence, blocks(p) + paging.spare_entries);
      max_query_tokens = std::max(max_query_tokens, p.count);
      cu_seqlens.push_back(cu_seqlens.back() + p.count);
    }
    num_blocks = used + 5;
    std::vector<int32_t> free(static_cast<size_t>(num_blocks));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), std::mt19937(paging.seed));
    const size_t slots = static_cast<size_t>(num_blocks) * static_cast<size_t>(paging.block_tokens);
    k_cache.assign(slots * s.kv_row(), kNan);
    v_cache = k_cache;
    for (const Piece& p : pieces) {
      std::vector<int32_t> row(static_cast<size_t>(blocks_per_sequence), kPoisonBlock);
      for (int32_t i = 0; i < blocks(p); ++i) {
        row[static_cast<size_t>(i)] = free.back();
        free.pop_back();
      }
      for (int32_t i = 0; p.count > 0 && i < p.first + p.count; ++i) {
        const int32_t block = row[static_cast<size_t>(i / paging.block_tokens)];
        const auto slot = static_cast<size_t>(block) * static_cast<size_t>(paging.block_tokens) +
                          static_cast<size_t>(i % paging.block_tokens);
        const auto from = static_cast<int64_t>(static_cast<size_t>(i) * s.kv_row());
        const auto to = static_cast<int64_t>(slot * s.kv_row());
        const auto size = static_cast<int64_t>(s.kv_row());
        std::copy_n(p.sequence->k.begin() + from, size, k_cache.begin() + to);
        std::copy_n(p.sequence->v.begin() + from, size, v_cache.begin() + to);
      }
      block_table.insert(block_table.end(), row.begin(), row.end());
      for (int32_t i = 0; i < p.count; ++i) positions.push_back(p.first + i);
      const auto row_size = static_cast<int64_t>(s.q_row());
      q.insert(q.end(), p.sequence->q.begin() + p.first * row_size,
               p.sequence->q.begin() + (p.first + p.count) * row_size);
    }
  }
};

// A batch on the device. out is NaN before each run, with canaries on both sides.
class DeviceBatch {
 public:
  DeviceBatch(const Shape& s, const Batch& b, const Paging& paging)
      : q_(b.q),
        k_(b.k_cache),
        v_(b.v_cache),
        positions_(b.positions),
        cu_seqlens_(b.cu_seqlens),
        table_(b.block_table),
        out_(b.q.size() + 2 * kCanaries) {
    params_.q = q_.data();
    params_.k_cache = k_.data();
    params_.v_cache = v_.data();
    params_.positions = positions_.data();
    params_.cu_seqlens_q = cu_seqlens_.data();
    params_.block_table = table_.data();
    params_.out = out_.data() + kCanaries;
    params_.num_sequences = static_cast<int32_t>(b.cu_seqlens.size()) - 1;
    params_.num_tokens = static_cast<int32_t>(b.positions.size());
    params_.max_query_tokens = b.max_query_tokens;
    params_.num_heads = s.heads;
    params_.num_kv_heads = s.kv_heads;
    params_.head_dim = s.dim;
    params_.num_blocks = b.num_blocks;
    params_.block_tokens = paging.block_tokens;
    params_.blocks_per_sequence = b.blocks_per_sequence;
    params_.scale = s.scale();
    const size_t bytes = paged_attention_workspace_bytes(params_);
    workspace_ = DeviceBuffer<uint8_t>(bytes);
    if (bytes > 0) {
      WARPROLL_CUDA_CHECK(cudaMemset(workspace_.data(), 0xff, bytes));
      WARPROLL_CUDA_CHECK(cudaMemset(workspace_.data(), 0, kAttentionTicketBytes));
    }
    params_.workspace = workspace_.data();
  }

  PagedAttentionParams& params() { return params_; }

  // The counts of CTAs are zero again.
  std::vector<uint16_t> run() {
    const std::vector<uint16_t> out = run_once();
    if (workspace_.size() > 0) {
      const std::vector<uint8_t> bytes = workspace_.to_host();
      EXPECT_EQ(std::count(bytes.begin(), bytes.begin() + kAttentionTicketBytes, 0),
                static_cast<int64_t>(kAttentionTicketBytes));
    }
    return out;
  }

 private:
  std::vector<uint16_t> run_once() {
    std::vector<uint16_t> host(out_.size(), kCanary);
    for (size_t i = kCanaries; i + kCanaries < host.size(); ++i) host[i] = kNan;
    out_.copy_from(host);
    paged_attention(params_, nullptr);
    WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
    host = out_.to_host();
    for (size_t i = 0; i < kCanaries; ++i) {
      EXPECT_EQ(host[i], kCanary) << "written before out";
      EXPECT_EQ(host[host.size() - 1 - i], kCanary) << "written behind out";
    }
    return {host.begin() + kCanaries, host.end() - kCanaries};
  }

  DeviceBuffer<uint16_t> q_, k_, v_;
  DeviceBuffer<int32_t> positions_, cu_seqlens_, table_;
  DeviceBuffer<uint16_t> out_;
  DeviceBuffer<uint8_t> workspace_;
  PagedAttentionParams params_;
};

inline std::vector<uint16_t> run(const Shape& s, const std::vector<Piece>& pieces,
                                 const Paging& paging = {}) {
  return DeviceBatch(s, Batch(s, pieces, paging), paging).run();
}

// Rows of `out` from token `first` on are those of `want` from `want_first` on.
inline void expect_same_rows(const Shape& s, const std::vector<uint16_t>& out, size_t first,
                             const std::vector<uint16_t>& want, size_t want_first, size_t count) {
  for (size_t i = 0; i < count * s.q_row(); ++i) {
    ASSERT_EQ(out[first * s.q_row() + i], want[want_first * s.q_row() + i])
        << "token " << i / s.q_row() << ", element " << i % s.q_row();
  }
}

}  // namespace warproll::testing
