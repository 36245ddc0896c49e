#include "worker/commands/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace warproll {
namespace {

Status failed(const std::string& path, const char* what) {
  const std::string message = path + ": " + what + ": " + std::strerror(errno);
  return errno == ENOSPC ? resource_exhausted(message) : unavailable(message);
}

}  // namespace

OutputFile::OutputFile(std::string path, std::string temporary, std::FILE* file)
    : path_(std::move(path)), temporary_(std::move(temporary)), file_(file) {}

Result<std::unique_ptr<OutputFile>> OutputFile::create(const std::string& path) {
  if (path == "-")
    return std::unique_ptr<OutputFile>(new OutputFile("standard output", "", stdout));
  const std::string temporary = path + ".tmp." + std::to_string(getpid());
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  if (file == nullptr) return not_found(temporary + ": cannot be made: " + std::strerror(errno));
  return std::unique_ptr<OutputFile>(new OutputFile(path, temporary, file));
}

OutputFile::~OutputFile() {
  if (temporary_.empty() || file_ == nullptr) return;
  std::fclose(file_);
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

Status OutputFile::write(const void* bytes, size_t size) {
  if (size == 0) return ok_status();  // then bytes may be null
  if (std::fwrite(bytes, 1, size, file_) != size) return failed(path_, "write failed");
  return ok_status();
}

Status OutputFile::write_line(std::string_view line) {
  WARPROLL_TRY(write(line.data(), line.size()));
  return write("\n", 1);
}

Status OutputFile::write_record(std::span<const std::byte> record,
                                std::span<const std::byte> tensors) {
  unsigned char sizes[16];
  for (int i = 0; i < 8; ++i) {
    sizes[i] = static_cast<unsigned char>(record.size() >> (8 * i));
    sizes[8 + i] = static_cast<unsigned char>(tensors.size() >> (8 * i));
  }
  WARPROLL_TRY(write(sizes, sizeof sizes));
  WARPROLL_TRY(write(record.data(), record.size()));
  return write(tensors.data(), tensors.size());
}

Status OutputFile::finish() {
  if (std::fflush(file_) != 0) return failed(path_, "flush failed");
  if (temporary_.empty()) return ok_status();
  if (fsync(fileno(file_)) != 0) return failed(path_, "fsync failed");
  std::FILE* file = file_;
  file_ = nullptr;
  if (std::fclose(file) != 0) return failed(path_, "close failed");
  std::error_code error;
  std::filesystem::rename(temporary_, path_, error);
  if (error) return unavailable(path_ + ": rename failed: " + error.message());
  return ok_status();
}

}  // namespace warproll
