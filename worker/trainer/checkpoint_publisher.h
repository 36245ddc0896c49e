// CheckpointPublisher: the trainer's checkpoints in order. It opens and digests the next one on a
// thread of its own (and packs its arena, with checkpoints.nccl_stream arena), offers its bytes through the
// configured transport and hands the offer to the Broadcaster; how far it got is kept in `published.json` of
// the state directory.
// Thread: one, the io loop's. Lifetime: the context outlives it.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/curve.h"
#include "protocol/sockets.h"
#include "protocol/status.h"
#include "weights_sync/broadcast_transport.h"
#include "weights_sync/broadcaster.h"
#include "weights_sync/nccl/nccl_source.h"
#include "worker/config/trainer_config.h"
#include "worker/node/arena_packer.h"

namespace warproll {

class CheckpointPublisher {
 public:
  static Result<std::unique_ptr<CheckpointPublisher>> open(const TrainerConfig& config,
                                                           ZmqContext& context,
                                                           std::optional<CurveServer> curve);

  // Once, before the loop: the version that is current (after a restart: the last committed one).
  // False = there is no checkpoint at all.
  Result<bool> adopt_current(Broadcaster& broadcaster, int64_t now_ms);
  // Begins what is prepared, prepares the next one when `taken_samples` says so, notes commits.
  // Returns what was begun.
  Result<std::optional<uint64_t>> advance(Broadcaster& broadcaster, uint64_t taken_samples,
                                          int64_t now_ms);

 private:
  struct Prepared {
    OfferedCheckpoint offered;
    std::optional<OfferedArena> arena;  // is what is offered
  };
  CheckpointPublisher(const TrainerConfig& config, std::string state_path, size_t num_committed);
  Status open_source(const TrainerConfig& config, ZmqContext& context,
                     std::optional<CurveServer> curve);
  [[nodiscard]] uint64_t version_of(size_t index) const;
  Result<Prepared> prepare(size_t index) const;
  Result<UpdateOffer> offer(const Prepared& prepared);
  void withdraw_before(size_t index);
  Status save_progress();
  void start_preparing(size_t index);

  const TrainerConfig::Checkpoints config_;
  std::unique_ptr<ArenaPacker> packer_;  // before the source, whose groups may hold an arena
  std::unique_ptr<BroadcastSource> source_;
  NcclSource* nccl_source_ = nullptr;  // it, if it is one
  const std::string state_path_;
  size_t num_committed_;  // of config_.publish
  std::optional<size_t> preparing_;
  std::optional<size_t> begun_;
  int64_t retry_at_ms_ = 0;
  bool unsaved_ = false;  // the disk was full: published.json is behind num_committed_
  std::future<Result<Prepared>> prepared_;
};

}  // namespace warproll
