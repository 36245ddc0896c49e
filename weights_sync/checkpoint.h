// Checkpoint: a Hugging Face checkpoint directory, opened and validated: safetensors shards mapped
// read-only, index checked, every tensor's name, dtype, shape and byte range known.
// Errors name the file and tensor, the value got and the value wanted. Lifetime: the mappings live
// as long as the Checkpoint. Thread: immutable after open().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/arena.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace warproll {

// The small JSON files that go with the weights, as text; absent = empty.
struct CheckpointFiles {
  std::string config_json;
  std::string generation_config_json;
  std::string hf_quant_config_json;
};

class Checkpoint {
 public:
  static Result<Checkpoint> open(const std::string& directory);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  [[nodiscard]] const std::string& directory() const;
  [[nodiscard]] const CheckpointFiles& files() const;
  [[nodiscard]] std::span<const TensorInfo> tensors() const;  // sorted by name
  [[nodiscard]] std::span<const std::byte> bytes(size_t tensor_index) const;
  [[nodiscard]] std::string_view shard_of(size_t tensor_index) const;  // file name

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What weights_sync asks of the model's side (worker/ wires it to rollout/model): the arena layout
// for a checkpoint's config and tensors, or why they do not fit.
using LayoutFunction = std::function<Result<ArenaLayout>(const CheckpointFiles& files,
                                                         std::span<const TensorInfo> tensors)>;

}  // namespace warproll
