#include "worker/trainer/run_statistics.h"

#include <nlohmann/json.hpp>

#include "worker/terminal/table.h"

namespace warproll {
namespace {

void add_row(Table& table, const std::string& name, const VersionRow& row) {
  table.add({name, std::to_string(row.samples),
             row.rewarded == 0 ? "-" : format_number(100 * row.mean_reward(), 1) + "%",
             std::to_string(row.rewarded), std::to_string(row.tokens)});
}

nlohmann::ordered_json row_json(const VersionRow& row) {
  return {{"samples", row.samples},
          {"rewarded", row.rewarded},
          {"mean_reward", row.mean_reward()},
          {"tokens", row.tokens}};
}

}  // namespace

void RunStatistics::add(const Trajectory& trajectory, const std::optional<Reward>& reward) {
  const auto tokens = static_cast<uint64_t>(trajectory.token_ids.size()) -
                      static_cast<uint64_t>(trajectory.prompt_len);
  ++samples_;
  tokens_ += tokens;
  ++finish_[std::string(to_string(trajectory.finish_reason))];
  const bool pure = trajectory.version_runs.size() == 1;
  VersionRow& row = pure ? by_version_[trajectory.version_runs[0].weight_version] : mixed_;
  ++row.samples;
  row.tokens += tokens;
  if (reward.has_value()) {
    ++row.rewarded;
    row.reward_sum += reward->total;
  }
}

std::string RunStatistics::table() const {
  Table table({"weight_version", "samples", "reward", "judged", "tokens"});
  for (const auto& [version, row] : by_version_) add_row(table, std::to_string(version), row);
  if (mixed_.samples != 0) add_row(table, "several or none", mixed_);
  return table.to_string();
}

std::string RunStatistics::json() const {
  nlohmann::ordered_json versions = nlohmann::ordered_json::array();
  for (const auto& [version, row] : by_version_) {
    nlohmann::ordered_json entry = {{"weight_version", version}};
    entry.update(row_json(row));
    versions.push_back(entry);
  }
  return nlohmann::ordered_json{{"samples", samples_},
                                {"tokens", tokens_},
                                {"finish_reasons", finish_},
                                {"by_version", versions},
                                {"mixed", row_json(mixed_)}}
      .dump();
}

}  // namespace warproll
