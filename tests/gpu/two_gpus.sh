#!/usr/bin/env bash
# Checkpoints over NCCL between two real GPUs: the trainer on GPU 0, a worker that decodes on GPU 1.
#   tests/gpu/pack.sh BUILD ARCHIVE.tar.xz; unpack it on the machine as RUN, then there, in this source tree
#   tests/gpu/two_gpus.sh RUN OUT        under 9 minutes; OUT gets sync.json, table.txt, log.txt
# What it runs: Qwen3-30B-A3B's shape, drawn at random: MXFP8 as is over a list of CTA caps, BF16 quantised
# to MXFP8 as it comes, BF16 as is (in two arenas if the memory plan says so), the same as arenas that the trainer
# packed, a part of it through host_staged; the transport alone with the deaths of worker and trainer;
# arith v1 -> v2 -> v3, as tensors and as arenas.
# What has to hold: digests equal; >= 90 % of bare broadcasts, slowdown < 5 %, stall <= 1 step with one cap.
set -euo pipefail
if [[ $# -ne 2 ]]; then sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2; fi
budget_s=520
# shellcheck source=tests/gpu/steps.sh
source "$(dirname "$0")/steps.sh"
steps_begin "$1" "$2" 2
# Steps of 10 ms; NCCL says why a group does not form.
apart=(--trainer-gpu 0 --gpu 1 --batch 32 --context 1024 --max-batch-tokens 4096 --baseline-ms 500)
export NCCL_DEBUG=WARN

bench_sync mxfp8 70 "${apart[@]}" --weights mxfp8_experts --max-ctas 1,2,4 --spare-sms 4
bench_sync 'mxfp8-8-spared*' 40 "${apart[@]}" --weights mxfp8_experts --max-ctas 8 --spare-sms 8
one=(--max-ctas 1 --spare-sms 1 --updates 2)
bench_sync mxfp8-1-spared 30 "${apart[@]}" --weights mxfp8_experts "${one[@]}"
bench_sync bf16-to-mxfp8-1-spared 30 "${apart[@]}" --weights bf16 --quantise-mxfp8 "${one[@]}"
bench_sync bf16-1-spared 30 "${apart[@]}" --weights bf16 "${one[@]}"
bench_sync bf16-arena-1-spared 40 "${apart[@]}" --weights bf16 --stream arena "${one[@]}"
bench_sync mxfp8-arena-1-spared 40 "${apart[@]}" --stream arena "${one[@]}"
bench_sync bf16-to-mxfp8-arena-1-spared 40 "${apart[@]}" --weights bf16 --quantise-mxfp8 --stream arena "${one[@]}"
bench_sync mxfp8-arena 50 "${apart[@]}" --stream arena --max-ctas 1,2,4 --spare-sms 4
bench_sync bf16-arena 50 "${apart[@]}" --weights bf16 --stream arena --max-ctas 1,2,4 --spare-sms 4
bench_sync mxfp8-64mb-2-spared 40 "${apart[@]}" --weights mxfp8_experts --max-ctas 1,2 --spare-sms 2 --bucket-mb 64
bench_sync bf16-to-mxfp8 60 "${apart[@]}" --weights bf16 --quantise-mxfp8 --max-ctas 1,2,4 --spare-sms 4
bench_sync bf16 60 "${apart[@]}" --weights bf16 --max-ctas 1,2,4 --spare-sms 4
step transport-and-deaths 60 env LD_LIBRARY_PATH="$run/lib:${LD_LIBRARY_PATH:-}" "$run/bin/nccl_one_gpu" --ranks 2 \
  --big-mb 2048 --bucket-mb 64 --max-ctas 8
step fleet-arith 60 "$root/tests/gpu/nccl_fleet.sh" "$warproll" "$work/fleet" --device cuda --gpus 0,1
step fleet-arith-arenas 60 "$root/tests/gpu/nccl_fleet.sh" "$warproll" "$work/fleet-arenas" --device cuda --gpus 0,1 \
  --stream arena
bench_sync 'bf16-8-layers-staged*' 60 "${apart[@]}" --weights bf16 --layers 8 --swap host_staged --max-ctas 8 --bucket-mb 64
bench_sync 'bf16-12-layers-from-host*' 40 "${apart[@]}" --weights bf16 --layers 12 --from host --max-ctas 8 --bucket-mb 64

judge --ratio 0.9 --slowdown 0.05 --stall-steps 1
steps_end
