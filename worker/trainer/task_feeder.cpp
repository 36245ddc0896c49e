#include "worker/trainer/task_feeder.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace warproll {
namespace {

// Whole lines of the file; a torn last line is cut off.
Result<uint64_t> count_and_cut(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return uint64_t{0};
  uint64_t lines = 0;
  uint64_t whole_bytes = 0;
  for (std::string line; std::getline(file, line);) {
    if (file.eof()) break;  // no newline at its end
    whole_bytes += line.size() + 1;
    ++lines;
  }
  std::error_code error;
  std::filesystem::resize_file(path, whole_bytes, error);
  if (error) return unavailable(path + ": cannot be cut to whole lines: " + error.message());
  return lines;
}

}  // namespace

TaskFeeder::TaskFeeder(std::unique_ptr<TaskSource> source, std::string issued_path,
                       std::FILE* issued, uint64_t num_written)
    : source_(std::move(source)),
      issued_path_(std::move(issued_path)),
      issued_(issued),
      num_written_(num_written) {}

TaskFeeder::~TaskFeeder() { std::fclose(issued_); }

Result<std::unique_ptr<TaskFeeder>> TaskFeeder::open(std::unique_ptr<TaskSource> source,
                                                     const std::string& issued_path) {
  WARPROLL_TRY_ASSIGN(num_written, count_and_cut(issued_path));
  std::FILE* issued = std::fopen(issued_path.c_str(), "ab");
  if (issued == nullptr) {
    return unavailable(issued_path + ": cannot be opened for writing: " + std::strerror(errno));
  }
  return std::unique_ptr<TaskFeeder>(
      new TaskFeeder(std::move(source), issued_path, issued, num_written));
}

Status TaskFeeder::write_issued(const Task& task) {
  const std::string line =
      nlohmann::ordered_json{{"task_id", task.task_id}, {"group_size", task.group_size}}.dump(
          -1, ' ', false, nlohmann::json::error_handler_t::replace) +
      "\n";
  if (std::fwrite(line.data(), 1, line.size(), issued_) != line.size()) {
    return unavailable(issued_path_ + ": write failed: " + std::strerror(errno));
  }
  ++num_written_;
  return ok_status();
}

Status TaskFeeder::feed(TrainerStream& stream, size_t max_unfinished) {
  bool wrote = false;
  std::vector<Task> batch;
  while (!exhausted_ && stream.leases().num_unfinished() + batch.size() < max_unfinished) {
    WARPROLL_TRY_ASSIGN(task, source_->next());
    if (!task.has_value()) {
      exhausted_ = true;
      break;
    }
    if (num_fed_ + batch.size() >= num_written_) {
      WARPROLL_TRY(write_issued(*task));
      wrote = true;
    }
    batch.push_back(*std::move(task));
  }
  if (wrote && (std::fflush(issued_) != 0 || fdatasync(fileno(issued_)) != 0)) {
    return unavailable(issued_path_ + ": sync failed: " + std::strerror(errno));
  }
  for (const Task& task : batch) {
    WARPROLL_TRY(stream.add_task(task));
    ++num_fed_;
    num_samples_fed_ += static_cast<uint64_t>(task.group_size);
  }
  return ok_status();
}

}  // namespace warproll
