#!/usr/bin/env bash
# A trainer and two workers that share one GPU, weights over NCCL: arith v1 -> v2 -> v3 while they
# generate (on the CPU). Worker b is killed with SIGKILL when version 2 is published and started
# again; everybody has to serve version 3 at the end.
#   tests/gpu/nccl_fleet.sh WARPROLL DIRECTORY
set -euo pipefail
warproll=$(realpath "$1")
mkdir "$2"  # a new one: what an earlier run left would be taken up
run=$(realpath "$2")
golden=$(realpath "$(dirname "$0")/../golden")
export NCCL_SOCKET_IFNAME=lo
port=$((20000 + RANDOM % 20000))

worker() {  # name
  NCCL_HOSTID=$1 "$warproll" worker --set worker.name="$1" --set model.checkpoint="$golden/arith-v1" \
    --set trainer.endpoint=tcp://127.0.0.1:$port --set 'weights.transports=[nccl]' \
    --set log.directory="$run/log-$1" --set engine.threads=2 2>>"$run/$1.log" &
}
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

NCCL_HOSTID=trainer "$warproll" trainer --set trainer.bind=tcp://127.0.0.1:$port \
  --set trainer.state_directory="$run/state" --set trainer.trajectories="$run/trajectories.jsonl" \
  --set trainer.liveness_ms=2000 --set trainer.drain_workers=true \
  --set tasks.count=0 --set checkpoints.transport=nccl --set checkpoints.bucket_mb=1 \
  --set checkpoints.every_samples=300 \
  --set "checkpoints.publish=[$golden/arith-v1,$golden/arith-v2,$golden/arith-v3]" \
  >"$run/trainer.out" 2>"$run/trainer.log" &
trainer=$!
worker a
worker b
b=$!
wait_for() {  # a line of the trainer's
  for _ in $(seq 600); do
    grep -q "$1" "$run/trainer.log" && return
    sleep 0.05
  done
  echo "FAIL no line '$1'"
}
wait_for "version 2 is offered"
sleep 0.2
kill -KILL "$b"
sleep 1
worker b
wait_for "every live worker serves version 3"
sleep 0.5
kill -TERM "$trainer"
status=0
wait "$trainer" || status=$?
grep -E "fleet: |accepts|ready|fail|lost|serves version [23]|reject" "$run/trainer.log" || true
cat "$run/trainer.out"
for name in a b; do
  if ! grep -q "now serves version 3" "$run/$name.log"; then
    echo "FAIL worker $name does not serve version 3"
    tail -5 "$run/$name.log"
    status=1
  fi
done
echo "exit $status"
exit "$status"
