// OutputFile: a file that appears whole or not at all: written under a temporary name beside it,
// synced and renamed by finish(). "-" is standard output. Thread: one.
#pragma once

#include <cstddef>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "protocol/status.h"

namespace warproll {

class OutputFile {
 public:
  static Result<std::unique_ptr<OutputFile>> create(const std::string& path);
  ~OutputFile();  // without finish(): the temporary file is removed
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  Status write_line(std::string_view line);
  // u64 little-endian record bytes, u64 little-endian tensors bytes, record, tensors.
  Status write_record(std::span<const std::byte> record, std::span<const std::byte> tensors);
  Status finish();

 private:
  OutputFile(std::string path, std::string temporary, std::FILE* file);
  Status write(const void* bytes, size_t size);
  const std::string path_;
  const std::string temporary_;  // empty = standard output
  std::FILE* file_;
};

}  // namespace warproll
