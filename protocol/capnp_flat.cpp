#include "protocol/capnp_flat.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include <algorithm>

namespace warproll {
namespace {

constexpr uint64_t kMinTraversalWords = uint64_t{8} << 20;
constexpr int kNestingLimit = 16;  // the schemas nest 4 deep
constexpr size_t kWordBytes = sizeof(capnp::word);

Status decode_with(const char* name, kj::ArrayPtr<const capnp::word> words,
                   const std::function<void(capnp::MessageReader&, FieldReader&)>& read) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = std::max(kMinTraversalWords, uint64_t{2} * words.size());
  options.nestingLimit = kNestingLimit;
  FieldReader fields;
  try {
    capnp::FlatArrayMessageReader reader(words, options);
    read(reader, fields);
  } catch (const kj::Exception& error) {
    return invalid_argument(std::string(name) +
                            " is not well-formed Cap'n Proto: " + error.getDescription().cStr());
  }
  return fields.status();
}

}  // namespace

Status FieldWriter::check_count(const char* name, size_t size) {
  if (size <= kMaxListItems) return {};
  return invalid_argument(std::string(name) + " has " + std::to_string(size) +
                          " items, wanted at most " + std::to_string(kMaxListItems));
}

Status FieldWriter::check_enum(const char* name, unsigned value, unsigned last) {
  if (value <= last) return {};
  return invalid_argument(std::string(name) + " is " + std::to_string(value) + ", wanted 0.." +
                          std::to_string(last));
}

Status FieldReader::check_size(const char* name, size_t got, size_t wanted) {
  if (got == wanted) return {};
  return invalid_argument(std::string(name) + " has " + std::to_string(got) + " bytes, wanted " +
                          std::to_string(wanted));
}

Status FieldReader::check_multiple(const char* name, size_t size_bytes, size_t element_bytes) {
  if (size_bytes % element_bytes == 0) return {};
  return invalid_argument(std::string(name) + " has " + std::to_string(size_bytes) +
                          " bytes, wanted a multiple of " + std::to_string(element_bytes));
}

Status check_flat(const char* name, std::span<const std::byte> bytes) {
  if (bytes.size() < 2 * kWordBytes || bytes.size() % kWordBytes != 0) {
    return invalid_argument(std::string(name) + " has " + std::to_string(bytes.size()) +
                            " bytes, wanted a multiple of 8, at least 16");
  }
  uint32_t table[2];  // segments - 1, words of the first
  std::memcpy(table, bytes.data(), sizeof(table));
  if (table[0] != 0) {
    return invalid_argument(std::string(name) + " has " + std::to_string(uint64_t{table[0]} + 1) +
                            " Cap'n Proto segments, wanted 1");
  }
  const uint64_t wanted = (uint64_t{table[1]} + 1) * kWordBytes;
  if (bytes.size() != wanted) {
    return invalid_argument(std::string(name) + " has " + std::to_string(bytes.size()) +
                            " bytes, wanted " + std::to_string(wanted) + " by its segment table");
  }
  return {};
}

Status read_flat(const char* name, std::span<const std::byte> bytes,
                 const std::function<void(capnp::MessageReader&, FieldReader&)>& read) {
  WARPROLL_TRY(check_flat(name, bytes));
  const size_t num_words = bytes.size() / kWordBytes;
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(uint64_t) == 0) {
    const auto* words = reinterpret_cast<const capnp::word*>(bytes.data());
    return decode_with(name, kj::arrayPtr(words, num_words), read);
  }
  std::vector<uint64_t> aligned(num_words);
  std::memcpy(aligned.data(), bytes.data(), bytes.size());
  const auto* words = reinterpret_cast<const capnp::word*>(aligned.data());
  return decode_with(name, kj::arrayPtr(words, num_words), read);
}

Result<Bytes> build_flat(const char* name, size_t hint_bytes,
                         const std::function<void(capnp::MessageBuilder&, FieldWriter&)>& build) {
  size_t first_words = hint_bytes / kWordBytes + 64;
  try {
    while (true) {
      if (first_words > UINT32_MAX / kWordBytes) break;  // Cap'n Proto's own bound, 4 GiB
      capnp::MallocMessageBuilder message(static_cast<unsigned>(first_words));
      FieldWriter fields;
      build(message, fields);
      if (!fields.ok()) return fields.status();
      const auto segments = message.getSegmentsForOutput();
      if (segments.size() == 1) {
        const auto segment = segments[0].asBytes();
        const uint32_t table[2] = {0, static_cast<uint32_t>(segments[0].size())};
        Bytes bytes;
        bytes.reserve(sizeof(table) + segment.size());
        const auto append = [&](const void* data, size_t size) {
          const auto* begin = static_cast<const std::byte*>(data);
          bytes.insert(bytes.end(), begin, begin + size);
        };
        append(table, sizeof(table));
        append(segment.begin(), segment.size());
        return bytes;
      }
      // The sum fits everything: far pointers and their landing pads only fall away.
      first_words = 0;
      for (const auto& segment : segments) first_words += segment.size();
    }
  } catch (const kj::Exception& error) {
    return invalid_argument(std::string(name) +
                            " cannot be encoded: " + error.getDescription().cStr());
  }
  return invalid_argument(std::string(name) + " is too large to encode, wanted less than 4 GiB");
}

}  // namespace warproll
