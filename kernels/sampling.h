// Sampling: from one row of logits and one uniform number to one token, with its log-probabilities.
//
// Definitions, for logits l [V] (F32), temperature t > 0; all arithmetic in double:
//   order      tokens by descending l, ties by ascending id
//   w_i        exp(l_i / t - l_max / t), so the first token of the order has w = 1
//   Z          sum of all w_i in ascending id
//   C_n        sum of the first n tokens' w in the order
//   1. top-k   K = top_k if 0 < top_k < V, else V;  mass_K = Z if K = V, else C_K
//   2. top-p   if top_p < 1: n = the least n with C_n >= top_p * mass_K (the token that crosses p
//              is kept), at most K; else n = K
//   3. min-p   if min_p > 0: n = min(n, number of leading tokens with w >= min_p), so a token needs
//              min_p times the probability of the most likely one (the ratio is the same before and
//              after top-k and top-p)
//   4. draw    M = Z if n = V, else C_n; the token is the first of the order with C_j > u * M
//              (if rounding leaves none: the last of the n with w > 0)
//   logprob          l_id / t - l_max / t - ln M      support_logmass   min(0, ln (M / Z))
//   raw_logprob      l_id - l_max - ln (sum of exp(l_i - l_max) in ascending id)
// Temperature 0 is greedy: the first token of the order, support size 1, logprob = raw_logprob,
// support_logmass 0 (the limit t -> 0); top_k, top_p, min_p and u do not matter.
// -inf logits are allowed (probability 0). NaN, +inf or no finite logit: token_id = -1.
// Cost: O(V) plus a sort of as much of the order's head as the draw needs.
// Errors: std::invalid_argument that prints the value. Thread: pure functions; the batch form
// spreads rows over threads, and a row's result depends on that row only.
#pragma once

#include <cstdint>
#include <span>

namespace warproll {

struct SamplingRow {
  std::span<const float> logits;  // [V], V >= 1
  float temperature = 1.0f;       // finite, >= 0; 0 = greedy
  float top_p = 1.0f;             // (0, 1]
  int32_t top_k = 0;              // >= 0; 0 = off
  float min_p = 0.0f;             // [0, 1]
  double uniform = 0.0;           // [0, 1), kernels/philox.h
};

// What a SamplingRow says less the logits, for rows whose logits are elsewhere (on a GPU).
struct RowSampling {
  float temperature = 1.0f;
  float top_p = 1.0f;
  int32_t top_k = 0;
  float min_p = 0.0f;
  double uniform = 0.0;
};

inline SamplingRow with_logits(const RowSampling& row, std::span<const float> logits) {
  return {logits, row.temperature, row.top_p, row.top_k, row.min_p, row.uniform};
}

struct SampledToken {
  int32_t token_id = -1;
  float logprob = 0.0f;          // ln, under the sampling distribution; -inf outside the support
  float raw_logprob = 0.0f;      // ln, under the model at temperature 1, untruncated
  float support_logmass = 0.0f;  // ln of the kept support's mass at that temperature
  int32_t support_size = 0;
};

SampledToken sample_token_cpu(const SamplingRow& row);
// rows[i] -> out[i]; the sizes must be equal.
void sample_tokens_cpu(std::span<const SamplingRow> rows, std::span<SampledToken> out);
// The same numbers for a given token instead of a drawn one (row.uniform is not used).
SampledToken score_token_cpu(const SamplingRow& row, int32_t token_id);

}  // namespace warproll
