#include "worker/commands/log_query.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <ctime>
#include <limits>

namespace warproll {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

template <typename Integer>
bool parse_whole(std::string_view text, Integer& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

int64_t seconds_of_unit(char unit) {
  switch (unit) {
    case 's':
      return 1;
    case 'm':
      return 60;
    case 'h':
      return 3600;
    case 'd':
      return 86400;
    default:
      return 0;
  }
}

}  // namespace

Result<int64_t> parse_time(const std::string& text, int64_t now_ns) {
  constexpr int64_t kMaxSeconds = std::numeric_limits<int64_t>::max() / kNsPerSecond;
  int64_t amount = 0;
  if (text.starts_with('@') && parse_whole(std::string_view(text).substr(1), amount) &&
      amount >= 0 && amount <= kMaxSeconds) {
    return amount * kNsPerSecond;
  }
  if (text.size() >= 2) {
    const int64_t unit = seconds_of_unit(text.back());
    const std::string_view digits = std::string_view(text).substr(0, text.size() - 1);
    if (unit != 0 && parse_whole(digits, amount) && amount >= 0 && amount <= kMaxSeconds / unit) {
      return now_ns - amount * unit * kNsPerSecond;
    }
  }
  std::tm parts{};
  const char* end = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  if (end != nullptr && *end == '\0') {
    return static_cast<int64_t>(timegm(&parts)) * kNsPerSecond;
  }
  return invalid_argument("time '" + text +
                          "', wanted 2026-11-29T14:00:00Z (UTC), @UNIX_SECONDS, or an age such as "
                          "90s, 15m, 2h, 7d");
}

void add_selection_options(CLI::App& command, LogSelection& selection) {
  command.add_option("--from", selection.from_seq, "first sequence number");
  command.add_option("--to-seq", selection.to_seq, "last sequence number; 0 = to the end");
  command.add_option("--task", selection.task_id, "only this task");
  command.add_option("--group", selection.group_id, "only this group");
  command.add_option("--weight-version", selection.weight_version,
                     "only samples with a token of this version");
  command.add_option("--since", selection.since,
                     "sealed at or after: 2026-11-29T14:00:00Z, @UNIX_SECONDS, or an age (90m)");
  command.add_option("--until", selection.until, "sealed before, as --since");
}

Result<SampleQuery> to_query(const LogSelection& selection, int64_t now_ns) {
  SampleQuery query;
  query.from_seq = selection.from_seq;
  if (selection.to_seq != 0) query.to_seq = selection.to_seq;
  if (!selection.task_id.empty()) query.task_id = selection.task_id;
  if (!selection.group_id.empty()) query.group_id = selection.group_id;
  if (!selection.weight_version.empty()) {
    uint64_t version = 0;
    if (!parse_whole(std::string_view(selection.weight_version), version)) {
      return invalid_argument("--weight-version is '" + selection.weight_version +
                              "', wanted a whole number");
    }
    query.weight_version = version;
  }
  if (!selection.since.empty()) {
    WARPROLL_TRY_ASSIGN(from_ns, parse_time(selection.since, now_ns));
    query.from_ns = from_ns;
  }
  if (!selection.until.empty()) {
    WARPROLL_TRY_ASSIGN(to_ns, parse_time(selection.until, now_ns));
    query.to_ns = to_ns;
  }
  return query;
}

Result<SampleCursor> open_selection(const std::string& directory, const LogSelection& selection) {
  const int64_t now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                             std::chrono::system_clock::now().time_since_epoch())
                             .count();
  WARPROLL_TRY_ASSIGN(query, to_query(selection, now_ns));
  WARPROLL_TRY_ASSIGN(reader, LogReader::open_for_inspection(directory));
  return reader->query(std::move(query));
}

}  // namespace warproll
