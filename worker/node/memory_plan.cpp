#include "worker/node/memory_plan.h"

#include <algorithm>
#include <cstdio>

namespace warproll {
namespace {

// For the CUDA context's own growth, graphs and a library's buffers.
constexpr uint64_t kReserveBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxBlocks = uint64_t{1} << 30;

std::string line(const char* what, uint64_t bytes) {
  char text[120];
  std::snprintf(text, sizeof text, "\n  %-34s %10.1f MiB", what,
                static_cast<double>(bytes) / (1 << 20));
  return text;
}

std::string sum_of(const MemoryNeeds& needs, bool host_staged, uint64_t kv_bytes) {
  std::string text = "memory of the GPU" + line("free", needs.free_bytes);
  text += line("serving weights", needs.arena_bytes);
  text += host_staged ? "\n  standby weights                    in host memory (host_staged)"
                      : line("standby weights", needs.arena_bytes);
  text += line("buffers of the forward pass", needs.workspace_bytes);
  text += line("an update on its way in", needs.receive_bytes);
  if (host_staged) text += line("and on its way to the host", needs.staging_bytes);
  text += line("kept free", kReserveBytes);
  return text + line("KV cache", kv_bytes);
}

}  // namespace

Result<MemoryPlan> plan_memory(const MemoryNeeds& needs) {
  const uint64_t one =
      needs.arena_bytes + needs.workspace_bytes + needs.receive_bytes + kReserveBytes;
  const uint64_t least_kv = needs.wanted_kv_bytes != 0
                                ? needs.wanted_kv_bytes
                                : std::min(needs.arena_bytes, needs.free_bytes / 4);
  MemoryPlan plan;
  plan.arena_bytes = needs.arena_bytes;
  plan.host_staged =
      needs.swap == "host_staged" ||
      (needs.swap == "auto" && one + needs.arena_bytes + least_kv > needs.free_bytes);
  const uint64_t used = one + (plan.host_staged ? needs.staging_bytes : needs.arena_bytes);
  const uint64_t left = needs.free_bytes > used ? needs.free_bytes - used : 0;
  const uint64_t kv_bytes = needs.wanted_kv_bytes != 0 ? needs.wanted_kv_bytes : left;
  if (used + kv_bytes > needs.free_bytes || kv_bytes < needs.kv_block_bytes) {
    return resource_exhausted(
        sum_of(needs, plan.host_staged, std::max(kv_bytes, needs.kv_block_bytes)) +
        "\n  which is more than there is" +
        (plan.host_staged ? "" : "; weights.swap: host_staged keeps one arena less"));
  }
  const uint64_t blocks = std::min(kv_bytes / needs.kv_block_bytes, kMaxBlocks);
  plan.num_kv_blocks = static_cast<int32_t>(blocks);
  plan.left_bytes = left - blocks * needs.kv_block_bytes;
  plan.text = sum_of(needs, plan.host_staged, blocks * needs.kv_block_bytes) + " (" +
              std::to_string(blocks) + " blocks)" + line("left", plan.left_bytes);
  return plan;
}

}  // namespace warproll
