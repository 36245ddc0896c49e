// EngineStats: what an engine did since it was made (counters) and where it stands (gauges).
// Thread: plain values; Engine::stats() copies them under its mutex.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace warproll {

struct EngineStats {
  // Bucket i counts steps that took less than 2^i us (and not less than 2^(i-1)); the last one all
  // longer ones, from 4 s.
  static constexpr size_t kStepTimeBuckets = 24;

  uint64_t num_steps = 0;
  uint64_t num_forward_passes = 0;  // more than steps while pinned sequences split the batches
  uint64_t forwarded_tokens = 0;    // prefill, recompute and decode
  uint64_t sampled_tokens = 0;
  uint64_t finished_samples = 0;
  uint64_t num_preemptions = 0;
  uint64_t num_prompt_hits = 0;  // samples that started from another one's prefilled prompt
  uint64_t num_flips = 0;
  std::array<uint64_t, kStepTimeBuckets> step_time_counts{};
  uint64_t step_time_sum_us = 0;

  int32_t running_sequences = 0;
  int32_t waiting_sequences = 0;
  int32_t pinned_sequences = 0;  // of those that started: under weights that are not current
  int32_t free_blocks = 0;
  int32_t total_blocks = 0;
  uint64_t weight_version = 0;

  void count_step_us(uint64_t duration_us) {
    size_t bucket = 0;
    while (bucket + 1 < kStepTimeBuckets && (duration_us >> bucket) != 0) ++bucket;
    ++step_time_counts[bucket];
    step_time_sum_us += duration_us;
  }
};

}  // namespace warproll
