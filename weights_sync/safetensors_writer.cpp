// SafetensorsWriter and the files it stands on (checkpoint_writer.h).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "weights_sync/checkpoint_writer.h"
#include "weights_sync/tensor_check.h"

namespace warproll {

namespace fs = std::filesystem;

namespace {

Status system_error(const std::string& path, const char* action, int error) {
  const bool no_room = error == ENOSPC || error == EDQUOT || error == EFBIG;
  const StatusCode code = no_room ? StatusCode::kResourceExhausted : StatusCode::kUnavailable;
  return {code, path + ": cannot " + action + ": " + std::strerror(error)};
}

std::string temporary_name(const std::string& path) {
  return path + ".tmp-" + std::to_string(::getpid());
}

// A file under its temporary name until publish().
class NewFile {
 public:
  NewFile() = default;
  NewFile(NewFile&&) = delete;
  ~NewFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }
  Status create(const std::string& path) {
    path_ = path;
    temporary_ = temporary_name(path);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    return fd_ >= 0 ? ok_status() : system_error(temporary_, "create", errno);
  }
  Status write_at(uint64_t offset, const void* data, size_t bytes) {
    const auto* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t done = ::pwrite(fd_, from, bytes, static_cast<off_t>(offset));
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return system_error(temporary_, "write", done < 0 ? errno : EIO);
      from += done;
      offset += static_cast<uint64_t>(done);
      bytes -= static_cast<size_t>(done);
    }
    return ok_status();
  }
  Status publish() {
    if (::fsync(fd_) != 0) return system_error(temporary_, "sync", errno);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
      return system_error(path_, "rename its temporary file to it", errno);
    }
    ::close(std::exchange(fd_, -1));
    return ok_status();
  }

 private:
  std::string path_;
  std::string temporary_;
  int fd_ = -1;
};

// The reference writer's order of dtypes, widest alignment first.
int rank_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kI64:
      return 0;
    case Dtype::kF32:
      return 1;
    case Dtype::kI32:
      return 2;
    case Dtype::kBf16:
      return 3;
    case Dtype::kF16:
      return 4;
    case Dtype::kU16:
      return 5;
    case Dtype::kF8E8M0:
      return 6;
    case Dtype::kF8E4M3:
      return 7;
    case Dtype::kU8:
      return 8;
  }
  return 9;
}

}  // namespace

struct SafetensorsWriter::Impl {
  struct Place {
    uint64_t offset = 0;  // in the file
    uint64_t bytes = 0;
    std::atomic<bool> taken = false;
  };
  NewFile file;
  std::string path;
  std::map<std::string, Place, std::less<>> places;
  std::atomic<size_t> num_written{0};
};

Result<SafetensorsWriter> SafetensorsWriter::create(
    const std::string& path, std::vector<TensorInfo> tensors,
    const std::vector<std::pair<std::string, std::string>>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair<int, const std::string&>(rank_of(a.dtype), a.name) <
           std::pair<int, const std::string&>(rank_of(b.dtype), b.name);
  });
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  nlohmann::ordered_json header;
  for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  uint64_t end = 0;
  std::vector<std::string> text;  // one entry each: ordered_json looks keys up linearly
  for (const TensorInfo& tensor : tensors) {
    WARPROLL_TRY(check_tensor_name(tensor.name).with_context(path));
    if (!impl->places.try_emplace(tensor.name).second) {
      return invalid_argument(path + ": tensor '" + tensor.name + "' is listed twice, wanted once");
    }
    Impl::Place& place = impl->places.find(tensor.name)->second;
    place.offset = end;
    place.bytes = tensor.bytes;
    const nlohmann::ordered_json entry = {{"dtype", to_string(tensor.dtype)},
                                          {"shape", tensor.shape},
                                          {"data_offsets", {end, end + tensor.bytes}}};
    text.push_back(nlohmann::json(tensor.name).dump() + ":" + entry.dump());
    end += tensor.bytes;
  }
  std::string json = header.is_null() ? "{" : header.dump();
  if (!header.is_null()) json.back() = text.empty() ? ' ' : ',';
  for (size_t i = 0; i < text.size(); ++i) json += (i > 0 ? "," : "") + text[i];
  json += "}";
  json.append((8 - json.size() % 8) % 8, ' ');

  std::string prefix;
  for (int shift = 0; shift < 64; shift += 8) {
    prefix += static_cast<char>(static_cast<uint64_t>(json.size()) >> shift);
  }
  prefix += json;
  for (auto& [name, place] : impl->places) place.offset += prefix.size();
  WARPROLL_TRY(impl->file.create(path));
  WARPROLL_TRY(impl->file.write_at(0, prefix.data(), prefix.size()));
  return SafetensorsWriter(std::move(impl));
}

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

