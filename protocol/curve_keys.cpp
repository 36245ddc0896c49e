// Key pairs and key files of curve.h.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "protocol/curve.h"

namespace warproll {
namespace {

constexpr size_t kKeyCharacters = 40;
constexpr size_t kMaxKeyFileBytes = size_t{1} << 20;
using KeyText = std::array<char, kKeyCharacters + 1>;

Status file_failure(const std::string& what, const std::string& path) {
  const std::string message = what + " '" + path + "': " + std::strerror(errno);
  if (errno == ENOENT) return not_found(message);
  if (errno == EEXIST) return already_exists(message + "; remove it first, or choose another name");
  if (errno == ENOSPC) return resource_exhausted(message);
  return failed_precondition(message);
}

class File {  // owner of a descriptor
 public:
  explicit File(int fd) : fd_(fd) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

Status write_new_file(const std::string& path, mode_t mode, const std::string& text) {
  const File file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (file.fd() < 0) return file_failure("cannot create", path);
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(file.fd(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const Status status = file_failure("cannot write", path);
      ::unlink(path.c_str());
      return status;
    }
    done += static_cast<size_t>(n);
  }
  if (::fsync(file.fd()) == 0) return {};
  const Status status = file_failure("cannot sync", path);
  ::unlink(path.c_str());
  return status;
}

Result<std::string> read_file(const std::string& path, bool secret) {
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd() < 0) return file_failure("cannot open key file", path);
  struct stat info {};
  if (::fstat(file.fd(), &info) != 0) return file_failure("cannot stat", path);
  if (secret && (info.st_mode & 077) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof(mode), "%04o", static_cast<unsigned>(info.st_mode & 07777));
    return failed_precondition("secret key file '" + path + "' has mode " + mode +
                               ", wanted 0600 (run: chmod 600 '" + path + "')");
  }
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t n = ::read(file.fd(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return file_failure("cannot read", path);
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > kMaxKeyFileBytes) {
      return invalid_argument("key file '" + path + "' is larger than 1 MiB");
    }
  }
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// A comment starts the line or follows a blank. '#' is a Z85 character too, but a blank is not:
// what is a key as it stands is never cut.
std::string without_comment(const std::string& line) {
  if (check_curve_key("", line).ok()) return line;
  if (line.starts_with('#')) return {};
  return trimmed(line.substr(0, line.find(" #")));
}

// The keys of a file, one a line.
Result<std::vector<std::string>> keys_of(const std::string& path, const std::string& text) {
  std::vector<std::string> keys;
  size_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = without_comment(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
    ++line_number;
    if (line.empty()) continue;
    WARPROLL_TRY(check_curve_key(path + ":" + std::to_string(line_number), line));
    keys.push_back(std::move(line));
  }
  return keys;
}

Result<std::string> only_key(const std::string& path, bool secret) {
  WARPROLL_TRY_ASSIGN(text, read_file(path, secret));
  WARPROLL_TRY_ASSIGN(keys, keys_of(path, text));
  if (keys.size() == 1) return std::move(keys.front());
  return invalid_argument("key file '" + path + "' has " + std::to_string(keys.size()) +
                          " keys, wanted 1");
}

}  // namespace

Status check_curve_key(std::string_view what, std::string_view key) {
  std::array<uint8_t, 32> decoded;
  const std::string text(key);
  if (text.size() == kKeyCharacters && text.find('\0') == std::string::npos &&
      zmq_z85_decode(decoded.data(), text.c_str()) != nullptr) {
    return {};
  }
  // A secret may be among them, so the value is not printed.
  return invalid_argument(std::string(what) + " (" + std::to_string(key.size()) +
                          " characters) is not a CURVE key, wanted 40 characters of Z85");
}

Result<CurveKeys> generate_keypair() {
  KeyText public_key{};
  KeyText secret_key{};
  if (zmq_curve_keypair(public_key.data(), secret_key.data()) != 0) {
    return failed_precondition(std::string("libzmq makes no CURVE keys: ") +
                               zmq_strerror(zmq_errno()));
  }
  return CurveKeys{public_key.data(), secret_key.data()};
}

Status write_keypair(const CurveKeys& keys, const std::string& path) {
  WARPROLL_TRY(check_curve_key("secret key", keys.secret_key));
  WARPROLL_TRY(check_curve_key("public key", keys.public_key));
  WARPROLL_TRY(write_new_file(path + ".secret", 0600, keys.secret_key + "\n"));
  const Status status = write_new_file(path + ".pub", 0644, keys.public_key + "\n");
  if (!status.ok()) ::unlink((path + ".secret").c_str());
  return status;
}

Result<CurveKeys> read_keypair(const std::string& path) {
  WARPROLL_TRY_ASSIGN(secret_key, only_key(path + ".secret", true));
  WARPROLL_TRY_ASSIGN(public_key, read_public_key(path + ".pub"));
  KeyText derived{};
  if (zmq_curve_public(derived.data(), secret_key.c_str()) != 0 || public_key != derived.data()) {
    return invalid_argument("'" + path + ".pub' is not the public key of '" + path + ".secret'");
  }
  return CurveKeys{std::move(public_key), std::move(secret_key)};
}

Result<std::string> read_public_key(const std::string& file) { return only_key(file, false); }

Result<std::vector<std::string>> read_allow_list(const std::string& file) {
  WARPROLL_TRY_ASSIGN(text, read_file(file, false));
  return keys_of(file, text);
}

}  // namespace warproll
