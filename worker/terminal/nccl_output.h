// NcclOutput: what NCCL_DEBUG asks for goes to standard error, unless NCCL_DEBUG_FILE says where: NCCL would mix
// it with the results on standard output. Through a pipe and a thread, as NCCL empties the file that it is told
// to write to: a log that standard error is appended to would lose all that was in it.
// Make it in main, after StopSignal and before other threads; child processes write to the same place while it
// lives. Thread: the one that made it. Without NCCL_DEBUG, or where the system gives no pipe, it does nothing.
#pragma once

#include <thread>

#include "weights_sync/unique_fd.h"

namespace warproll {

class NcclOutput {
 public:
  NcclOutput();
  NcclOutput(const NcclOutput&) = delete;
  NcclOutput& operator=(const NcclOutput&) = delete;
  ~NcclOutput();  // when all that was written so far is on standard error

 private:
  void forward() const;

  UniqueFd read_, write_, stop_;
  std::thread forwarder_;
};

}  // namespace warproll
