// nccl_one_gpu: the nccl transport between real processes on one GPU (or one GPU a rank, where there
// are enough): a trainer and three workers, the streams and deaths of an update, and what is left
// behind. Prints a line a step and exits 1 when anything does not hold; 77 where there is no GPU.
//   nccl_one_gpu [--big-mb N] [--groups N] [--max-ctas N] [--bucket-mb N] [--ranks N] [--only WORD]
// --ranks 2 or 3: only the transfers, to as many workers; with a GPU for each there is no pretending.
// --only: transfer, big, groups, missing, killed, stopped.
#include <dirent.h>
#include <sys/statvfs.h>

#include <cstdio>
#include <filesystem>

#include "tests/gpu/nccl_ranks.h"

namespace warproll::gpu_test {
namespace {

int failures = 0;

void expect(bool holds, const std::string& what) {
  if (!holds) ++failures;
  std::printf("  %s %s\n", holds ? "ok  " : "FAIL", what.c_str());
  std::fflush(stdout);
}

std::string gb_per_s(uint64_t bytes, double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GB/s", static_cast<double>(bytes) / seconds / 1e9);
  return text;
}
std::string in_s(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f s", seconds);
  return text;
}

class Scenario {
 public:
  explicit Scenario(RankProcesses& ranks) : ranks_(ranks) {}

