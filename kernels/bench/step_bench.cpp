#include "kernels/bench/step_bench.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/bench/graph_timer.h"
#include "kernels/bench/step_layer.h"
#include "kernels/step/cluster_linear.h"
#include "kernels/step/linear.h"
#include "kernels/step/stream_linear.h"

namespace warproll {
namespace {

constexpr double kBytesPerUs = 4.66e6;

using Weights = std::vector<std::unique_ptr<RandomExperts>>;

// A linear op over several layers' weights.
class LinearBench {
 public:
  LinearBench(int num_layers, int32_t rows, int32_t cols, WeightFormat format, int32_t max_batch)
      : cols_(cols),
        x_(static_cast<size_t>(max_batch) * static_cast<size_t>(cols)),
        tile_(x_.size()),
        scales_(static_cast<size_t>(max_batch)),
        y_(static_cast<size_t>(max_batch) * static_cast<size_t>(rows)),
        workspace_(step_linear_workspace_bytes(max_batch, cols)) {
    for (int i = 0; i < num_layers; ++i)
      weights_.push_back(StepLayers::matrix(rows, cols, format, 7 + static_cast<uint64_t>(i)));
    fill_normal(x_.data(), static_cast<int64_t>(x_.size()), 9, 1.0f, nullptr);
    convert_activations({x_.data(), {tile_.data(), scales_.data()}, max_batch, cols}, nullptr);
    WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
  }
  // op: stream_linear or cluster_linear. bf16: x as attention leaves it, else as add_rmsnorm does.
  template <class Params>
  void run(void (*op)(const Params&, cudaStream_t), int32_t tokens, bool bf16, bool f32_out,
           cudaStream_t s) const {
    for (const auto& w : weights_) {
      Params p;
      if (bf16) {
        p.x_bf16 = x_.data();
      } else {
        p.x = {tile_.data(), scales_.data()};
      }
      p.weight = w->down_tiles;
      if (f32_out) {
        p.y_f32 = y_.data();
      } else {
        p.y = reinterpret_cast<uint16_t*>(y_.data());
      }
      p.num_tokens = tokens;
      op(p, s);
    }
  }
  void gemm(int32_t tokens, bool f32_out, cudaStream_t s) const {
    for (const auto& w : weights_) {
      step_linear({.x = x_.data(),
                   .weight = w->down_tiles,
                   .workspace = workspace_.data(),
                   .workspace_bytes = workspace_.size(),
                   .y = reinterpret_cast<uint16_t*>(y_.data()),
                   .y_f32 = f32_out ? y_.data() : nullptr,
                   .num_tokens = tokens},
                  s);
    }
  }
  [[nodiscard]] double floor_us() const {
    return static_cast<double>(weights_[0]->down_tiles.bytes()) / kBytesPerUs;
  }
  [[nodiscard]] double layers() const { return static_cast<double>(weights_.size()); }

 private:
  int32_t cols_;
  Weights weights_;
  DeviceBuffer<uint16_t> x_, tile_;
  DeviceBuffer<float> scales_, y_;
  DeviceBuffer<std::byte> workspace_;
};

WeightFormat format_of(const std::string& dtype) {
  if (dtype == "bf16") return WeightFormat::kBf16;
  if (dtype == "mxfp8") return WeightFormat::kMxfp8;
  if (dtype == "fp8_block") return WeightFormat::kFp8Block;
  throw std::invalid_argument("bench step: dtype is '" + dtype +
                              "', wanted bf16, mxfp8 or fp8_block");
}

}  // namespace

std::vector<StepBenchRow> run_step_bench(const StepBenchOptions& o,
                                         const std::function<void(const StepBenchRow&)>& on_row) {
  std::vector<StepBenchRow> rows;
  const WeightFormat format = format_of(o.dtype);
  const int32_t max_batch = *std::max_element(o.batches.begin(), o.batches.end());
  GraphTimer timer(o.num_replays);
  const auto row = [&](const std::string& op, int32_t batch, double us, double floor_us) {
    rows.push_back({op, batch, us, floor_us});
    if (on_row) on_row(rows.back());
  };
  using Op = StepLayers::Op;
  std::unique_ptr<StepLayers> layers;
  for (const std::string& op : o.ops) {
    if (std::find(std::begin(kStepOps), std::end(kStepOps), op) == std::end(kStepOps))
      throw std::invalid_argument("bench step: no op '" + op + "'");
    if (op == "route" || op == "attention" || op == "chain" || op == "parts") {
      if (layers == nullptr)
        layers = std::make_unique<StepLayers>(o.num_layers, format, max_batch, o.context);
      for (const int32_t batch : o.batches) {
        layers->set_batch(batch, o.cluster);
        const auto measure = [&](const auto& wanted) {
          return timer.median_us([&](cudaStream_t s) {
            for (size_t i = 0; i < layers->size(); ++i) {
              for (const Op& part : StepLayers::ops()) {
                if (wanted(part)) ((*layers).*part.run)(i, s);
              }
            }
          }) / static_cast<double>(layers->size());
        };
        if (op == "route" || op == "attention") {
          row(op, batch, measure([&](const Op& p) { return p.name == op; }),
              (op == "route" ? layers->router_bytes() : layers->kv_bytes()) / kBytesPerUs);
          continue;
        }
        const double all = measure([](const Op&) { return true; });
        row("chain", batch, all, layers->bytes_of_layer() / kBytesPerUs);
        if (op == "chain") continue;
        for (const Op& left_out : StepLayers::ops()) {
          row(left_out.name, batch,
              all - measure([&](const Op& p) { return p.run != left_out.run; }), 0);
        }
      }
      continue;
    }
    const bool gemm = op.ends_with("_gemm"), is_o = op.starts_with("o");
    const bool lm_head = op.starts_with("lm_head");
    const LinearBench bench(lm_head ? 2 : o.num_layers,
                            lm_head ? StepLayers::kVocab
                            : is_o  ? StepLayers::kORows
                                    : StepLayers::kQkvRows,
                            is_o ? StepLayers::kOCols : StepLayers::kHidden, format, max_batch);
    for (const int32_t batch : o.batches) {
      const double us = timer.median_us([&](cudaStream_t s) {
        if (gemm) return bench.gemm(batch, lm_head, s);
        if (op.ends_with("_cluster")) return bench.run(cluster_linear, batch, is_o, lm_head, s);
        bench.run(stream_linear, batch, is_o, lm_head, s);
      });
      row(op, batch, us / bench.layers(), bench.floor_us());
    }
  }
  return rows;
}

}  // namespace warproll
