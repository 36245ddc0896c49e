#include "kernels/router.h"

#include <algorithm>
#include <string>

#include "kernels/check.h"
#include "kernels/lanes.h"

namespace warproll {
namespace {

// probs [E] = softmax(logits); the sum in lanes by expert.
WARPROLL_VECTOR_CLONES void softmax_row(const float* logits, int32_t size, float* probs) {
  float max = logits[0];
  for (int32_t e = 1; e < size; ++e) max = std::max(max, logits[e]);
  Lanes sum = {}, p;
  const Lanes zero = {};
  for (int32_t e = 0; e < size; e += kLanes) {
    const int32_t count = std::min(kLanes, size - e);
    load_lanes_tail(p, logits + e, count);
    p = p - max;
    exp_lanes(p);
    for (int32_t i = count; i < kLanes; ++i) p[i] = zero[i];
    sum += p;
    for (int32_t i = 0; i < count; ++i) probs[e + i] = p[i];
  }
  const float total = fold_lanes(sum);
  for (int32_t e = 0; e < size; ++e) probs[e] /= total;
}

void select_best(const float* probs, int32_t num_experts, int32_t top_k, int32_t* ids) {
  bool taken[kMaxExperts] = {};
  for (int32_t k = 0; k < top_k; ++k) {
    int32_t best = -1;
    for (int32_t e = 0; e < num_experts; ++e) {
      if (!taken[e] && (best < 0 || probs[e] > probs[best])) best = e;
    }
    taken[best] = true;
    ids[k] = best;
  }
}

void take_given(const RouterParams& p, int32_t t, int32_t* ids) {
  for (int32_t k = 0; k < p.top_k; ++k) {
    const int32_t id = p.given_ids[int64_t{t} * p.top_k + k];
    const bool repeated = std::find(ids, ids + k, id) != ids + k;
    check_argument(id >= 0 && id < p.num_experts && !repeated, [&] {
      return "router: given expert " + std::to_string(k) + " of token " + std::to_string(t) +
             " is " + std::to_string(id) + (repeated ? ", which the token has already" : "") +
             ", wanted distinct experts 0 .. " + std::to_string(p.num_experts - 1);
    });
    ids[k] = id;
  }
}

void check(const RouterParams& p) {
  check_argument(p.num_tokens >= 0 && p.num_experts >= 1 && p.num_experts <= kMaxExperts &&
                     p.top_k >= 1 && p.top_k <= std::min(p.num_experts, kMaxTopK),
                 [&] {
                   return "router: T " + std::to_string(p.num_tokens) + ", E " +
                          std::to_string(p.num_experts) + ", K " + std::to_string(p.top_k) +
                          "; wanted E 1 .. " + std::to_string(kMaxExperts) + " and K 1 .. min(E, " +
                          std::to_string(kMaxTopK) + ")";
                 });
  check_argument(p.num_tokens == 0 ||
                     (p.logits != nullptr && p.topk_ids != nullptr && p.topk_weights != nullptr),
                 [] { return std::string("router: a pointer is null"); });
}

}  // namespace

void router_cpu(const RouterParams& p) {
  check(p);
  float probs[kMaxExperts];
  int32_t ids[kMaxTopK];
  for (int32_t t = 0; t < p.num_tokens; ++t) {
    softmax_row(p.logits + int64_t{t} * p.num_experts, p.num_experts, probs);
    if (p.given_ids != nullptr) {
      take_given(p, t, ids);
    } else {
      select_best(probs, p.num_experts, p.top_k, ids);
    }
    float sum = 0.0f;
    for (int32_t k = 0; k < p.top_k; ++k) sum += probs[ids[k]];
    const float divisor = p.renormalise ? sum : 1.0f;
    for (int32_t k = 0; k < p.top_k; ++k) {
      p.topk_ids[int64_t{t} * p.top_k + k] = ids[k];
      p.topk_weights[int64_t{t} * p.top_k + k] = probs[ids[k]] / divisor;
    }
  }
}

}  // namespace warproll
