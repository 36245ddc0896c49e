// MemoryPlan: how a GPU's memory is divided before anything large is allocated: weight arenas, KV
// cache, the forward pass' buffers. Printed at the start, so that a worker that does not fit says why.
// Thread: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "protocol/status.h"

namespace warproll {

struct MemoryNeeds {
  uint64_t free_bytes = 0;       // now, nothing of ours allocated
  uint64_t arena_bytes = 0;      // of one weight arena
  uint64_t workspace_bytes = 0;  // of the forward pass
  uint64_t receive_bytes = 0;    // of an update on its way in
  uint64_t staging_bytes = 0;    // of its way to host memory: with host_staged alone
  uint64_t kv_block_bytes = 0;
  uint64_t wanted_kv_bytes = 0;  // 0 = what is left
  std::string swap = "auto";     // "auto", "two_arenas", "host_staged"
};

struct MemoryPlan {
  bool host_staged = false;  // one arena on the device, the standby in host memory
  uint64_t arena_bytes = 0;
  int32_t num_kv_blocks = 0;
  uint64_t left_bytes = 0;
  std::string text;  // lines for the log
};

// Two arenas when they leave room for the KV cache that is wanted (or for as much again as one arena
// takes, at most a quarter of the memory, when none is named). kResourceExhausted has the whole sum.
Result<MemoryPlan> plan_memory(const MemoryNeeds& needs);

}  // namespace warproll
