// WeightPlan: the format one checkpoint weight has, read from its own dtype and its scale tensor
// (three MXFP8 dialects, block FP8, unscaled), checked. And ArenaPlanner, which packs weights of
// equal format into slots. Internal to rollout/model/*.cpp. Thread: one owner.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/arena.h"
#include "kernels/weight.h"
#include "rollout/model/model_config.h"
#include "rollout/model/tensor_table.h"

namespace warproll {

struct WeightPlan {
  const TensorInfo* tensor = nullptr;  // null: not usable, the problem is noted
  const TensorInfo* scales = nullptr;  // of quantised checkpoint tensors
  WeightFormat format = WeightFormat::kF32;
  Dtype slot_dtype = Dtype::kF32;
  Dtype scale_dtype = Dtype::kF8E8M0;  // of the scale slot
  bool quantise = false;               // BF16 in, MXFP8 in the arena

  [[nodiscard]] bool same_format(const WeightPlan& other) const {
    return format == other.format && slot_dtype == other.slot_dtype &&
           (format != WeightFormat::kFp8Block || scale_dtype == other.scale_dtype);
  }
};

class ArenaPlanner {
 public:
  ArenaPlanner(const ModelConfig& config, TensorTable& table, bool quantise_to_mxfp8)
      : config_(config), table_(table), quantise_to_mxfp8_(quantise_to_mxfp8) {}

  // Claims `name` [.., rows, cols] and its scales. `linear`: one of the layers that quantising is
  // for.
  WeightPlan plan(const std::string& name, const std::vector<int64_t>& shape, bool linear);
  // One slot [shape] (and "<slot_name>.scale") of plans stacked in order; they must be of one
  // format, which is a problem that names the odd one otherwise.
  void add_slot(const std::string& slot_name, const std::vector<int64_t>& shape,
                const std::vector<WeightPlan>& plans);
  // A norm weight. All norms of a model must be of one dtype.
  void add_norm(const std::string& slot_name, const std::string& name, int64_t size);
  void add_alias(const std::string& name, const std::string& same_as);

  TensorTable& table() { return table_; }
  ArenaLayout take();

 private:
  bool plan_scaled(WeightPlan& plan);
  bool plan_unscaled(WeightPlan& plan, bool linear);
  int32_t new_slot(const std::string& name, Dtype dtype, std::vector<int64_t> shape);

  const ModelConfig& config_;
  TensorTable& table_;
  bool quantise_to_mxfp8_;
  const TensorInfo* first_norm_ = nullptr;
  ArenaLayout layout_;
};

}  // namespace warproll
