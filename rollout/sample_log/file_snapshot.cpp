#include "rollout/sample_log/file_snapshot.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "rollout/sample_log/high_water.h"

namespace warproll {
namespace {

namespace fs = std::filesystem;

constexpr int kTries = 30;
constexpr int kFailures = 3;  // a file that a live writer replaced is there on the next try
constexpr std::chrono::milliseconds kBackoff{5};  // times the number of the try, at most 50 ms

Status from_error(const std::error_code& error, const std::string& what) {
  const bool full = error == std::errc::no_space_on_device;
  const bool missing = error == std::errc::no_such_file_or_directory;
  const StatusCode code = full      ? StatusCode::kResourceExhausted
                          : missing ? StatusCode::kNotFound
                                    : StatusCode::kUnavailable;
  return {code, what + ": " + error.message()};
}

Status copy_bytes(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
  return error ? from_error(error, "cannot copy " + from.string()) : ok_status();
}

Status link_file(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::create_hard_link(from, to, error);
  if (!error) return ok_status();
  if (error == std::errc::no_such_file_or_directory) return not_found(from.string());
  return copy_bytes(from, to);  // another file system, or links not permitted
}

struct ManifestState {
  std::string name;
  uint64_t bytes = 0;
  bool operator==(const ManifestState&) const = default;
};

Result<ManifestState> manifest_state(const fs::path& directory) {
  std::ifstream file(directory / "CURRENT");
  ManifestState state;
  if (!std::getline(file, state.name)) {
    return not_found("no sample log in " + directory.string() + ": CURRENT is missing or empty");
  }
  std::error_code error;
  state.bytes = fs::file_size(directory / state.name, error);
  if (error) {
    return data_loss("sample log " + directory.string() + ": CURRENT names " + state.name + ": " +
                     error.message());
  }
  return state;
}

bool ends_with(const std::string& text, std::string_view tail) {
  return text.size() >= tail.size() &&
         text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

Status copy_once(const fs::path& directory, const fs::path& out, bool* changed) {
  const Status mark = copy_bytes(directory / kHighWaterFile, out / kHighWaterFile);
  if (!mark.ok() && mark.code() != StatusCode::kNotFound) return mark;  // its absence: see verify
  WARPROLL_TRY_ASSIGN(before, manifest_state(directory));
  WARPROLL_TRY(copy_bytes(directory / "CURRENT", out / "CURRENT"));
  WARPROLL_TRY(copy_bytes(directory / before.name, out / before.name));
  std::error_code error;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    names.push_back(entry.path().filename().string());
  }
  if (error) return from_error(error, "cannot list " + directory.string());
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    Status status;
    if (ends_with(name, ".sst")) status = link_file(directory / name, out / name);
    if (ends_with(name, ".log")) status = copy_bytes(directory / name, out / name);
    if (!status.ok() && status.code() != StatusCode::kNotFound) return status;
  }
  const auto after = manifest_state(directory);
  *changed = !after.ok() || *after != before;
  return ok_status();
}

}  // namespace

Status snapshot_log_files(const std::string& directory, const std::string& out) {
  Status last = unavailable("sample log " + directory + ": its files changed during every try");
  int failures = 0;
  for (int i = 0; i < kTries && failures < kFailures; ++i) {
    std::error_code error;
    fs::remove_all(out, error);
    if (!fs::create_directories(out, error)) return from_error(error, "cannot make " + out);
    bool changed = false;
    const Status status = copy_once(directory, out, &changed);
    if (status.ok() && !changed) return status;
    fs::remove_all(out, error);
    if (!status.ok()) {
      last = status;
      ++failures;
    }
    // Missing files can be a race with a live writer; a full disk is not.
    if (status.code() == StatusCode::kResourceExhausted) return status;
    if (!fs::exists(directory, error)) return not_found("no directory " + directory);
    std::this_thread::sleep_for(kBackoff * std::min(i + 1, 10));
  }
  return last;
}

Status link_remaining_files(const std::string& directory, const std::string& out) {
  std::error_code error;
  if (!fs::create_directories(out, error)) return from_error(error, "cannot make " + out);
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    const bool table = ends_with(name, ".sst");
    const bool other = ends_with(name, ".log") || name == "CURRENT" || name == kHighWaterFile ||
                       name.rfind("MANIFEST-", 0) == 0;
    Status status;
    if (table) status = link_file(entry.path(), fs::path(out) / name);
    if (other) status = copy_bytes(entry.path(), fs::path(out) / name);
    if (!status.ok() && status.code() != StatusCode::kNotFound) return status;
  }
  return error ? from_error(error, "cannot list " + directory) : ok_status();
}

std::string new_scratch_folder(const std::string& directory) {
  // The clock tells apart two readers of one process.
  for (int number = 0;; ++number) {
    std::ostringstream name;
    name << directory << "/" << kScratchPrefix << getpid() << "-"
         << std::chrono::steady_clock::now().time_since_epoch().count() << "-" << number;
    std::error_code error;
    if (!fs::exists(name.str(), error)) return name.str();
  }
}

void remove_stale_scratch(const std::string& directory) {
  std::error_code error;
  std::vector<fs::path> stale;
  const std::string_view prefix = kScratchPrefix;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(prefix, 0) != 0) continue;
    pid_t pid = 0;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), pid);
    if (pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH) stale.push_back(entry.path());
  }
  for (const auto& path : stale) fs::remove_all(path, error);
}

ScratchFolder& ScratchFolder::operator=(ScratchFolder&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}
ScratchFolder::~ScratchFolder() {
  std::error_code error;
  if (!path_.empty()) fs::remove_all(path_, error);
}

}  // namespace warproll
