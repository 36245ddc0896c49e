#include "gpu_support.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/dtype.h"
#include "kernels/moe/expert_centric.h"
#include "kernels/step/add_rmsnorm.h"

namespace warproll::testing {
namespace {

constexpr size_t kCanaries = 64;
constexpr uint16_t kCanary = 0x5aa5;

template <typename T>
DeviceBuffer<T> poisoned(size_t size) {
  DeviceBuffer<T> buffer(size);
  if (size > 0) WARPROLL_CUDA_CHECK(cudaMemset(buffer.data(), 0xff, size * sizeof(T)));  // NaN
  return buffer;
}

size_t elements(const Layer& layer, const Tokens& tokens) {
  return static_cast<size_t>(tokens.count) * static_cast<size_t>(layer.shape.hidden_size);
}

// Runs `body(y)` on a poisoned y between canaries, and returns y.
template <typename Body>
std::vector<uint16_t> guarded(size_t size, const Body& body) {
  std::vector<uint16_t> host(size + 2 * kCanaries, kCanary);
  std::fill_n(host.begin() + kCanaries, size, uint16_t{0xffff});
  DeviceBuffer<uint16_t> y(host);
  body(y.data() + kCanaries);
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  host = y.to_host();
  for (size_t i = 0; i < kCanaries; ++i) {
    EXPECT_EQ(host[i], kCanary) << "written before y";
    EXPECT_EQ(host[host.size() - 1 - i], kCanary) << "written behind y";
  }
  return {host.begin() + kCanaries, host.end() - kCanaries};
}

// `run` gets the params, before anything else uses the lists and workspaces.
template <typename Run>
void with_warp_decode(const Layer& layer, const Tokens& tokens, uint16_t* y, float* y_f32,
                      const Run& run) {
  const ExpertShape& s = layer.shape;
  const auto pairs = static_cast<size_t>(tokens.count) * static_cast<size_t>(s.top_k);
  auto x_tile = poisoned<uint16_t>(elements(layer, tokens));
  auto x_scales = poisoned<float>(static_cast<size_t>(tokens.count));
  auto h = poisoned<uint16_t>(2 * pairs * static_cast<size_t>(s.intermediate_size));
  auto partials = poisoned<float>(pairs * static_cast<size_t>(s.hidden_size));
  DeviceBuffer<std::byte> memory(expert_lists_bytes(static_cast<int32_t>(pairs), s.num_experts));
  WARPROLL_CUDA_CHECK(cudaMemset(memory.data(), 0, memory.size()));
  const ExpertLists lists =
      expert_lists_at(memory.data(), static_cast<int32_t>(pairs), s.num_experts);
  convert_activations(
      {tokens.x.data(), {x_tile.data(), x_scales.data()}, tokens.count, s.hidden_size}, nullptr);
  build_expert_lists(
      {tokens.ids.data(), tokens.weights.data(), lists, tokens.count, s.num_experts, s.top_k},
      nullptr);
  run(WarpDecodeParams{.x = {x_tile.data(), x_scales.data()},
                       .lists = lists,
                       .gate_up = layer.experts.gate_up_tiles,
                       .down = layer.experts.down_tiles,
                       .h = h.data(),
                       .partials = partials.data(),
                       .y = y,
                       .y_f32 = y_f32,
                       .num_tokens = tokens.count,
                       .top_k = s.top_k});
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
}

void warp_decode_into(const Layer& layer, const Tokens& tokens, uint16_t* y, float* y_f32) {
  with_warp_decode(layer, tokens, y, y_f32,
                   [](const WarpDecodeParams& p) { warp_decode(p, nullptr); });
}

}  // namespace

bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

Tokens::Tokens(const ExpertShape& shape, int32_t tokens, Routing routing, uint64_t seed)
    : count(tokens) {
  std::mt19937_64 rng(seed);
  std::vector<double> weight(static_cast<size_t>(shape.num_experts), 1.0);
  for (size_t e = 0; routing == Routing::kSkewed && e < weight.size(); ++e)
    weight[e] = 1.0 / double(e + 1);
  std::discrete_distribution<int32_t> draw(weight.begin(), weight.end());
  for (int32_t t = 0; t < tokens; ++t) {
    if (routing == Routing::kSame && t > 0) {
      host_ids.insert(host_ids.end(), host_ids.begin(), host_ids.begin() + shape.top_k);
      continue;
    }
    std::set<int32_t> chosen;
    while (static_cast<int32_t>(chosen.size()) < shape.top_k) {
      const int32_t e = draw(rng);
      if (chosen.insert(e).second) host_ids.push_back(e);
    }
  }
  std::uniform_real_distribution<float> uniform(0.05f, 0.25f);
  std::vector<float> host_weights(host_ids.size());
  for (float& w : host_weights) w = uniform(rng);
  ids = DeviceBuffer<int32_t>(host_ids);
  weights = DeviceBuffer<float>(host_weights);
  x = DeviceBuffer<uint16_t>(static_cast<size_t>(tokens) * static_cast<size_t>(shape.hidden_size));
  fill_normal(x.data(), static_cast<int64_t>(x.size()), seed + 17, 1.0f, nullptr);
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
}

Tokens::Tokens(const ExpertShape& shape, const Tokens& other, const std::vector<int32_t>& picks)
    : count(static_cast<int32_t>(picks.size())) {
  const std::vector<uint16_t> all_x = other.x.to_host();
  const std::vector<float> all_weights = other.weights.to_host();
  std::vector<uint16_t> host_x;
  std::vector<float> host_weights;
  const auto rows = [&picks](const auto& from, int32_t size, auto& to) {
    for (const int32_t t : picks) {
      const auto begin = from.begin() + int64_t{t} * size;
      to.insert(to.end(), begin, begin + size);
    }
  };
  rows(all_x, shape.hidden_size, host_x);
  rows(all_weights, shape.top_k, host_weights);
  rows(other.host_ids, shape.top_k, host_ids);
  x = DeviceBuffer<uint16_t>(host_x);
  ids = DeviceBuffer<int32_t>(host_ids);
  weights = DeviceBuffer<float>(host_weights);
}

std::vector<uint16_t> run_warp_decode_and_norm(const Layer& layer, const Tokens& tokens,
                                               bool partials) {
  const size_t size = elements(layer, tokens);
  auto y = poisoned<uint16_t>(size), normed = poisoned<uint16_t>(size);
  DeviceBuffer<uint16_t> hidden(tokens.x.to_host()), weight(tokens.x.to_host());
  with_warp_decode(layer, tokens, y.data(), nullptr, [&](const WarpDecodeParams& p) {
    MoePartials left;
    if (partials) {
      left = warp_decode_partials(p, nullptr);
    } else {
      warp_decode(p, nullptr);
    }
    add_rmsnorm({.hidden = hidden.data(),
                 .addend = left.partials == nullptr ? y.data() : nullptr,
                 .moe = left,
                 .weight = reinterpret_cast<const std::byte*>(weight.data()),
                 .normed = normed.data(),
                 .normed_tile = {},
                 .num_tokens = tokens.count,
                 .hidden_size = layer.shape.hidden_size},
                nullptr);
    const auto counts = from_device<ExpertListCounts>(p.lists.counts, 1)[0];
    EXPECT_EQ(counts.next_gate_up, 0);
    EXPECT_EQ(counts.next_down, 0);
  });
  std::vector<uint16_t> out = hidden.to_host();
  const std::vector<uint16_t> second = normed.to_host();
  out.insert(out.end(), second.begin(), second.end());
  return out;
}
std::vector<uint16_t> run_warp_decode(const Layer& layer, const Tokens& tokens) {
  return guarded(elements(layer, tokens),
                 [&](uint16_t* y) { warp_decode_into(layer, tokens, y, nullptr); });
}

std::vector<float> run_warp_decode_f32(const Layer& layer, const Tokens& tokens) {
  auto y = poisoned<float>(elements(layer, tokens));
  warp_decode_into(layer, tokens, nullptr, y.data());
  return y.to_host();
}

std::vector<uint16_t> run_expert_centric(const Layer& layer, const Tokens& tokens) {
  const ExpertShape& s = layer.shape;
  auto workspace = poisoned<std::byte>(expert_centric_workspace_bytes(
      {tokens.count, s.num_experts, s.top_k, s.hidden_size, s.intermediate_size}));
  return guarded(elements(layer, tokens), [&](uint16_t* y) {
    expert_centric_moe({.x = tokens.x.data(),
                        .topk_ids = tokens.ids.data(),
                        .topk_weights = tokens.weights.data(),
                        .gate_up = layer.experts.gate_up_tiles,
                        .down = layer.experts.down_tiles,
                        .workspace = workspace.data(),
                        .workspace_bytes = workspace.size(),
                        .y = y,
                        .num_tokens = tokens.count,
                        .top_k = s.top_k},
                       nullptr);
  });
}

std::vector<uint16_t> run_literal(const Layer& layer, const Tokens& tokens) {
  auto h =
      poisoned<float>(tokens.host_ids.size() * static_cast<size_t>(layer.shape.intermediate_size));
  return guarded(elements(layer, tokens), [&](uint16_t* y) {
    literal_moe({.x = tokens.x.data(),
                 .topk_ids = tokens.ids.data(),
                 .topk_weights = tokens.weights.data(),
                 .gate = layer.experts.gate,
                 .up = layer.experts.up,
                 .down = layer.experts.down,
                 .h = h.data(),
                 .y = y,
                 .num_tokens = tokens.count,
                 .top_k = layer.shape.top_k},
                nullptr);
  });
}

std::vector<double> run_oracle(const Layer& layer, const Tokens& tokens, OracleRounding rounding) {
  DeviceBuffer<double> y(elements(layer, tokens));
  moe_oracle({.x = tokens.x.data(),
              .topk_ids = tokens.ids.data(),
              .topk_weights = tokens.weights.data(),
              .gate = layer.experts.gate,
              .up = layer.experts.up,
              .down = layer.experts.down,
              .y = y.data(),
              .num_tokens = tokens.count,
              .top_k = layer.shape.top_k,
              .rounding = rounding});
  return y.to_host();
}

Distance distance_to(const std::vector<uint16_t>& y, const std::vector<double>& oracle) {
  Distance d;
  double squares = 0, dot = 0, y_squares = 0;
  for (const double v : oracle) squares += v * v;
  const double rms = std::sqrt(squares / static_cast<double>(std::max<size_t>(oracle.size(), 1)));
  for (size_t i = 0; i < oracle.size(); ++i) {
    const double v = bf16_to_f32(y[i]);
    const double ulp = std::ldexp(1.0, std::ilogb(std::max(std::fabs(oracle[i]), 1e-30)) - 7);
    const double error = std::fabs(v - oracle[i]);
    const double share = error / (0.5 * ulp + 1e-3 * rms);
    if (std::isnan(share) || share > d.worst) d.worst = share;
    d.largest = std::max(d.largest, error);
    dot += v * oracle[i];
    y_squares += v * v;
  }
  d.cosine = dot / std::sqrt(squares * y_squares);
  return d;
}

template <typename T>
static double relative(const std::vector<T>& y, const std::vector<double>& oracle) {
  double squares = 0, errors = 0;
  for (size_t i = 0; i < oracle.size(); ++i) {
    const double error = double{y[i]} - oracle[i];
    squares += oracle[i] * oracle[i];
    errors += error * error;
  }
  return std::sqrt(errors / squares);
}
double relative_error(const std::vector<float>& y, const std::vector<double>& oracle) {
  return relative(y, oracle);
}
double relative_error(const std::vector<double>& y, const std::vector<double>& oracle) {
  return relative(y, oracle);
}

}  // namespace warproll::testing
