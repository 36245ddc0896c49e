// Ranks as processes of one test program: forked before anything touches CUDA, told what to do
// through shared memory, one order at a time. Each looks like a host of its own to NCCL when there
// are fewer GPUs than ranks.
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace warproll::gpu_test {

inline double now_s() {  // the same clock in all processes
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

enum class Task : int32_t {
  kExit,
  kStartGroup,
  kAwaitGroup,
  kStopGroup,
  kReceive,
  kMakeId,
  kBare,
  kUsage
};

struct Order {
  Task task = Task::kExit;
  uint64_t version = 0;
  uint32_t attempt = 0;
  int32_t rank = 0;
  int32_t num_members = 0;
  bool to_host = false;          // kReceive: by the host's sink
  int32_t silence_ms = 30'000;   // kReceive
  uint64_t signal_at_bytes = 0;  // kReceive: when so many have come ...
  int32_t signal = 0;            // ... this one to itself, or to
  int32_t signal_pid = 0;        // another process, of rank
  int32_t signal_rank = 0;
  char unique_id[128] = {};
};

struct Report {
  bool ok = false;
  double ended_s = 0;
  double seconds = 0;         // of the whole task
  double stream_seconds = 0;  // from the first bytes to the last
  uint64_t stream_bytes = 0;  // in those
  uint64_t free_device_bytes = 0;
  int32_t fds = 0;
  int32_t threads = 0;
  char unique_id[128] = {};
  char text[480] = {};
};

class RankProcesses {
 public:
  using Handler = std::function<Report(const Order&)>;

  // `make(rank)` runs in the child and returns what answers its orders.
  RankProcesses(int num_ranks, std::function<Handler(int rank)> make) : make_(std::move(make)) {
    mailboxes_ =
        static_cast<Mailbox*>(mmap(nullptr, sizeof(Mailbox) * kMaxRanks, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    if (mailboxes_ == MAP_FAILED) throw std::runtime_error("mmap");
    for (int rank = 0; rank < num_ranks; ++rank) pids_.push_back(start(rank));
  }
  ~RankProcesses() {
    for (const pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

  void begin(int rank, const Order& order) {
    mailboxes_[rank].order = order;
    mailboxes_[rank].asked.fetch_add(1, std::memory_order_release);
  }
  // Throws when there is no answer.
  Report await(int rank, double limit_s = 60) {
    Mailbox& box = mailboxes_[rank];
    for (const double end = now_s() + limit_s; now_s() < end;) {
      if (box.answered.load(std::memory_order_acquire) == box.asked.load()) return box.report;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    throw std::runtime_error("rank " + std::to_string(rank) + " does not answer");
  }
  Report ask(int rank, const Order& order) {
    begin(rank, order);
    return await(rank);
  }
  double died_s(int rank) { return mailboxes_[rank].died_s; }
  void end(int rank) { kill(pids_[rank], SIGKILL); }
  [[nodiscard]] int32_t pid(int rank) const { return pids_[rank]; }
  // A new process in the place of one that has died.
  void restart(int rank) {
    end(rank);
    waitpid(pids_[rank], nullptr, 0);
    pids_[rank] = start(rank);
  }
  // In the child: the moment before it ends itself.
  void note_death(int rank) { mailboxes_[rank].died_s = now_s(); }

 private:
  static constexpr int kMaxRanks = 8;
  struct Mailbox {
    std::atomic<uint32_t> asked{0};
    std::atomic<uint32_t> answered{0};
    Order order;
    Report report;
    double died_s = 0;
  };

  pid_t start(int rank) {
    new (&mailboxes_[rank]) Mailbox;
    const pid_t pid = fork();
    if (pid == 0) serve(rank);
    return pid;
  }

  [[noreturn]] void serve(int rank) {
    alarm(300);
    Handler handle = make_(rank);
    Mailbox& box = mailboxes_[rank];
    for (uint32_t number = 1;; ++number) {
      while (box.asked.load(std::memory_order_acquire) != number) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      if (box.order.task == Task::kExit) _exit(0);
      try {
        box.report = handle(box.order);
      } catch (const std::exception& error) {
        box.report = Report{};
        std::strncpy(box.report.text, error.what(), sizeof box.report.text - 1);
      }
      box.report.ended_s = now_s();
      box.answered.store(number, std::memory_order_release);
    }
  }

  const std::function<Handler(int rank)> make_;
  Mailbox* mailboxes_ = nullptr;
  std::vector<pid_t> pids_;
};

}  // namespace warproll::gpu_test
