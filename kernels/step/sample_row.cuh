// RowSampler: one row's token by one cluster; how, sample.cu says. Internal to kernels/step/sample*.
#pragma once

#include "kernels/step/sample_find.cuh"

namespace warproll {
namespace {

// One cluster, one row. Every function is called by all threads of the cluster, unless it says
// otherwise.
class RowSampler : public OrderFinder {
 public:
  using OrderFinder::OrderFinder;

  __device__ void run(const SampleParams& p) {
    const RowSampling sampling = p.rows[row_];
    const int32_t given = p.given_ids == nullptr ? -1 : p.given_ids[row_];
    const Extremes extremes = load();
    const float largest = step::logit_of_key(extremes.best_key);
    SampledToken sampled;
    if (is_valid(sampling) && !extremes.has_nan && extremes.best_key != ~uint64_t{0} &&
        largest < INFINITY && (p.given_ids == nullptr || (given >= 0 && given < vocab_size_))) {
      scale_.max_logit = largest;
      sampled = sampling.temperature == 0.0f ? greedy(extremes.best_key, given)
                                             : draw(sampling, extremes.least, given);
    }
    if (cta_ == 0 && tid_ == 0) p.out[row_] = sampled;
    cluster_.sync();  // nobody reads the memory of a CTA that has ended
  }

 private:
  __device__ static bool is_valid(const RowSampling& r) {
    return r.temperature >= 0.0f && r.temperature < INFINITY && r.top_p > 0.0f && r.top_p <= 1.0f &&
           r.top_k >= 0 && r.min_p >= 0.0f && r.min_p <= 1.0f && r.uniform >= 0.0 &&
           r.uniform < 1.0;
  }

  __device__ Extremes load() {
    float best = -INFINITY, least = INFINITY;
    int best_at = 0;
    bool has_nan = false;
    const auto take = [&](float logit, int at) {
      has_nan |= logit != logit;
      least = fminf(least, logit);
      if (logit > best) {
        best = logit;
        best_at = at;
      }
    };
    const float* from = logits_ + first_;
    if (vocab_size_ % 4 == 0 && reinterpret_cast<uintptr_t>(logits_) % 16 == 0) {
#pragma unroll 4
      for (int i = tid_; i < size_ / 4; i += kThreads) {
        const float4 v = reinterpret_cast<const float4*>(from)[i];
        reinterpret_cast<float4*>(slice_)[i] = v;
        take(v.x, 4 * i);
        take(v.y, 4 * i + 1);
        take(v.z, 4 * i + 2);
        take(v.w, 4 * i + 3);
      }
    } else {
#pragma unroll 4
      for (int i = tid_; i < size_; i += kThreads) {
        const float v = from[i];
        slice_[i] = v;
        take(v, i);
      }
    }
    Extremes mine = {best > -INFINITY ? step::key_of(best, first_ + best_at) : ~uint64_t{0}, least,
                     has_nan};
    mine = reduce<32>(mine);
    if (lane_ == 0) s_.warp_extremes[warp_] = mine;
    __syncthreads();
    if (warp_ == 0) {
      mine = reduce<kWarps>(s_.warp_extremes[lane_ % kWarps]);
      if (lane_ == 0) s_.extremes = mine;
    }
    cluster_.sync();
    return reduce<kCtas>(of_cta(s_.extremes, lane_ % kCtas));
  }

  // Over kLanes neighbouring lanes, whole warp.
  template <int kLanes>
  __device__ static Extremes reduce(Extremes mine) {
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
      mine.best_key = min(mine.best_key, shuffle_xor(mine.best_key, lanes));
      mine.least = fminf(mine.least, __shfl_xor_sync(~0u, mine.least, lanes));
    }
    mine.has_nan = __any_sync(~0u, mine.has_nan) != 0;
    return mine;
  }

  // Of exp(l - l_max) in F32: what the untempered sum needs.
  __device__ double raw_weight(float logit) const {
    return static_cast<double>(
        exp2f((logit - scale_.max_logit) * static_cast<float>(step::kLog2E)));
  }
  // Leaves the sum of this CTA's threads for the cluster to read, in an order that V alone decides.
  __device__ void publish_raw(double sum) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    if (lane_ == 0) s_.warp_raw[warp_] = sum;
    __syncthreads();
    if (tid_ == 0) {
      double total = 0.0;
      for (int w = 0; w < kWarps; ++w) total += s_.warp_raw[w];
      s_.raw = total;
    }
  }
  __device__ double raw_of_row() {
    double total = 0.0;
    for (int cta = 0; cta < kCtas; ++cta) total += of_cta(s_.raw, cta);
    return total;
  }

  __device__ SampledToken greedy(uint64_t best_key, int32_t given) {
    double sum = 0.0;
    for (int i = tid_; i < size_; i += kThreads) sum += raw_weight(slice_[i]);
    publish_raw(sum);
    cluster_.sync();
    const int32_t best = step::token_of_key(best_key);
    const int32_t token = given < 0 ? best : given;
    const auto raw = static_cast<float>(static_cast<double>(logits_[token]) - scale_.max_logit -
                                        log(raw_of_row()));
    return {token, token == best ? raw : -INFINITY, raw, 0.0f, 1};
  }

