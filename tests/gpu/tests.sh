#!/usr/bin/env bash
# Every GPU test on a machine with one GPU, compute-sanitizer over a part of them, and the kernels' benches.
#   tests/gpu/pack.sh BUILD ARCHIVE.tar.xz; unpack it on the machine as RUN, then there, in this source tree
#   tests/gpu/tests.sh RUN OUT [sanitize]      under 3 minutes, 6 with sanitize; OUT gets log.txt, bench.txt
set -euo pipefail
if [[ $# -lt 2 ]]; then sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 2; fi
budget_s=345
# shellcheck source=tests/gpu/steps.sh
source "$(dirname "$0")/steps.sh"
steps_begin "$1" "$2" 1
export WARPROLL_GOLDEN_DIR=$root/tests/golden
export LD_LIBRARY_PATH=$run/lib:${LD_LIBRARY_PATH:-}
bin=$run/bin

step kernels 90 "$bin/test_kernels_gpu" --gtest_brief=1
step engine 60 "$bin/test_rollout_engine_gpu" --gtest_brief=1
step weights_sync 60 "$bin/test_weights_sync_gpu" --gtest_brief=1
if [[ ${3:-} == sanitize ]]; then
  step memcheck-kernels 90 compute-sanitizer --tool memcheck --error-exitcode 9 "$bin/test_kernels_gpu" --gtest_brief=1 \
    --gtest_filter='*OddShapesGpu*:*ExpertCentricGpu*:MoeGpu.AnExpertOutside*:MoeGpu.Partials*:RouteGpu.*:AttentionGpu.EveryShape*:QkvFinishGpu.HasThe*'
  step memcheck-engine 90 compute-sanitizer --tool memcheck --error-exitcode 9 "$bin/test_rollout_engine_gpu" --gtest_brief=1 \
    --gtest_filter='DeviceForward*'
fi
bench() {  # its table, for OUT too
  step "$1" 30 "$bin/$2" "${@:3}"
  { echo "== $2 ${*:3}"; cat "$work/step.log"; } | tee -a "$out/bench.txt"
}
: >"$out/bench.txt"
bench chain warproll-bench-step --ops chain,attention --batches 1,2,4,8,16,32,64
bench chain-cluster warproll-bench-step --ops chain --cluster --batches 16,32,64
bench parts warproll-bench-step --ops parts --batches 1,8,64
bench moe warproll-bench-moe --paths auto --dtypes mxfp8,bf16,fp8_block --routings uniform --router
steps_end
