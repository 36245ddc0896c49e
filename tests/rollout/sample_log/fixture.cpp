#include "tests/rollout/sample_log/fixture.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <future>
#include <thread>

namespace warproll::testing {

namespace fs = std::filesystem;

TempFolder::TempFolder() {
  std::string name = (fs::temp_directory_path() / "warproll-log-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
  root_ = name;
}
TempFolder::~TempFolder() {
  std::error_code error;
  fs::remove_all(root_, error);
}

Trajectory make_trajectory(const TrajectoryShape& shape, std::mt19937_64& rng) {
  constexpr int32_t kPromptTokens = 5;
  const int32_t num_tokens = kPromptTokens + shape.response_tokens;
  std::uniform_int_distribution<int32_t> ids(0, 1000);
  std::uniform_real_distribution<float> logs(-5.0f, -0.01f);
  Trajectory out;
  out.task_id = shape.task_id;
  out.group_id = shape.group_id.empty() ? shape.task_id : shape.group_id;
  out.sample_index = shape.sample_index;
  out.prompt_len = kPromptTokens;
  for (int32_t i = 0; i < num_tokens; ++i) {
    const bool sampled = i >= kPromptTokens;
    out.token_ids.push_back(ids(rng));
    out.loss_mask.push_back(sampled ? 1 : 0);
    out.logprobs.push_back(sampled ? logs(rng) : 0.0f);
    out.raw_logprobs.push_back(sampled ? logs(rng) : 0.0f);
    out.support_logmass.push_back(sampled ? logs(rng) : 0.0f);
  }
  Digest digest{};
  digest[0] = static_cast<uint8_t>(shape.weight_version + 1);
  out.version_runs = {{.start = kPromptTokens, .weight_version = shape.weight_version}};
  out.version_digests = {{.weight_version = shape.weight_version, .weight_digest = digest}};
  if (shape.routes) {
    RoutedExperts routes{
        .num_tokens = num_tokens - 1, .num_layers = 2, .top_k = 2, .bytes_per_id = 1, .data = {}};
    routes.data.resize(static_cast<size_t>(num_tokens - 1) * 4);
    // The top_k experts of a token are different ones.
    for (size_t i = 0; i < routes.data.size(); ++i) {
      routes.data[i] = static_cast<uint8_t>(i % 2 == 0 ? rng() % 64 : 64 + rng() % 64);
    }
    out.routed_experts = routes;
  }
  out.finish_reason = FinishReason::kLength;
  out.sampling.max_tokens = shape.response_tokens;
  out.sampling.seed = rng();
  out.text = "text of " + shape.task_id;
  out.timings.task_received_ns = 1;
  out.model = "qwen3moe-test";
  out.activation_dtype = "f32";
  out.tokenizer_digest[0] = 7;
  out.engine_version = "test";
  out.metadata = "metadata of " + shape.task_id;
  return out;
}

SampleLogOptions test_options(const std::string& directory) {
  SampleLogOptions options;
  options.directory = directory;
  options.min_free_bytes = 0;
  options.batch_wait_ms = 1;
  options.retry_ms = 20;
  return options;
}

Clock::time_point soon() { return Clock::now() + std::chrono::seconds(60); }

bool wait_until(const std::function<bool()>& condition) {
  const auto deadline = soon();
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

std::vector<Sealed> append_many(SampleLog& log, int count, std::mt19937_64& rng, int first_task) {
  std::vector<std::future<Result<Sealed>>> futures;
  for (int i = 0; i < count; ++i) {
    const TrajectoryShape shape{.task_id = "task-" + std::to_string(first_task + i),
                                .group_id = {},
                                .response_tokens = 1 + static_cast<int32_t>(rng() % 60),
                                .routes = i % 3 == 0};
    futures.push_back(log.append(make_trajectory(shape, rng), soon()));
  }
  std::vector<Sealed> out;
  for (auto& future : futures) {
    auto sealed = future.get();
    EXPECT_TRUE(sealed.ok()) << sealed.status().to_string();
    if (sealed.ok()) out.push_back(*sealed);
  }
  return out;
}

void copy_folder(const std::string& from, const std::string& to) {
  const auto deadline = soon();
  while (true) {
    std::error_code error;
    fs::remove_all(to, error);
    fs::copy(from, to, fs::copy_options::recursive, error);
    if (!error) return;
    // RocksDB removes files it no longer needs when it gets to it.
    if (Clock::now() > deadline) throw std::runtime_error("cannot copy " + from);
  }
}

Child start_child(const std::vector<std::string>& arguments) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  std::vector<std::string> all = {"/proc/self/exe"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& argument : all) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t pid = vfork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (fds[1] == 3) {
      fcntl(3, F_SETFD, 0);
    } else {
      dup2(fds[1], 3);
    }
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  close(fds[1]);
  return {.pid = pid, .read_fd = fds[0]};
}

int writer_main(const std::vector<std::string>& arguments) {
  constexpr int kReportFd = 3;
  constexpr int kProducers = 3;
  SampleLogOptions options = test_options(arguments.at(0));
  options.durability = *durability_from(arguments.at(1));
  options.queue_samples = 32;
  options.seq_block = 64;
  options.write_buffer_bytes = 256 << 10;  // tables come and go, so that kills and readers meet it
  options.retention.keep_samples = 200;
  const uint64_t seed = std::stoull(arguments.at(2));
  auto log = SampleLog::open(options);
  if (!log.ok()) {
    const std::string text = "open failed: " + log.status().to_string() + "\n";
    (void)!write(kReportFd, text.data(), text.size());
    return 1;
  }
  SampleLog& open_log = **log;
  if (!open_log.rewind("lineage", open_log.commit_upto()).ok()) return 2;
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&open_log, seed, p] {
      std::mt19937_64 rng(seed * 31 + static_cast<uint64_t>(p));
      for (int i = 0;; ++i) {
        const std::string task =
            std::to_string(seed) + "-" + std::to_string(p) + "-" + std::to_string(i);
        const TrajectoryShape shape{.task_id = task,
                                    .group_id = {},
                                    .response_tokens = 1 + static_cast<int32_t>(rng() % 400),
                                    .routes = i % 2 == 0};
        const Status status =
            open_log.append(make_trajectory(shape, rng), soon(), [task](Result<Sealed> sealed) {
              if (!sealed.ok()) return;
              const std::string line = std::to_string(sealed->seq) + " " + task + "\n";
              (void)!write(kReportFd, line.data(), line.size());
            });
        if (!status.ok()) return;
      }
    });
  }
  // The delivery side, so that a kill can hit its writes too.
  std::mt19937_64 rng(seed);
  while (true) {
    const uint64_t last = open_log.last_seq();
    if (last > 20) (void)open_log.mark_committed(last - 20, "lineage");
    if (last > 20 && rng() % 8 == 0) {
      (void)open_log.dead_letter(last - rng() % 20, NackCode::kInvalid, "test");
    }
    if (rng() % 16 == 0) (void)open_log.apply_retention();
    std::this_thread::yield();
  }
}

int crash_main(const std::vector<std::string>& arguments) {
  const std::string& directory = arguments.at(0);
  const int samples = std::stoi(arguments.at(1));
  std::mt19937_64 rng(31);
  for (int run = 0; run < 2; ++run) {
    auto log = SampleLog::open(test_options(directory));
    if (!log.ok() || !(*log)->rewind("L1", run == 0 ? 0 : 10).ok()) return 1;
    append_many(**log, samples / 2, rng, run * 1000);
    if (run == 0) continue;
    if (!(*log)->mark_committed(20, "L1").ok()) return 1;
    kill(getpid(), SIGKILL);
  }
  return 1;
}

}  // namespace warproll::testing
