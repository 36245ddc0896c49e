#include "weights_sync/quantise_tensor.h"

#include <algorithm>
#include <optional>
#include <string>

#include "kernels/quantise.h"
#include "weights_sync/tensor_check.h"
#include "weights_sync/tensor_scan.h"

namespace warproll {
namespace {

// Below the size from which the kernel would start its own threads: callers already run one
// tensor a thread.
constexpr int64_t kSliceElements = 1 << 17;

bool is_wide_float(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBf16;
}

}  // namespace

Result<QuantisedTensor> plan_quantise_mxfp8(const TensorInfo& source) {
  const std::string got = "tensor '" + source.name + "' is " +
                          std::string(to_string(source.dtype)) + " " +
                          shape_to_string(source.shape);
  if (!is_wide_float(source.dtype)) {
    return invalid_argument(got + ", MXFP8 wants F32, F16 or BF16");
  }
  if (source.shape.size() < 2 || source.shape.back() % kMxfp8BlockCols != 0) {
    return invalid_argument(got + ", MXFP8 wants a matrix whose columns are a multiple of " +
                            std::to_string(kMxfp8BlockCols));
  }
  QuantisedTensor planned;
  planned.elements = {source.name, Dtype::kF8E4M3, source.shape,
                      source.bytes / dtype_bytes(source.dtype)};
  planned.scales = {source.name + "_scale_inv", Dtype::kU8, source.shape,
                    planned.elements.bytes / kMxfp8BlockCols};
  planned.scales.shape.back() /= kMxfp8BlockCols;
  return planned;
}

Status quantise_mxfp8(const TensorInfo& source, std::span<const std::byte> source_bytes,
                      std::span<std::byte> elements, std::span<std::byte> scales) {
  const int64_t element_bytes = static_cast<int64_t>(dtype_bytes(source.dtype));
  WARPROLL_CHECK(source_bytes.size() == source.bytes &&
                     elements.size() * static_cast<size_t>(element_bytes) == source.bytes &&
                     scales.size() * kMxfp8BlockCols == elements.size(),
                 "sizes of " + source.name + " are not as planned");
  if (elements.empty()) return ok_status();
  const int64_t cols = source.shape.back();
  const int64_t rows = static_cast<int64_t>(elements.size()) / cols;
  const int64_t slice_rows = std::max<int64_t>(1, kSliceElements / cols);
  for (int64_t row = 0; row < rows; row += slice_rows) {
    const int64_t at = row * cols;
    const std::optional<int64_t> bad = quantise_mxfp8_cpu({
        .source = source_bytes.data() + at * element_bytes,
        .source_dtype = source.dtype,
        .rows = std::min(slice_rows, rows - row),
        .cols = cols,
        .elements = reinterpret_cast<uint8_t*>(elements.data()) + at,
        .scales = reinterpret_cast<uint8_t*>(scales.data()) + at / kMxfp8BlockCols,
    });
    if (!bad) continue;
    const auto index = static_cast<uint64_t>(at + *bad);
    return not_finite_error(source.name, source.dtype, index,
                            source_bytes.subspan(index * static_cast<uint64_t>(element_bytes),
                                                 static_cast<uint64_t>(element_bytes)));
  }
  return ok_status();
}

}  // namespace warproll
