#include "kernels/bench/moe_bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>

#include "kernels/bench/graph_timer.h"
#include "kernels/bench/moe_oracle.h"
#include "kernels/bench/random_experts.h"
#include "kernels/moe/expert_centric.h"
#include "kernels/moe/literal.h"
#include "kernels/moe/route.h"
#include "kernels/moe/warp_decode.h"

namespace warproll {
namespace {

WeightFormat format_of(const std::string& dtype) {
  if (dtype == "bf16") return WeightFormat::kBf16;
  return dtype == "mxfp8" ? WeightFormat::kMxfp8 : WeightFormat::kFp8Block;
}

template <size_t N>
void check_words(const std::vector<std::string>& given, const char* const (&known)[N],
                 const char* what) {
  for (const std::string& word : given) {
    if (std::find(std::begin(known), std::end(known), word) != std::end(known)) continue;
    std::string wanted;
    for (const char* w : known) wanted += (wanted.empty() ? "" : ", ") + std::string(w);
    throw std::invalid_argument("bench moe: " + std::string(what) + " is '" + word + "', wanted " +
                                wanted);
  }
}

// Expert ids [T, K] of one layer, distinct in a token.
std::vector<int32_t> routes(const std::string& routing, const ExpertShape& shape, int32_t tokens,
                            std::mt19937_64& rng) {
  std::vector<double> weight(static_cast<size_t>(shape.num_experts), 1.0);
  if (routing == "zipf") {
    for (size_t e = 0; e < weight.size(); ++e) weight[e] = 1.0 / static_cast<double>(e + 1);
    std::shuffle(weight.begin(), weight.end(), rng);
  }
  std::discrete_distribution<int32_t> draw(weight.begin(), weight.end());
  std::vector<int32_t> ids;
  for (int32_t t = 0; t < tokens; ++t) {
    if (routing == "same" && t > 0) {
      ids.insert(ids.end(), ids.begin(), ids.begin() + shape.top_k);
      continue;
    }
    std::set<int32_t> chosen;
    while (static_cast<int32_t>(chosen.size()) < shape.top_k) {
      const int32_t e = draw(rng);
      if (chosen.insert(e).second) ids.push_back(e);
    }
  }
  return ids;
}

struct Layer {
  DeviceBuffer<int32_t> ids;
  DeviceBuffer<float> weights;
  DeviceBuffer<std::byte> lists_memory;
  ExpertLists lists;
  int32_t num_active = 0;

  Layer(const ExpertShape& shape, const std::string& routing, int32_t tokens,
        std::mt19937_64& rng) {
    const std::vector<int32_t> host_ids = routes(routing, shape, tokens, rng);
    num_active = static_cast<int32_t>(std::set<int32_t>(host_ids.begin(), host_ids.end()).size());
    std::uniform_real_distribution<float> uniform(0.05f, 0.25f);
    std::vector<float> host_weights(host_ids.size());
    for (float& w : host_weights) w = uniform(rng);
    ids = DeviceBuffer<int32_t>(host_ids);
    weights = DeviceBuffer<float>(host_weights);
    const auto pairs = static_cast<int32_t>(host_ids.size());
    lists_memory = DeviceBuffer<std::byte>(expert_lists_bytes(pairs, shape.num_experts));
    WARPROLL_CUDA_CHECK(cudaMemset(lists_memory.data(), 0, lists_memory.size()));
    lists = expert_lists_at(lists_memory.data(), pairs, shape.num_experts);
    build_expert_lists({.topk_ids = ids.data(),
                        .topk_weights = weights.data(),
                        .lists = lists,
                        .num_tokens = tokens,
                        .num_experts = shape.num_experts,
                        .top_k = shape.top_k},
                       nullptr);
    WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  }
};

// Activations and workspace of a batch.
struct Batch {
  DeviceBuffer<uint16_t> x, x_tile, h, y;
  DeviceBuffer<float> x_scales, partials, h_f32;
  DeviceBuffer<std::byte> expert_centric_workspace;
  int32_t tokens;