  // A group of the workers `members` (process numbers) receives `version`; they are begun only.
  void begin(uint64_t version, const std::vector<int>& members, Order order = {}, int special = 0) {
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

  void transfer(const std::string& what, uint64_t version, const std::vector<int>& members,
                bool to_host = false) {
    std::printf("%s\n", what.c_str());
    begin(version, members, {.to_host = to_host});
    for (const int member : members) {
      const Report report = ranks_.await(member);
      expect(report.ok,
             "worker " + std::to_string(member) + ": " + in_s(report.seconds) + " in all, stream " +
                 gb_per_s(report.stream_bytes, report.stream_seconds) + " " + report.text);
    }
    const Report root = ranks_.await(0);
    expect(root.ok, std::string("trainer: ") + in_s(root.seconds) + " " + root.text);
  }

  void bare(uint64_t version, const std::vector<int>& members) {
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

  // One member of two gets a signal in the middle; the other and the trainer have to give up.
  void death(int victim, int witness, int signal, int32_t silence_ms, uint64_t version,
             uint64_t at_bytes) {
    std::printf("worker %d gets signal %d after %lu MB\n", victim, signal, at_bytes >> 20);
    begin(version, {witness, victim},
          {.silence_ms = silence_ms, .signal_at_bytes = at_bytes, .signal = signal}, victim);
    for (const int rank : {witness, 0}) {
      const Report report = ranks_.await(rank, 90);
      expect(!report.ok, (rank == 0 ? "trainer" : "worker " + std::to_string(rank)) +
                             std::string(" has aborted ") +
                             in_s(report.ended_s - ranks_.died_s(victim)) +
                             " later: " + report.text);
    }
    ranks_.end(victim);
    transfer("the rest, in a new group", version, {witness});
  }

  void print_usage(const std::string& when, const std::vector<int>& which,
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

  void expect_no_growth(const std::vector<Report>& before, const std::vector<Report>& after,
                        int32_t known_fds = 0) {
    bool same = true;
    for (size_t i = 0; i < before.size(); ++i) {
      same = same && after[i].fds <= before[i].fds + known_fds &&
             after[i].threads <= before[i].threads;
    }
    expect(same, known_fds == 0 ? "no more descriptors or threads"
                                : "no more threads, and no more descriptors than NCCL's own");
    expect(after.back().free_device_bytes + (8 << 20) >= before.back().free_device_bytes,
           "no less GPU memory");
  }

  void many_groups(int count) {
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

  void missing_member() {
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

 private:
  void begin_quietly(uint64_t version, const std::vector<int>& members) {
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

  RankProcesses& ranks_;
  Order order_;
  uint32_t attempt_ = 0;
};

std::string roomy_directory(uint64_t bytes) {
  struct statvfs info {};
  const bool fits = statvfs("/dev/shm", &info) == 0 && info.f_bavail * info.f_frsize > bytes;
  std::string pattern = std::string(fits ? "/dev/shm" : "/tmp") + "/warproll-nccl-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp");
  return pattern;
}

struct Arguments {
  uint64_t big_mb = 2048;
  uint64_t bucket_mb = 16;
  int groups = 50;
  int max_ctas = 4;
  int ranks = 4;
  std::string only;
};

void run_scenarios(Scenario& scenario, const Arguments& arguments, uint64_t big_bytes) {
  const auto wanted = [&arguments](const char* word) {
    return arguments.only.empty() || arguments.only == word;
  };
  const std::vector<int> workers =
      arguments.ranks > 2 ? std::vector<int>{1, 2} : std::vector<int>{1};
  if (wanted("transfer")) {
    scenario.transfer("64 MB, out of the checkpoint", 1, workers);
    scenario.transfer("64 MB again", 1, workers);
    scenario.transfer("64 MB to workers in host memory", 1, workers, true);
    scenario.bare(1, workers);
  }
  if (wanted("missing")) scenario.missing_member();
  if (wanted("big")) {
    const std::string mb = std::to_string(arguments.big_mb) + " MB";
    scenario.transfer(mb + ", out of the checkpoint", 2, workers);
    scenario.transfer(mb + ", out of GPU memory", 2 + kFromDevice, workers);
    scenario.bare(2, workers);
    scenario.transfer(mb + " to one worker, out of the checkpoint", 2, {1});
    scenario.bare(2, {1});
  }
  if (arguments.ranks < 4) return;
  if (wanted("groups")) scenario.many_groups(arguments.groups);
  if (wanted("killed")) scenario.death(2, 1, SIGKILL, 30'000, 2, big_bytes / 4);
  if (wanted("stopped")) scenario.death(3, 1, SIGSTOP, 2'000, 2, big_bytes / 4);
}

int run(const Arguments& arguments) {
  const std::string directory = roomy_directory(2 * (arguments.big_mb << 20));
  RankSetup setup;
  setup.num_ranks = arguments.ranks;
  setup.max_ctas = arguments.max_ctas;
  const uint64_t bucket = arguments.bucket_mb << 20;
  setup.offered = {make_checkpoint(directory + "/1", uint64_t{64} << 20, 1, bucket),
                   make_checkpoint(directory + "/2", arguments.big_mb << 20, 2, bucket),
                   make_checkpoint(directory + "/3", uint64_t{1} << 20, 3, bucket)};
  const uint64_t big_bytes = setup.offered[1].manifest->stream_bytes();
  std::printf("streams of %lu and %lu bytes, buckets of %lu MB, %d CTAs, %d ranks\n",
              setup.offered[0].manifest->stream_bytes(), big_bytes, arguments.bucket_mb,
              arguments.max_ctas, arguments.ranks);
  std::fflush(stdout);
  RankProcesses* processes = nullptr;
  setup.note_death = [&processes](int rank) { processes->note_death(rank); };
  RankProcesses ranks(arguments.ranks, [&](int rank) {
    processes = &ranks;
    return make_rank(setup, rank);
  });
  Scenario scenario(ranks);
  const double begun = now_s();
  run_scenarios(scenario, arguments, big_bytes);
  std::printf("%d failures, %s\n", failures, in_s(now_s() - begun).c_str());
  std::filesystem::remove_all(directory);
  return failures == 0 ? 0 : 1;
}

bool has_gpu() {  // without touching CUDA, which does not survive a fork
  DIR* const directory = opendir("/proc/driver/nvidia/gpus");
  if (directory != nullptr) closedir(directory);
  return directory != nullptr || access("/dev/nvidia0", F_OK) == 0;
}

}  // namespace
}  // namespace warproll::gpu_test

int main(int argc, char** argv) {
  warproll::gpu_test::Arguments arguments;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    if (key == "--big-mb") arguments.big_mb = std::stoull(argv[i + 1]);
    if (key == "--bucket-mb") arguments.bucket_mb = std::stoull(argv[i + 1]);
    if (key == "--groups") arguments.groups = std::stoi(argv[i + 1]);
    if (key == "--max-ctas") arguments.max_ctas = std::stoi(argv[i + 1]);
    if (key == "--ranks") arguments.ranks = std::stoi(argv[i + 1]);
    if (key == "--only") arguments.only = argv[i + 1];
  }
  if (!warproll::gpu_test::has_gpu()) {
    std::printf("SKIPPED: there is no GPU here, nothing was tested\n");
    return 77;
  }
  try {
    return warproll::gpu_test::run(arguments);
  } catch (const std::exception& error) {
    std::printf("FAIL %s\n", error.what());
    return 1;
  }
}
