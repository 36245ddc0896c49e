#include "rollout/model/weight_plan.h"

#include <functional>
#include <numeric>

#include "kernels/quantise.h"

namespace warproll {
namespace {

int64_t element_count(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// Of [.., rows, cols], with blocks of block_rows x block_cols.
std::vector<int64_t> scale_shape(std::vector<int64_t> shape, int64_t block_rows,
                                 int64_t block_cols) {
  int64_t& rows = shape[shape.size() - 2];
  int64_t& cols = shape[shape.size() - 1];
  rows = (rows + block_rows - 1) / block_rows;
  cols = (cols + block_cols - 1) / block_cols;
  return shape;
}

bool is_unscaled(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBf16;
}

}  // namespace

WeightPlan ArenaPlanner::plan(const std::string& name, const std::vector<int64_t>& shape,
                              bool linear) {
  WeightPlan plan;
  plan.tensor = table_.require(name, shape);
  // "x.weight" has "x.weight_scale_inv" (SGLang, block FP8) or "x.weight_scale" (the others).
  plan.scales = table_.find(name + "_scale_inv");
  const TensorInfo* other = table_.find(name + "_scale");
  if (plan.scales != nullptr && other != nullptr) {
    table_.problem("tensor '" + name + "' has both '" + plan.scales->name + "' and '" +
                   other->name + "', wanted one of them");
  }
  if (plan.scales == nullptr) plan.scales = other;
  if (plan.tensor == nullptr) return plan;
  const bool scaled = plan.tensor->dtype == Dtype::kF8E4M3;
  if (!(scaled ? plan_scaled(plan) : plan_unscaled(plan, linear))) plan.tensor = nullptr;
  return plan;
}

bool ArenaPlanner::plan_unscaled(WeightPlan& plan, bool linear) {
  const TensorInfo& tensor = *plan.tensor;
  if (!is_unscaled(tensor.dtype)) {
    table_.problem(tensor_text(tensor) + ", wanted BF16, F16, F32 or F8_E4M3");
    return false;
  }
  if (plan.scales != nullptr) {
    table_.problem("tensor '" + plan.scales->name + "' is a scale, but " + tensor_text(tensor) +
                   ", wanted F8_E4M3 with it or no scale");
    return false;
  }
  plan.slot_dtype = tensor.dtype;
  plan.format = tensor.dtype == Dtype::kF32   ? WeightFormat::kF32
                : tensor.dtype == Dtype::kF16 ? WeightFormat::kF16
                                              : WeightFormat::kBf16;
  if (!quantise_to_mxfp8_ || !linear) return true;
  if (tensor.shape.back() % kMxfp8BlockCols != 0) {
    table_.problem(tensor_text(tensor) + ", wanted columns in multiples of 32 to quantise it");
    return false;
  }
  plan.quantise = true;
  plan.slot_dtype = Dtype::kF8E4M3;
  plan.format = WeightFormat::kMxfp8;
  return true;
}

bool ArenaPlanner::plan_scaled(WeightPlan& plan) {
  const TensorInfo& tensor = *plan.tensor;
  if (plan.scales == nullptr) {
    table_.problem(tensor_text(tensor) + " without a scale, wanted '" + tensor.name +
                   "_scale_inv' or '" + tensor.name + "_scale'");
    return false;
  }
  const TensorInfo& scales = *plan.scales;
  plan.slot_dtype = Dtype::kF8E4M3;
  int64_t block_rows = 1, block_cols = kMxfp8BlockCols;
  if (scales.dtype == Dtype::kU8 || scales.dtype == Dtype::kF8E8M0) {
    plan.format = WeightFormat::kMxfp8;
    if (tensor.shape.back() % kMxfp8BlockCols != 0) {
      table_.problem(tensor_text(tensor) + ", wanted columns in multiples of 32 for MXFP8");
      return false;
    }
  } else if (scales.dtype == Dtype::kF32 || scales.dtype == Dtype::kBf16) {
    plan.format = WeightFormat::kFp8Block;
    plan.scale_dtype = scales.dtype;
    block_rows = config_.block_rows;
    block_cols = config_.block_cols;
    if (block_rows < 1 || block_cols < 1) {
      table_.problem(tensor_text(scales) +
                     ", a scale of block FP8, but config.json gives no weight_block_size");
      return false;
    }
  } else {
    table_.problem(tensor_text(scales) + ", wanted U8 or F8_E8M0 (MXFP8), F32 or BF16 (block FP8)");
    return false;
  }
  const auto wanted = scale_shape(tensor.shape, block_rows, block_cols);
  if (scales.shape == wanted) return true;
  table_.problem(tensor_text(scales) + ", wanted shape " + shape_text(wanted) + " for '" +
                 tensor.name + "' " + shape_text(tensor.shape));
  return false;
}

int32_t ArenaPlanner::new_slot(const std::string& name, Dtype dtype, std::vector<int64_t> shape) {
  ArenaSlot slot;
  slot.name = name;
  slot.dtype = dtype;
  slot.bytes = static_cast<uint64_t>(element_count(shape)) * dtype_bytes(dtype);
  slot.shape = std::move(shape);
  slot.offset_bytes = align_to_arena(layout_.total_bytes);
  layout_.total_bytes = slot.offset_bytes + slot.bytes;
  layout_.slots.push_back(std::move(slot));
  return static_cast<int32_t>(layout_.slots.size()) - 1;
}

void ArenaPlanner::add_slot(const std::string& slot_name, const std::vector<int64_t>& shape,
                            const std::vector<WeightPlan>& plans) {
  for (const WeightPlan& plan : plans) {
    if (plan.tensor == nullptr) return;  // noted already; the layout is not used
    if (!plan.same_format(plans.front())) {
      table_.problem(tensor_text(*plan.tensor) + ", wanted the format of '" +
                     plans.front().tensor->name + "', which lies in the same slot " + slot_name);
      return;
    }
  }
  const WeightPlan& first = plans.front();
  const int32_t slot = new_slot(slot_name, first.slot_dtype, shape);
  int32_t scale_slot = -1;
  if (is_fp8(first.format)) {
    const bool block = first.format == WeightFormat::kFp8Block;
    scale_slot = new_slot(slot_name + ".scale", first.scale_dtype,
                          scale_shape(shape, block ? config_.block_rows : 1,
                                      block ? config_.block_cols : kMxfp8BlockCols));
  }
  uint64_t offset = 0, scale_offset = 0;
  for (const WeightPlan& plan : plans) {
    SlotSource source{plan.tensor->name,
                      plan.tensor->dtype,
                      plan.tensor->shape,
                      FillTransform::kCopy,
                      offset,
                      -1,
                      0};
    if (plan.quantise) {
      source.transform = FillTransform::kQuantiseMxfp8;
      source.scale_slot = scale_slot;
      source.scale_offset_bytes = scale_offset;
    }
    const auto elements = static_cast<uint64_t>(element_count(plan.tensor->shape));
    offset += elements * dtype_bytes(plan.slot_dtype);
    layout_.slots[slot].sources.push_back(std::move(source));
    if (plan.quantise) scale_offset += elements / kMxfp8BlockCols;
    if (plan.scales == nullptr) continue;
    layout_.slots[scale_slot].sources.push_back({plan.scales->name, plan.scales->dtype,
                                                 plan.scales->shape, FillTransform::kCopy,
                                                 scale_offset, -1, 0});
    scale_offset +=
        static_cast<uint64_t>(element_count(plan.scales->shape)) * dtype_bytes(plan.scales->dtype);
  }
}

void ArenaPlanner::add_norm(const std::string& slot_name, const std::string& name, int64_t size) {
  const TensorInfo* tensor = table_.require(name, {size});
  if (tensor == nullptr) return;
  if (!is_unscaled(tensor->dtype)) {
    table_.problem(tensor_text(*tensor) + ", wanted BF16, F16 or F32");
    return;
  }
  if (first_norm_ == nullptr) first_norm_ = tensor;
  if (tensor->dtype != first_norm_->dtype) {
    table_.problem(tensor_text(*tensor) + ", wanted " + std::string(to_string(first_norm_->dtype)) +
                   " as '" + first_norm_->name + "'");
    return;
  }
  const int32_t slot = new_slot(slot_name, tensor->dtype, {size});
  layout_.slots[slot].sources.push_back(
      {tensor->name, tensor->dtype, tensor->shape, FillTransform::kCopy, 0, -1, 0});
}

void ArenaPlanner::add_alias(const std::string& name, const std::string& same_as) {
  layout_.aliases.push_back({name, same_as});
}

ArenaLayout ArenaPlanner::take() { return std::move(layout_); }

}  // namespace warproll