  Batch(const ExpertShape& s, int32_t num_tokens, uint64_t seed) : tokens(num_tokens) {
    const auto hidden = static_cast<size_t>(tokens) * static_cast<size_t>(s.hidden_size);
    const auto pairs = static_cast<size_t>(tokens) * static_cast<size_t>(s.top_k);
    const auto inner = pairs * static_cast<size_t>(s.intermediate_size);
    x = DeviceBuffer<uint16_t>(hidden);
    x_tile = DeviceBuffer<uint16_t>(hidden);
    x_scales = DeviceBuffer<float>(static_cast<size_t>(tokens));
    h = DeviceBuffer<uint16_t>(2 * inner);
    h_f32 = DeviceBuffer<float>(inner);
    partials = DeviceBuffer<float>(pairs * static_cast<size_t>(s.hidden_size));
    y = DeviceBuffer<uint16_t>(hidden);
    expert_centric_workspace = DeviceBuffer<std::byte>(expert_centric_workspace_bytes(
        {tokens, s.num_experts, s.top_k, s.hidden_size, s.intermediate_size}));
    fill_normal(x.data(), static_cast<int64_t>(hidden), seed + 1000, 1.0f, nullptr);
    convert_activations({x.data(), {x_tile.data(), x_scales.data()}, tokens, s.hidden_size},
                        nullptr);
    WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  }
};

// Router weights of every layer. The routes stay the bench's: the ids are given.
class Router {
 public:
  Router(const ExpertShape& shape, size_t num_layers, const Batch& batch, uint64_t seed)
      : shape_(shape),
        weight_size_(static_cast<size_t>(shape.num_experts) *
                     static_cast<size_t>(shape.hidden_size)),
        weights_(num_layers * weight_size_),
        logits_(static_cast<size_t>(batch.tokens) * static_cast<size_t>(shape.num_experts)),
        ids_(static_cast<size_t>(batch.tokens) * static_cast<size_t>(shape.top_k)),
        topk_weights_(ids_.size()) {
    fill_normal(weights_.data(), static_cast<int64_t>(weights_.size()), seed + 5000, 0.02f,
                nullptr);
    WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  }

  void run(size_t layer_index, const Layer& layer, const Batch& batch, cudaStream_t stream) const {
    RouteParams p;
    p.x = batch.x.data();
    p.weight = weights_.data() + layer_index * weight_size_;
    p.given_ids = layer.ids.data();
    p.logits = logits_.data();
    p.topk_ids = ids_.data();
    p.topk_weights = topk_weights_.data();
    p.lists = layer.lists;
    p.x_tile = {batch.x_tile.data(), batch.x_scales.data()};
    p.num_tokens = batch.tokens;
    p.hidden_size = shape_.hidden_size;
    p.num_experts = shape_.num_experts;
    p.top_k = shape_.top_k;
    route(p, stream);
  }

