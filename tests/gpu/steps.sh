# shellcheck shell=bash disable=SC2154
# Sourced by one_gpu.sh and two_gpus.sh, which set `budget_s` first: steps that are run one after the
# other, each with a limit, all within the budget; PASS and FAIL lines; one log.
#   steps_begin RUN OUT GPUS   RUN: what pack.sh's archive holds, unpacked. OUT: a folder for the results
#   step NAME SECONDS COMMAND...
#   bench_sync NAME SECONDS ARGUMENTS...    its rows, for judge()
#   mps_begin, mps_end         between them processes that share a GPU run side by side, not by turns
#   judge LIMITS...            the table of all bench_sync() so far, and what holds of it
#   steps_end                  exits: 0 everything held, 1 something did not, 77 too few GPUs
steps_begin() {
  run=$(realpath "$1")
  mkdir -p "$2"
  out=$(realpath "$2")
  root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
  warproll=$run/bin/warproll
  model=$root/configs/models/qwen3-30b-a3b.json
  work=$(mktemp -d)
  log=$out/log.txt
  failed=0
  sync_runs=()
  export NCCL_NVLS_ENABLE=0  # NVLink multicast
  trap 'rm -rf "$work"' EXIT
  : >"$log"
  local gpus
  gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | grep -c . || true)
  if [[ $gpus -lt $3 ]]; then
    echo "SKIPPED: this machine has $gpus GPUs, wanted $3; nothing was tested"
    exit 77
  fi
  if ! ldconfig -p | grep -q 'libnccl\.so\.2'; then  # then Python may have one
    local nccl
    nccl=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib")' 2>/dev/null || true)
    export LD_LIBRARY_PATH=$nccl${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  fi
  nvidia-smi --query-gpu=index,name,driver_version,memory.free --format=csv,noheader
  nvidia-smi topo -m >>"$log" 2>&1 || true
  "$warproll" --version
}

# What is left for a step of at most that many seconds; empty: nothing.
limit_of() {
  local left=$((budget_s - SECONDS))
  if [[ $left -gt 10 ]]; then echo $((left < $1 ? left : $1)); fi
}

step() {
  local name=$1 limit rc=0 begun=$SECONDS
  limit=$(limit_of "$2")
  shift 2
  if [[ -z $limit ]]; then
    echo "FAIL $name: no time was left"
    failed=1
    return
  fi
  timeout -k 5 "$limit" "$@" >"$work/step.log" 2>&1 || rc=$?
  { echo "== $name: $*"; cat "$work/step.log"; } >>"$log"
  if [[ $rc == 0 ]]; then
    echo "PASS $name ($((SECONDS - begun)) s)"
  else
    echo "FAIL $name: exit $rc after $((SECONDS - begun)) s"
    tail -15 "$work/step.log" | sed 's/^/    /'
    failed=1
  fi
}

# Rows that were measured before a failure count. Memory of the GPU is back before the next one.
bench_sync() {
  local name=$1 limit rc=0 begun=$SECONDS
  limit=$(limit_of "$2")
  shift 2
  sync_runs+=("$name=$work/${name%\*}.json")
  if [[ -z $limit ]]; then
    echo "FAIL $name: no time was left"
    failed=1
    return
  fi
  timeout -k 20 "$limit" "$warproll" bench sync --random "$model" --json "$@" \
    >"$work/${name%\*}.json" 2>"$work/step.log" || rc=$?
  { echo "== bench sync $name: $*"; cat "$work/step.log" "$work/${name%\*}.json"; } >>"$log"
  if [[ $rc == 0 ]]; then
    echo "PASS bench sync $name ($((SECONDS - begun)) s)"
  else
    echo "FAIL bench sync $name: exit $rc after $((SECONDS - begun)) s"
    tail -5 "$work/step.log" | sed 's/^/    /'
    failed=1
  fi
}

mps_begin() {
  export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps
  mkdir -p "$work/mps"
  if nvidia-cuda-mps-control -d >>"$log" 2>&1; then
    echo "PASS nvidia-cuda-mps-control runs"
  else
    echo "FAIL nvidia-cuda-mps-control does not start: processes take turns"
    failed=1
  fi
}
mps_end() {
  echo quit | nvidia-cuda-mps-control >>"$log" 2>&1 || true
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}

judge() {
  python3 "$root/tests/gpu/judge_sync.py" --out "$out/sync.json" "$@" "${sync_runs[@]}" 2>&1 |
    tee "$out/table.txt" || failed=1
}

steps_end() {
  grep -E "^  (ok|FAIL)|is killed|stream" "$log" | head -60 || true  # of the transport alone
  echo "$SECONDS s, $([[ $failed == 0 ]] && echo "everything held" || echo "something did NOT hold"); files: $out"
  exit "$failed"
}
