#include "rollout/sample_log/log_writer.h"

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <filesystem>

namespace warproll {
namespace {

constexpr auto kIdleWait = std::chrono::milliseconds(200);

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string trajectory_id_of(const ProducerId& producer_id, uint64_t seq) {
  return to_hex(producer_id) + "-" + std::to_string(seq);
}

RecordSummary summary_of(const Trajectory& trajectory) {
  RecordSummary summary;
  summary.seq = trajectory.seq;
  summary.task_id = trajectory.task_id;
  summary.group_id = trajectory.group_id;
  summary.sample_index = trajectory.sample_index;
  summary.sealed_ns = trajectory.timings.sealed_ns;
  for (const VersionDigest& version : trajectory.version_digests) {
    summary.weight_versions.push_back(version.weight_version);
  }
  return summary;
}

}  // namespace

struct LogWriter::Batch {
  std::vector<Prepared> samples;
  rocksdb::WriteBatch writes;
  uint64_t bytes = 0;
  uint64_t last_seq = 0;
};

LogWriter::LogWriter(const SampleLogOptions& options, std::shared_ptr<Store> store,
                     HighWater high_water, Ledger* ledger)
    : options_(options),
      store_(std::move(store)),
      high_water_(std::move(high_water)),
      ledger_(ledger),
      identity_(ledger->info()),
      next_seq_(identity_.last_seq + 1),
      queue_(options.queue_samples),
      thread_([this] { run(); }) {}

LogWriter::~LogWriter() { (void)stop(); }

Status LogWriter::push(Trajectory trajectory, Clock::time_point deadline,
                       SampleLog::Callback done) {
  // The seq is given out at the end; any valid one does for the check.
  trajectory.producer_id = identity_.producer_id;
  trajectory.epoch = identity_.epoch;
  trajectory.seq = 1;
  trajectory.trajectory_id = trajectory_id_of(identity_.producer_id, 1);
  trajectory.timings.sealed_ns = now_ns();
  WARPROLL_TRY(validate(trajectory, options_.vocab_size));
  Item item{std::move(trajectory), std::move(done)};
  switch (queue_.push(item, deadline)) {
    case QueueResult::kOk:
      return ok_status();
    case QueueResult::kClosed:
      return failed_precondition("sample log: closed, takes no more samples");
    case QueueResult::kTimeout:
      break;
  }
  const SampleLogStats now = stats();
  return unavailable("sample log: queue of " + std::to_string(options_.queue_samples) +
                     " samples is full, intake is " + std::string(to_string(now.intake)) +
                     (now.pause_reason.empty() ? "" : " (" + now.pause_reason + ")"));
}

void LogWriter::set_listener(std::function<void(uint64_t)> listener) {
  std::lock_guard lock(listener_mutex_);
  listener_ = std::move(listener);
}

SampleLogStats LogWriter::stats() const {
  std::unique_lock lock(mutex_);
  SampleLogStats out = stats_;
  lock.unlock();
  out.queued_samples = queue_.size() + in_batch_;
  out.write_stalls = store_->write_stalls();
  if (queue_.closed()) out.intake = IntakeState::kClosed;
  return out;
}

Status LogWriter::stop() {
  {
    std::lock_guard lock(mutex_);
    if (!give_up_at_) {
      give_up_at_ = Clock::now() + std::chrono::milliseconds(options_.close_timeout_ms);
    }
  }
  queue_.close();
  stopping_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (!lost_on_stop_) return ok_status();
  return aborted("sample log: closed with samples that could not be written: " +
                 stats().pause_reason);
}

void LogWriter::run() {
  while (auto item = wait_for_item()) {
    Batch batch = collect(*std::move(item));
    if (batch.samples.empty()) continue;
    // Once a batch is given up, nothing behind it may be written: its seqs would be a hole.
    if (lost_on_stop_ || !write_until_done(&batch)) {
      lost_on_stop_ = true;
      give_up(std::move(batch.samples));
      continue;
    }
    finish(&batch);
  }
  if (lost_on_stop_) return;
  // A clean end: everything is on disk, and no reservation is left open.
  rocksdb::WriteBatch nothing;
  nothing.PutLogData("closed");
  if (store_->write(&nothing, true).ok() && ledger_->write_pending_commit().ok()) {
    HighWaterMark mark = high_water_.mark();
    mark.synced_seq = mark.reserved_seq = next_seq_ - 1;
    (void)high_water_.write_synced(mark);  // a stale mark is only a weaker check
  }
}

// Nothing when closed and drained. While idle, commits that met a full disk are written.
std::optional<LogWriter::Item> LogWriter::wait_for_item() {
  while (true) {
    if (auto item = queue_.pop(Clock::now() + kIdleWait)) return item;
    if (queue_.closed() && queue_.size() == 0) return std::nullopt;
    if (!ledger_->write_pending_commit().ok()) (void)store_->resume(false);
  }
}

LogWriter::Batch LogWriter::collect(Item first) {
  Batch batch;
  const bool alone = options_.durability == Durability::kEach;
  const auto deadline = Clock::now() + std::chrono::milliseconds(options_.batch_wait_ms);
  prepare(std::move(first), &batch);
  while (!alone && batch.bytes < options_.batch_bytes) {
    auto item = queue_.pop(deadline);
    if (!item) break;
    prepare(*std::move(item), &batch);
  }
  return batch;
}

// Numbers and encodes; a sample that cannot be encoded gets no seq, so that there are no holes.
void LogWriter::prepare(Item item, Batch* batch) {
  Trajectory& trajectory = item.trajectory;
  trajectory.seq = next_seq_;
  trajectory.trajectory_id = trajectory_id_of(identity_.producer_id, next_seq_);
  trajectory.timings.sealed_ns = now_ns();
  Bytes record;
  Bytes tensors;
  if (Status status = encode_trajectory(trajectory, &record, &tensors); !status.ok()) {
    if (item.done) item.done(status);
    return;
  }
  const uint64_t bytes = record.size() + tensors.size();
  {
    const Store::Session session = store_->session();
    if (!session.is_open()) {
      if (item.done) item.done(aborted("sample log: the database could not be reopened"));
      return;
    }
    put_sample(session, summary_of(trajectory), record, tensors, options_.compress_records,
               &batch->writes);
    batch->writes.Put(session.family(Family::kOutbox), be64(next_seq_),
                      encode_outbox({.seq = next_seq_, .bytes = bytes}));
    batch->writes.Put(session.family(Family::kMeta), kMetaNextSeq, be64(next_seq_ + 1));
  }
  batch->samples.push_back({.sealed = {.seq = next_seq_,
                                       .epoch = identity_.epoch,
                                       .trajectory_id = trajectory.trajectory_id,
                                       .sealed_ns = trajectory.timings.sealed_ns,
                                       .bytes = bytes},
                            .done = std::move(item.done)});
  batch->bytes += bytes;
  batch->last_seq = next_seq_;
  in_batch_ = batch->samples.size();
  ++next_seq_;
}

bool LogWriter::write_until_done(Batch* batch) {
  std::optional<Clock::time_point> failing_since;
  while (true) {
    Status status = check_space();
    const bool space = status.ok();
    if (space) status = write_once(batch);
    if (status.ok()) break;
    pause(status);
    // The time counts from the last moment without space: reopening cannot make any.
    if (!space) failing_since.reset();
    if (space && !failing_since) failing_since = Clock::now();
    if (!wait_for_retry()) return false;
    if (failing_since) try_to_recover(*failing_since);
  }
  unpause();
  return true;
}

Status LogWriter::write_once(Batch* batch) {
  const auto begin = Clock::now();
  if (options_.durability == Durability::kOs) WARPROLL_TRY(reserve_seqs(batch->last_seq));
  WARPROLL_TRY(store_->write(&batch->writes, options_.durability != Durability::kOs));
  WARPROLL_TRY(note_durable(batch->last_seq));
  const auto us = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count());
  std::lock_guard lock(mutex_);
  stats_.last_batch_us = us;
  stats_.max_batch_us = std::max(stats_.max_batch_us, us);
  return ok_status();
}

