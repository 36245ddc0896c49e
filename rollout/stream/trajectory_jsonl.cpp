#include "rollout/stream/trajectory_jsonl.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "protocol/codec.h"
#include "rollout/sample_log/trajectory_json.h"

namespace warproll {
namespace {

Status from_errno(const std::string& doing, const std::string& path) {
  const int error = errno;
  const StatusCode code = error == ENOSPC || error == EDQUOT ? StatusCode::kResourceExhausted
                                                             : StatusCode::kUnavailable;
  return {code, doing + " '" + path + "': " + std::strerror(error)};
}

}  // namespace

Result<std::unique_ptr<TrajectoryJsonl>> TrajectoryJsonl::open(TrajectoryJsonlOptions options,
                                                               TrajectoryStore& store) {
  std::unique_ptr<TrajectoryJsonl> file(new TrajectoryJsonl(std::move(options), store));
  WARPROLL_TRY(file->recover());
  return file;
}

TrajectoryJsonl::TrajectoryJsonl(TrajectoryJsonlOptions options, TrajectoryStore& store)
    : options_(std::move(options)), store_(store) {}

TrajectoryJsonl::~TrajectoryJsonl() {
  if (fd_ >= 0) ::close(fd_);
}

Status TrajectoryJsonl::recover() {
  fd_ = ::open(options_.path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) return from_errno("open of", options_.path);
  struct stat info {};
  if (::fstat(fd_, &info) != 0) return from_errno("stat of", options_.path);
  const auto size = static_cast<uint64_t>(info.st_size);
  const TrajectoryStore::FileProgress progress = store_.file_progress();
  lines_ = progress.lines;
  bytes_ = size;
  if (progress.bytes == TrajectoryStore::kUnknownBytes) return cut_after(progress.lines);
  if (size < progress.bytes) {
    lines_ = 0;
    return truncate(0);
  }
  return truncate(progress.bytes);
}

// After a rollback: the file keeps its first `num_lines` lines.
Status TrajectoryJsonl::cut_after(uint64_t num_lines) {
  std::ifstream in(options_.path, std::ios::binary);
  std::array<char, 1 << 16> buffer{};
  uint64_t seen = 0;
  uint64_t keep = 0;
  uint64_t offset = 0;
  while (seen < num_lines && in) {
    in.read(buffer.data(), buffer.size());
    const auto got = static_cast<size_t>(in.gcount());
    for (size_t i = 0; i < got && seen < num_lines; ++i) {
      if (buffer[i] != '\n') continue;
      ++seen;
      keep = offset + i + 1;
    }
    offset += got;
  }
  if (seen < num_lines) {  // it does not even hold these: anew
    lines_ = 0;
    return truncate(0);
  }
  lines_ = num_lines;
  WARPROLL_TRY(keep_aside(keep));
  return truncate(keep);
}

Status TrajectoryJsonl::keep_aside(uint64_t from_byte) {
  std::ifstream in(options_.path, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(from_byte));
  if (in.peek() == std::ifstream::traits_type::eof()) return ok_status();
  const std::string aside_path = options_.path + ".rolled-back";
  std::ofstream aside(aside_path, std::ios::binary | std::ios::app);
  aside << in.rdbuf();
  aside.flush();
  if (!aside) return from_errno("append to", aside_path);
  return ok_status();
}

Status TrajectoryJsonl::truncate(uint64_t bytes) {
  if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) {
    return from_errno("truncation of", options_.path);
  }
  bytes_ = synced_bytes_ = bytes;
  return sync();
}

Status TrajectoryJsonl::append(const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    // At bytes_, not at the end: what a failed write left behind it is overwritten.
    const ssize_t wrote =
        ::pwrite(fd_, text.data() + done, text.size() - done, static_cast<off_t>(bytes_ + done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return from_errno("write to", options_.path);
    done += static_cast<size_t>(wrote);
  }
  bytes_ += text.size();
  ++lines_;
  return ok_status();
}

Result<bool> TrajectoryJsonl::write(size_t max_lines) {
  // A rollback of the store since the last call.
  const TrajectoryStore::FileProgress progress = store_.file_progress();
  if (progress.bytes == TrajectoryStore::kUnknownBytes) WARPROLL_TRY(cut_after(progress.lines));
  if (lines_ > store_.num_taken()) WARPROLL_TRY(cut_after(store_.num_taken()));
  WARPROLL_TRY_ASSIGN(taken, store_.read(lines_, max_lines));
  for (const TakenTrajectory& item : taken) {
    auto trajectory = decode_trajectory(item.record, item.tensors);
    if (!trajectory.ok()) {
      return data_loss("trajectory store: take_index " + std::to_string(item.take_index) +
                       " does not decode: " + trajectory.status().message());
    }
    if (options_.annotate) options_.annotate(*trajectory);
    WARPROLL_TRY(append(trajectory_to_json(*trajectory) + "\n"));
  }
  if (bytes_ - synced_bytes_ >= options_.sync_bytes) WARPROLL_TRY(sync());
  return lines_ == store_.num_taken();
}

Status TrajectoryJsonl::sync() {
  if (::fdatasync(fd_) != 0) return from_errno("fdatasync of", options_.path);
  synced_bytes_ = bytes_;
  const TrajectoryStore::FileProgress known = store_.file_progress();
  if (known.lines == lines_ && known.bytes == bytes_) return ok_status();
  return store_.set_file_progress({lines_, bytes_});
}

}  // namespace warproll
