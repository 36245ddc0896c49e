// Writing checkpoints so that nobody ever sees half of one: a file is written under a temporary
// name, synced, then renamed; a directory likewise, as a whole.
// The bytes are those of the reference safetensors writer: tensors sorted by dtype (wide first),
// then name; compact header, padded with spaces to 8 bytes.
//
// Errors name the path and what the system said. An unfinished writer removes what it wrote.
// Thread: one thread, except SafetensorsWriter::write (see there).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/arena.h"
#include "protocol/status.h"
#include "weights_sync/checkpoint.h"
#include "weights_sync/digest.h"

namespace warproll {

// One safetensors file whose tensors are known beforehand and whose bytes come in any order.
class SafetensorsWriter {
 public:
  // Names must differ (else kInvalidArgument). metadata becomes __metadata__.
  static Result<SafetensorsWriter> create(
      const std::string& path, std::vector<TensorInfo> tensors,
      const std::vector<std::pair<std::string, std::string>>& metadata = {{"format", "pt"}});
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();

  // The whole tensor, once. Thread: any number of threads at once, for different tensors.
  Status write(std::string_view tensor_name, std::span<const std::byte> bytes);
  // Every tensor written? Then synced and renamed into place.
  Status finish();

 private:
  struct Impl;
  explicit SafetensorsWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A directory that appears whole or not at all: fill path(), then commit() syncs and renames it to
// its target. The target must not exist (kAlreadyExists).
class StagedDirectory {
 public:
  static Result<StagedDirectory> create(const std::string& target);
  StagedDirectory(StagedDirectory&& other) noexcept;
  StagedDirectory& operator=(StagedDirectory&& other) noexcept;
  ~StagedDirectory();
  [[nodiscard]] const std::string& path() const { return path_; }
  Status commit();

 private:
  StagedDirectory() = default;
  std::string target_;
  std::string path_;  // empty = committed or moved from
};

// Temporary name, fsync, rename; the directory entry is synced by the caller or StagedDirectory.
Status write_text_file(const std::string& path, std::string_view text);
Status sync_path(const std::string& path);  // fsync of a file or a directory

// "model.safetensors", or the shard's name; of_shards >= 1, shard_index from 0.
std::string shard_file_name(size_t shard_index, size_t of_shards);
// model.safetensors.index.json for tensors[i] in shards[i].
std::string make_index_json(std::span<const TensorInfo> tensors,
                            std::span<const std::string> shards);

struct CheckpointToWrite {
  std::vector<TensorInfo> tensors;  // any order
  std::function<std::span<const std::byte>(size_t tensor_index)> bytes;
  CheckpointFiles files;         // empty texts are not written
  uint64_t max_shard_bytes = 0;  // 0 = one file; a larger tensor gets a shard of its own
};
// `directory` must not exist.
Status write_checkpoint(const std::string& directory, const CheckpointToWrite& checkpoint,
                        const ByteProgress& progress = {});

}  // namespace warproll
