// nccl_one_gpu: the nccl transport between real processes on one GPU (or one GPU a rank, where there
// are enough): a trainer and three workers, the streams and deaths of an update, and what is left
// behind. Prints a line a step and exits 1 when anything does not hold; 77 where there is no GPU.
//   nccl_one_gpu [--big-mb N] [--groups N] [--max-ctas N] [--bucket-mb N] [--ranks N] [--only WORD]
// --ranks 2 or 3: only the transfers, to as many workers; with a GPU for each there is no pretending.
// 2 also has the deaths of the trainer and of its one worker.
// --only: transfer, big, groups, missing, killed, stopped.
#include <dirent.h>
#include <sys/statvfs.h>

#include <cstdio>
#include <filesystem>

#include "tests/gpu/nccl_scenario.h"

namespace warproll::gpu_test {
namespace {

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
  if (arguments.ranks == 2 && wanted("killed")) {
    scenario.death_of_two(1, 2, big_bytes / 4);
    scenario.death_of_two(0, 2 + kFromDevice, big_bytes / 4);
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
  if (arguments.ranks == 2) setup.silence_ms = kSilenceOfTwo_ms;
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
  std::printf("%d failures, %s\n", num_failures(), in_s(now_s() - begun).c_str());
  std::filesystem::remove_all(directory);
  return num_failures() == 0 ? 0 : 1;
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
