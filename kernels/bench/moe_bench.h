// moe_bench: one MoE layer in steady state, as a decode step sees it: weights of several layers in
// rotation so that L2 is cold, random activations, a CUDA graph of all layers, the median of many
// replays. The router is measured by itself. What `warproll bench moe` and warproll-bench-moe run.
// Thread: one. Errors: std::invalid_argument (options), CudaError.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/bench/expert_shape.h"

namespace warproll {

// Fixed words of the table and of the JSON.
inline constexpr const char* kMoePaths[] = {"auto", "literal", "dedup", "expert_centric"};
inline constexpr const char* kMoeDtypes[] = {"bf16", "mxfp8", "fp8_block"};
inline constexpr const char* kMoeRoutings[] = {"uniform", "zipf", "same"};
inline constexpr double kReadCeilingBytesPerUs = 4.66e6;  // one H200

struct MoeBenchOptions {
  ExpertShape shape;
  std::vector<std::string> paths = {"auto"};
  std::vector<std::string> dtypes = {"mxfp8", "bf16"};
  std::vector<std::string> routings = {"uniform"};
  std::vector<int32_t> batches = {1, 2, 4, 8, 16, 32, 64, 128};
  int32_t num_layers = 6;
  int32_t num_replays = 31;
  bool router = false;  // time the router too
  bool parts = false;   // time gate_up and down by themselves too
  bool check = false;   // compare with the F64 oracle, up to 16 tokens
  uint64_t seed = 1;
};

struct MoeBenchRow {
  std::string path, dtype, routing;
  int32_t batch = 0;
  double num_active = 0;               // distinct experts a layer, mean over layers
  double us = 0;                       // a layer, gate_up and down
  double floor_us = 0;                 // distinct experts' bytes at kReadCeilingBytesPerUs
  double ratio = 0;                    // us / floor_us
  double distinct_tbps = 0;            // distinct experts' bytes / us
  double issued_tbps = 0;              // bytes the kernels asked for / us
  double router_us = 0;                // with `router`: what the router adds before auto
  double gate_up_us = 0, down_us = 0;  // with `parts`
  std::optional<double> worst_error;   // with `check`: |y - F64| in units of the bound
  std::optional<double> cosine;
};

std::vector<MoeBenchRow> run_moe_bench(const MoeBenchOptions& options,
                                       const std::function<void(const MoeBenchRow&)>& on_row);

std::string moe_bench_header(const MoeBenchOptions& options);
std::string moe_bench_line(const MoeBenchRow& row);
// {"gpu": .., "driver": .., "shape": {..}, "rows": [..]}
std::string moe_bench_json(const MoeBenchOptions& options, const std::vector<MoeBenchRow>& rows);

}  // namespace warproll
