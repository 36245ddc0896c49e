#include <cuda_runtime.h>

#include <cstdio>

#include "kernels/bench/moe_bench.h"
#include "kernels/cuda/error.h"

namespace warproll {

// By hand: this folder uses no JSON library, and every word and number here is our own.
std::string moe_bench_json(const MoeBenchOptions& o, const std::vector<MoeBenchRow>& rows) {
  cudaDeviceProp properties = {};
  int driver = 0;
  WARPROLL_CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
  WARPROLL_CUDA_CHECK(cudaDriverGetVersion(&driver));
  char text[512];
  std::snprintf(text, sizeof(text),
                "{\"gpu\": \"%s\", \"cuda_driver\": %d,\n \"shape\": {\"hidden_size\": %d, "
                "\"intermediate_size\": %d, \"num_experts\": %d, \"top_k\": %d},\n"
                " \"layers\": %d, \"replays\": %d,\n \"rows\": [",
                properties.name, driver, o.shape.hidden_size, o.shape.intermediate_size,
                o.shape.num_experts, o.shape.top_k, o.num_layers, o.num_replays);
  std::string json = text;
  for (size_t i = 0; i < rows.size(); ++i) {
    const MoeBenchRow& r = rows[i];
    std::snprintf(text, sizeof(text),
                  "%s\n  {\"path\": \"%s\", \"dtype\": \"%s\", \"routing\": \"%s\", \"batch\": %d, "
                  "\"experts\": %.2f, \"us\": %.3f, \"floor_us\": %.3f, \"ratio\": %.4f, "
                  "\"distinct_tbps\": %.3f, \"issued_tbps\": %.3f, \"router_us\": %.3f}",
                  i == 0 ? "" : ",", r.path.c_str(), r.dtype.c_str(), r.routing.c_str(), r.batch,
                  r.num_active, r.us, r.floor_us, r.ratio, r.distinct_tbps, r.issued_tbps,
                  r.router_us);
    json += text;
  }
  return json + "\n ]}\n";
}

}  // namespace warproll
