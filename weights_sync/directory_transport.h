// The `directory` transport: workers read the published version folder (version_directory.h) from
// a shared or mounted file system. The route's source is the folder's path.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "weights_sync/broadcast_transport.h"
#include "weights_sync/version_directory.h"

namespace warproll {

// Worker. Reads with pread(), not through a mapping: a file that is cut short or goes away under
// the reader is a Status, not SIGBUS. Thread: as BroadcastTransport.
class DirectoryTransport final : public BroadcastTransport {
 public:
  // root: where this machine has the version folders, if not where the trainer has them; the last
  // part of the source is looked up in it. Empty = the source as it is.
  explicit DirectoryTransport(std::string root = {}) : root_(std::move(root)) {}

  [[nodiscard]] std::string_view name() const override { return "directory"; }
  Status receive(const ReceiveRequest& request, const Manifest& manifest, const StreamSink& sink,
                 const Cancellation& cancellation) override;

 private:
  std::string root_;
};

// Trainer: offering publishes. Withdrawing leaves the folder, for late joiners and restarts (prune
// it). Thread: one.
class DirectorySource final : public BroadcastSource {
 public:
  explicit DirectorySource(VersionDirectory directory) : directory_(std::move(directory)) {}

  Result<TransportRoute> offer(const OfferedCheckpoint& offered) override;
  void withdraw(uint64_t) override {}
  [[nodiscard]] VersionDirectory& directory() { return directory_; }

 private:
  VersionDirectory directory_;
};

}  // namespace warproll
