#!/usr/bin/env bash
# Checkpoints over NCCL, and what a worker does with them, on one GPU that all processes share.
#   tests/gpu/pack.sh BUILD ARCHIVE.tar.xz; unpack it on the machine as RUN, then there, in this source tree
#   tests/gpu/one_gpu.sh RUN OUT         under 9 minutes; OUT gets sync.json, table.txt, log.txt
# What it runs: three or two layers of Qwen3-30B-A3B's shape (3 to 4 GB), drawn at random, to two workers
# that decode, under MPS: MXFP8, BF16, BF16 quantised as it comes, MXFP8 as an arena that the trainer packed; to
# two workers that take turns on the GPU; one process from its own host memory; host_staged with its pause; the
# transport alone among three and four processes, deaths included; arith v1 -> v2 -> v3 to two
# workers that generate on the GPU, with kills, as tensors and as arenas; the demo with --device cuda.
# What has to hold: digests equal, stall <= 1 step. Of processes that take turns the stall is shown only.
set -euo pipefail
if [[ $# -ne 2 ]]; then sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2; fi
budget_s=520
# shellcheck source=tests/gpu/steps.sh
source "$(dirname "$0")/steps.sh"
steps_begin "$1" "$2" 1

# So many sequences that a step is as long as one of all 48 layers with 32 of them: 8 to 10 ms.
side_by_side=(--workers 2 --batch 512 --context 2048 --max-batch-tokens 4096 --baseline-ms 500 --bucket-mb 16
  --max-ctas 1 --spare-sms 3 --updates 2)
mps_begin
bench_sync mxfp8 75 "${side_by_side[@]}" --layers 3
bench_sync bf16 60 "${side_by_side[@]}" --layers 2 --weights bf16
bench_sync bf16-to-mxfp8 60 "${side_by_side[@]}" --layers 2 --weights bf16 --quantise-mxfp8
bench_sync mxfp8-arena 75 "${side_by_side[@]}" --layers 3 --stream arena
mps_end
# Steps of so small a model are short: room for many of them.
worker=(--batch 16 --context 8192 --max-batch-tokens 4096 --baseline-ms 500 --bucket-mb 64)
bench_sync 'mxfp8-by-turns*' 50 "${worker[@]}" --layers 3 --max-ctas 4 --updates 2 --workers 2
bench_sync own-memory-mxfp8 30 "${worker[@]}" --layers 3 --transport none --updates 3
bench_sync own-memory-bf16 30 "${worker[@]}" --layers 2 --weights bf16 --transport none --updates 3
bench_sync own-memory-bf16-to-mxfp8 30 "${worker[@]}" --layers 2 --weights bf16 --quantise-mxfp8 --transport none \
  --updates 3
bench_sync 'host-staged*' 40 "${worker[@]}" --layers 3 --swap host_staged --transport none --updates 2
step transport-and-deaths 90 env LD_LIBRARY_PATH="$run/lib:${LD_LIBRARY_PATH:-}" "$run/bin/nccl_one_gpu" --groups 20
step deaths-of-two 60 env LD_LIBRARY_PATH="$run/lib:${LD_LIBRARY_PATH:-}" "$run/bin/nccl_one_gpu" --ranks 2 \
  --only killed --big-mb 1024
step fleet-arith 60 "$root/tests/gpu/nccl_fleet.sh" "$warproll" "$work/fleet" --device cuda
step fleet-arith-arenas 60 "$root/tests/gpu/nccl_fleet.sh" "$warproll" "$work/fleet-arenas" --device cuda \
  --stream arena --quantise mxfp8
# Long enough that a GPU still generates when versions are published.
step demo 90 python3 "$root/scripts/demo_run.py" --warproll "$warproll" --directory "$work/demo" --device cuda \
  --tasks 6000

judge --stall-steps 1
steps_end
