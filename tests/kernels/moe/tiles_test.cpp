#include "kernels/moe/tiles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/dtype.h"

namespace warproll {
namespace {

// Expert weights of one format with their values, dequantised here.
struct Weights {
  std::vector<std::byte> data, scales;
  std::vector<double> values;  // [E, rows, cols]
  WeightView view;
};

Weights random_weights(WeightFormat format, int32_t experts, int32_t rows, int32_t cols,
                       std::mt19937& rng) {
  Weights w;
  w.view = {.format = format, .num_matrices = experts, .rows = rows, .cols = cols};
  std::normal_distribution<float> normal(0.0f, 0.02f);
  const int32_t block_rows = format == WeightFormat::kFp8Block ? 128 : 1;
  const int32_t block_cols = format == WeightFormat::kFp8Block ? 128 : 32;
  const int32_t groups = (cols + block_cols - 1) / block_cols;
  const int32_t row_groups = (rows + block_rows - 1) / block_rows;
  w.view.block_rows = block_rows;
  w.view.block_cols = block_cols;
  const bool fp8 = format == WeightFormat::kMxfp8 || format == WeightFormat::kFp8Block;
  const auto put = [](std::vector<std::byte>& to, const auto& value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    to.insert(to.end(), bytes, bytes + sizeof(value));
  };
  for (int32_t e = 0; e < experts; ++e) {
    std::vector<double> scale;
    for (int32_t i = 0; fp8 && i < row_groups * groups; ++i) {
      if (format == WeightFormat::kMxfp8) {
        // Wide: some blocks of a row are 2^22 below its largest.
        const auto bits = static_cast<uint8_t>(100 + rng() % 23);
        put(w.scales, bits);
        scale.push_back(std::ldexp(1.0, bits - 127));
      } else {
        const float s = std::fabs(normal(rng));
        put(w.scales, s);
        scale.push_back(s);
      }
    }
    for (int32_t r = 0; r < rows; ++r) {
      const int exponent = static_cast<int>(rng() % 40) - 30;  // rows of very different size
      for (int32_t c = 0; c < cols; ++c) {
        if (fp8) {
          auto bits = static_cast<uint8_t>(rng());
          if ((bits & 0x7f) == 0x7f) bits ^= 0x10;  // no NaN
          put(w.data, bits);
          w.values.push_back(double{e4m3_to_f32(bits)} *
                             scale[static_cast<size_t>(r / block_rows * groups + c / block_cols)]);
        } else if (format == WeightFormat::kBf16) {
          const uint16_t bits = f32_to_bf16(std::ldexp(normal(rng), exponent));
          put(w.data, bits);
          w.values.push_back(bf16_to_f32(bits));
        } else {
          const uint16_t bits = f32_to_f16(normal(rng));
          put(w.data, bits);
          w.values.push_back(f16_to_f32(bits));
        }
      }
    }
  }
  w.view.data = w.data.data();
  w.view.scales = fp8 ? w.scales.data() : nullptr;
  w.view.scale_dtype = format == WeightFormat::kFp8Block ? Dtype::kF32 : Dtype::kF8E8M0;
  w.view.matrix_stride_bytes = w.data.size() / static_cast<size_t>(experts);
  w.view.scale_stride_bytes = w.scales.size() / static_cast<size_t>(experts);
  return w;
}

double half_of_high_byte(uint8_t byte) { return f16_to_f32(static_cast<uint16_t>(byte << 8)); }

// The weight at (row r of the tile, column c) of a record, read as tiles.h describes it.
double value_in(const TileMatrix& tiles, const std::byte* packed, int64_t record, int32_t r,
                int32_t c) {
  const std::byte* at =
      packed + record * tiles.record_bytes() + c / kTileBlock * tile_block_bytes(tiles.format);
  const int32_t in_block = c % kTileBlock;
  const int32_t quarter = in_block / 8, t = in_block % 8 / 2, half = in_block % 2;
  const int32_t lane = r % 8 * 4 + t;
  uint16_t scale_bits = 0;
  std::memcpy(&scale_bits,
              packed + tiles.num_records() * tiles.record_bytes() + record * kRowScaleBytes + r * 2,
              2);
  const double row_scale = bf16_to_f32(scale_bits);
  if (tiles.format == TileFormat::kF16) {
    uint16_t bits = 0;
    std::memcpy(&bits,
                at + quarter / 2 * 512 + lane * 16 + (quarter % 2 * 2 + r / 8) * 4 + half * 2, 2);
    return f16_to_f32(bits) * row_scale;
  }
  const auto element = static_cast<uint8_t>(at[lane * 16 + r / 8 * 8 + quarter * 2 + half]);
  if (tiles.format == TileFormat::kMxfp8) {
    return e4m3_to_f32(element) *
           half_of_high_byte(static_cast<uint8_t>(at[512 + r % 8 * 2 + r / 8])) * row_scale;
  }
  float scale = 0.0f;
  std::memcpy(&scale, at + 512 + r / 8 * 4, 4);
  return double{e4m3_to_f32(element)} * scale * row_scale;
}

class Tiles : public ::testing::TestWithParam<WeightFormat> {};

TEST_P(Tiles, HoldEveryWeightExactly) {
  std::mt19937 rng(7);
  for (const auto& [hidden, inner] : {std::pair{32, 32}, {96, 160}, {256, 96}, {288, 32}}) {
    const Weights gate = random_weights(GetParam(), 3, inner, hidden, rng);
    const Weights up = random_weights(GetParam(), 3, inner, hidden, rng);
    const Weights down = random_weights(GetParam(), 3, hidden, inner, rng);

    TileMatrix tiles = gate_up_tiles(gate.view, up.view);
    std::vector<std::byte> packed(tiles.bytes());
    pack_gate_up_cpu(gate.view, up.view, packed.data());
    for (int32_t e = 0; e < 3; ++e) {
      for (int32_t row = 0; row < inner; ++row) {
        for (int32_t c = 0; c < hidden; ++c) {
          const int64_t record = int64_t{e} * tiles.num_tiles + row / 8;
          const size_t at = (static_cast<size_t>(e) * inner + row) * hidden + c;
          ASSERT_EQ(value_in(tiles, packed.data(), record, row % 8, c), gate.values[at])
              << "gate " << e << ", " << row << ", " << c;
          ASSERT_EQ(value_in(tiles, packed.data(), record, row % 8 + 8, c), up.values[at])
              << "up " << e << ", " << row << ", " << c;
        }
      }
    }
    tiles = down_tiles(down.view);
    packed.assign(tiles.bytes(), std::byte{0xee});
    pack_down_cpu(down.view, packed.data());
    for (int32_t e = 0; e < 3; ++e) {
      for (int32_t row = 0; row < hidden; ++row) {
        for (int32_t c = 0; c < inner; ++c) {
          const int64_t record = int64_t{e} * tiles.num_tiles + row / kTileRows;
          ASSERT_EQ(value_in(tiles, packed.data(), record, row % kTileRows, c),
                    down.values[(static_cast<size_t>(e) * hidden + row) * inner + c])
              << "down " << e << ", " << row << ", " << c;
        }
      }
    }
  }
}
std::string name_of(const ::testing::TestParamInfo<WeightFormat>& format) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16", "mxfp8", "fp8_block"};
  return kNames[static_cast<int>(format.param)];
}
INSTANTIATE_TEST_SUITE_P(Formats, Tiles,
                         ::testing::Values(WeightFormat::kF16, WeightFormat::kBf16,
                                           WeightFormat::kMxfp8, WeightFormat::kFp8Block),
                         name_of);

TEST(TileMatrix, RefusesWhatItCannotHold) {
  std::mt19937 rng(8);
  const auto message_of = [](const auto& body) -> std::string {
    try {
      body();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  const Weights odd_cols = random_weights(WeightFormat::kBf16, 1, 32, 40, rng);
  EXPECT_EQ(message_of([&] { down_tiles(odd_cols.view); }),
            "down tiles: 40 columns, wanted a multiple of 32");
  const Weights odd_rows = random_weights(WeightFormat::kBf16, 1, 40, 32, rng);
  EXPECT_EQ(message_of([&] { down_tiles(odd_rows.view); }),
            "down tiles: 40 rows, wanted a multiple of 16");
  WeightView f32 = odd_cols.view;
  f32.format = WeightFormat::kF32;
  f32.cols = 32;
  EXPECT_EQ(message_of([&] { down_tiles(f32); }),
            "MoE tiles: F32 expert weights, wanted BF16, F16, MXFP8 or block FP8");
  Weights blocks = random_weights(WeightFormat::kFp8Block, 1, 32, 32, rng);
  blocks.view.block_cols = 64;
  EXPECT_EQ(message_of([&] { down_tiles(blocks.view); }),
            "down tiles: FP8 blocks of [128, 64], wanted [128, 128]");
}

TEST(TilePosition, PutsALanesEightColumnsTogether) {
  for (int32_t block = 0; block < 3; ++block) {
    for (int32_t t = 0; t < 4; ++t) {
      const int32_t columns[] = {2 * t,      2 * t + 1,  2 * t + 8,  2 * t + 9,
                                 2 * t + 16, 2 * t + 17, 2 * t + 24, 2 * t + 25};
      for (int32_t i = 0; i < 8; ++i) {
        EXPECT_EQ(tile_position(block * 32 + columns[i]), block * 32 + t * 8 + i);
      }
    }
  }
}

}  // namespace
}  // namespace warproll
