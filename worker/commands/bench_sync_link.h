// SyncLink: one end of the socket between `warproll bench sync` and the process that plays its
// trainer: questions one way, answers the other, both of one binary. SyncChild: that process.
// Thread: one. Errors: kUnavailable = the other end is gone, kDeadlineExceeded = it is silent; an
// answer's own error comes as it was.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "protocol/messages.h"
#include "protocol/status.h"
#include "weights_sync/unique_fd.h"

namespace warproll {

enum class SyncTask : uint32_t {
  kDraw,      // seed, id.weight_version            -> text: encoded manifest
  kOffer,     // max_ctas                           -> text: UpdateBegin.source
  kStart,     // id, deadline_ms, number: workers   -> text: NCCL's id
  kProgress,  // id                                 -> number: 1 = every member has everything
  kStop,      // id                                 -> -
  kBare,      // max_ctas, number: workers          -> text: NCCL's id; then once more: seconds
  // Of a further worker (bench_sync_mate.h):
  kHello,   //                                      -> text: its HELLO
  kTurn,    // text: messages                       -> text: messages
  kDecode,  // number: 1 = begin anew, 0 = end      -> -
  kJoin,    // text: BareOrder, NCCL's id           -> seconds
  kRow,     // text: SyncRowOrder                   -> text: SyncRow
};

struct SyncFrame {
  SyncTask task = SyncTask::kDraw;
  UpdateId id = {};
  uint64_t seed = 0;
  uint64_t number = 0;
  double seconds = 0;
  uint32_t deadline_ms = 0;
  int32_t max_ctas = 0;
  StatusCode code = StatusCode::kOk;  // of an answer; not ok: text says why
  std::string text = {};
};
SyncFrame failed_frame(SyncTask task, const Status& status);

class SyncLink {
 public:
  SyncLink() = default;
  explicit SyncLink(UniqueFd fd) : fd_(std::move(fd)) {}
  Status send(const SyncFrame& frame);
  Result<SyncFrame> receive(std::chrono::milliseconds limit);
  // send(), then receive() of an answer that is ok.
  Result<SyncFrame> ask(const SyncFrame& frame, std::chrono::milliseconds limit);
  // The next answer, which must be ok.
  Result<SyncFrame> answer(std::chrono::milliseconds limit);
  void close() { fd_.reset(); }

 private:
  Status read_all(void* to, size_t bytes, std::chrono::steady_clock::time_point deadline);

  UniqueFd fd_;
};

class SyncChild {
 public:
  SyncChild() = default;
  SyncChild(const SyncChild&) = delete;
  SyncChild& operator=(const SyncChild&) = delete;
  ~SyncChild();  // closes the link, which ends the process; after a while kills it

  // This binary again, with `arguments` and "--fd N" for its end of the link; it ends with the thread
  // that started it.
  Status start(std::vector<std::string> arguments,
               const std::vector<std::pair<std::string, std::string>>& environment);
  [[nodiscard]] SyncLink& link() { return link_; }

 private:
  SyncLink link_;
  pid_t pid_ = -1;
};

}  // namespace warproll
