#include "worker/trainer/task_feeder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace warproll {
namespace {

struct IssuedFile {
  uint64_t lines = 0;
  uint64_t bytes = 0;
};

// Whole lines of the file; a torn last line is cut off.
Result<IssuedFile> count_and_cut(const std::string& path) {
  IssuedFile whole;
  std::ifstream file(path, std::ios::binary);
  if (!file) return whole;
  for (std::string line; std::getline(file, line);) {
    if (file.eof()) break;  // no newline at its end
    whole.bytes += line.size() + 1;
    ++whole.lines;
  }
  std::error_code error;
  std::filesystem::resize_file(path, whole.bytes, error);
  if (error) return unavailable(path + ": cannot be cut to whole lines: " + error.message());
  return whole;
}

std::string issued_line(const Task& task) {
  return nlohmann::ordered_json{{"task_id", task.task_id}, {"group_size", task.group_size}}.dump(
             -1, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

}  // namespace

TaskFeeder::TaskFeeder(std::unique_ptr<TaskSource> source, std::string issued_path, int issued_fd,
                       uint64_t num_written, uint64_t bytes_written)
    : source_(std::move(source)),
      issued_path_(std::move(issued_path)),
      issued_fd_(issued_fd),
      num_written_(num_written),
      bytes_written_(bytes_written) {}

TaskFeeder::~TaskFeeder() { close(issued_fd_); }

Result<std::unique_ptr<TaskFeeder>> TaskFeeder::open(std::unique_ptr<TaskSource> source,
                                                     const std::string& issued_path) {
  WARPROLL_TRY_ASSIGN(issued, count_and_cut(issued_path));
  const int fd = ::open(issued_path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    return unavailable(issued_path + ": cannot be opened for writing: " + std::strerror(errno));
  }
  return std::unique_ptr<TaskFeeder>(
      new TaskFeeder(std::move(source), issued_path, fd, issued.lines, issued.bytes));
}

// The lines of pending tasks that the file does not have yet, durable before any of them is issued.
Status TaskFeeder::write_issued() {
  std::string text;
  uint64_t lines = 0;
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (num_fed_ + i < num_written_) continue;  // by an earlier run, or an earlier try
    text += issued_line(pending_[i]);
    ++lines;
  }
  for (size_t done = 0; done < text.size();) {
    // At bytes_written_, not at the end: what a failed write left behind it is overwritten.
    const ssize_t wrote = pwrite(issued_fd_, text.data() + done, text.size() - done,
                                 static_cast<off_t>(bytes_written_ + done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      return unavailable(issued_path_ + ": write failed: " + std::strerror(errno));
    }
    done += static_cast<size_t>(wrote);
  }
  if (lines != 0 && fdatasync(issued_fd_) != 0) {
    return unavailable(issued_path_ + ": sync failed: " + std::strerror(errno));
  }
  num_written_ += lines;
  bytes_written_ += text.size();
  return ok_status();
}

Status TaskFeeder::feed(TrainerStream& stream, size_t max_unfinished) {
  while (!exhausted_ && stream.leases().num_unfinished() + pending_.size() < max_unfinished) {
    WARPROLL_TRY_ASSIGN(task, source_->next());
    if (!task.has_value()) {
      exhausted_ = true;
      break;
    }
    pending_.push_back(*std::move(task));
  }
  WARPROLL_TRY(write_issued());
  while (!pending_.empty()) {
    WARPROLL_TRY(stream.add_task(pending_.front()));
    ++num_fed_;
    pending_.pop_front();
  }
  return ok_status();
}

}  // namespace warproll
