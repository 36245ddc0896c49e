// What one rank of nccl_one_gpu does: the trainer's source (rank 0) or a worker's transport, on a
// real GPU, and what both can be asked for.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tests/gpu/rank_processes.h"
#include "weights_sync/broadcast_transport.h"

namespace warproll::gpu_test {

inline constexpr uint64_t kFromDevice =
    1000;  // added to a version: the same bytes, out of GPU memory

// Tensors of pseudo-random bytes, about total_bytes of them, as a checkpoint in `directory`.
OfferedCheckpoint make_checkpoint(const std::string& directory, uint64_t total_bytes,
                                  uint64_t version, uint64_t bucket_bytes);

struct RankSetup {
  std::vector<OfferedCheckpoint> offered;  // what there is to send
  int num_ranks = 0;
  int32_t max_ctas = 4;
  int32_t silence_ms = 30'000;  // of the trainer
  std::function<void(int rank)> note_death;
};

// In the rank's process.
RankProcesses::Handler make_rank(const RankSetup& setup, int rank);

}  // namespace warproll::gpu_test
