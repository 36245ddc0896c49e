#include "weights_sync/checkpoint_diff.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>

#include "weights_sync/parallel.h"

namespace warproll {
namespace {

template <typename Bits>
Bits load(std::span<const std::byte> bytes, uint64_t index) {
  Bits bits;
  std::memcpy(&bits, bytes.data() + index * sizeof(Bits), sizeof(Bits));
  return bits;
}

// decode(bits) -> float; finite elements on both sides make the maximum.
template <typename Bits, typename Decode>
void compare_floats(std::span<const std::byte> a, std::span<const std::byte> b,
                    const Decode& decode, TensorDifference& difference) {
  for (uint64_t i = 0; i < a.size() / sizeof(Bits); ++i) {
    const Bits bits_a = load<Bits>(a, i);
    const Bits bits_b = load<Bits>(b, i);
    if (bits_a == bits_b) continue;
    ++difference.num_different_elements;
    const double value_a = decode(bits_a);
    const double value_b = decode(bits_b);
    if (!std::isfinite(value_a) || !std::isfinite(value_b)) continue;
    difference.max_abs_difference =
        std::max(difference.max_abs_difference.value_or(0.0), std::abs(value_a - value_b));
  }
}

void compare_integers(size_t element_bytes, std::span<const std::byte> a,
                      std::span<const std::byte> b, TensorDifference& difference) {
  for (uint64_t at = 0; at < a.size(); at += element_bytes) {
    if (std::memcmp(a.data() + at, b.data() + at, element_bytes) != 0) {
      ++difference.num_different_elements;
    }
  }
}

void compare_elements(Dtype dtype, std::span<const std::byte> a, std::span<const std::byte> b,
                      TensorDifference& difference) {
  switch (dtype) {
    case Dtype::kF32:
      return compare_floats<float>(
          a, b, [](float value) { return value; }, difference);
    case Dtype::kF16:
      return compare_floats<uint16_t>(a, b, f16_to_f32, difference);
    case Dtype::kBf16:
      return compare_floats<uint16_t>(a, b, bf16_to_f32, difference);
    case Dtype::kF8E4M3:
      return compare_floats<uint8_t>(a, b, e4m3_to_f32, difference);
    case Dtype::kF8E8M0:
      return compare_floats<uint8_t>(a, b, e8m0_to_f32, difference);
    case Dtype::kU8:
    case Dtype::kU16:
    case Dtype::kI32:
    case Dtype::kI64:
      return compare_integers(dtype_bytes(dtype), a, b, difference);
  }
}

// A name in one or both checkpoints, by index.
struct Pair {
  std::optional<size_t> a;
  std::optional<size_t> b;
};

std::vector<Pair> pair_by_name(const Checkpoint& a, const Checkpoint& b) {
  const auto left = a.tensors();
  const auto right = b.tensors();
  std::vector<Pair> pairs;
  size_t i = 0;
  size_t j = 0;
  while (i < left.size() || j < right.size()) {  // both are sorted by name
    const bool no_b = j == right.size() || (i < left.size() && left[i].name < right[j].name);
    const bool no_a = !no_b && (i == left.size() || right[j].name < left[i].name);
    Pair& pair = pairs.emplace_back();
    if (!no_a) pair.a = i++;
    if (!no_b) pair.b = j++;
  }
  return pairs;
}

// Absent = equal.
std::optional<TensorDifference> compare(const Checkpoint& a, const Checkpoint& b, Pair pair) {
  TensorDifference difference;
  if (pair.a) difference.a = a.tensors()[*pair.a];
  if (pair.b) difference.b = b.tensors()[*pair.b];
  difference.name = pair.a ? difference.a.name : difference.b.name;
  if (!pair.a || !pair.b) {
    difference.kind = pair.a ? TensorDifferenceKind::kOnlyInA : TensorDifferenceKind::kOnlyInB;
    return difference;
  }
  if (difference.a.dtype != difference.b.dtype) {
    difference.kind = TensorDifferenceKind::kDtype;
    return difference;
  }
  if (difference.a.shape != difference.b.shape) {
    difference.kind = TensorDifferenceKind::kShape;
    return difference;
  }
  const auto left = a.bytes(*pair.a);
  const auto right = b.bytes(*pair.b);
  if (left.empty() || std::memcmp(left.data(), right.data(), left.size()) == 0) return {};
  difference.kind = TensorDifferenceKind::kBytes;
  compare_elements(difference.a.dtype, left, right, difference);
  return difference;
}

}  // namespace

std::string_view to_string(TensorDifferenceKind kind) {
  switch (kind) {
    case TensorDifferenceKind::kOnlyInA:
      return "only in A";
    case TensorDifferenceKind::kOnlyInB:
      return "only in B";
    case TensorDifferenceKind::kDtype:
      return "dtype";
    case TensorDifferenceKind::kShape:
      return "shape";
    case TensorDifferenceKind::kBytes:
      return "bytes";
  }
  return "unknown";
}

CheckpointDiff diff_checkpoints(const Checkpoint& a, const Checkpoint& b,
                                const ByteProgress& progress, int num_threads) {
  const std::vector<Pair> pairs = pair_by_name(a, b);
  std::vector<std::optional<TensorDifference>> found(pairs.size());
  uint64_t total_bytes = 0;
  for (const TensorInfo& tensor : a.tensors()) total_bytes += tensor.bytes;
  std::atomic<uint64_t> done_bytes{0};
  const auto report = [&] {
    if (progress) progress(done_bytes, total_bytes);
  };
  for_each_index(
      pairs.size(), num_threads,
      [&](size_t i) {
        found[i] = compare(a, b, pairs[i]);
        if (pairs[i].a) done_bytes += a.tensors()[*pairs[i].a].bytes;
      },
      report);
  report();

  CheckpointDiff diff;
  for (auto& difference : found) {
    if (difference) diff.tensors.push_back(std::move(*difference));
  }
  diff.num_equal_tensors = pairs.size() - diff.tensors.size();
  const auto compare_file = [&](const char* name, std::string CheckpointFiles::*file) {
    if (a.files().*file != b.files().*file) diff.different_files.emplace_back(name);
  };
  compare_file("config.json", &CheckpointFiles::config_json);
  compare_file("generation_config.json", &CheckpointFiles::generation_config_json);
  compare_file("hf_quant_config.json", &CheckpointFiles::hf_quant_config_json);
  return diff;
}

}  // namespace warproll
