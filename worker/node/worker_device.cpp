// A WorkerNode's device: which it is, and how new weights come to serve there.
#include <chrono>

#include "worker/node/worker_memory.h"
#include "worker/node/worker_node.h"

namespace warproll {
namespace {

constexpr std::chrono::minutes kLongestStep(5);

}  // namespace

Status WorkerNode::open_device() {
  WARPROLL_TRY_ASSIGN(device, open_model_device(device_options(config_)));
  device_ = std::move(device);
  logger_.info("the model runs on " + device_.description);
  WARPROLL_TRY_ASSIGN(plan, plan_worker_memory(config_, device_));
  if (!plan.text.empty()) logger_.info(plan.text);
  num_kv_blocks_ = plan.num_kv_blocks;
  return plan.host_staged ? stage_on_host(device_, plan.arena_bytes) : ok_status();
}

Result<InstallReport> WorkerNode::install(const StagedWeightsPtr& staged) {
  WARPROLL_TRY_ASSIGN(weights, make_weight_set(staged, device_));
  if (prepare_weights_) prepare_weights_(*weights);
  const Result<SwapReport> swap =
      engine_->install_weights(std::move(weights), std::chrono::steady_clock::now() + kLongestStep,
                               [this, staged] { serve_from(device_, *staged); });
  // The flip may still come after that: what is served would no longer be what is reported.
  if (swap.status().code() == StatusCode::kDeadlineExceeded) fail(swap.status());
  WARPROLL_TRY(swap.status());
  InstallReport report;
  report.stall_us = swap->stall_us;
  report.stall_steps = swap->stall_steps;
  report.in_flight_sequences = swap->in_flight_sequences;
  logger_.info("now serves version " + std::to_string(staged->weight_version) + ", digest " +
               to_hex(staged->weight_digest) + ", stall " + std::to_string(report.stall_us) +
               " us with " + std::to_string(report.in_flight_sequences) + " sequences in flight");
  return report;
}

}  // namespace warproll
