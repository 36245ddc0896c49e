// `warproll checkpoint diff`: two checkpoints compared tensor by tensor, by name, whatever their
// shards. Thread: uses several threads; call from one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/arena.h"
#include "protocol/status.h"
#include "weights_sync/checkpoint.h"
#include "weights_sync/digest.h"

namespace warproll {

enum class TensorDifferenceKind : uint8_t { kOnlyInA, kOnlyInB, kDtype, kShape, kBytes };
std::string_view to_string(TensorDifferenceKind kind);  // "only in A", ..., "bytes"

struct TensorDifference {
  std::string name;
  TensorDifferenceKind kind = TensorDifferenceKind::kBytes;  // the first that applies
  TensorInfo a;                                              // no name = not in A
  TensorInfo b;                                              // no name = not in B
  // Of kBytes: elements whose bits differ (+0 and -0 do).
  uint64_t num_different_elements = 0;
  // Of kBytes on float tensors (E4M3 and E8M0 by their plain value): the largest |a - b| over
  // elements that are finite on both sides; absent when there is none.
  std::optional<double> max_abs_difference;
};

struct CheckpointDiff {
  std::vector<TensorDifference> tensors;     // sorted by name
  std::vector<std::string> different_files;  // of config, generation_config, hf_quant_config .json
  uint64_t num_equal_tensors = 0;
  [[nodiscard]] bool equal() const { return tensors.empty() && different_files.empty(); }
};

// progress counts the bytes of A.
CheckpointDiff diff_checkpoints(const Checkpoint& a, const Checkpoint& b,
                                const ByteProgress& progress = {}, int num_threads = 0);

}  // namespace warproll
