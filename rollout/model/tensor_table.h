// TensorTable: the tensors a checkpoint has, by name, claimed one by one as the layout finds a
// place for them; and the list of everything that is wrong, so that one error names it all.
// Internal to rollout/model/*.cpp. Lifetime: points into the span given. Thread: one owner.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/arena.h"
#include "protocol/status.h"

namespace warproll {

std::string shape_text(const std::vector<int64_t>& shape);  // "[96, 64]"
std::string tensor_text(const TensorInfo& tensor);          // "tensor 'x' is BF16 [96, 64]"

class TensorTable {
 public:
  explicit TensorTable(std::span<const TensorInfo> tensors);  // duplicates are problems

  // The tensor, now claimed; null when there is none (no problem is noted).
  const TensorInfo* find(const std::string& name);
  [[nodiscard]] bool has(const std::string& name) const;
  // The same; missing is a problem, and so is another shape than wanted.
  const TensorInfo* require(const std::string& name, const std::vector<int64_t>& shape);

  void problem(std::string text) { problems_.push_back(std::move(text)); }
  // After everything is claimed: unclaimed tensors are problems. Ok when there are none, else an
  // error with the first problems and their number.
  Status finish();

 private:
  struct Entry {
    const TensorInfo* tensor;
    bool claimed;
  };
  std::unordered_map<std::string_view, Entry> by_name_;
  std::vector<std::string> problems_;
};

}  // namespace warproll