Status SafetensorsWriter::write(std::string_view tensor_name, std::span<const std::byte> bytes) {
  const auto found = impl_->places.find(tensor_name);
  if (found == impl_->places.end() || found->second.taken.exchange(true)) {
    return invalid_argument(impl_->path + ": tensor '" + printable(tensor_name) +
                            "' is unknown or was written before, wanted each announced one once");
  }
  if (bytes.size() != found->second.bytes) {
    return invalid_argument(impl_->path + ": tensor '" + found->first + "' came with " +
                            std::to_string(bytes.size()) + " bytes, wanted " +
                            std::to_string(found->second.bytes));
  }
  WARPROLL_TRY(impl_->file.write_at(found->second.offset, bytes.data(), bytes.size()));
  ++impl_->num_written;
  return ok_status();
}

Status SafetensorsWriter::finish() {
  if (impl_->num_written != impl_->places.size()) {
    return failed_precondition(impl_->path + ": " + std::to_string(impl_->num_written) + " of " +
                               std::to_string(impl_->places.size()) +
                               " tensors were written, wanted all");
  }
  return impl_->file.publish();
}

Result<StagedDirectory> StagedDirectory::create(const std::string& target) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(target, error))) {
    return already_exists(target + ": exists already, wanted a new directory");
  }
  StagedDirectory staged;
  staged.target_ = (fs::path(target) / "").parent_path().string();  // without a trailing slash
  const std::string path = temporary_name(staged.target_);
  fs::remove_all(path, error);  // of a process that had our id and died
  fs::create_directories(path, error);
  if (error) return unavailable(path + ": cannot create: " + error.message());
  staged.path_ = path;
  return staged;
}

StagedDirectory::StagedDirectory(StagedDirectory&& other) noexcept
    : target_(std::move(other.target_)), path_(std::exchange(other.path_, {})) {}

StagedDirectory& StagedDirectory::operator=(StagedDirectory&& other) noexcept {
  std::swap(target_, other.target_);
  std::swap(path_, other.path_);
  return *this;
}

StagedDirectory::~StagedDirectory() {
  if (path_.empty()) return;
  std::error_code ignored;  // nothing to be done about it here
  fs::remove_all(path_, ignored);
}

Status StagedDirectory::commit() {
  WARPROLL_TRY(sync_path(path_));
  // rename() would replace an empty directory that appeared meanwhile; RENAME_NOREPLACE does not,
  // but some network file systems refuse it (EINVAL).
  int outcome = ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_NOREPLACE);
  if (outcome != 0 && errno == EINVAL) outcome = ::rename(path_.c_str(), target_.c_str());
  if (outcome != 0) {
    if (errno == EEXIST || errno == ENOTEMPTY) {
      return already_exists(target_ + ": appeared meanwhile, wanted it new");
    }
    return system_error(target_, "rename its staging directory to it", errno);
  }
  path_.clear();
  const fs::path parent = fs::path(target_).parent_path();
  return sync_path(parent.empty() ? "." : parent.string());
}

Status write_text_file(const std::string& path, std::string_view text) {
  NewFile file;
  WARPROLL_TRY(file.create(path));
  WARPROLL_TRY(file.write_at(0, text.data(), text.size()));
  return file.publish();
}

Status sync_path(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return system_error(path, "open to sync", errno);
  const int outcome = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  return outcome == 0 ? ok_status() : system_error(path, "sync", error);
}

}  // namespace warproll
