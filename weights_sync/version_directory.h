// VersionDirectory: a folder of published checkpoints, one `vNNNNNN/` for each weight version with
// the files of the checkpoint and `manifest.json` (manifest.h). A version is written under another
// name, synced, and committed by rename: readers see all of it or nothing. Nothing in a committed
// version is ever changed. Late joiners and restarts read the newest committed one (W7).
// Thread: one writer a folder; readers any number, in any process. Errors name the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/status.h"
#include "weights_sync/checkpoint.h"
#include "weights_sync/manifest.h"

namespace warproll {

class VersionDirectory {
 public:
  // Makes the folder if it is not there. A reader needs no write permission in an existing one.
  static Result<VersionDirectory> open(const std::string& root);

  [[nodiscard]] const std::string& root() const { return root_; }
  // "<root>/v000012"; it need not exist.
  [[nodiscard]] std::string path_of(uint64_t weight_version) const;

  // Copies the checkpoint's files in. The manifest's version names the folder. Publishing the same
  // again (equal source_digest) is ok; another one under a taken version is kAlreadyExists.
  // Removes what an earlier writer left unfinished.
  Result<std::string> publish(const Checkpoint& checkpoint, const Manifest& manifest);
  // Committed versions, ascending.
  Result<std::vector<uint64_t>> versions() const;
  // The newest committed one; nullopt = none.
  Result<std::optional<uint64_t>> newest() const;
  // The manifest of a committed version.
  Result<Manifest> manifest(uint64_t weight_version) const;
  // Removes committed versions older than the newest `keep` ones. Readers that have one open keep
  // what they opened.
  Status prune(size_t keep);

 private:
  explicit VersionDirectory(std::string root) : root_(std::move(root)) {}
  Status remove_unfinished();
  std::string root_;
};

// The manifest.json of one version folder.
Result<Manifest> read_version_manifest(const std::string& version_path);

}  // namespace warproll
