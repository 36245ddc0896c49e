// LogWriter: the one thread that numbers, encodes and stores samples. See sample_log.h for the
// pipeline and the intake states. Internal to rollout/sample_log.
//
// One batch at a time, in this order: reserve seqs (durability os) -> WriteBatch -> high-water file
// -> ledger -> callbacks -> listener. A batch that fails stays whole in memory and is written again,
// the same keys with the same bytes, until it succeeds or close() runs out of time.
//
// Thread: push() and stats() from any; the rest runs on the writer's own thread.
// Lifetime: stop() before the store closes. Errors: through the callbacks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "protocol/bounded_queue.h"
#include "rollout/sample_log/high_water.h"
#include "rollout/sample_log/ledger.h"
#include "rollout/sample_log/sample_log.h"

namespace warproll {

class LogWriter {
 public:
  using Clock = std::chrono::steady_clock;

  LogWriter(const SampleLogOptions& options, std::shared_ptr<Store> store, HighWater high_water,
            Ledger* ledger);
  ~LogWriter();

  Status push(Trajectory trajectory, Clock::time_point deadline, SampleLog::Callback done);
  void set_listener(std::function<void(uint64_t)> listener);
  [[nodiscard]] SampleLogStats stats() const;
  // Writes what is queued, at most options.close_timeout_ms. Idempotent.
  Status stop();

 private:
  struct Item {
    Trajectory trajectory;
    SampleLog::Callback done;
  };
  struct Prepared {  // numbered and encoded
    Sealed sealed;
    SampleLog::Callback done;
  };
  struct Batch;  // the samples and their RocksDB batch

  void run();
  std::optional<Item> wait_for_item();
  Batch collect(Item first);
  void prepare(Item item, Batch* batch);
  bool write_until_done(Batch* batch);
  Status write_once(Batch* batch);
  Status reserve_seqs(uint64_t last_seq);
  Status note_durable(uint64_t last_seq);
  Status check_space();
  void try_to_recover(Clock::time_point failing_since);
  void finish(Batch* batch);
  void give_up(std::vector<Prepared> samples);
  void pause(const Status& reason);
  void unpause();
  bool wait_for_retry();  // false = stop() ran out of time

  const SampleLogOptions options_;
  const std::shared_ptr<Store> store_;
  HighWater high_water_;
  Ledger* const ledger_;
  const LogInfo identity_;  // producer_id and epoch
  uint64_t next_seq_;       // writer thread only
  BoundedQueue<Item> queue_;
  std::atomic<uint64_t> in_batch_{0};  // popped, not yet durable
  std::atomic<bool> lost_on_stop_{false};

  // Held while the listener runs, so that set_listener() can promise it is not running.
  std::mutex listener_mutex_;
  std::function<void(uint64_t)> listener_;

  mutable std::mutex mutex_;
  std::condition_variable stopping_;
  SampleLogStats stats_;
  std::optional<Clock::time_point> give_up_at_;  // set by stop()

  std::thread thread_;
};

}  // namespace warproll
