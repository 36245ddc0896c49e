// run_step_bench: the ops of a decode step on this GPU by themselves and in a layer's chain, in a CUDA
// graph, L2 cold (weights of several layers in rotation). Thread: one. Errors: CudaError,
// std::invalid_argument.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace warproll {

inline constexpr const char* kStepOps[] = {
    "qkv",          "qkv_gemm",        "qkv_cluster", "o",     "o_gemm", "o_cluster", "lm_head",
    "lm_head_gemm", "lm_head_cluster", "attention",   "route", "chain",  "parts"};

struct StepBenchOptions {
  std::vector<std::string> ops = {"qkv", "o", "lm_head", "route", "chain"};
  // Of chain and parts: cluster_linear where it is faster, which has other bits than stream_linear.
  bool cluster = false;
  std::string dtype = "bf16";  // of qkv, o, lm_head: bf16, mxfp8, fp8_block
  std::vector<int32_t> batches = {1, 2, 4, 8, 16, 32, 64};
  int32_t context = 1024;  // of the chain's attention
  int32_t num_layers = 8;  // of lm_head 2
  int32_t num_replays = 31;
};

struct StepBenchRow {
  std::string op;
  int32_t batch = 0;
  double us = 0;
  double floor_us = 0;  // bytes of its weights (chain: and of the KV cache) at 4.66 TB/s
};

// The shape is Qwen3-30B-A3B's; the chain's experts are MXFP8. "chain": a layer: add_rmsnorm, qkv,
// qkv_finish, attention, o, add_rmsnorm, route, experts. "parts": for each of them, by how much the
// chain gets shorter without it. input_norm is 0 where qkv norms.
std::vector<StepBenchRow> run_step_bench(const StepBenchOptions& options,
                                         const std::function<void(const StepBenchRow&)>& on_row);

}  // namespace warproll
