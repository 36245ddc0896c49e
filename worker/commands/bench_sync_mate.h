// SyncMate: a further worker of `warproll bench sync`, in a process of its own, as the first process
// sees it: everything is asked over a SyncLink (kTurn again and again: messages of the updates both
// ways). serve_sync_mate() is the other end.
// Thread: one. Errors: as SyncLink's.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "protocol/messages.h"
#include "protocol/status.h"
#include "weights_sync/nccl/nccl_api.h"
#include "worker/commands/bench_sync_link.h"
#include "worker/commands/bench_sync_row.h"

namespace warproll {

struct BareOrder {
  uint64_t stream_bytes = 0, bucket_bytes = 0;
  int32_t rank = 0, num_ranks = 0, max_ctas = 0;
};
static_assert(std::is_trivially_copyable_v<BareOrder>);

class SyncMate {
 public:
  SyncMate(SyncLink& link, int32_t index) : link_(link), envelope_(envelope_of(index)) {}
  [[nodiscard]] const Envelope& envelope() const { return envelope_; }
  Result<Hello> hello();  // when it has loaded everything
  Result<std::vector<Message>> turn(const std::vector<Message>& messages);
  Status decode(bool on);
  Status begin_bare(const BareOrder& order, const std::string& unique_id);
  Result<double> end_bare(std::chrono::milliseconds limit);
  Result<SyncRow> row(const SyncRowOrder& order);

 private:
  SyncLink& link_;
  const Envelope envelope_;
};

// Until the other end closes the link. Failures are answers; not ok: the link broke. api null: it cannot
// take part in bare broadcasts.
Status serve_sync_mate(SyncLink& link, SyncWorker& worker, std::shared_ptr<NcclApi> api);

}  // namespace warproll