  // Counts and masses of all bins, this CTA's part; the untempered sum; the tokens min-p keeps.
  __device__ void fill_bins(const RowSampling& r) {
    clear(kBins);
    if (tid_ == 0) s_.kept = 0;
    if (r.min_p > 0.0f && warp_ == 0) {
      const uint32_t least = least_kept_logit(scale_.max_logit, r.temperature, r.min_p);
      if (lane_ == 0) s_.least_kept = least;
    }
    __syncthreads();
    // Of numbers, ascending_of's order is theirs. No logit is above INFINITY, so none counts without
    // min-p.
    const float least_kept = r.min_p > 0.0f ? step::logit_of_ascending(s_.least_kept) : INFINITY;
    const bool needs_raw = r.temperature != 1.0f;
    double raw = 0.0;
    uint32_t kept = 0, last_count = 0;
    uint64_t last_weights = 0;
    for (int base = 0; base < size_; base += kThreads) {
      const bool mine = base + tid_ < size_;
      const float logit = mine ? slice_[base + tid_] : -INFINITY;
      const int bin = scale_.bin(logit);  // the last one of -inf
      const uint64_t weight = scale_.weight(logit, scale_.octaves(bin));
      if (needs_raw) raw += raw_weight(logit);
      if (mine && logit >= least_kept) ++kept;
      if (__all_sync(~0u, bin == __shfl_sync(~0u, bin, 0)) && bin != kBins - 1) {
        add_warp(bin,
                 weight);  // everybody's is a token, since a place past the end is in the last bin
      } else if (bin != kBins - 1) {
        add(s_.histogram, bin, 1, weight);
      } else if (mine) {
        ++last_count;
        last_weights += weight;
      }
    }
    last_count = __reduce_add_sync(~0u, last_count);
    kept = __reduce_add_sync(~0u, kept);
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) last_weights += shuffle_xor(last_weights, lanes);
    if (lane_ == 0) {
      if (last_count > 0) add(s_.histogram, kBins - 1, last_count, last_weights);
      atomicAdd(&s_.kept, kept);
    }
    if (needs_raw) publish_raw(raw);
  }

  // One bin for all lanes of a warp.
  __device__ void add_warp(int bin, uint64_t weight) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) weight += shuffle_xor(weight, lanes);
    if (lane_ == 0) add(s_.histogram, bin, 32, weight);
  }

  // The bins of all CTAs, added up along the order, at the leader; returns Z.
  __device__ Mass join_bins() {
    cluster_.sync();
    Shared& leader = *cluster_.map_shared_rank(&s_, 0);
    if (tid_ < kBins / kCtas) {
      const int bin = cta_ * (kBins / kCtas) + tid_;
      const Tally tally = tally_of(bin, scale_.octaves(bin));
      leader.count_to[bin] = tally.count;
      leader.mass_to[bin] = tally.mass;
    }
    cluster_.sync();
    if (cta_ == 0) {
      const int b = 2 * tid_;
      const Tally a = {s_.count_to[b], s_.mass_to[b]};
      const Tally both = {a.count + s_.count_to[b + 1], a.mass + s_.mass_to[b + 1]};
      const Tally before = tally_before(both, s_.warp_tally);
      s_.count_to[b] = before.count + a.count;
      s_.mass_to[b] = before.mass + a.mass;
      s_.count_to[b + 1] = before.count + both.count;
      s_.mass_to[b + 1] = before.mass + both.mass;
    }
    cluster_.sync();
    return leader.mass_to[kBins - 1];
  }

  __device__ SampledToken draw(const RowSampling& r, float least, int32_t given) {
    scale_ = RowScale(scale_.max_logit, least, r.temperature);
    fill_bins(r);
    const double total = step::to_double(join_bins());
    const double raw = r.temperature != 1.0f ? raw_of_row() : total;
    const auto vocab = static_cast<uint32_t>(vocab_size_);
    uint32_t kept = vocab;
    if (r.min_p > 0.0f) {
      kept = 0;
      for (int cta = 0; cta < kCtas; ++cta) kept += of_cta(s_.kept, cta);
    }
    const uint32_t top_k = r.top_k > 0 ? min(static_cast<uint32_t>(r.top_k), vocab) : vocab;
    uint32_t size = min(top_k, kept);
    double top_k_mass = total;
    Found last = {~uint64_t{0}, vocab, total};
    int32_t token = given;
    // One place where find is called: it is long.
#pragma unroll 1
    for (int question = 0; question < 4; ++question) {
      Query query = {Query::Kind::kRank, 0, 0.0};
      if (question == 0) {
        if (r.top_p >= 1.0f || top_k == vocab) continue;
        query.rank = top_k;
      } else if (question == 1) {
        if (r.top_p >= 1.0f) continue;
        query = {Query::Kind::kMassAtLeast, 0, static_cast<double>(r.top_p) * top_k_mass};
      } else if (question == 2) {
        if (last.rank == size) continue;
        query.rank = size;
      } else {
        if (given >= 0) continue;
        query = {Query::Kind::kMassAbove, 0, r.uniform * last.mass};
      }
      const Found found = find(query);
      if (question == 0) top_k_mass = found.mass;
      if (question == 1) size = min(size, found.rank);
      if (question < 3 && found.rank == size) last = found;
      if (question == 3) token = step::token_of_key(found.key);
    }

    const float logit = logits_[token];
    const auto logprob = [&](double temperature, double mass) {
      return static_cast<float>(static_cast<double>(logit) / temperature -
                                static_cast<double>(scale_.max_logit) / temperature - log(mass));
    };
    SampledToken sampled;
    sampled.token_id = token;
    sampled.logprob =
        step::key_of(logit, token) <= last.key ? logprob(r.temperature, last.mass) : -INFINITY;
    sampled.raw_logprob = logprob(1.0, raw);
    sampled.support_logmass = static_cast<float>(fmin(0.0, log(last.mass / total)));
    sampled.support_size = static_cast<int32_t>(size);
    return sampled;
  }
};

}  // namespace
}  // namespace warproll
