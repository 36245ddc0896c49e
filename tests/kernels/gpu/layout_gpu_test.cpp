// The device's twins of the CPU's layout and number work: byte for byte.
#include <cstring>
#include <limits>
#include <random>

#include "gpu_support.h"
#include "kernels/fill_items.h"
#include "kernels/moe/pack.h"
#include "kernels/quantise.h"

namespace warproll {
namespace {

using namespace testing;  // gpu_support.h

// A device view's weights on the host.
struct HostWeights {
  std::vector<std::byte> data, scales;
  WeightView view;
  explicit HostWeights(const WeightView& device) : view(device) {
    const auto matrices = static_cast<size_t>(device.num_matrices);
    data = from_device<std::byte>(device.data, matrices * device.matrix_stride_bytes);
    view.data = data.data();
    if (device.scales == nullptr) return;
    scales = from_device<std::byte>(device.scales, matrices * device.scale_stride_bytes);
    view.scales = scales.data();
  }
};

TEST(PackGpu, WritesTheBytesOfTheCpu) {
  SKIP_WITHOUT_GPU();
  for (const ExpertShape& shape : {ExpertShape{96, 160, 5, 2}, {2048, 768, 3, 2}}) {
    for (const WeightFormat format :
         {WeightFormat::kBf16, WeightFormat::kMxfp8, WeightFormat::kFp8Block}) {
      const Layer layer(shape, format, 21);
      const HostWeights gate(layer.experts.gate), up(layer.experts.up), down(layer.experts.down);
      std::vector<std::byte> want(layer.experts.gate_up_tiles.bytes());
      pack_gate_up_cpu(gate.view, up.view, want.data());
      EXPECT_EQ(from_device<std::byte>(layer.experts.gate_up_tiles.data, want.size()), want)
          << "gate_up";
      want.resize(layer.experts.down_tiles.bytes());
      pack_down_cpu(down.view, want.data());
      EXPECT_EQ(from_device<std::byte>(layer.experts.down_tiles.data, want.size()), want) << "down";
    }
  }
}

// Items of one launch: all matrices at once, or one after the other; gate and up in two parts.
std::vector<TileItem> tile_items(const WeightView& rows, const WeightView& up, TileTarget to,
                                 bool apart) {
  std::vector<TileItem> items;
  const int32_t half = rows.rows / 2 / kTileRows * kTileRows;
  const int32_t parts[] = {0, apart ? half : 0, rows.rows};
  for (int32_t m = 0; m < (apart ? rows.num_matrices : 1); ++m) {
    for (int i = 0; i < 2; ++i) {
      const int32_t begin = parts[i], count = parts[i + 1] - begin;
      if (count == 0) continue;
      const auto part = [&](const WeightView& w) {
        const WeightView all = w.data == nullptr ? w : w.slice_rows(begin, count);
        return apart ? all.matrix(m) : all;
      };
      to.first_matrix = m;
      to.first_row = begin;
      items.push_back({part(rows), part(up), to});
    }
  }
  return items;
}

void run_pack_tiles(std::vector<TileItem> items) {
  int64_t ctas = 0;
  for (TileItem& item : items) {
    check_pack(item.rows, item.to);
    ASSERT_TRUE(packs_whole_tiles(item.rows, item.to));
    item.first_cta = ctas;
    ctas += ctas_of(item);
  }
  const DeviceBuffer<TileItem> on_device(items);
  pack_tiles(on_device.data(), static_cast<int64_t>(items.size()), ctas, nullptr);
  WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
}

TEST(PackTilesGpu, WritesTheBytesOfTheCpu) {
  SKIP_WITHOUT_GPU();
  for (const ExpertShape& shape :
       {ExpertShape{2048, 768, 3, 2}, {128, 256, 5, 2}, {2048, 1536, 2, 2}, {256, 128, 3, 2}}) {
    for (const WeightFormat format :
         {WeightFormat::kBf16, WeightFormat::kMxfp8, WeightFormat::kFp8Block}) {
      for (const bool apart : {false, true}) {
        const Layer layer(shape, format, 22);
        const HostWeights gate(layer.experts.gate), up(layer.experts.up), down(layer.experts.down);
        std::vector<std::byte> want(layer.experts.gate_up_tiles.bytes());
        pack_gate_up_cpu(gate.view, up.view, want.data());
        DeviceBuffer<std::byte> out(std::vector<std::byte>(want.size(), std::byte{0xcd}));
        run_pack_tiles(tile_items(
            layer.experts.gate, layer.experts.up,
            {.tiles = layer.experts.gate_up_tiles, .out = out.data(), .gate_up = true}, apart));
        EXPECT_EQ(out.to_host(), want) << "gate_up " << static_cast<int>(format) << apart;

        want.resize(layer.experts.down_tiles.bytes());
        pack_down_cpu(down.view, want.data());
        out = DeviceBuffer<std::byte>(std::vector<std::byte>(want.size(), std::byte{0xcd}));
        run_pack_tiles(tile_items(layer.experts.down, {},
                                  {.tiles = layer.experts.down_tiles, .out = out.data()}, apart));
        EXPECT_EQ(out.to_host(), want) << "down " << static_cast<int>(format) << apart;
      }
    }
  }
}

TEST(QuantiseGpu, WritesTheBytesOfTheCpu) {
  SKIP_WITHOUT_GPU();
  std::mt19937 rng(31);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
    for (const bool all_bits : {false, true}) {  // every bit pattern, NaN and inf too; or weights
      const int64_t rows = 300, cols = 96;
      std::vector<std::byte> source(static_cast<size_t>(rows * cols) * dtype_bytes(dtype));
      std::normal_distribution<float> normal(0.0f, 0.02f);
      for (size_t i = 0; i < source.size(); i += dtype_bytes(dtype)) {
        const float value = normal(rng);
        const auto word = static_cast<uint32_t>(rng());
        const uint16_t half = dtype == Dtype::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
        if (all_bits) {
          std::memcpy(&source[i], &word, dtype_bytes(dtype));
        } else if (dtype == Dtype::kF32) {
          std::memcpy(&source[i], &value, 4);
        } else {
          std::memcpy(&source[i], &half, 2);
        }
      }
      std::vector<uint8_t> elements(static_cast<size_t>(rows * cols)), scales(elements.size() / 32);
      QuantiseMxfp8Params params = {source.data(), dtype,           rows,
                                    cols,          elements.data(), scales.data()};
      const auto bad = quantise_mxfp8_cpu(params);

      DeviceBuffer<std::byte> device_source(source);
      DeviceBuffer<uint8_t> device_elements(elements.size()), device_scales(scales.size());
      DeviceBuffer<int64_t> first(std::vector<int64_t>{std::numeric_limits<int64_t>::max()});
      params.source = device_source.data();
      params.elements = device_elements.data();
      params.scales = device_scales.data();
      quantise_mxfp8(params, first.data(), nullptr);
      WARPROLL_CUDA_CHECK(cudaDeviceSynchronize());
      EXPECT_EQ(device_scales.to_host(), scales) << to_string(dtype);
      EXPECT_EQ(device_elements.to_host(), elements) << to_string(dtype);
      EXPECT_EQ(first.to_host()[0], bad.value_or(std::numeric_limits<int64_t>::max()));
    }
  }
}

}  // namespace
}  // namespace warproll
