#include "rollout/tokenizer/file_text.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace warproll {
namespace {

constexpr uintmax_t kMaxFileBytes = uintmax_t{256} << 20;  // the largest real ones have 33 MB

}  // namespace

Result<std::string> read_file_text(const std::string& path) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::not_found) return not_found(path + ": no such file");
  if (kind != std::filesystem::file_type::regular) {
    return invalid_argument(path + " is not a regular file" +
                            (error ? ": " + error.message() : ""));
  }
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return internal_error(path + ": " + error.message());
  if (size > kMaxFileBytes) {
    return invalid_argument(path + " has " + std::to_string(size) + " bytes, wanted at most " +
                            std::to_string(kMaxFileBytes));
  }
  std::string text(size, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(size));
  if (!file) return internal_error(path + ": reading " + std::to_string(size) + " bytes failed");
  return text;
}

}  // namespace warproll
