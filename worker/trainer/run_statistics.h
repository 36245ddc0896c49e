// RunStatistics: reward by weight_version and tokens per second of a trainer's run, from the
// trajectories it took. Thread: one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "protocol/records.h"

namespace warproll {

struct VersionRow {
  uint64_t samples = 0;
  uint64_t rewarded = 0;  // with a reward; the others were not judged
  double reward_sum = 0;
  uint64_t tokens = 0;  // sampled
  [[nodiscard]] double mean_reward() const {
    return rewarded == 0 ? 0.0 : reward_sum / static_cast<double>(rewarded);
  }
};

class RunStatistics {
 public:
  // reward as the trainer judged it; empty = not judged.
  void add(const Trajectory& trajectory, const std::optional<Reward>& reward);

  // Samples whose every token is of one version; those of several are in mixed().
  [[nodiscard]] const std::map<uint64_t, VersionRow>& by_version() const { return by_version_; }
  [[nodiscard]] const VersionRow& mixed() const { return mixed_; }
  [[nodiscard]] uint64_t samples() const { return samples_; }
  [[nodiscard]] uint64_t tokens() const { return tokens_; }
  [[nodiscard]] const std::map<std::string, uint64_t>& finish_reasons() const { return finish_; }

  [[nodiscard]] std::string table() const;  // for people
  [[nodiscard]] std::string json() const;   // {"samples": ..., "by_version": [...], ...}

 private:
  std::map<uint64_t, VersionRow> by_version_;
  VersionRow mixed_;
  std::map<std::string, uint64_t> finish_;
  uint64_t samples_ = 0;
  uint64_t tokens_ = 0;
};

}  // namespace warproll
