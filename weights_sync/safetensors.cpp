#include "weights_sync/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "protocol/strict_json.h"
#include "weights_sync/tensor_check.h"

namespace warproll {
namespace {

using Json = nlohmann::json;
using Tensor = SafetensorsHeader::Tensor;

// {"name": {"dtype": .., "shape": [..], "data_offsets": [..]}} is three deep.
constexpr JsonLimits kHeaderLimits{.max_depth = 3, .max_values = 16 << 20};

std::string type_of(const Json& value) { return value.type_name(); }

Status read_unsigned(const Json& value, const char* what, uint64_t& out) {
  if (!value.is_number_unsigned()) {
    return invalid_argument(std::string(what) + " is " + printable(value.dump()) +
                            ", wanted an integer from 0 to 2^64 - 1");
  }
  out = value.get<uint64_t>();
  return ok_status();
}

Status read_shape(const Json& value, std::vector<int64_t>& shape) {
  if (!value.is_array()) {
    return invalid_argument("shape is " + type_of(value) + ", wanted an array of integers");
  }
  if (value.size() > kMaxTensorRank) {
    return invalid_argument("shape has " + std::to_string(value.size()) +
                            " dimensions, wanted at most " + std::to_string(kMaxTensorRank));
  }
  for (const Json& item : value) {
    uint64_t dimension = 0;
    WARPROLL_TRY(read_unsigned(item, "a dimension of shape", dimension));
    if (dimension > static_cast<uint64_t>(INT64_MAX)) {
      return invalid_argument("a dimension of shape is " + std::to_string(dimension) +
                              ", wanted less than 2^63");
    }
    shape.push_back(static_cast<int64_t>(dimension));
  }
  return ok_status();
}

Status check_fields(const Json& entry) {
  if (!entry.is_object()) {
    return invalid_argument("is " + type_of(entry) +
                            ", wanted an object with dtype, shape, data_offsets");
  }
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(field)) {
      return invalid_argument(std::string("has no ") + field +
                              ", wanted dtype, shape, data_offsets");
    }
  }
  if (entry.size() == 3) return ok_status();
  return invalid_argument("has " + std::to_string(entry.size()) +
                          " fields, wanted dtype, shape, data_offsets only");
}

// Everything of one entry that can be said without its neighbours. Offsets stay relative to the
// data section here.
Status read_tensor(const Json& entry, uint64_t data_bytes, Tensor& tensor) {
  WARPROLL_TRY(check_tensor_name(tensor.info.name));
  WARPROLL_TRY(check_fields(entry));
  const Json& dtype = entry["dtype"];
  const auto known = dtype.is_string() ? dtype_from_safetensors(dtype.get_ref<const std::string&>())
                                       : std::nullopt;
  if (!known) {
    return invalid_argument("dtype is " + printable(dtype.dump()) +
                            ", wanted F32, F16, BF16, F8_E4M3, F8_E8M0, U8, U16, I32 or I64");
  }
  tensor.info.dtype = *known;
  WARPROLL_TRY(read_shape(entry["shape"], tensor.info.shape));
  WARPROLL_TRY_ASSIGN(wanted_bytes, checked_tensor_bytes(*known, tensor.info.shape));

  const Json& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2) {
    return invalid_argument("data_offsets is " + printable(offsets.dump()) +
                            ", wanted [begin, end]");
  }
  uint64_t begin = 0;
  uint64_t end = 0;
  WARPROLL_TRY(read_unsigned(offsets[0], "data_offsets begin", begin));
  WARPROLL_TRY(read_unsigned(offsets[1], "data_offsets end", end));
  const std::string range =
      "data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) + "]";
  if (begin > end || end > data_bytes) {
    return invalid_argument(
        range + " leave the data section, wanted begin <= end <= " + std::to_string(data_bytes));
  }
  if (end - begin != wanted_bytes) {
    return invalid_argument(range + " span " + std::to_string(end - begin) + " bytes, but " +
                            std::string(to_string(*known)) + " " +
                            shape_to_string(tensor.info.shape) + " wants " +
                            std::to_string(wanted_bytes));
  }
  tensor.info.bytes = wanted_bytes;
  tensor.offset_bytes = begin;
  return ok_status();
}

Status check_tiling(const std::vector<Tensor>& tensors, uint64_t data_bytes) {
  uint64_t filled_to = 0;
  const Tensor* previous = nullptr;
  for (const Tensor& tensor : tensors) {
    const std::string place = "tensor '" + tensor.info.name + "' starts at data offset " +
                              std::to_string(tensor.offset_bytes);
    if (tensor.offset_bytes < filled_to) {
      return invalid_argument(place + " and overlaps tensor '" + previous->info.name +
                              "', which ends at " + std::to_string(filled_to));
    }
    if (tensor.offset_bytes > filled_to) {
      return invalid_argument(place + " and leaves a hole, wanted " + std::to_string(filled_to) +
                              ", where the tensor before it ends");
    }
    filled_to += tensor.info.bytes;
    previous = &tensor;
  }
  if (filled_to == data_bytes) return ok_status();
  return invalid_argument("the data section has " + std::to_string(data_bytes) +
                          " bytes, but the tensors end at " + std::to_string(filled_to));
}

