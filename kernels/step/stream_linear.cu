#include "kernels/step/stream_linear.h"

#include <string>

#include "kernels/check.h"
#include "kernels/step/stream_linear.cuh"
#include "kernels/step/vectors.cuh"

namespace warproll {

bool stream_linear_can_norm(int32_t num_tokens, const TileMatrix& weight) {
  return num_tokens <= stream_linear_detail::kMaxNormTokens && weight.cols == kResidualNormHidden;
}

void stream_linear(const StreamLinearParams& p, cudaStream_t stream) {
  constexpr int32_t kMaxTokens = 8192;
  check_argument(
      p.weight.num_experts == 1 && p.weight.num_tiles >= 1 && p.weight.cols >= kTileBlock &&
          p.weight.cols % kTileBlock == 0 && p.num_tokens >= 0 && p.num_tokens <= kMaxTokens,
      [&] {
        return "stream linear: T " + std::to_string(p.num_tokens) + ", W " +
               std::to_string(p.weight.num_experts) + " x " + std::to_string(p.weight.num_tiles) +
               " tiles over " + std::to_string(p.weight.cols) + "; wanted T 0 .. " +
               std::to_string(kMaxTokens) + ", one matrix, columns a multiple of " +
               std::to_string(kTileBlock);
      });
  if (p.num_tokens == 0) return;
  const bool tile = p.x.values != nullptr;
  const bool norm = p.norm.hidden != nullptr;
  check_argument(
      norm   ? !tile && p.x_bf16 == nullptr
      : tile ? p.x.scales != nullptr && p.x_bf16 == nullptr
             : p.x_bf16 != nullptr,
      [] {
        return std::string("stream linear: wanted one of x with its scales, x_bf16 and norm");
      });
  check_argument(!norm || stream_linear_can_norm(p.num_tokens, p.weight), [&] {
    return "stream linear: a norm of T " + std::to_string(p.num_tokens) + " over " +
           std::to_string(p.weight.cols) + " columns, wanted T up to " +
           std::to_string(stream_linear_detail::kMaxNormTokens) + ", columns " +
           std::to_string(kResidualNormHidden);
  });
  if (norm) check_residual_norm(p.norm, "stream linear");
  check_argument(p.weight.data != nullptr && (p.y != nullptr || p.y_f32 != nullptr),
                 [] { return std::string("stream linear: weight.data or y is null"); });
  check_argument(step::is_aligned(tile ? p.x.values : p.x_bf16) && step::is_aligned(p.y, 8) &&
                     step::is_aligned(p.y_f32) && step::is_aligned(p.weight.data, 128),
                 [] { return std::string("stream linear: a pointer is not aligned"); });
  switch (p.weight.format) {
    case TileFormat::kF16:
      return stream_linear_detail::launch_f16(p, stream);
    case TileFormat::kMxfp8:
      return stream_linear_detail::launch_mxfp8(p, stream);
    case TileFormat::kFp8Block:
      return stream_linear_detail::launch_fp8_block(p, stream);
  }
}

}  // namespace warproll
