// What one update of `warproll bench sync` is reported as. Thread: plain values.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "worker/commands/bench_sync_steps.h"
#include "worker/commands/bench_sync_worker.h"

namespace warproll {

enum class SyncPhase : uint8_t { kCheck, kForming, kStream, kClosing, kVerify, kFlip, kAfter };
std::string_view to_string(SyncPhase phase);

struct SyncRow {
  int32_t worker = 0;  // its index
  int32_t max_ctas = 0;
  uint64_t stream_bytes = 0;
  double seconds = 0;        // Begin to Committed
  double receive_s = 0;      // the transport's part and the verification: set-up to Ready
  double forming_s = 0;      // of that, before the first bucket
  double closing_s = 0;      // from the end of the stream to that of the group, beside the rest
  double gb_per_s = 0;       // of the stream, digests, layout and verification included
  double bare_gb_per_s = 0;  // 0 = not measured; nothing decodes
  double bare_decoding_gb_per_s = 0;  // the same beside decoding
  double stall_us = 0;                // longest gap between two steps less the median
  double stall_steps = 0;
  SyncPhase stall_phase = SyncPhase::kAfter;
  double noise_us = 0;  // the same before the update
  double flip_us = 0;   // as the worker reports it
  double median_step_us = 0;
  double tokens_per_s_before = 0;
  double tokens_per_s_during = 0;   // while buckets arrive; 0 = too few steps to tell
  double tokens_per_s_receive = 0;  // from set-up to Ready
  double tokens_per_s_bare = 0;     // during bare broadcasts; 0 = not measured
  int32_t restarted_sequences = 0;
  bool digests_equal = false;
};

static_assert(std::is_trivially_copyable_v<SyncRow>);  // it comes over a SyncLink

struct SyncSpan {
  StepWindow::TimePoint from, to;
};
// `before`: decoding without an update. settled: a while after the commit.
SyncRow make_sync_row(const SyncUpdate& update, const StepLog& steps, const SyncSpan& before,
                      StepWindow::TimePoint settled);

// What a worker needs to know to make its own row of the last update.
struct SyncRowOrder {
  SyncSpan before;
  StepWindow::TimePoint settled;  // the clock is the machine's
  uint64_t seed = 0;
  uint64_t stream_bytes = 0;
  Digest manifest_digest{};  // zero: not known, the worker quantises
  int32_t max_ctas = 0;      // 0 = no group
};
static_assert(std::is_trivially_copyable_v<SyncRowOrder>);
SyncRow row_of(const SyncWorker& worker, const SyncRowOrder& order);

}  // namespace warproll
