#include "rollout/model/tensor_table.h"

#include <algorithm>

namespace warproll {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::string tensor_text(const TensorInfo& tensor) {
  return "tensor '" + tensor.name + "' is " + std::string(to_string(tensor.dtype)) + " " +
         shape_text(tensor.shape);
}

TensorTable::TensorTable(std::span<const TensorInfo> tensors) {
  by_name_.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) {
    const bool added = by_name_.emplace(tensor.name, Entry{&tensor, false}).second;
    if (!added) problem("tensor '" + tensor.name + "' is there twice, wanted once");
  }
}

const TensorInfo* TensorTable::find(const std::string& name) {
  const auto it = by_name_.find(name);
  if (it == by_name_.end()) return nullptr;
  it->second.claimed = true;
  return it->second.tensor;
}

bool TensorTable::has(const std::string& name) const { return by_name_.contains(name); }

const TensorInfo* TensorTable::require(const std::string& name, const std::vector<int64_t>& shape) {
  const TensorInfo* tensor = find(name);
  if (tensor == nullptr) {
    problem("tensor '" + name + "' is missing, wanted shape " + shape_text(shape));
    return nullptr;
  }
  if (tensor->shape == shape) return tensor;
  problem(tensor_text(*tensor) + ", wanted shape " + shape_text(shape));
  return nullptr;
}

Status TensorTable::finish() {
  std::vector<std::string_view> unknown;
  for (const auto& [name, entry] : by_name_) {
    if (!entry.claimed) unknown.push_back(name);
  }
  std::sort(unknown.begin(), unknown.end());
  for (const std::string_view name : unknown) {
    problem("tensor '" + std::string(name) + "' has no place in this model");
  }
  if (problems_.empty()) return {};
  constexpr size_t kMostShown = 12;
  std::string text;
  for (size_t i = 0; i < std::min(problems_.size(), kMostShown); ++i) {
    text += (i == 0 ? "" : "; ") + problems_[i];
  }
  if (problems_.size() > kMostShown) {
    text += "; and " + std::to_string(problems_.size() - kMostShown) + " more problems";
  }
  return invalid_argument(text);
}

}  // namespace warproll
