// Status and Result<T>: expected failures as values. (GCC 12 has no std::expected.)
// A message names the object, the value got and the value wanted.
// Broken invariants of our own code are not Status: they throw (see WARPROLL_CHECK).
// Thread: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace warproll {

enum class StatusCode : uint8_t {
  kOk,
  kInvalidArgument,     // the caller's or the peer's data is wrong; retrying does not help
  kNotFound,            // the named object does not exist
  kAlreadyExists,       // it exists already, with other content
  kFailedPrecondition,  // right request, wrong state (locked, not Ready, fenced)
  kUnavailable,         // try again later (peer away, queue full)
  kDeadlineExceeded,
  kResourceExhausted,  // disk, memory, blocks, context length
  kDataLoss,           // stored or received bytes are not what was written
  kAborted,            // given up on purpose
  kInternal,
};

std::string_view to_string(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] bool ok() const { return code_ == StatusCode::kOk; }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }
  // "INVALID_ARGUMENT: message", or "OK".
  [[nodiscard]] std::string to_string() const;
  // The same failure with `context: ` in front of the message; ok stays ok.
  [[nodiscard]] Status with_context(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status ok_status() { return {}; }
inline Status invalid_argument(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}
inline Status not_found(std::string message) { return {StatusCode::kNotFound, std::move(message)}; }
inline Status already_exists(std::string message) {
  return {StatusCode::kAlreadyExists, std::move(message)};
}
inline Status failed_precondition(std::string message) {
  return {StatusCode::kFailedPrecondition, std::move(message)};
}
inline Status unavailable(std::string message) {
  return {StatusCode::kUnavailable, std::move(message)};
}
inline Status deadline_exceeded(std::string message) {
  return {StatusCode::kDeadlineExceeded, std::move(message)};
}
inline Status resource_exhausted(std::string message) {
  return {StatusCode::kResourceExhausted, std::move(message)};
}
inline Status data_loss(std::string message) { return {StatusCode::kDataLoss, std::move(message)}; }
inline Status aborted(std::string message) { return {StatusCode::kAborted, std::move(message)}; }
inline Status internal_error(std::string message) {
  return {StatusCode::kInternal, std::move(message)};
}

// A value or the Status that says why there is none. Never holds an ok Status without a value.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit on purpose, as std::expected
  Result(Status status) : status_(std::move(status)) {
    if (status_.ok()) throw std::logic_error("Result built from an ok Status without a value");
  }

  [[nodiscard]] bool ok() const { return value_.has_value(); }
  [[nodiscard]] const Status& status() const { return status_; }

  // value() of a failed Result throws std::logic_error with the failure's text.
  [[nodiscard]] T& value() & { return require(), *value_; }
  [[nodiscard]] const T& value() const& { return require(), *value_; }
  [[nodiscard]] T&& value() && { return require(), std::move(*value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void require() const {
    if (!value_) throw std::logic_error("Result without a value: " + status_.to_string());
  }
  Status status_;
  std::optional<T> value_;
};

[[noreturn]] void check_failed(const char* file, int line, const char* expression,
                               const std::string& message);

}  // namespace warproll

// Returns from the calling function when `expression` (a Status) is not ok.
#define WARPROLL_TRY(expression)                                                          \
  do {                                                                                    \
    if (::warproll::Status warproll_try_status = (expression); !warproll_try_status.ok()) \
      return warproll_try_status;                                                         \
  } while (false)

// `auto name = *result`, or returns result's Status from the calling function.
#define WARPROLL_TRY_ASSIGN(name, expression)             \
  auto name##_result = (expression);                      \
  if (!name##_result.ok()) return name##_result.status(); \
  auto name = std::move(name##_result).value()

// A broken invariant of our own code: throws std::logic_error to main with file and line.
#define WARPROLL_CHECK(condition, message)                                               \
  do {                                                                                   \
    if (!(condition)) ::warproll::check_failed(__FILE__, __LINE__, #condition, message); \
  } while (false)
