#include "worker/commands/regenerate_samples.h"

#include <chrono>
#include <cstdio>
#include <map>

#include "rollout/engine/regenerate.h"
#include "rollout/sample_log/log_reader.h"
#include "worker/node/serving_model.h"
#include "worker/terminal/exit_code.h"
#include "worker/terminal/progress.h"
#include "worker/terminal/stop_signal.h"

namespace warproll {
namespace {

struct Outcome {
  uint64_t equal = 0;
  uint64_t different = 0;
  uint64_t without_weights = 0;
  uint64_t tokens = 0;
};

// The checkpoints on the device of the records that are run again; another device's records load
// them anew. A record names its weights by digest; the version is the record's own.
class WeightShelf {
 public:
  explicit WeightShelf(const RegenerateOptions& options) : options_(options) {}

  // The device that made the record, unless the options name another.
  Result<const ModelDevice*> device_of(const Trajectory& record) {
    ModelDeviceOptions wanted;
    wanted.device = options_.device != "auto"                          ? options_.device
                    : record.engine_version.ends_with(kCudaEngineMark) ? "cuda"
                                                                       : "cpu";
    wanted.activation_dtype = record.activation_dtype;
    const std::string name = wanted.device + " " + wanted.activation_dtype;
    if (name == name_) return &device_;
    by_digest_.clear();
    WARPROLL_TRY_ASSIGN(device, open_model_device(wanted));
    device_ = std::move(device);
    for (const std::string& directory : options_.checkpoints) {
      WARPROLL_TRY_ASSIGN(weights, load_weight_set(directory, 0, options_.quantise, device_));
      by_digest_[weights->weight_digest] = weights;
    }
    name_ = name;
    return &device_;
  }
  Result<WeightSetPtr> find(uint64_t weight_version, const Digest& digest) const {
    const auto found = by_digest_.find(digest);
    if (found == by_digest_.end()) {
      return not_found("version " + std::to_string(weight_version) + " with digest " +
                       to_hex(digest) + " is not among the --checkpoint directories");
    }
    auto weights = std::make_shared<WeightSet>(*found->second);
    weights->weight_version = weight_version;
    return WeightSetPtr(std::move(weights));
  }

 private:
  const RegenerateOptions& options_;
  std::string name_;
  ModelDevice device_;
  std::map<Digest, WeightSetPtr> by_digest_;
};

Status regenerate_one(const StoredRecord& stored, WeightShelf& shelf, Outcome& outcome) {
  WARPROLL_TRY_ASSIGN(trajectory, decode_stored(stored));
  WARPROLL_TRY_ASSIGN(device, shelf.device_of(trajectory));
  const Result<Regeneration> again = regenerate(
      trajectory,
      [&](uint64_t version, const Digest& digest) { return shelf.find(version, digest); },
      device->runner);
  if (again.status().code() == StatusCode::kNotFound) {
    if (outcome.without_weights++ == 0) {
      std::printf("seq %llu: %s\n", static_cast<unsigned long long>(stored.seq),
                  again.status().message().c_str());
    }
    return ok_status();
  }
  if (!again.ok()) {
    return again.status().with_context("seq " + std::to_string(stored.seq));
  }
  outcome.tokens += again->sample.token_ids.size();
  if (!again->first_difference.has_value()) {
    ++outcome.equal;
    return ok_status();
  }
  ++outcome.different;
  const SampleDifference& difference = *again->first_difference;
  std::printf("seq %llu: token %d %s: stored %s, regenerated %s\n",
              static_cast<unsigned long long>(stored.seq), difference.position,
              difference.field.c_str(), difference.stored.c_str(), difference.regenerated.c_str());
  return ok_status();
}

Status regenerate_all(const std::string& directory, const LogSelection& selection,
                      const RegenerateOptions& options, StopSignal& stop, Outcome& outcome) {
  WeightShelf shelf(options);
  WARPROLL_TRY_ASSIGN(cursor, open_selection(directory, selection));
  Progress progress("regenerate", 0, ProgressUnit::kItems);
  for (uint64_t done = 1;; ++done) {
    WARPROLL_TRY_ASSIGN(stored, cursor.next());
    if (!stored.has_value()) return ok_status();
    WARPROLL_TRY(regenerate_one(*stored, shelf, outcome));
    progress.update(done);
    if (stop.wait_until(std::chrono::steady_clock::now())) return aborted("stopped by a signal");
  }
}

}  // namespace

int regenerate_samples(const std::string& directory, const LogSelection& selection,
                       const RegenerateOptions& options, CommandContext& context) {
  if (options.checkpoints.empty()) {
    std::fprintf(stderr, "warproll: --regenerate needs at least one --checkpoint\n");
    return kExitUsage;
  }
  Outcome outcome;
  const Status status = regenerate_all(directory, selection, options, context.stop, outcome);
  std::printf("%llu samples equal bit for bit (%llu tokens), %llu differ, %llu without weights\n",
              static_cast<unsigned long long>(outcome.equal),
              static_cast<unsigned long long>(outcome.tokens),
              static_cast<unsigned long long>(outcome.different),
              static_cast<unsigned long long>(outcome.without_weights));
  if (!status.ok()) return report_failure(status);
  if (outcome.different != 0) return kExitFailed;
  return outcome.without_weights == 0 ? kExitOk : kExitNotFound;
}

}  // namespace warproll
