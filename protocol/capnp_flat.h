// One-segment Cap'n Proto messages as flat bytes, and checked copies of their fields.
// FieldReader and FieldWriter keep the first failure and go on, so that the field lists in
// codec_*.cpp read straight down; whoever made them looks at status() at the end.
// Internal to protocol/; includes no Cap'n Proto: the templates take its types as they come.
// Thread: one each.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "protocol/codec.h"
#include "protocol/record_checks.h"

namespace capnp {
class MessageBuilder;
class MessageReader;
}  // namespace capnp

namespace warproll {

// Arguments of Cap'n Proto setters: convert to Text::Reader and Data::Reader.
struct TextArgument {
  const std::string& text;
  template <typename Text>
  operator Text() const {  // NOLINT: implicit on purpose
    return Text(text.data(), text.size());
  }
};
struct DataArgument {
  const void* data;
  size_t size;
  template <typename Data>
  operator Data() const {  // NOLINT: implicit on purpose
    return Data(static_cast<const unsigned char*>(data), size);
  }
};

class FieldWriter {
 public:
  TextArgument text(const char* name, const std::string& from) {
    fail_if(check_utf8(name, from));
    return {from};
  }
  template <typename Container>
  DataArgument data(const Container& from) {
    return {from.data(), from.size() * sizeof(*from.data())};
  }
  unsigned count(const char* name, size_t size) {
    fail_if(check_count(name, size));
    return size > kMaxListItems ? 0 : static_cast<unsigned>(size);
  }
  template <typename Wire, typename Enum>
  Wire enumeration(const char* name, Enum from, Enum last) {
    fail_if(check_enum(name, static_cast<unsigned>(from), static_cast<unsigned>(last)));
    return static_cast<Wire>(from);
  }
  template <typename List>
  void texts(const char* name, const std::vector<std::string>& from, List to) {
    for (unsigned i = 0; i < to.size(); ++i) to.set(i, text(name, from[i]));
  }
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] bool ok() const { return status_.ok(); }

  static Status check_count(const char* name, size_t size);
  static Status check_enum(const char* name, unsigned value, unsigned last);

 private:
  void fail_if(Status status) {
    if (status_.ok() && !status.ok()) status_ = std::move(status);
  }
  Status status_;
};

class FieldReader {
 public:
  template <typename Text>
  void text(const char* name, const Text& from, std::string* to) {
    to->assign(from.begin(), from.size());
    fail_if(check_utf8(name, *to));
  }
  template <typename Data>
  void bytes(const Data& from, std::string* to) {  // opaque
    to->assign(reinterpret_cast<const char*>(from.begin()), from.size());
  }
  template <typename Data, typename T>
  void array(const char* name, const Data& from, std::vector<T>* to) {
    fail_if(check_multiple(name, from.size(), sizeof(T)));
    to->resize(from.size() / sizeof(T));
    if (!to->empty()) std::memcpy(to->data(), from.begin(), to->size() * sizeof(T));
  }
  // Empty = all zero, so that a peer without a digest may leave it out.
  template <typename Data>
  void digest(const char* name, const Data& from, Digest* to) {
    if (from.size() != 0) fail_if(check_size(name, from.size(), to->size()));
    if (from.size() == to->size()) std::memcpy(to->data(), from.begin(), to->size());
  }
  template <typename Wire, typename Enum>
  void enumeration(const char* name, Wire from, Enum last, Enum* to) {
    const unsigned value = static_cast<unsigned>(from);
    fail_if(FieldWriter::check_enum(name, value, static_cast<unsigned>(last)));
    if (value <= static_cast<unsigned>(last)) *to = static_cast<Enum>(value);
  }
  // The list's size, 0 when it is too long.
  template <typename List>
  unsigned count(const char* name, const List& from) {
    fail_if(FieldWriter::check_count(name, from.size()));
    return from.size() > kMaxListItems ? 0 : from.size();
  }
  template <typename List>
  void texts(const char* name, const List& from, std::vector<std::string>* to) {
    to->resize(count(name, from));
    for (unsigned i = 0; i < to->size(); ++i) text(name, from[i], &(*to)[i]);
  }
  void fail_if(Status status) {
    if (status_.ok() && !status.ok()) status_ = std::move(status);
  }
  [[nodiscard]] const Status& status() const { return status_; }
  static Status check_size(const char* name, size_t got, size_t wanted);

 private:
  static Status check_multiple(const char* name, size_t size_bytes, size_t element_bytes);
  Status status_;
};

// Exactly one segment whose table and length agree with the bytes.
Status check_flat(const char* name, std::span<const std::byte> bytes);
// Checks the framing, aligns, sets the limits, and turns every kj::Exception into a Status.
Status read_flat(const char* name, std::span<const std::byte> bytes,
                 const std::function<void(capnp::MessageReader&, FieldReader&)>& read);
// `build` may run twice (the second time in a segment that is large enough).
Result<Bytes> build_flat(const char* name, size_t hint_bytes,
                         const std::function<void(capnp::MessageBuilder&, FieldWriter&)>& build);

}  // namespace warproll
