// warproll-bench-moe: `warproll bench moe` without the messaging libraries.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/bench/moe_bench.h"

namespace {

constexpr const char* kUsage = R"(warproll-bench-moe: one MoE layer on this GPU, cold L2, CUDA graph

  --paths auto,literal,dedup,expert_centric   --dtypes bf16,mxfp8,fp8_block
  --routings uniform,zipf,same                --batches 1,2,4,8,16,32,64,128
  --shape H,I,E,K      2048,768,128,8         --layers 6   --replays 31   --seed 1
  --router             what the router adds before auto
  --parts              gate_up and down by themselves too
  --check              compare with an F64 oracle (the first 16 tokens)
  --json FILE          the rows as JSON

Example: warproll-bench-moe --dtypes mxfp8 --batches 1,8,64 --check
)";

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> words;
  std::stringstream in(list);
  for (std::string word; std::getline(in, word, ',');) words.push_back(word);
  return words;
}

std::vector<int32_t> numbers(const std::string& list) {
  std::vector<int32_t> values;
  for (const std::string& word : split(list)) values.push_back(std::stoi(word));
  return values;
}

int run(int argc, char** argv) {
  warproll::MoeBenchOptions options;
  std::string json;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help" || flag == "-h") return std::fputs(kUsage, stdout), 0;
    if (flag == "--router") {
      options.router = true;
      continue;
    }
    if (flag == "--parts") {
      options.parts = true;
      continue;
    }
    if (flag == "--check") {
      options.check = true;
      continue;
    }
    if (i + 1 == argc) throw std::invalid_argument("option '" + flag + "' wants a value");
    const std::string value = argv[++i];
    if (flag == "--paths")
      options.paths = split(value);
    else if (flag == "--dtypes")
      options.dtypes = split(value);
    else if (flag == "--routings")
      options.routings = split(value);
    else if (flag == "--batches")
      options.batches = numbers(value);
    else if (flag == "--layers")
      options.num_layers = std::stoi(value);
    else if (flag == "--replays")
      options.num_replays = std::stoi(value);
    else if (flag == "--seed")
      options.seed = std::stoull(value);
    else if (flag == "--json")
      json = value;
    else if (flag == "--shape") {
      const std::vector<int32_t> shape = numbers(value);
      if (shape.size() != 4)
        throw std::invalid_argument("--shape is '" + value + "', wanted H,I,E,K");
      options.shape = {shape[0], shape[1], shape[2], shape[3]};
    } else {
      throw std::invalid_argument("unknown option '" + flag + "'; see --help");
    }
  }
  std::puts(warproll::moe_bench_header(options).c_str());
  const auto rows = warproll::run_moe_bench(options, [](const warproll::MoeBenchRow& row) {
    std::puts(warproll::moe_bench_line(row).c_str());
    std::fflush(stdout);
  });
  if (json.empty()) return 0;
  std::FILE* file = std::fopen(json.c_str(), "w");
  if (file == nullptr) throw std::invalid_argument("cannot write '" + json + "'");
  std::fputs(warproll::moe_bench_json(options, rows).c_str(), file);
  return std::fclose(file);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "warproll-bench-moe: %s\n", error.what());
    return 2;
  }
}