// Durability os: no seq is given out before the synced file says it may have been.
Status LogWriter::reserve_seqs(uint64_t last_seq) {
  HighWaterMark mark = high_water_.mark();
  if (last_seq <= mark.reserved_seq) return ok_status();
  rocksdb::WriteBatch nothing;
  nothing.PutLogData("reserve");
  WARPROLL_TRY(store_->write(&nothing, true));
  mark.synced_seq = ledger_->info().last_seq;
  mark.reserved_seq = last_seq + options_.seq_block;
  return high_water_.write_synced(mark);
}

Status LogWriter::note_durable(uint64_t last_seq) {
  if (options_.durability == Durability::kOs) return high_water_.write_os(last_seq);
  HighWaterMark mark = high_water_.mark();
  mark.synced_seq = mark.reserved_seq = last_seq;
  return high_water_.write_synced(mark);
}

Status LogWriter::check_space() {
  uint64_t free_bytes = 0;
  if (options_.free_bytes) {
    free_bytes = options_.free_bytes();
  } else {
    std::error_code error;
    free_bytes = std::filesystem::space(options_.directory, error).available;
    if (error) return unavailable("cannot read the free space of " + options_.directory);
  }
  {
    std::lock_guard lock(mutex_);
    stats_.free_bytes = free_bytes;
  }
  if (free_bytes >= options_.min_free_bytes) return ok_status();
  return resource_exhausted("disk of " + options_.directory + ": " + std::to_string(free_bytes) +
                            " bytes free, wanted " + std::to_string(options_.min_free_bytes));
}

