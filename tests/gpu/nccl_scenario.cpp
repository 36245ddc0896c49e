#include "tests/gpu/nccl_scenario.h"

#include <csignal>
#include <cstdio>

namespace warproll::gpu_test {
namespace {

int failures = 0;

std::string gb_per_s(uint64_t bytes, double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GB/s", static_cast<double>(bytes) / seconds / 1e9);
  return text;
}

}  // namespace

void expect(bool holds, const std::string& what) {
  if (!holds) ++failures;
  std::printf("  %s %s\n", holds ? "ok  " : "FAIL", what.c_str());
  std::fflush(stdout);
}

int num_failures() { return failures; }

std::string in_s(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f s", seconds);
  return text;
}

void Scenario::begin(uint64_t version, const std::vector<int>& members, Order order, int special) {
  order.version = version;
  order.attempt = ++attempt_;
  order.num_members = static_cast<int32_t>(members.size());
  order_ = order;
  order_.task = Task::kStartGroup;
  const Report started = ranks_.ask(0, order_);
  std::memcpy(order_.unique_id, started.unique_id, sizeof order_.unique_id);
  expect(started.ok, "group of " + std::to_string(members.size()) + " started " + started.text);
  for (size_t i = 0; i < members.size(); ++i) {
    Order receive = order_;
    receive.task = Task::kReceive;
    receive.rank = static_cast<int32_t>(i) + 1;
    if (members[i] != special) receive.signal = 0;
    ranks_.begin(members[i], receive);
  }
  order_.task = Task::kAwaitGroup;
  ranks_.begin(0, order_);
}

void Scenario::transfer(const std::string& what, uint64_t version, const std::vector<int>& members,
                        bool to_host) {
  std::printf("%s\n", what.c_str());
  begin(version, members, {.to_host = to_host});
  for (const int member : members) {
    const Report report = ranks_.await(member);
    expect(report.ok, "worker " + std::to_string(member) + ": " + in_s(report.seconds) +
                          " in all, stream " +
                          gb_per_s(report.stream_bytes, report.stream_seconds) + " " + report.text);
  }
  const Report root = ranks_.await(0);
  expect(root.ok, std::string("trainer: ") + in_s(root.seconds) + " " + root.text);
}

void Scenario::bare(uint64_t version, const std::vector<int>& members) {
  Order order{.task = Task::kMakeId, .version = version};
  order.num_members = static_cast<int32_t>(members.size());
  const Report id = ranks_.ask(0, order);
  std::memcpy(order.unique_id, id.unique_id, sizeof order.unique_id);
  order.task = Task::kBare;
  ranks_.begin(0, order);
  for (size_t i = 0; i < members.size(); ++i) {
    order.rank = static_cast<int32_t>(i) + 1;
    ranks_.begin(members[i], order);
  }
  for (const int member : members) (void)ranks_.await(member);
  const Report root = ranks_.await(0);
  expect(root.ok, "bare loop of ncclBroadcast: " + in_s(root.stream_seconds) + ", " +
                      gb_per_s(root.stream_bytes, root.stream_seconds) + " " + root.text);
}

void Scenario::death(int victim, int witness, int signal, int32_t silence_ms, uint64_t version,
                     uint64_t at_bytes) {
  std::printf("worker %d gets signal %d after %lu MB\n", victim, signal, at_bytes >> 20);
  begin(version, {witness, victim},
        {.silence_ms = silence_ms, .signal_at_bytes = at_bytes, .signal = signal}, victim);
  for (const int rank : {witness, 0}) {
    const Report report = ranks_.await(rank, 90);
    expect(!report.ok, (rank == 0 ? "trainer" : "worker " + std::to_string(rank)) +
                           std::string(" has aborted ") +
                           in_s(report.ended_s - ranks_.died_s(victim)) + " later: " + report.text);
  }
  ranks_.end(victim);
  transfer("the rest, in a new group", version, {witness});
}

void Scenario::death_of_two(int victim, uint64_t version, uint64_t at_bytes) {
  const int witness = 1 - victim;
  const char* const names[] = {"the trainer", "the worker"};
  std::printf("%s is killed after %lu MB\n", names[victim], at_bytes >> 20);
  // Between GPUs of one host NCCL says nothing of a death: the watchdog ends the group.
  Order order{.silence_ms = kSilenceOfTwo_ms, .signal_at_bytes = at_bytes, .signal = SIGKILL};
  order.signal_rank = victim;
  order.signal_pid = ranks_.pid(victim);
  begin(version, {1}, order, 1);
  const Report report = ranks_.await(witness, 90);
  expect(!report.ok, names[witness] + std::string(" has aborted ") +
                         in_s(report.ended_s - ranks_.died_s(victim)) + " later: " + report.text);
  ranks_.restart(victim);
  transfer("a new process takes its place", version, {1});
}

void Scenario::print_usage(const std::string& when, const std::vector<int>& which,
                           std::vector<Report>* usage) {
  usage->clear();
  std::string text = "  " + when + ":";
  for (const int rank : which) {
    usage->push_back(ranks_.ask(rank, {.task = Task::kUsage}));
    text += " rank " + std::to_string(rank) + " " + std::to_string(usage->back().fds) + " fds " +
            std::to_string(usage->back().threads) + " threads;";
  }
  std::printf("%s GPU memory free %lu MB\n", text.c_str(), usage->back().free_device_bytes >> 20);
}

void Scenario::expect_no_growth(const std::vector<Report>& before, const std::vector<Report>& after,
                                int32_t known_fds) {
  bool same = true;
  for (size_t i = 0; i < before.size(); ++i) {
    same =
        same && after[i].fds <= before[i].fds + known_fds && after[i].threads <= before[i].threads;
  }
  expect(same, known_fds == 0 ? "no more descriptors or threads"
                              : "no more threads, and no more descriptors than NCCL's own");
  expect(after.back().free_device_bytes + (8 << 20) >= before.back().free_device_bytes,
         "no less GPU memory");
}

void Scenario::many_groups(int count) {
  std::printf("%d groups in a row\n", count);
  std::vector<Report> before, after;
  const auto one = [&] {
    begin_quietly(3, {1, 2});
    bool ok = true;
    for (const int rank : {1, 2, 0}) ok = ranks_.await(rank).ok && ok;
    return ok;
  };
  for (int i = 0; i < 5; ++i) expect(one(), "warm-up");
  print_usage("before", {0, 1, 2}, &before);
  const double begun = now_s();
  int done = 0;
  for (int i = 0; i < count; ++i) done += one() ? 1 : 0;
  expect(done == count, std::to_string(done) + " of " + std::to_string(count) + ", each " +
                            in_s((now_s() - begun) / count));
  print_usage("after", {0, 1, 2}, &after);
  expect_no_growth(before, after);
}

void Scenario::missing_member() {
  // NCCL 2.28.3 does not close the two sockets it listens on when a rank is aborted while it waits
  // for the others.
  constexpr int kTimes = 3;
  constexpr int32_t kNotClosedByNccl = 2;
  std::printf("a member that never comes\n");
  std::vector<Report> before, after;
  print_usage("before", {0, 1}, &before);
  for (int i = 0; i < kTimes; ++i) {
    Order order{.version = 3, .attempt = ++attempt_, .rank = 1, .num_members = 2};
    order.task = Task::kStartGroup;
    const Report started = ranks_.ask(0, order);
    std::memcpy(order.unique_id, started.unique_id, sizeof order.unique_id);
    order.task = Task::kReceive;
    order.silence_ms = 700;
    const double begun = now_s();
    ranks_.begin(1, order);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    order.task = Task::kStopGroup;
    const Report stopped = ranks_.ask(0, order);
    const Report report = ranks_.await(1);
    expect(stopped.ok && !report.ok, "stopped; the worker gave up after " +
                                         in_s(report.ended_s - begun) + ": " + report.text);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  print_usage("after", {0, 1}, &after);
  expect_no_growth(before, after, kTimes * kNotClosedByNccl);
}

void Scenario::begin_quietly(uint64_t version, const std::vector<int>& members) {
  Order order{.version = version, .attempt = ++attempt_};
  order.num_members = static_cast<int32_t>(members.size());
  order.task = Task::kStartGroup;
  const Report started = ranks_.ask(0, order);
  std::memcpy(order.unique_id, started.unique_id, sizeof order.unique_id);
  order.task = Task::kReceive;
  for (const int member : members) {
    ++order.rank;
    ranks_.begin(member, order);
  }
  order.task = Task::kAwaitGroup;
  ranks_.begin(0, order);
}

}  // namespace warproll::gpu_test
