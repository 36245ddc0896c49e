#include "rollout/sample_log/sample_log.h"

#include "rollout/sample_log/log_reader.h"
#include "rollout/sample_log/log_writer.h"
#include "rollout/sample_log/open_log.h"

namespace warproll {

std::string_view to_string(IntakeState state) {
  switch (state) {
    case IntakeState::kOpen:
      return "open";
    case IntakeState::kPaused:
      return "paused";
    case IntakeState::kClosed:
      return "closed";
  }
  return "unknown";
}

// Destroyed from the last member up: the writer ends before the store, the lock goes last.
struct SampleLog::Impl {
  Impl(const SampleLogOptions& options, OpenedLog opened)
      : lock(std::move(opened.lock)),
        store(std::move(opened.store)),
        ledger(store, std::move(opened.state), options.retention),
        writer(options, store, std::move(opened.high_water), &ledger) {}

  DirectoryLock lock;
  std::shared_ptr<Store> store;
  Ledger ledger;
  LogWriter writer;
};

namespace {

Status check_options(const SampleLogOptions& options) {
  const auto bad = [](const std::string& name, uint64_t value, const std::string& wanted) {
    return invalid_argument("sample log " + name + ": " + std::to_string(value) + ", wanted " +
                            wanted);
  };
  if (options.queue_samples == 0) return bad("queue_samples", 0, "1 or more");
  if (options.batch_bytes == 0) return bad("batch_bytes", 0, "1 or more");
  if (options.retry_ms == 0) return bad("retry_ms", 0, "1 or more");
  if (options.seq_block == 0) return bad("seq_block", 0, "1 or more");
  return ok_status();
}

}  // namespace

SampleLog::SampleLog(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SampleLog::~SampleLog() { (void)close(); }

Result<std::unique_ptr<SampleLog>> SampleLog::open(SampleLogOptions options) {
  WARPROLL_TRY(check_options(options));
  WARPROLL_TRY_ASSIGN(opened, open_log_directory(options));
  auto impl = std::make_unique<Impl>(options, std::move(opened));
  return std::unique_ptr<SampleLog>(new SampleLog(std::move(impl)));
}

Status SampleLog::append(Trajectory trajectory, Clock::time_point deadline, Callback done) {
  return impl_->writer.push(std::move(trajectory), deadline, std::move(done));
}

std::future<Result<Sealed>> SampleLog::append(Trajectory trajectory, Clock::time_point deadline) {
  auto promise = std::make_shared<std::promise<Result<Sealed>>>();
  auto future = promise->get_future();
  const Status status = append(std::move(trajectory), deadline, [promise](Result<Sealed> sealed) {
    promise->set_value(std::move(sealed));
  });
  if (!status.ok()) promise->set_value(status);
  return future;
}

void SampleLog::set_sealed_listener(std::function<void(uint64_t)> listener) {
  impl_->writer.set_listener(std::move(listener));
}
Result<bool> SampleLog::is_sealed(const std::string& task_id, int32_t sample_index) const {
  return impl_->store->is_sealed(task_id, sample_index);
}
Result<std::vector<OutboxEntry>> SampleLog::read_outbox(uint64_t from_seq,
                                                        size_t max_entries) const {
  return impl_->ledger.read_outbox(from_seq, max_entries);
}
Result<StoredRecord> SampleLog::read(uint64_t seq) const { return impl_->store->read(seq); }
std::vector<GapRange> SampleLog::unsendable(uint64_t from_seq, uint64_t to_seq) const {
  return impl_->ledger.unsendable(from_seq, to_seq);
}
Status SampleLog::note_sent(const std::vector<uint64_t>& seqs) {
  return impl_->ledger.note_sent(seqs);
}
Status SampleLog::mark_committed(uint64_t upto, const std::string& lineage_id) {
  return impl_->ledger.mark_committed(upto, lineage_id);
}
Result<std::vector<GapRange>> SampleLog::rewind(const std::string& lineage_id,
                                                uint64_t commit_upto) {
  return impl_->ledger.rewind(lineage_id, commit_upto);
}
Status SampleLog::dead_letter(uint64_t seq, NackCode code, const std::string& reason) {
  return impl_->ledger.dead_letter(seq, code, reason);
}
Result<RetentionResult> SampleLog::apply_retention() { return impl_->ledger.apply_retention(); }

ProducerId SampleLog::producer_id() const { return info().producer_id; }
uint64_t SampleLog::epoch() const { return info().epoch; }
uint64_t SampleLog::last_seq() const { return info().last_seq; }
uint64_t SampleLog::commit_upto() const { return info().commit_upto; }
std::string SampleLog::lineage_id() const { return info().lineage_id; }
LogInfo SampleLog::info() const { return impl_->ledger.info(); }
SampleLogStats SampleLog::stats() const { return impl_->writer.stats(); }
Result<Accounting> SampleLog::accounting() const { return impl_->store->accounting(); }
std::shared_ptr<LogReader> SampleLog::reader() const {
  return std::make_shared<LogReader>(impl_->store);
}

Status SampleLog::close() {
  const Status written = impl_->writer.stop();
  WARPROLL_TRY(impl_->store->close());
  return written;
}

}  // namespace warproll
