#include <cuda_runtime.h>

#include <cstdio>

#include "kernels/bench/moe_bench.h"
#include "kernels/cuda/error.h"

namespace warproll {

std::string moe_bench_header(const MoeBenchOptions& o) {
  char line[256];
  std::snprintf(
      line, sizeof(line),
      "H %d, I %d, E %d, K %d; %d layers in rotation, median of %d graph replays; floor = "
      "distinct experts at 4.66 TB/s\n",
      o.shape.hidden_size, o.shape.intermediate_size, o.shape.num_experts, o.shape.top_k,
      o.num_layers, o.num_replays);
  return line + std::string(
                    "path            dtype      routing     B  experts        us     floor   ratio "
                    " distinct    issued  "
                    "gate_up     down   error  cosine\n"
                    "                                                                              "
                    "TB/s      TB/s       "
                    "us       us  /bound");
}

std::string moe_bench_line(const MoeBenchRow& r) {
  char line[256];
  int at =
      std::snprintf(line, sizeof(line), "%-15s %-10s %-8s %5d %8.1f %9.2f %9.2f %7.3f %9.2f %9.2f",
                    r.path.c_str(), r.dtype.c_str(), r.routing.c_str(), r.batch, r.num_active, r.us,
                    r.floor_us, r.ratio, r.distinct_tbps, r.issued_tbps);
  const auto rest = [&] { return sizeof(line) - static_cast<size_t>(at); };
  at += r.router_us > 0 ? std::snprintf(line + at, rest(), " %8.2f", r.router_us)
                        : std::snprintf(line + at, rest(), " %8s", "");
  at += r.gate_up_us > 0 ? std::snprintf(line + at, rest(), " %8.2f %8.2f", r.gate_up_us, r.down_us)
                         : std::snprintf(line + at, rest(), " %8s %8s", "", "");
  if (r.worst_error) std::snprintf(line + at, rest(), " %7.3f  %.8f", *r.worst_error, *r.cosine);
  return line;
}

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
