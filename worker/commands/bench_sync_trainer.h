// The trainer of `warproll bench sync`, in a process of its own: draws checkpoints, offers them over
// NCCL, and plays rank 0 of bare broadcasts, as the other end of the link asks (bench_sync_link.h).
// Thread: one; groups have theirs.
#pragma once

#include <memory>

#include "weights_sync/nccl/nccl_api.h"
#include "weights_sync/nccl/nccl_source.h"
#include "worker/commands/bench_sync_link.h"
#include "worker/commands/bench_sync_stream.h"

namespace warproll {

// Until the other end closes the link. Failures are answers; not ok: the link broke.
Status serve_sync_trainer(SyncLink& link, std::shared_ptr<NcclApi> api, DrawStream draw,
                          const HelloEnvironment& nccl_variables);

}  // namespace warproll