Status read_metadata(const Json& entry, SafetensorsHeader& header) {
  if (!entry.is_object()) {
    return invalid_argument("__metadata__ is " + type_of(entry) + ", wanted an object of strings");
  }
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string()) {
      return invalid_argument("__metadata__ '" + printable(key) + "' is " + type_of(value) +
                              ", wanted a string");
    }
    header.metadata.emplace_back(key, value.get<std::string>());
  }
  return ok_status();
}

Status read_header(const Json& json, uint64_t data_bytes, SafetensorsHeader& header) {
  if (!json.is_object()) {
    return invalid_argument("the header is " + type_of(json) + ", wanted an object of tensors");
  }
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") {
      WARPROLL_TRY(read_metadata(entry, header));
      continue;
    }
    Tensor tensor;
    tensor.info.name = name;
    WARPROLL_TRY(
        read_tensor(entry, data_bytes, tensor).with_context("tensor '" + printable(name) + "'"));
    header.tensors.push_back(std::move(tensor));
  }
  // An empty tensor stands before the one that starts where it lies.
  std::sort(header.tensors.begin(), header.tensors.end(), [](const Tensor& a, const Tensor& b) {
    return std::tie(a.offset_bytes, a.info.bytes, a.info.name) <
           std::tie(b.offset_bytes, b.info.bytes, b.info.name);
  });
  return check_tiling(header.tensors, data_bytes);
}

Result<SafetensorsHeader> parse(std::span<const std::byte> file) {
  if (file.size() < sizeof(uint64_t)) {
    return invalid_argument("has " + std::to_string(file.size()) +
                            " bytes, wanted at least 8 for the header length");
  }
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) {
    header_bytes = header_bytes << 8 | std::to_integer<uint64_t>(file[static_cast<size_t>(i)]);
  }
  const uint64_t rest_bytes = file.size() - sizeof(uint64_t);
  if (header_bytes > std::min(rest_bytes, kMaxSafetensorsHeaderBytes)) {
    return invalid_argument("header length is " + std::to_string(header_bytes) +
                            ", wanted at most " +
                            std::to_string(std::min(rest_bytes, kMaxSafetensorsHeaderBytes)) +
                            (rest_bytes < kMaxSafetensorsHeaderBytes
                                 ? " (what the file has after it: truncated or not safetensors)"
                                 : ""));
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + sizeof(uint64_t),
                              header_bytes);
  if (text.empty() || text.front() != '{') {
    return invalid_argument("the header starts with '" + printable(text.substr(0, 1)) +
                            "', wanted '{'");
  }
  WARPROLL_TRY(check_json(text, "header", kHeaderLimits));
  SafetensorsHeader header;
  WARPROLL_TRY(read_header(Json::parse(text), rest_bytes - header_bytes, header));
  for (Tensor& tensor : header.tensors) tensor.offset_bytes += sizeof(uint64_t) + header_bytes;
  return header;
}

Status errno_status(const char* action, const std::string& path) {
  const int error = errno;
  return {error == ENOENT ? StatusCode::kNotFound : StatusCode::kUnavailable,
          path + ": cannot " + action + ": " + std::strerror(error)};
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file,
                                            std::string_view file_name) {
  Result<SafetensorsHeader> header = parse(file);
  if (header.ok()) return header;
  return header.status().with_context(file_name);
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  // NONBLOCK: a FIFO under this name must be refused, not waited for.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return errno_status("open", path);
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return invalid_argument(path + ": is not a regular file, wanted a safetensors file");
  }
  const auto size = static_cast<size_t>(info.st_size);
  SafetensorsFile file;
  file.path_ = path;
  if (size > 0) {  // an empty file cannot be mapped; parse() says what is wrong with it
    void* mapping = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED) {
      Status status = errno_status("map", path);
      ::close(fd);
      return status;
    }
    file.mapping_ = {static_cast<const std::byte*>(mapping), size};
  }
  ::close(fd);
  WARPROLL_TRY_ASSIGN(header, parse_safetensors(file.mapping_, path));
  file.header_ = std::move(header);
  return file;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      mapping_(std::exchange(other.mapping_, {})),
      header_(std::move(other.header_)) {}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(mapping_, other.mapping_);
  std::swap(header_, other.header_);
  return *this;
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_.empty()) return;
  ::munmap(const_cast<std::byte*>(mapping_.data()), mapping_.size());
}

std::span<const std::byte> SafetensorsFile::bytes(size_t tensor_index) const {
  const Tensor& tensor = header_.tensors.at(tensor_index);
  return mapping_.subspan(tensor.offset_bytes, tensor.info.bytes);
}

}  // namespace warproll