 private:
  ExpertShape shape_;
  size_t weight_size_;
  DeviceBuffer<uint16_t> weights_;
  DeviceBuffer<float> logits_;
  DeviceBuffer<int32_t> ids_;
  DeviceBuffer<float> topk_weights_;
};

WarpDecodeParams warp_decode_params(const RandomExperts& experts, const Layer& layer,
                                    const Batch& batch, int32_t top_k) {
  return {.x = {batch.x_tile.data(), batch.x_scales.data()},
          .lists = layer.lists,
          .gate_up = experts.gate_up_tiles,
          .down = experts.down_tiles,
          .h = batch.h.data(),
          .partials = batch.partials.data(),
          .y = batch.y.data(),
          .num_tokens = batch.tokens,
          .top_k = top_k};
}

bool is_expert_centric(const RandomExperts& experts, const Batch& batch) {
  return batch.tokens >= expert_centric_from(experts.gate_up_tiles.format);
}

void run_path(const std::string& path, const RandomExperts& experts, const Layer& layer,
              const Batch& batch, int32_t top_k, cudaStream_t stream) {
  if (path == "literal") {
    literal_moe({.x = batch.x.data(),
                 .topk_ids = layer.ids.data(),
                 .topk_weights = layer.weights.data(),
                 .gate = experts.gate,
                 .up = experts.up,
                 .down = experts.down,
                 .h = batch.h_f32.data(),
                 .y = batch.y.data(),
                 .num_tokens = batch.tokens,
                 .top_k = top_k},
                stream);
  } else if (path == "expert_centric" || (path == "auto" && is_expert_centric(experts, batch))) {
    expert_centric_moe({.x = batch.x.data(),
                        .topk_ids = layer.ids.data(),
                        .topk_weights = layer.weights.data(),
                        .gate_up = experts.gate_up_tiles,
                        .down = experts.down_tiles,
                        .workspace = batch.expert_centric_workspace.data(),
                        .workspace_bytes = batch.expert_centric_workspace.size(),
                        .y = batch.y.data(),
                        .num_tokens = batch.tokens,
                        .top_k = top_k},
                       stream);
  } else {
    warp_decode(warp_decode_params(experts, layer, batch, top_k), stream);
  }
}

float bf16_value(uint16_t bits) { return bf16_to_f32(bits); }

// |y - oracle| over its bound (kernels/moe/warp_decode.h), and the cosine.
void check_row(const ExpertShape& shape, const RandomExperts& experts, const Layer& layer,
               const Batch& batch, MoeBenchRow& row) {
  const int32_t tokens = std::min(batch.tokens, 16);
  const auto count = static_cast<size_t>(tokens) * static_cast<size_t>(shape.hidden_size);
  DeviceBuffer<double> oracle(count);
  moe_oracle({.x = batch.x.data(),
              .topk_ids = layer.ids.data(),
              .topk_weights = layer.weights.data(),
              .gate = experts.gate,
              .up = experts.up,
              .down = experts.down,
              .y = oracle.data(),
              .num_tokens = tokens,
              .top_k = shape.top_k});
  WARPROLL_CUDA_CHECK(cudaMemset(batch.y.data(), 0xff, batch.y.size() * 2));  // NaN
  run_path(row.path, experts, layer, batch, shape.top_k, nullptr);
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  const std::vector<double> want = oracle.to_host();
  const std::vector<uint16_t> got = batch.y.to_host();
  double squares = 0, dot = 0, got_squares = 0;
  for (const double w : want) squares += w * w;
  const double rms = std::sqrt(squares / static_cast<double>(count));
  double worst = 0;
  for (size_t i = 0; i < count; ++i) {
    const double y = bf16_value(got[i]);
    const double ulp = std::ldexp(1.0, std::ilogb(std::max(std::fabs(want[i]), 1e-30)) - 7);
    const double error = std::fabs(y - want[i]) / (0.5 * ulp + 1e-3 * rms);
    worst = error >= worst || std::isnan(error) ? error : worst;
    dot += y * want[i];
    got_squares += y * y;
  }
  row.worst_error = worst;
  row.cosine = dot / std::sqrt(squares * got_squares);
}

void reset(int32_t* counter, cudaStream_t stream) {
  WARPROLL_CUDA_CHECK(cudaMemsetAsync(counter, 0, sizeof(*counter), stream));
}

double issued_bytes(const MoeBenchRow& row, const RandomExperts& experts,
                    const ExpertShape& shape) {
  const double pairs = static_cast<double>(row.batch) * shape.top_k;
  return (row.path == "literal" ? pairs : row.num_active) *
         static_cast<double>(experts.bytes_of_expert());
}

}  // namespace

std::vector<MoeBenchRow> run_moe_bench(const MoeBenchOptions& o,
                                       const std::function<void(const MoeBenchRow&)>& on_row) {
  check_words(o.paths, kMoePaths, "path");
  check_words(o.dtypes, kMoeDtypes, "dtype");
  check_words(o.routings, kMoeRoutings, "routing");
  if (o.num_layers < 1 || o.num_replays < 1) {
    throw std::invalid_argument("bench moe: layers and replays are " +
                                std::to_string(o.num_layers) + " and " +
                                std::to_string(o.num_replays) + ", wanted at least 1");
  }
  std::vector<MoeBenchRow> rows;
  const auto count = static_cast<size_t>(o.num_layers);
  for (const std::string& dtype : o.dtypes) {
    const bool keep_rows =
        o.check || std::find(o.paths.begin(), o.paths.end(), "literal") != o.paths.end();
    std::vector<RandomExperts> experts;
    for (size_t i = 0; i < count; ++i)
      experts.emplace_back(o.shape, format_of(dtype), o.seed + i, keep_rows);
    for (const std::string& routing : o.routings) {
      for (const int32_t tokens : o.batches) {
        const Batch batch(o.shape, tokens, o.seed);
        std::mt19937_64 rng(o.seed);
        std::vector<Layer> layers;
        for (size_t i = 0; i < count; ++i) layers.emplace_back(o.shape, routing, tokens, rng);
        for (const std::string& path : o.paths) {
          if (path == "literal" && dtype == "fp8_block") continue;  // not among the published
          if (path == "dedup" && tokens > kMaxWarpDecodeTokens) continue;
          MoeBenchRow row;
          row.path = path;
          row.dtype = dtype;
          row.routing = routing;
          row.batch = tokens;
          for (const Layer& layer : layers) row.num_active += layer.num_active;
          row.num_active /= o.num_layers;
          GraphTimer timer(o.num_replays);
          const auto per_layer = [&](const auto& body) {
            return timer.median_us([&](cudaStream_t s) {
              for (size_t i = 0; i < count; ++i) body(i, s);
            }) / o.num_layers;
          };
          row.us = per_layer([&](size_t i, cudaStream_t s) {
            run_path(path, experts[i], layers[i], batch, o.shape.top_k, s);
          });
          if (o.router && (path == "auto" || path == "dedup") &&
              !is_expert_centric(experts[0], batch)) {
            const Router router(o.shape, count, batch, o.seed);
            row.router_us = per_layer([&](size_t i, cudaStream_t s) {
                              router.run(i, layers[i], batch, s);
                              run_path(path, experts[i], layers[i], batch, o.shape.top_k, s);
                            }) -
                            row.us;
          }
          if (o.parts && (path == "auto" || path == "dedup") &&
              !is_expert_centric(experts[0], batch)) {
            const auto params = [&](size_t i) {
              return warp_decode_params(experts[i], layers[i], batch, o.shape.top_k);
            };
            row.gate_up_us = per_layer([&](size_t i, cudaStream_t s) {
              reset(&layers[i].lists.counts->next_gate_up, s);
              warp_decode_gate_up(params(i), s);
            });
            row.down_us = per_layer([&](size_t i, cudaStream_t s) {
              reset(&layers[i].lists.counts->next_down, s);
              warp_decode_down(params(i), s);
            });
          }
          const double bytes = row.num_active * static_cast<double>(experts[0].bytes_of_expert());
          row.floor_us = bytes / kReadCeilingBytesPerUs;
          row.ratio = row.us / row.floor_us;
          row.distinct_tbps = bytes / row.us / 1e6;
          row.issued_tbps = issued_bytes(row, experts[0], o.shape) / row.us / 1e6;
          if (o.check) check_row(o.shape, experts[0], layers[0], batch, row);
          rows.push_back(row);
          if (on_row) on_row(row);
        }
      }
    }
  }
  return rows;
}

}  // namespace warproll
