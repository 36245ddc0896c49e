#include "weights_sync/checkpoint_verify.h"

#include <atomic>
#include <set>

#include "weights_sync/fill_plan.h"
#include "weights_sync/parallel.h"
#include "weights_sync/tensor_scan.h"

namespace warproll {
namespace {

Status scan(const TensorInfo& tensor, std::span<const std::byte> bytes) {
  const Dtype dtype = scan_dtype(tensor);
  const auto bad = find_not_finite(dtype, bytes);
  if (!bad) return ok_status();
  const uint64_t size = dtype_bytes(dtype);
  return not_finite_error(tensor.name, dtype, *bad, bytes.subspan(*bad * size, size));
}

// The layout takes exactly these tensors, and tied ones are equal.
Status check_layout(const Checkpoint& checkpoint, const LayoutFunction& make_layout,
                    const std::vector<Digest>& digests, CheckpointReport& report) {
  WARPROLL_TRY_ASSIGN(layout, make_layout(checkpoint.files(), checkpoint.tensors()));
  // The checkpoint as a manifest makes the plan compare names, dtypes and shapes.
  Manifest manifest;
  manifest.quantise = QuantiseRecipe::kMxfp8;  // a layout may quantise
  for (size_t i = 0; i < digests.size(); ++i) {
    manifest.entries.push_back({.tensor = checkpoint.tensors()[i], .digest = digests[i]});
  }
  WARPROLL_TRY_ASSIGN(plan, make_fill_plan(layout, layout.total_bytes, &manifest));
  for (const PlannedTensor& tensor : plan.tensors) {
    const bool tied = tensor.kind == PlannedTensor::Kind::kAlias;
    if (!tied || tensor.expected == plan.tensors[tensor.same_as].expected) continue;
    return invalid_argument("tensor '" + tensor.info.name + "' differs from '" +
                            plan.tensors[tensor.same_as].info.name + "', wanted equal (tied)");
  }
  report.arena_bytes = layout.total_bytes;
  return ok_status();
}

}  // namespace

Result<CheckpointReport> verify_checkpoint(const std::string& directory,
                                           const LayoutFunction& layout,
                                           const ByteProgress& progress, int num_threads) {
  WARPROLL_TRY_ASSIGN(checkpoint, Checkpoint::open(directory));
  const auto tensors = checkpoint.tensors();
  CheckpointReport report;
  report.directory = directory;
  report.num_tensors = tensors.size();
  std::set<std::string_view> shards;
  for (size_t i = 0; i < tensors.size(); ++i) {
    shards.insert(checkpoint.shard_of(i));
    report.bytes += tensors[i].bytes;
    CheckpointReport::DtypeCount& count = report.dtypes[tensors[i].dtype];
    ++count.num_tensors;
    count.bytes += tensors[i].bytes;
  }
  report.num_shards = shards.size();

  std::vector<Status> scans(tensors.size());
  std::vector<Digest> digests(tensors.size());
  std::atomic<uint64_t> done_bytes{0};
  const auto tell = [&] {
    if (progress) progress(done_bytes, report.bytes);
  };
  for_each_index(
      tensors.size(), num_threads,
      [&](size_t i) {
        digests[i] = tensor_digest(checkpoint.bytes(i));
        scans[i] = scan(tensors[i], checkpoint.bytes(i));
        done_bytes += tensors[i].bytes;
      },
      tell);
  tell();
  report.weight_digest = weight_digest(tensors, digests);
  for (const Status& status : scans) {
    if (!status.ok()) report.problems.push_back(status.message());
  }
  if (layout) {
    const Status status = check_layout(checkpoint, layout, digests, report);
    if (!status.ok()) report.problems.push_back(status.message());
  }
  return report;
}

}  // namespace warproll
