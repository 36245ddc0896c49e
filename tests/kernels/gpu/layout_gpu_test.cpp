// The device's twins of the CPU's layout and number work: byte for byte.
#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>

#include "gpu_support.h"
#include "kernels/fill_items.h"
#include "kernels/moe/pack.h"
#include "kernels/not_finite.h"
#include "kernels/quantise.h"
#include "kernels/xxh3.h"

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

// What taking a tensor in leaves on the device, and the items of its chunks.
struct TakenIn {
  std::vector<std::byte> host;
  NotFiniteRule rule;
  DeviceBuffer<uint64_t> sums, key;
  DeviceBuffer<std::byte> digests;
  std::vector<TakeInItem> chunks;

  TakenIn(const std::byte* data, uint64_t bytes, Dtype dtype)
      : host(from_device<std::byte>(data, bytes)),
        rule(not_finite_rule(dtype)),
        sums(std::vector<uint64_t>(bytes / 128 + 16)),
        key(std::vector<uint64_t>{kNoneNotFinite}),
        digests((bytes + kXxh3ChunkBytes - 1) / kXxh3ChunkBytes * 16) {
    int64_t ctas = 0;
    uint64_t num_sums = 0;
    for (uint64_t at = 0; at < bytes; at += kXxh3ChunkBytes) {
      TakeInItem chunk = {.data = data + at,
                          .digest = digests.data() + chunks.size() * 16,
                          .sums = sums.data() + num_sums,
                          .key = key.data(),
                          .first_index = at / (rule.bits_each / 8),
                          .first_cta = ctas,
                          .bytes = static_cast<uint32_t>(std::min(bytes - at, kXxh3ChunkBytes)),
                          .rule = rule};
      num_sums += sums_bytes_of(chunk) / sizeof(uint64_t);
      ctas += ctas_of(chunk);
      chunks.push_back(chunk);
    }
  }
  [[nodiscard]] int64_t num_ctas() const {
    return chunks.back().first_cta + ctas_of(chunks.back());
  }
  void expect_digests_of_the_cpu(const std::string& what) {
    const DeviceBuffer<TakeInItem> items(chunks);
    digest_items({items.data(), chunks.size()}, nullptr);
    std::vector<std::byte> want(digests.size());
    xxh3_chunks_cpu({host.data(), host.size(), want.data()});
    EXPECT_EQ(digests.to_host(), want) << what;
  }
};

TEST(TakeInGpu, QuantisesChunksAsQuantiseDoes) {
  SKIP_WITHOUT_GPU();
  std::mt19937 rng(32);
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 32},
                                   {3, 96},
                                   {300, 96},
                                   {512, 1024},
                                   {683, 768},
                                   {700, 2048}}) {
    std::vector<uint16_t> source(static_cast<size_t>(rows * cols));
    std::normal_distribution<float> normal(0.0f, 0.02f);
    for (uint16_t& value : source) value = f32_to_bf16(normal(rng));
    source[source.size() / 2] = 0x7f80;  // its block gets the scale NaN
    std::vector<uint8_t> elements(source.size()), scales(elements.size() / 32);
    const auto bad = quantise_mxfp8_cpu({reinterpret_cast<const std::byte*>(source.data()),
                                         Dtype::kBf16, rows, cols, elements.data(), scales.data()});
    const DeviceBuffer<uint16_t> device_source(source);
    DeviceBuffer<uint8_t> device_elements(std::vector<uint8_t>(elements.size(), 0xcd));
    DeviceBuffer<uint8_t> device_scales(std::vector<uint8_t>(scales.size(), 0xcd));
    TakenIn taken(reinterpret_cast<const std::byte*>(device_source.data()), source.size() * 2,
                  Dtype::kBf16);
    for (TakeInItem& chunk : taken.chunks) {
      chunk.elements = device_elements.data() + chunk.first_index;
      chunk.scales = device_scales.data() + chunk.first_index / 32;
    }
    const DeviceBuffer<TakeInItem> items(taken.chunks);
    take_in_items({items.data(), taken.chunks.size()}, taken.num_ctas(), nullptr);
    EXPECT_EQ(device_elements.to_host(), elements) << rows << " x " << cols;
    EXPECT_EQ(device_scales.to_host(), scales) << rows << " x " << cols;
    EXPECT_EQ(not_finite_of(Dtype::kBf16, taken.key.to_host()[0]).index,
              static_cast<uint64_t>(bad.value()));
    if (source.size() * 2 > kXxh3ShortBytes) taken.expect_digests_of_the_cpu("quantised");
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
