#include "worker/commands/log_listing.h"

#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "protocol/codec.h"
#include "rollout/sample_log/log_check.h"
#include "rollout/sample_log/log_reader.h"
#include "rollout/sample_log/trajectory_json.h"
#include "rollout/stream/trajectory_store.h"
#include "worker/commands/output_file.h"
#include "worker/terminal/exit_code.h"
#include "worker/terminal/progress.h"
#include "worker/terminal/stop_signal.h"
#include "worker/terminal/table.h"

namespace warproll {
namespace {

std::string utc_time(int64_t unix_ns) {
  if (unix_ns == 0) return "-";
  const std::time_t seconds = unix_ns / 1'000'000'000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  const size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  char result[48];
  std::snprintf(result, sizeof result, "%.*s.%03lldZ", static_cast<int>(length), text,
                static_cast<long long>(unix_ns / 1'000'000 % 1000));
  return result;
}

std::string join_versions(const std::vector<uint64_t>& versions) {
  std::string result;
  for (const uint64_t version : versions) {
    result += (result.empty() ? "" : ",") + std::to_string(version);
  }
  return result;
}

// Opens the log and hands every selected sample to `take` until it says stop.
Status for_each_sample(const std::string& directory, const LogSelection& selection,
                       const std::function<Result<bool>(const StoredRecord&)>& take) {
  WARPROLL_TRY_ASSIGN(cursor, open_selection(directory, selection));
  for (;;) {
    WARPROLL_TRY_ASSIGN(sample, cursor.next());
    if (!sample.has_value()) return ok_status();
    WARPROLL_TRY_ASSIGN(go_on, take(*sample));
    if (!go_on) return ok_status();
  }
}

std::vector<std::string> listing_row(const RecordSummary& sample) {
  return {
      std::to_string(sample.seq),
      utc_time(sample.sealed_ns),
      sample.task_id,
      std::to_string(sample.sample_index),
      std::to_string(sample.prompt_len),
      std::to_string(sample.num_tokens - sample.prompt_len),
      std::string(to_string(sample.finish_reason)),
      join_versions(sample.weight_versions),
      sample.tensors_bytes == 0 ? "-" : format_bytes(static_cast<double>(sample.tensors_bytes))};
}

nlohmann::json stats_json(const LogSummary& summary) {
  nlohmann::json versions = nlohmann::json::object();
  for (const auto& [version, samples] : summary.samples_by_weight_version) {
    versions[std::to_string(version)] = samples;
  }
  return {{"producer_id", to_hex(summary.info.producer_id)},
          {"epoch", summary.info.epoch},
          {"last_seq", summary.info.last_seq},
          {"commit_upto", summary.info.commit_upto},
          {"lineage_id", summary.info.lineage_id},
          {"retained_from", summary.info.retained_from},
          {"produced", summary.accounting.produced},
          {"committed", summary.accounting.committed},
          {"outbox", summary.accounting.outbox},
          {"dead_letters", summary.accounting.dead_letters},
          {"gaps", summary.accounting.gaps},
          {"accounting_holds", summary.accounting.holds()},
          {"stored_samples", summary.samples},
          {"stored_bytes", summary.bytes},
          {"oldest", utc_time(summary.oldest_ns)},
          {"newest", utc_time(summary.newest_ns)},
          {"groups", summary.groups},
          {"tasks", summary.tasks},
          {"samples_by_weight_version", versions}};
}

}  // namespace

int list_samples(const std::string& directory, const LogSelection& selection, uint64_t limit) {
  Table table(
      {"seq", "sealed", "task", "sample", "prompt", "tokens", "finish", "versions", "routes"});
  const Status status =
      for_each_sample(directory, selection, [&](const StoredRecord& stored) -> Result<bool> {
        WARPROLL_TRY_ASSIGN(sample, peek_trajectory(stored.record));
        table.add(listing_row(sample));
        return limit == 0 || table.num_rows() < limit;
      });
  std::fputs(table.to_string().c_str(), stdout);
  return status.ok() ? kExitOk : report_failure(status);
}

int show_sample(const std::string& directory, uint64_t seq) {
  const auto reader = LogReader::open_for_inspection(directory);
  if (!reader.ok()) return report_failure(reader.status());
  const Result<StoredRecord> stored = (*reader)->read(seq);
  if (!stored.ok()) return report_failure(stored.status());
  const Result<Trajectory> trajectory = decode_stored(*stored);
  if (!trajectory.ok()) return report_failure(trajectory.status());
  std::puts(trajectory_to_json(*trajectory).c_str());
  return kExitOk;
}

int print_stats(const std::string& directory, bool json) {
  const Result<LogSummary> summary = summarize_log(directory);
  if (!summary.ok()) return report_failure(summary.status());
  const nlohmann::json values = stats_json(*summary);
  if (json) {
    std::puts(values.dump().c_str());
    return kExitOk;
  }
  Table table({"", ""});
  for (const auto& [key, value] : values.items()) {
    table.add({key, value.is_string() ? value.get<std::string>() : value.dump()});
  }
  std::fputs(table.to_string().c_str() + 1, stdout);  // no header line
  return kExitOk;
}

namespace {

// Writes samples to one output file, with progress, until the source or the user ends it.
class SampleExport {
 public:
  static Result<std::unique_ptr<SampleExport>> create(const std::string& output,
                                                      const std::string& format, StopSignal& stop) {
    WARPROLL_TRY_ASSIGN(file, OutputFile::create(output));
    return std::make_unique<SampleExport>(std::move(file), output, format == "jsonl", stop);
  }
  SampleExport(std::unique_ptr<OutputFile> file, std::string output, bool jsonl, StopSignal& stop)
      : file_(std::move(file)), output_(std::move(output)), jsonl_(jsonl), stop_(stop) {}