// RocksDB refuses writes after an I/O error until resumed; some errors only a reopen clears.
void LogWriter::try_to_recover(Clock::time_point failing_since) {
  const auto failing = Clock::now() - failing_since;
  const bool reopen = failing >= std::chrono::milliseconds(options_.reopen_after_ms);
  const bool closed = !store_->session().is_open();  // an earlier reopen failed
  if (reopen || closed) {
    std::lock_guard lock(mutex_);
    ++stats_.reopens;
  }
  (void)store_->resume(reopen || closed);  // the next write tells whether it helped
}

void LogWriter::finish(Batch* batch) {
  ledger_->advance(batch->last_seq);
  in_batch_ = 0;
  {
    std::lock_guard lock(mutex_);
    stats_.sealed_samples += batch->samples.size();
    stats_.sealed_bytes += batch->bytes;
    stats_.batches += 1;
  }
  for (Prepared& sample : batch->samples) {
    if (sample.done) sample.done(std::move(sample.sealed));
  }
  std::lock_guard lock(listener_mutex_);
  if (listener_) listener_(batch->last_seq);
}

void LogWriter::give_up(std::vector<Prepared> samples) {
  in_batch_ = 0;
  const Status status =
      aborted("sample log: closed before the sample could be written: " + stats().pause_reason);
  for (Prepared& sample : samples) {
    if (sample.done) sample.done(status);
  }
}

void LogWriter::pause(const Status& reason) {
  std::lock_guard lock(mutex_);
  if (stats_.intake == IntakeState::kOpen) ++stats_.pauses;
  stats_.intake = IntakeState::kPaused;
  stats_.pause_reason = reason.to_string();
  ++stats_.write_failures;
}

void LogWriter::unpause() {
  std::lock_guard lock(mutex_);
  stats_.intake = IntakeState::kOpen;
  stats_.pause_reason.clear();
}

bool LogWriter::wait_for_retry() {
  const auto retry_at = Clock::now() + std::chrono::milliseconds(options_.retry_ms);
  std::unique_lock lock(mutex_);
  const auto until = give_up_at_ ? std::min(retry_at, *give_up_at_) : retry_at;
  stopping_.wait_until(lock, until);  // stop() wakes it for one more try
  return !give_up_at_ || Clock::now() < *give_up_at_;
}

}  // namespace warproll
