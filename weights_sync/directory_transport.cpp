#include "weights_sync/directory_transport.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "weights_sync/safetensors.h"
#include "weights_sync/unique_fd.h"

namespace warproll {
namespace {

namespace fs = std::filesystem;
// Between two looks at the cancellation; well below the two buckets that W4 allows.
constexpr uint64_t kReadBytes = uint64_t{4} << 20;

// Where the bytes of a tensor lie on disk.
struct Place {
  size_t shard = 0;
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
};

class VersionReader {
 public:
  static Result<VersionReader> open(const std::string& path) {
    VersionReader reader;
    WARPROLL_TRY_ASSIGN(checkpoint, Checkpoint::open(path));
    std::map<std::string, size_t> shards;
    for (size_t i = 0; i < checkpoint.tensors().size(); ++i) {
      shards.emplace(std::string(checkpoint.shard_of(i)), 0);
    }
    for (auto& [name, index] : shards) {
      index = reader.files_.size();
      const std::string file = (fs::path(path) / name).string();
      WARPROLL_TRY_ASSIGN(header, SafetensorsFile::open(file));
      UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
      if (!fd.valid()) return unavailable(file + ": " + std::strerror(errno));
      for (const SafetensorsHeader::Tensor& tensor : header.tensors()) {
        reader.places_[tensor.info.name] = {index, tensor.offset_bytes, tensor.info.bytes};
      }
      reader.files_.push_back(std::move(fd));
      reader.names_.push_back(file);
    }
    return reader;
  }

  Result<Place> find(const ManifestEntry& entry) const {
    const auto found = places_.find(entry.tensor.name);
    if (found == places_.end()) {
      return not_found("tensor '" + entry.tensor.name + "' is in no file of the version");
    }
    if (found->second.bytes != entry.tensor.bytes) {
      return data_loss(names_[found->second.shard] + ": tensor '" + entry.tensor.name + "' has " +
                       std::to_string(found->second.bytes) + " bytes, the manifest wants " +
                       std::to_string(entry.tensor.bytes));
    }
    return found->second;
  }

  Status read(const Place& place, uint64_t from, std::span<std::byte> to) const {
    const std::string& name = names_[place.shard];
    for (size_t done = 0; done < to.size();) {
      const auto offset = static_cast<off_t>(place.offset_bytes + from + done);
      const ssize_t got =
          ::pread(files_[place.shard].get(), to.data() + done, to.size() - done, offset);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return unavailable("read of " + name + ": " + std::strerror(errno));
      if (got == 0) {
        return data_loss(name + " ends at byte " + std::to_string(offset) +
                         ", it had bytes up to " +
                         std::to_string(place.offset_bytes + place.bytes) + " when it was opened");
      }
      done += static_cast<size_t>(got);
    }
    return ok_status();
  }

  // The kernel fetches them while the bytes before are digested.
  void read_ahead(const Place& place, uint64_t from, uint64_t bytes) const {
    ::posix_fadvise(files_[place.shard].get(), static_cast<off_t>(place.offset_bytes + from),
                    static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
  }

 private:
  std::vector<UniqueFd> files_;
  std::vector<std::string> names_;
  std::map<std::string, Place> places_;
};

}  // namespace

Status DirectoryTransport::receive(const ReceiveRequest& request, const Manifest& manifest,
                                   const StreamSink& sink, const Cancellation& cancellation) {
  const fs::path source = request.source;
  const fs::path path = root_.empty() ? source : fs::path(root_) / source.filename();
  WARPROLL_TRY_ASSIGN(published, read_version_manifest(path.string()));
  if (published.source_digest != manifest.source_digest) {
    return data_loss(path.string() + " holds weights with digest " +
                     to_hex(published.source_digest) + ", wanted " +
                     to_hex(manifest.source_digest));
  }
  WARPROLL_TRY_ASSIGN(reader, VersionReader::open(path.string()));
  std::vector<std::byte> slot(std::min(kReadBytes, manifest.bucket_bytes));
  for (const ManifestEntry& entry : manifest.entries) {
    WARPROLL_TRY_ASSIGN(place, reader.find(entry));
    for (uint64_t from = 0; from < place.bytes; from += slot.size()) {
      if (cancellation.cancelled()) return aborted("receive from " + path.string() + " cancelled");
      if (std::chrono::steady_clock::now() >= request.deadline) {
        return deadline_exceeded("receive from " + path.string() + ": the deadline passed");
      }
      const uint64_t bytes = std::min<uint64_t>(slot.size(), place.bytes - from);
      const std::span<std::byte> part(slot.data(), bytes);
      WARPROLL_TRY(reader.read(place, from, part));
      reader.read_ahead(place, from + bytes,
                        std::min<uint64_t>(slot.size(), place.bytes - from - bytes));
      WARPROLL_TRY(sink(manifest.stream_offset(entry) + from, part));
    }
  }
  return ok_status();
}

Result<TransportRoute> DirectorySource::offer(const OfferedCheckpoint& offered) {
  WARPROLL_TRY_ASSIGN(path, directory_.publish(*offered.checkpoint, *offered.manifest));
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  return TransportRoute{"directory", error ? path : absolute.string(), ""};
}

}  // namespace warproll
