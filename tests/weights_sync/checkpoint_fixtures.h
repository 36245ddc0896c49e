// Checkpoints for tests: temporary directories, safetensors files built byte by byte (so that they
// may be wrong), and the golden ones with the model's real layout.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/arena.h"
#include "kernels/dtype.h"
#include "rollout/model/model_config.h"
#include "rollout/model/weights.h"
#include "tests/golden_dir.h"
#include "weights_sync/checkpoint.h"

namespace warproll::checkpoint_fixtures {

class TempDir {
 public:
  TempDir() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "warproll-checkpoint-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string operator/(std::string_view name) const {
    return (path_ / name).string();
  }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline std::string golden(std::string_view name) { return golden_dir() + "/" + std::string(name); }

inline const std::vector<std::string>& golden_checkpoints() {
  static const std::vector<std::string> names = {"arith-v1",
                                                 "arith-v2",
                                                 "arith-v3",
                                                 "qwen3moe-tiny",
                                                 "qwen3moe-tiny-fp8block",
                                                 "qwen3moe-tiny-fp8block-ragged",
                                                 "qwen3moe-tiny-fused",
                                                 "qwen3moe-tiny-hf4",
                                                 "qwen3moe-tiny-mxfp8",
                                                 "qwen3moe-tiny-mxfp8-ct",
                                                 "qwen3moe-tiny-mxfp8-modelopt",
                                                 "qwen3moe-tiny-sharded",
                                                 "qwen3moe-tiny-tied"};
  return names;
}

inline void write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream stream(path, std::ios::binary);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!stream) throw std::runtime_error("cannot write " + path);
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot read " + path);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

inline std::string little_endian(uint64_t value) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[static_cast<size_t>(i)] = static_cast<char>(value >> (8 * i));
  return bytes;
}

// A safetensors file from its header text and data, right or wrong.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  return little_endian(header.size()) + std::string(header) + std::string(data);
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline bool equal_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

inline std::vector<std::byte> random_bytes(size_t size, std::mt19937_64& random) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// What worker/ wires: the model's layout for a checkpoint.
inline LayoutFunction model_layout(bool quantise_to_mxfp8 = false) {
  return [=](const CheckpointFiles& files,
             std::span<const TensorInfo> tensors) -> Result<ArenaLayout> {
    WARPROLL_TRY_ASSIGN(config, parse_model_config(files.config_json, files.generation_config_json,
                                                   files.hf_quant_config_json));
    return make_arena_layout(config, tensors, quantise_to_mxfp8);
  };
}

// Two slots: BF16 "x" stacked from x.0 and x.1 (32 values each), U8 "s" from "s"; alias x.tied.
inline ArenaLayout small_layout() {
  ArenaLayout layout;
  layout.slots = {{"x", Dtype::kBf16, {2, 32}, 0, 128, {}}, {"s", Dtype::kU8, {5}, 256, 5, {}}};
  layout.slots[0].sources = {
      {.tensor_name = "x.0", .dtype = Dtype::kBf16, .shape = {32}},
      {.tensor_name = "x.1", .dtype = Dtype::kBf16, .shape = {1, 32}, .slot_offset_bytes = 64}};
  layout.slots[1].sources = {{.tensor_name = "s", .dtype = Dtype::kU8, .shape = {5}}};
  layout.aliases = {{"x.tied", "x.0"}};
  layout.total_bytes = 261;
  return layout;
}

inline std::vector<std::byte> bf16_ramp(int first, int count = 32) {
  std::vector<std::byte> bytes;
  for (int i = 0; i < count; ++i) {
    const uint16_t bits = f32_to_bf16(static_cast<float>(first + i));
    bytes.push_back(static_cast<std::byte>(bits & 255));
    bytes.push_back(static_cast<std::byte>(bits >> 8));
  }
  return bytes;
}

}  // namespace warproll::checkpoint_fixtures
