#include "worker/commands/bench_sync_row.h"

#include <algorithm>

namespace warproll {
namespace {

using TimePoint = StepWindow::TimePoint;
constexpr size_t kFewSteps = 4;  // no rate is told from fewer

double seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// What was going on in the middle of a gap.
SyncPhase phase_at(const SyncUpdate& update, TimePoint when) {
  const struct {
    TimePoint ended;
    SyncPhase phase;
  } phases[] = {
      {update.receive.begun, SyncPhase::kCheck},  {update.receive.first, SyncPhase::kForming},
      {update.receive.ended, SyncPhase::kStream}, {update.ready, SyncPhase::kVerify},
      {update.committed, SyncPhase::kFlip},       {update.receive.settled, SyncPhase::kClosing}};
  for (const auto& phase : phases) {
    if (when <= phase.ended) return phase.phase;
  }
  return SyncPhase::kAfter;
}

double rate(const SyncUpdate& update) {
  const ReceiveTimes& receive = update.receive;
  if (receive.bytes == receive.first_bytes) {  // one bucket
    return static_cast<double>(receive.bytes) / 1e9 / seconds(update.ready - receive.begun);
  }
  return static_cast<double>(receive.bytes - receive.first_bytes) / 1e9 /
         seconds(update.ready - receive.first);
}

}  // namespace

std::string_view to_string(SyncPhase phase) {
  switch (phase) {
    case SyncPhase::kCheck:
      return "check";
    case SyncPhase::kForming:
      return "forming";
    case SyncPhase::kStream:
      return "stream";
    case SyncPhase::kClosing:
      return "closing";
    case SyncPhase::kVerify:
      return "verify";
    case SyncPhase::kFlip:
      return "flip";
    case SyncPhase::kAfter:
      return "after";
  }
  return "unknown";
}

SyncRow make_sync_row(const SyncUpdate& update, const StepLog& steps, const SyncSpan& before,
                      TimePoint settled) {
  const ReceiveTimes& receive = update.receive;
  SyncRow row;
  row.seconds = seconds(update.committed - update.begun);
  row.receive_s = seconds(update.ready - receive.begun);
  row.forming_s = seconds(receive.first - receive.begun);
  if (receive.settled > receive.ended) row.closing_s = seconds(receive.settled - receive.ended);
  row.gb_per_s = rate(update);
  row.flip_us = static_cast<double>(update.flip_us);
  row.restarted_sequences = update.restarted_sequences;

  const StepWindow quiet = steps.window(before.from, before.to);
  const StepWindow whole = steps.window(update.begun, settled);
  row.median_step_us = quiet.median_gap_us;
  row.tokens_per_s_before = quiet.tokens_per_s;
  row.noise_us = std::max(0.0, quiet.longest_gap_us - quiet.median_gap_us);
  row.stall_us = std::max(0.0, whole.longest_gap_us - quiet.median_gap_us);
  row.stall_steps = quiet.median_gap_us > 0 ? row.stall_us / quiet.median_gap_us : 0;
  row.stall_phase =
      phase_at(update, whole.longest_from + (whole.longest_to - whole.longest_from) / 2);
  const auto rate_in = [&steps](TimePoint from, TimePoint to) {
    const StepWindow window = steps.window(from, to);
    return window.num_gaps >= kFewSteps ? window.tokens_per_s : 0;
  };
  row.tokens_per_s_receive = rate_in(receive.begun, update.ready);
  const double stream = rate_in(receive.first, receive.last);
  row.tokens_per_s_during = stream > 0 ? stream : row.tokens_per_s_receive;
  return row;
}

SyncRow row_of(const SyncWorker& worker, const SyncRowOrder& order) {
  const SyncUpdate update = worker.last_update();
  SyncRow row = make_sync_row(update, worker.steps(), order.before, order.settled);
  row.worker = worker.index();
  row.max_ctas = order.max_ctas;
  row.stream_bytes = order.stream_bytes;
  const ColdDigests cold = worker.cold_digests(order.seed);
  row.digests_equal =
      update.weight_digest == cold.weight && update.layout_digest == cold.layout &&
      update.receive.bytes == order.stream_bytes &&
      (order.manifest_digest == Digest{} || update.weight_digest == order.manifest_digest);
  return row;
}

}  // namespace warproll
