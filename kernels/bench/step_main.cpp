// warproll-bench-step: the ops of a decode step, without the rest of the worker.
#include <cstdio>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/bench/step_bench.h"

namespace {

constexpr const char* kUsage =
    R"(warproll-bench-step: ops of a decode step on this GPU, cold L2, CUDA graph

  --ops qkv,o,lm_head,route,chain     also attention, qkv_gemm, qkv_cluster and so on; parts: what each
                                      op of the chain adds
  --cluster             of chain and parts: cluster_linear where it is faster (other bits)
  --dtype bf16          of qkv, o and lm_head: bf16, mxfp8, fp8_block; experts are MXFP8
  --batches 1,2,4,8,16,32,64    --context 1024    --layers 8    --replays 31

Example: warproll-bench-step --ops qkv,o --dtype mxfp8 --batches 1,8,64
)";

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> words;
  std::stringstream in(list);
  for (std::string word; std::getline(in, word, ',');) words.push_back(word);
  return words;
}

int run(int argc, char** argv) {
  warproll::StepBenchOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help" || flag == "-h") return std::fputs(kUsage, stdout), 0;
    if (flag == "--cluster") {
      options.cluster = true;
      continue;
    }
    if (i + 1 == argc) throw std::invalid_argument("option '" + flag + "' wants a value");
    const std::string value = argv[++i];
    if (flag == "--ops") {
      options.ops = split(value);
    } else if (flag == "--dtype") {
      options.dtype = value;
    } else if (flag == "--batches") {
      options.batches.clear();
      for (const std::string& word : split(value)) options.batches.push_back(std::stoi(word));
    } else if (flag == "--context") {
      options.context = std::stoi(value);
    } else if (flag == "--layers") {
      options.num_layers = std::stoi(value);
    } else if (flag == "--replays") {
      options.num_replays = std::stoi(value);
    } else {
      throw std::invalid_argument("unknown option '" + flag + "'; see --help");
    }
  }
  std::printf("%-14s %5s %9s %9s %6s\n", "op", "B", "us", "floor", "ratio");
  warproll::run_step_bench(options, [](const warproll::StepBenchRow& row) {
    std::printf("%-14s %5d %9.2f", row.op.c_str(), row.batch, row.us);
    if (row.floor_us > 0) std::printf(" %9.2f %6.2f", row.floor_us, row.us / row.floor_us);
    std::puts("");
    std::fflush(stdout);
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "warproll-bench-step: %s\n", error.what());
    return 2;
  }
}
