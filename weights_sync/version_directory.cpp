#include "weights_sync/version_directory.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "weights_sync/checkpoint_writer.h"

namespace warproll {
namespace {

namespace fs = std::filesystem;
constexpr char kManifestFile[] = "manifest.json";
constexpr char kUnfinishedMark[] = ".tmp-";  // as StagedDirectory names them

Status io_error(const std::string& what, int error) {
  const std::string text = what + ": " + std::strerror(error);
  if (error == ENOSPC || error == EDQUOT) return resource_exhausted(text);
  return error == ENOENT ? not_found(text) : unavailable(text);
}

Status copy_and_sync(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::copy_file(from, to, fs::copy_options::none, error);
  if (error) return io_error("copy of " + from.string() + " to " + to.string(), error.value());
  return sync_path(to.string());
}

// "v000012" -> 12.
std::optional<uint64_t> version_of(const std::string& name) {
  if (name.size() < 7 || name[0] != 'v') return std::nullopt;
  uint64_t version = 0;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + 1, end, version);
  if (error != std::errc() || rest != end || version == 0) return std::nullopt;
  return version;
}

// What a checkpoint consists of: its shards, their index, and the small files that people expect
// beside them (tokenizer.json and its like).
Result<std::vector<fs::path>> files_to_copy(const Checkpoint& checkpoint) {
  std::set<std::string> names;
  for (size_t i = 0; i < checkpoint.tensors().size(); ++i) {
    names.insert(std::string(checkpoint.shard_of(i)));
  }
  std::error_code error;
  for (fs::directory_iterator it(checkpoint.directory(), error), end; !error && it != end;
       it.increment(error)) {
    const fs::path& path = it->path();
    const std::string extension = path.extension().string();
    const bool is_small_file = extension == ".json" || extension == ".txt" ||
                               extension == ".jinja" || extension == ".model";
    if (it->is_regular_file(error) && is_small_file) names.insert(path.filename().string());
  }
  if (error) return io_error("listing of " + checkpoint.directory(), error.value());
  names.erase(kManifestFile);
  std::vector<fs::path> paths;
  for (const std::string& name : names) paths.push_back(fs::path(checkpoint.directory()) / name);
  return paths;
}

}  // namespace

Result<VersionDirectory> VersionDirectory::open(const std::string& root) {
  std::error_code error;
  fs::create_directories(root, error);
  if (error) return io_error("creation of version directory " + root, error.value());
  return VersionDirectory(root);
}

std::string VersionDirectory::path_of(uint64_t weight_version) const {
  char name[32];
  std::snprintf(name, sizeof name, "v%06llu", static_cast<unsigned long long>(weight_version));
  return (fs::path(root_) / name).string();
}

Status VersionDirectory::remove_unfinished() {
  std::error_code error;
  std::vector<fs::path> unfinished;
  for (fs::directory_iterator it(root_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name[0] == 'v' && name.find(kUnfinishedMark) != std::string::npos) {
      unfinished.push_back(it->path());
    }
  }
  for (const fs::path& path : unfinished) fs::remove_all(path, error);
  return error ? io_error("clean-up of " + root_, error.value()) : ok_status();
}

Result<std::string> VersionDirectory::publish(const Checkpoint& checkpoint,
                                              const Manifest& manifest) {
  const std::string path = path_of(manifest.weight_version);
  if (std::error_code error; fs::exists(path, error)) {
    WARPROLL_TRY_ASSIGN(there, read_version_manifest(path));
    if (there.source_digest == manifest.source_digest) return path;
    return already_exists(path + " holds weights with digest " + to_hex(there.source_digest) +
                          ", not " + to_hex(manifest.source_digest));
  }
  WARPROLL_TRY(remove_unfinished());
  WARPROLL_TRY_ASSIGN(staged, StagedDirectory::create(path));
  WARPROLL_TRY_ASSIGN(files, files_to_copy(checkpoint));
  for (const fs::path& file : files) {
    WARPROLL_TRY(copy_and_sync(file, fs::path(staged.path()) / file.filename()));
  }
  const std::string manifest_path = (fs::path(staged.path()) / kManifestFile).string();
  WARPROLL_TRY(write_text_file(manifest_path, manifest_to_json(manifest)));
  WARPROLL_TRY(staged.commit());
  return path;
}

Result<std::vector<uint64_t>> VersionDirectory::versions() const {
  std::vector<uint64_t> found;
  std::error_code error;
  for (fs::directory_iterator it(root_, error), end; !error && it != end; it.increment(error)) {
    if (const auto version = version_of(it->path().filename().string())) found.push_back(*version);
  }
  if (error) return io_error("listing of " + root_, error.value());
  std::sort(found.begin(), found.end());
  return found;
}

Result<std::optional<uint64_t>> VersionDirectory::newest() const {
  WARPROLL_TRY_ASSIGN(all, versions());
  return all.empty() ? std::optional<uint64_t>() : std::optional<uint64_t>(all.back());
}

Result<Manifest> VersionDirectory::manifest(uint64_t weight_version) const {
  WARPROLL_TRY_ASSIGN(manifest, read_version_manifest(path_of(weight_version)));
  if (manifest.weight_version != weight_version) {
    return data_loss(path_of(weight_version) + ": its manifest is of version " +
                     std::to_string(manifest.weight_version));
  }
  return manifest;
}

Status VersionDirectory::prune(size_t keep) {
  WARPROLL_TRY_ASSIGN(all, versions());
  for (size_t i = 0; i + keep < all.size(); ++i) {
    // Out of the readers' sight in one step, then file by file.
    const fs::path path = path_of(all[i]);
    const fs::path doomed = path.string() + kUnfinishedMark + "removed";
    if (::rename(path.c_str(), doomed.c_str()) != 0) {
      return io_error("removal of " + path.string(), errno);
    }
    std::error_code error;
    fs::remove_all(doomed, error);
    if (error) return io_error("removal of " + doomed.string(), error.value());
  }
  return ok_status();
}

Result<Manifest> read_version_manifest(const std::string& version_path) {
  const std::string path = (fs::path(version_path) / kManifestFile).string();
  std::ifstream file(path, std::ios::binary);
  if (!file) return io_error("version manifest " + path, errno);
  std::string text;
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) return io_error("version manifest " + path, error.value());
  if (size > kMaxManifestJsonBytes) {
    return invalid_argument("version manifest " + path + ": " + std::to_string(size) +
                            " bytes, at most " + std::to_string(kMaxManifestJsonBytes));
  }
  text.assign(std::istreambuf_iterator<char>(file), {});
  auto manifest = manifest_from_json(text);
  if (!manifest.ok()) return manifest.status().with_context(path);
  return manifest;
}

}  // namespace warproll
