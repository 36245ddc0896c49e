// A decode step for the tests of finish_attention: the same inputs for qkv_finish with paged_attention and for
// the one kernel. Thread: one test. Errors: CudaError.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "kernels/step/attention.h"
#include "kernels/step/qkv_finish.h"
#include "step_support.h"

namespace warproll::testing {

inline constexpr uint16_t kNan = 0xffff;
inline constexpr int32_t kMaxPositions = 5200;

struct Heads {
  int32_t heads, kv_heads, dim;
  [[nodiscard]] int32_t all() const { return heads + 2 * kv_heads; }
  [[nodiscard]] std::string name() const {
    return std::to_string(heads) + "/" + std::to_string(kv_heads) + ", D " + std::to_string(dim);
  }
};
inline constexpr Heads kQwen3{32, 4, 128};

struct Norms {
  bool q = true, k = true;
  Dtype dtype = Dtype::kBf16;
};

struct StepOutputs {
  Bits out, k_cache, v_cache;
  int32_t num_invalid = 0;
};
void expect_equal(const StepOutputs& got, const StepOutputs& want);

struct Pages {
  int32_t block_tokens = 16;
  int32_t spare_blocks = 2;  // of a sequence, behind its last position
};

// A step of one new token each, at `positions`. The caches are NaN but for positions before the new ones: the
// new rows come from qkv, or are never read. Tables are poisoned behind the last block in use.
class Step {
 public:
  Step(const Heads& heads, const std::vector<int32_t>& at, const Norms& norms, uint32_t seed,
       const Pages& pages = {});

  [[nodiscard]] int32_t batch() const { return static_cast<int32_t>(positions.size()); }
  [[nodiscard]] int32_t num_slots() const { return num_blocks_ * paging_.block_tokens; }
  [[nodiscard]] int32_t position_of(int32_t b) const { return positions[static_cast<size_t>(b)]; }
  [[nodiscard]] int32_t slot_of(int32_t b, int32_t position) const;
  // Random K and V at positions [first, last) of a sequence.
  void fill_rows(int32_t b, int32_t first, int32_t last);
  void new_qkv() { qkv = random_bf16(qkv.size(), rng_, 2.0f); }

  // What changes from step to step: all but the caches and the rest of the outputs.
  void upload_inputs() const;
  void upload_caches() const;
  // Waits for the device. The counts of CTAs are zero again.
  [[nodiscard]] StepOutputs download() const;

  [[nodiscard]] StepOutputs run_two() const;
  [[nodiscard]] StepOutputs run_one(bool indices_are_older = true, bool past_is_older = true) const;
  // False, and that it is refused, where there are too many clusters.
  [[nodiscard]] bool expect_equal_to_two() const;

  QkvFinishParams finish;
  PagedAttentionParams attention;

 private:
  void allocate(const Norms& norms);

  Heads heads_;
  Pages paging_;
  std::mt19937 rng_;
  int32_t blocks_ = 0, num_blocks_ = 0;  // of a sequence, of the cache
  std::vector<int32_t> blocks_of_;       // [B, blocks_]
  DeviceBuffer<uint16_t> qkv_, k_, v_, q_, out_;
  DeviceBuffer<int32_t> positions_, slots_, table_, cu_seqlens_, invalid_;
  DeviceBuffer<std::byte> q_norm_, k_norm_;
  DeviceBuffer<uint8_t> workspace_;

 public:
  // On the host; set, then run.
  std::vector<int32_t> positions, slots;
  Bits qkv, k_cache, v_cache;
};

}  // namespace warproll::testing
