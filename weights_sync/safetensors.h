// Reader of one safetensors file: u64 little-endian header length, JSON header, data. The file is
// mapped read-only and every number of the header is checked before anybody may use it: the tensors
// tile the data without overlap, hole or rest, and each has exactly product(shape) * dtype bytes.
// (Format: the README of huggingface/safetensors; like its own reader this refuses holes.)
//
// Errors name the file, the tensor, the value got and the value wanted.
// Lifetime: spans point into the mapping and live as long as the SafetensorsFile. The size is taken
// at open; a file that somebody truncates afterwards raises SIGBUS when the lost bytes are read, as
// with every mapped file: write checkpoints by rename, never in place.
// Thread: immutable after open().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/arena.h"
#include "protocol/status.h"

namespace warproll {

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // as the reference reader

struct SafetensorsHeader {
  struct Tensor {
    TensorInfo info;
    uint64_t offset_bytes = 0;  // from the start of the file
  };
  std::vector<Tensor> tensors;                                // in file order
  std::vector<std::pair<std::string, std::string>> metadata;  // __metadata__, sorted by key
};

// The checks alone, on a whole file's bytes. `file_name` is for the errors.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file,
                                            std::string_view file_name);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&& other) noexcept;
  ~SafetensorsFile();

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::span<const SafetensorsHeader::Tensor> tensors() const {
    return header_.tensors;
  }
  [[nodiscard]] std::span<const std::pair<std::string, std::string>> metadata() const {
    return header_.metadata;
  }
  // Not aligned to the element size: read elements with memcpy.
  [[nodiscard]] std::span<const std::byte> bytes(size_t tensor_index) const;

 private:
  SafetensorsFile() = default;
  std::string path_;
  std::span<const std::byte> mapping_;
  SafetensorsHeader header_;
};

}  // namespace warproll
