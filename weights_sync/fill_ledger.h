// FillLedger: which tensors of a fill came, whole or in parts, and the digests they had: what the
// fillers of host and of device memory share, the errors' texts among it.
// Thread: claim and settle any; the other non-const calls from the thread that has claimed the
// tensor; finish() after all of them.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/records.h"
#include "protocol/status.h"
#include "weights_sync/digest.h"
#include "weights_sync/fill_plan.h"
#include "weights_sync/manifest.h"
#include "weights_sync/weight_filler.h"

namespace warproll {

class FillLedger {
 public:
  // manifest may be null; it must outlive the ledger.
  FillLedger(FillPlan plan, const Manifest* manifest);

  [[nodiscard]] const FillPlan& plan() const { return plan_; }
  [[nodiscard]] const PlannedTensor& tensor(size_t index) const { return plan_.tensors[index]; }

  // Gives the calling thread the tensor, if it may have it, until settle().
  Result<size_t> claim(std::string_view name, bool whole);
  // `complete`: nothing more of it may come. Returns `outcome`; a failure is final.
  Status settle(size_t index, const Status& outcome, bool complete);

  [[nodiscard]] Status check_whole(size_t index, uint64_t bytes) const;
  // Notes bytes [offset, + bytes); complete = the tensor has all of its own now.
  Status add_part(size_t index, uint64_t offset, uint64_t bytes, bool& complete);
  // Errors: not the manifest's.
  Status set_digest(size_t index, const Digest& digest);
  void set_quantised_digests(size_t index, const Digest& elements, const Digest& scales);

  [[nodiscard]] Status check_missing() const;
  // All tensors came, aliases are what they are tied to, the weight digest is the manifest's.
  [[nodiscard]] Result<FilledArena> finish() const;

 private:
  enum class State : uint8_t { kMissing, kPartly, kBusy, kDone, kFailed };
  struct Arrival {
    State state = State::kMissing;       // guarded by mutex_
    std::map<uint64_t, uint64_t> parts;  // begin -> end of what came, merged
    Digest digest{};                     // of the source
    Digest elements_digest{};            // of the quantised form
    Digest scales_digest{};
  };
  [[nodiscard]] Status check_aliases() const;
  [[nodiscard]] std::vector<DigestedTensor> sorted_tensors(bool exported) const;

  FillPlan plan_;
  const Manifest* manifest_;
  std::vector<Arrival> arrivals_;  // [plan.tensors]
  // As the source has them and, if the plan quantises, as `warproll checkpoint quantize` exports them.
  const std::vector<DigestedTensor> source_, export_;
  std::mutex mutex_;
};

}  // namespace warproll
