// summarize_log: totals from the index, without reading samples.
#include <rocksdb/db.h>
#include <rocksdb/iterator.h>

#include <map>

#include "rollout/sample_log/log_check.h"
#include "rollout/sample_log/store.h"

namespace warproll {
namespace {

constexpr size_t kSeqBytes = 8;
constexpr size_t kSampleIndexBytes = 4;

struct Counts {
  LogSummary* summary;
  std::map<uint64_t, uint64_t> by_version;
  std::string group;  // the last one seen: entries of one group stand together
  std::string task;

  void add(std::string_view key, std::string_view value) {
    switch (key[0]) {
      case kIndexSeq: {
        const auto info = parse_seq_info(value);
        if (!info) return;
        summary->samples += 1;
        summary->bytes += info->bytes;
        if (summary->oldest_ns == 0 || info->sealed_ns < summary->oldest_ns) {
          summary->oldest_ns = info->sealed_ns;
        }
        summary->newest_ns = std::max(summary->newest_ns, info->sealed_ns);
        return;
      }
      case kIndexVersion:
        ++by_version[parse_be64(key.substr(1))];
        return;
      case kIndexGroup:
        summary->groups += count_new(key.substr(0, key.size() - kSeqBytes), &group);
        return;
      case kIndexTask:
        if (key.size() <= kSeqBytes + kSampleIndexBytes) return;
        summary->tasks +=
            count_new(key.substr(0, key.size() - kSeqBytes - kSampleIndexBytes), &task);
        return;
      default:
        return;
    }
  }
  static uint64_t count_new(std::string_view name, std::string* last) {
    if (*last == name) return 0;
    *last = std::string(name);
    return 1;
  }
};

}  // namespace

Result<LogSummary> summarize_log(const std::string& directory) {
  WARPROLL_TRY_ASSIGN(store, Store::open_copy(directory, StoreMode::kReadOnly));
  WARPROLL_TRY_ASSIGN(state, store->load_state());
  WARPROLL_TRY_ASSIGN(accounting, store->accounting());
  LogSummary summary;
  summary.info = state.info;
  summary.accounting = accounting;
  const Store::Session session = store->session();
  std::unique_ptr<rocksdb::Iterator> it(
      session.db().NewIterator(rocksdb::ReadOptions(), session.family(Family::kIndex)));
  Counts counts{.summary = &summary, .by_version = {}, .group = {}, .task = {}};
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    if (it->key().size() > kSeqBytes) {
      counts.add(it->key().ToStringView(), it->value().ToStringView());
    }
  }
  WARPROLL_TRY(from_rocksdb(it->status(), "sample log index"));
  summary.samples_by_weight_version.assign(counts.by_version.begin(), counts.by_version.end());
  return summary;
}

}  // namespace warproll
