// FillPlan: an ArenaLayout turned around: for each checkpoint tensor, where its bytes go. Checks
// that the layout is sound, so that filling cannot write outside a slot or leave bytes of one to
// chance. Thread: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/arena.h"
#include "protocol/records.h"
#include "protocol/status.h"
#include "weights_sync/manifest.h"
#include "weights_sync/quantise_tensor.h"

namespace warproll {

struct PlannedTensor {
  enum class Kind : uint8_t { kCopy, kQuantise, kAlias };
  TensorInfo info;
  Kind kind = Kind::kCopy;
  Dtype scan_as = Dtype::kF32;
  uint64_t arena_offset = 0;         // kCopy, kQuantise (of the elements)
  uint64_t scales_arena_offset = 0;  // kQuantise
  QuantisedTensor quantised;         // kQuantise
  size_t same_as = 0;                // kAlias: index of the tensor it is tied to
  std::optional<Digest> expected;    // from the manifest
};

struct FillPlan {
  std::vector<PlannedTensor> tensors;
  std::map<std::string, size_t, std::less<>> index;  // by name
  bool quantises = false;
};

// manifest may be null. Errors name the slot or tensor.
Result<FillPlan> make_fill_plan(const ArenaLayout& layout, uint64_t arena_bytes,
                                const Manifest* manifest);

}  // namespace warproll
