#!/usr/bin/env bash
# A trainer and workers, weights over NCCL: arith v1 -> v2 -> v3 while they generate. The last worker is
# killed with SIGKILL when version 2 is published and started again; the trainer, when version 3 is.
# Everybody has to serve version 3 at the end, and its answers have to be right.
#   tests/gpu/nccl_fleet.sh WARPROLL DIRECTORY [--device cpu|cuda] [--gpus TRAINER,WORKER] [--transport T]
#                           [--stream tensors|arena] [--quantise none|mxfp8]
# GPUs 0,0 by default: two workers and the trainer share one, which NCCL is told are three hosts. With
# two GPUs there is one worker. --device: of the workers' models. --transport tcp: a dry run, no GPU.
set -euo pipefail
if [[ $# -lt 2 ]]; then sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; fi
warproll=$(realpath "$1")
mkdir "$2"  # a new one: what an earlier run left would be taken up
run=$(realpath "$2")
shift 2
device=cpu
gpus=0,0
transport=nccl
stream=tensors
quantise=none
while [[ $# -gt 0 ]]; do
  case $1 in
    --device) device=$2 ;;
    --gpus) gpus=$2 ;;
    --transport) transport=$2 ;;
    --stream) stream=$2 ;;
    --quantise) quantise=$2 ;;
    *) echo "nccl_fleet.sh: unknown argument '$1'" >&2; exit 2 ;;
  esac
  shift 2
done
trainer_gpu=${gpus%,*}
worker_gpu=${gpus#*,}
golden=$(realpath "$(dirname "$0")/../golden")
port=$((20000 + RANDOM % 12000))
workers=(a)
if [[ $trainer_gpu == "$worker_gpu" ]]; then
  workers=(a b)
  export NCCL_SOCKET_IFNAME=lo
fi
victim=${workers[-1]}
declare -A pids

host() {  # name, command...: as a host of its own where GPUs are shared
  local name=$1
  shift
  if [[ ${#workers[@]} -gt 1 ]]; then export NCCL_HOSTID=$name; fi
  exec "$@"
}
start_worker() {  # name
  host "$1" "$warproll" worker --set worker.name="$1" --set model.checkpoint="$golden/arith-v1" \
    --set trainer.endpoint=tcp://127.0.0.1:$port --set "weights.transports=[$transport]" \
    --set model.quantise="$quantise" \
    --set engine.device="$device" --set engine.gpu="$worker_gpu" \
    --set engine.kv_memory_mb=256 --set log.directory="$run/log-$1" --set engine.threads=2 2>>"$run/$1.log" &
  pids[$1]=$!
}
start_trainer() {
  host trainer "$warproll" trainer --set trainer.bind=tcp://127.0.0.1:$port \
    --set trainer.state_directory="$run/state" --set trainer.trajectories="$run/trajectories.jsonl" \
    --set trainer.liveness_ms=2000 --set trainer.drain_workers=true \
    --set tasks.count=0 --set checkpoints.transport="$transport" --set checkpoints.bucket_mb=1 \
    --set checkpoints.nccl_stream="$stream" --set checkpoints.quantise="$quantise" \
    --set checkpoints.nccl_device="$trainer_gpu" --set checkpoints.every_samples=300 \
    --set "checkpoints.publish=[$golden/arith-v1,$golden/arith-v2,$golden/arith-v3]" \
    >>"$run/trainer.out" 2>>"$run/trainer.log" &
  pids[trainer]=$!
}
trap 'kill -KILL "${pids[@]}" 2>/dev/null || true' EXIT
status=0
wait_for() {  # a line of that one's log
  for _ in $(seq 800); do
    grep -q "$2" "$run/$1.log" 2>/dev/null && return
    for name in "${!pids[@]}"; do kill -0 "${pids[$name]}" 2>/dev/null || break 2; done
    sleep 0.05
  done
  echo "FAIL no line '$2' of $1"
  tail -n 8 "$run"/*.log
  exit 1
}
kill_now() {  # name
  echo "SIGKILL $1"
  kill -KILL "${pids[$1]}"
  wait "${pids[$1]}" 2>/dev/null || true
}

start_trainer
for name in "${workers[@]}"; do start_worker "$name"; done
wait_for trainer "version 2 is offered"
sleep 0.2
kill_now "$victim"
sleep 1
start_worker "$victim"
wait_for trainer "version 3 is offered"
kill_now trainer
sleep 0.5
start_trainer
for name in "${workers[@]}"; do wait_for "$name" "now serves version 3"; done
for _ in $(seq 400); do  # answers of version 3
  [[ $(grep -c '"weight_version":3}\]' "$run/trajectories.jsonl") -lt 200 ]] || break
  sleep 0.05
done
kill -TERM "${pids[trainer]}"
ended=0
wait "${pids[trainer]}" || ended=$?
grep -E "fleet: |accepts|ready|fail|lost|serves version [23]|reject" "$run/trainer.log" || true
tail -40 "$run/trainer.out"
[[ $ended == 0 ]] || { echo "FAIL the trainer ended with $ended"; status=1; }
for name in "${workers[@]}"; do
  if grep -q "now serves version 3" "$run/$name.log"; then
    echo "PASS worker $name serves version 3"
  else
    echo "FAIL worker $name does not serve version 3"
    tail -5 "$run/$name.log"
    status=1
  fi
  if [[ $device == cuda ]] && ! grep -q "the model runs on cuda $worker_gpu" "$run/$name.log"; then
    echo "FAIL worker $name does not run on GPU $worker_gpu"
    status=1
  fi
done
python3 - "$run/trajectories.jsonl" <<'PYTHON' || status=1
import json, sys
right, all_of = {}, {}
for line in open(sys.argv[1]):
    row = json.loads(line)
    versions = {run["weight_version"] for run in row["version_runs"]}
    if len(versions) == 1 and row["reward"] is not None:
        version = versions.pop()
        all_of[version] = all_of.get(version, 0) + 1
        right[version] = right.get(version, 0) + (row["reward"]["total"] > 0.5)
for version in sorted(all_of):
    print(f"version {version}: {right[version]} of {all_of[version]} answers right")
held = all_of.get(3, 0) > 50 and right[3] > 0.9 * all_of[3]
print("PASS" if held else "FAIL", "version 3 answers more than 90 % right")
sys.exit(not held)
PYTHON
echo "exit $status"
exit "$status"
