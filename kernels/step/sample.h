// sample_tokens: from rows of logits to one token each, with log-probabilities, on the device.
// Definitions, order, ties and refusals: kernels/sampling.h, per row. With given_ids: the numbers of
// these tokens instead of drawn ones (score_token_cpu).
//
// Where the CPU sums exp in double, here w_i = exp(l_i / t - l_max / t) is an integer: rounded to 44
// bits or more below its own power of two, 90 bits below 1 at the least. Sums of integers are exact, so
// Z, C_n, the support and the token do not depend on the order of the additions: the same bits in
// every run, alone or in any batch. Tolerance: cumulative masses are the CPU's within 1e-13 of
// themselves, so ids and support sizes are the CPU's unless a cumulative mass is that near to u * M or
// to top_p * mass_K; log-probabilities within 1e-5 (no double exp: raw_logprob at temperatures
// other than 1 sums exp of F32).
//
// One kernel, one cluster of eight CTAs a row, programmatic dependent launch, no workspace, no
// allocation, no host synchronisation: may be captured in a graph. Needs sm_90 or later.
// A device cannot throw: a row whose RowSampling is out of range, or whose given id is not in [0, V),
// gets token_id -1 as a row of NaN does; check requests when they come in.
// Thread: any, one stream. Errors: std::invalid_argument, CudaError.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/sampling.h"

namespace warproll {

inline constexpr int32_t kMaxSampleVocab = 1 << 18;

struct SampleParams {
  const float* logits = nullptr;       // [R, V]
  const RowSampling* rows = nullptr;   // [R]
  const int32_t* given_ids = nullptr;  // [R], or null: draw
  SampledToken* out = nullptr;         // [R]
  int32_t num_rows = 0;                // R, 0 .. 65536; 0 is a no-op
  int32_t vocab_size = 0;              // V, 1 .. 262144
};
void sample_tokens(const SampleParams& params, cudaStream_t stream);

}  // namespace warproll
