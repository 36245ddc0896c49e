// `warproll checkpoint verify`: everything that can be said of a checkpoint without running it:
// files and index (open does that), NaN and Inf, digest, and whether the model's layout takes it.
// Thread: uses several threads; call from one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "protocol/records.h"
#include "protocol/status.h"
#include "weights_sync/checkpoint.h"
#include "weights_sync/digest.h"

namespace warproll {

struct CheckpointReport {
  struct DtypeCount {
    uint64_t num_tensors = 0;
    uint64_t bytes = 0;
  };
  std::string directory;
  size_t num_shards = 0;
  uint64_t num_tensors = 0;
  uint64_t bytes = 0;
  std::map<Dtype, DtypeCount> dtypes;
  Digest weight_digest{};
  std::optional<uint64_t> arena_bytes;  // with a layout that fits
  std::vector<std::string> problems;    // each names its tensor; in name order, layout last
  [[nodiscard]] bool ok() const { return problems.empty(); }
};

// Fails only when the checkpoint cannot be opened. `layout` may be empty: then not checked.
Result<CheckpointReport> verify_checkpoint(const std::string& directory,
                                           const LayoutFunction& layout,
                                           const ByteProgress& progress = {}, int num_threads = 0);

}  // namespace warproll
