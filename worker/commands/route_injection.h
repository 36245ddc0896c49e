// A backend for benches that routes decode steps as told rather than freely, and counts the distinct
// experts of a layer either way. Thread: as ModelBackend.
#pragma once

#include <cstdint>
#include <memory>

#include "rollout/engine/backend.h"

namespace warproll {

struct RouteCount {
  double sum = 0;  // of distinct experts, over layers and the steps looked at
  int64_t count = 0;
  [[nodiscard]] double mean() const { return count == 0 ? 0.0 : sum / static_cast<double>(count); }
};

// uniform: every token of a decode step goes to num_experts_per_tok experts drawn without
// replacement, anew for each layer; otherwise the router's own choice. Prefill is always free.
// `count` is set back by whoever reads it.
ModelBackend with_routing(ModelBackend backend, const ModelConfig& config, bool uniform,
                          std::shared_ptr<RouteCount> count);

}  // namespace warproll