  Result<bool> add(const StoredRecord& stored) {
    if (jsonl_) {
      WARPROLL_TRY_ASSIGN(trajectory, decode_stored(stored));
      WARPROLL_TRY(file_->write_line(trajectory_to_json(trajectory)));
    } else {
      WARPROLL_TRY(file_->write_record(stored.record, stored.tensors));
    }
    progress_.update(++samples_);
    if (stop_.wait_until(std::chrono::steady_clock::now())) {
      return aborted("export stopped by a signal; " + output_ + " was not written");
    }
    return true;
  }
  Status finish() {
    WARPROLL_TRY(file_->finish());
    std::fprintf(stderr, "%llu samples exported\n", static_cast<unsigned long long>(samples_));
    return ok_status();
  }

 private:
  const std::unique_ptr<OutputFile> file_;
  const std::string output_;
  const bool jsonl_;
  StopSignal& stop_;
  Progress progress_{"export", 0, ProgressUnit::kItems};
  uint64_t samples_ = 0;
};

Status export_store(const std::string& state_directory, SampleExport& target) {
  const std::string directory = state_directory + "/store";
  if (!std::filesystem::exists(directory)) return not_found(directory + ": no trainer state there");
  WARPROLL_TRY_ASSIGN(store, TrajectoryStore::open({.directory = directory}));
  for (uint64_t index = 0; index < store->num_taken();) {
    WARPROLL_TRY_ASSIGN(batch, store->read(index, 256));
    for (TakenTrajectory& taken : batch) {
      StoredRecord stored;
      stored.seq = taken.key.seq;
      stored.record = std::move(taken.record);
      stored.tensors = std::move(taken.tensors);
      WARPROLL_TRY(target.add(stored).status());
      ++index;
    }
    if (batch.empty()) return data_loss(directory + ": a taken trajectory cannot be read");
  }
  return ok_status();
}

}  // namespace

int export_samples(const std::string& directory, const LogSelection& selection,
                   const std::string& output, const std::string& format, CommandContext& context) {
  Result<std::unique_ptr<SampleExport>> target = SampleExport::create(output, format, context.stop);
  if (!target.ok()) return report_failure(target.status());
  Status status = for_each_sample(
      directory, selection, [&](const StoredRecord& stored) { return (*target)->add(stored); });
  if (status.ok()) status = (*target)->finish();
  return status.ok() ? kExitOk : report_failure(status);
}

int export_taken(const std::string& state_directory, const std::string& output,
                 const std::string& format, CommandContext& context) {
  Result<std::unique_ptr<SampleExport>> target = SampleExport::create(output, format, context.stop);
  if (!target.ok()) return report_failure(target.status());
  Status status = export_store(state_directory, **target);
  if (status.ok()) status = (*target)->finish();
  return status.ok() ? kExitOk : report_failure(status);
}

}  // namespace warproll
