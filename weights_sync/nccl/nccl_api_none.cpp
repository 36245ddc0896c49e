// In a build without CUDA.
#include "weights_sync/nccl/nccl_api.h"

namespace warproll {

Result<std::shared_ptr<NcclApi>> open_nccl(int32_t) {
  return failed_precondition(
      "this build has no nccl transport: it was made without CUDA; wanted a build with "
      "WARPROLL_CUDA=ON, or the transport tcp or directory");
}

}  // namespace warproll
