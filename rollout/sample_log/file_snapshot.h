// Copies a log directory's files, live or not, into a folder that RocksDB can open: table files are
// hard links (they are immutable), manifest, write-ahead logs and high-water file are copied.
// Internal to rollout/sample_log.
//
// Consistent without asking the writer: high-water file first (so it is never ahead of the data),
// then the manifest, then tables and logs; when the manifest has grown or been replaced meanwhile,
// something it names may have been deleted, and everything is done again. A file that vanishes while
// the manifest stays the same was obsolete already.
//
// Thread: any. Errors: kNotFound, kDataLoss, kUnavailable (the writer was faster on every try),
// kResourceExhausted (no space for the copy).
#pragma once

#include <string>

#include "protocol/status.h"

namespace warproll {

inline constexpr const char* kBeforeOpenFolder = "before_open";  // made by SampleLog::open
inline constexpr const char* kScratchPrefix = ".inspect-";       // + pid + "-" + number

// `out` must not exist; on failure it does not exist afterwards. Retries for about a second.
Status snapshot_log_files(const std::string& directory, const std::string& out);

// Every file of the directory that RocksDB might still use, consistent or not; `out` must not exist.
Status link_remaining_files(const std::string& directory, const std::string& out);

// A scratch folder name below `directory` that no living process uses.
std::string new_scratch_folder(const std::string& directory);
// Removes scratch folders whose process is gone.
void remove_stale_scratch(const std::string& directory);

// The folder with everything in it, gone with the owner.
class ScratchFolder {
 public:
  ScratchFolder() = default;
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  ScratchFolder(ScratchFolder&& other) noexcept : path_(std::move(other.path_)) {
    other.path_.clear();
  }
  ScratchFolder& operator=(ScratchFolder&& other) noexcept;
  ~ScratchFolder();
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace warproll
