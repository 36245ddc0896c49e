// What a byte costs on its way: record encoding and decoding, checksums, digests. Bytes per second.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "protocol/codec.h"
#include "weights_sync/digest.h"

namespace warproll {
namespace {

Trajectory trajectory_of(int32_t num_tokens) {
  Trajectory trajectory;
  trajectory.producer_id.fill(7);
  trajectory.epoch = 1;
  trajectory.seq = 1;
  trajectory.trajectory_id = to_hex(trajectory.producer_id) + "-1";
  trajectory.task_id = "task";
  trajectory.group_id = "task";
  trajectory.prompt_len = 1;
  const auto size = static_cast<size_t>(num_tokens);
  trajectory.token_ids.assign(size, 17);
  trajectory.loss_mask.assign(size, 1);
  trajectory.loss_mask[0] = 0;
  trajectory.logprobs.assign(size, -0.5f);
  trajectory.logprobs[0] = 0;
  trajectory.raw_logprobs = trajectory.logprobs;
  trajectory.support_logmass.assign(size, 0.0f);
  trajectory.version_runs = {{1, 1}};
  Digest digest{};
  digest.fill(1);
  trajectory.version_digests = {{1, digest}};
  return trajectory;
}

void BM_EncodeTrajectory(benchmark::State& state) {
  const Trajectory trajectory = trajectory_of(static_cast<int32_t>(state.range(0)));
  Bytes record;
  Bytes tensors;
  for (auto _ : state) {
    if (!encode_trajectory(trajectory, &record, &tensors).ok()) state.SkipWithError("encode");
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(record.size()));
}
BENCHMARK(BM_EncodeTrajectory)->ArgName("tokens")->Arg(64)->Arg(4096);

void BM_DecodeTrajectory(benchmark::State& state) {
  Bytes record;
  Bytes tensors;
  const Status encoded =
      encode_trajectory(trajectory_of(static_cast<int32_t>(state.range(0))), &record, &tensors);
  for (auto _ : state) {
    if (!encoded.ok() || !decode_trajectory(record, tensors).ok()) state.SkipWithError("decode");
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(record.size()));
}
BENCHMARK(BM_DecodeTrajectory)->ArgName("tokens")->Arg(64)->Arg(4096);

void BM_Checksum(benchmark::State& state) {
  const Bytes bytes(static_cast<size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(checksum64(bytes));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_Checksum)->ArgName("bytes")->Arg(4096)->Arg(4 << 20);

void BM_TensorDigest(benchmark::State& state) {
  const Bytes bytes(static_cast<size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(tensor_digest(bytes));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_TensorDigest)->ArgName("bytes")->Arg(64 << 20);

}  // namespace
}  // namespace warproll
