#!/usr/bin/env bash
# Every row of docs/benchmarks/decode.md, on a machine with one GPU: the whole engine at Qwen3-30B-A3B's
# shape with random weights. The tables on standard output, the rows as JSON into DIRECTORY.
#   tests/gpu/decode.sh WARPROLL DIRECTORY [quick]
set -euo pipefail
warproll=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
quick=${3:-}
model=$(realpath "$(dirname "$0")/../../configs/models/qwen3-30b-a3b.json")

bench() {  # name, options..
  local name=$1
  shift
  echo "== $name: $*"
  "$warproll" bench decode --random "$model" --device cuda --json \
    --max-batch-tokens "${step_tokens:-8192}" "$@" \
    >"$out/$name.json"
  python3 - "$out/$name.json" <<'PYTHON'
import json, sys
rows = json.load(open(sys.argv[1]))
for r in rows:
    print(f"{r['moe_path']:15} {r['weights']:14} {r['routing']:8} B {r['batch']:3}  context {r['context']:6}"
          f"  {r['tokens_per_s']:8.0f} tokens/s  {r['ms_per_step']:7.3f} ms  share {r.get('share', 0):.3f}"
          f"  with KV {r.get('share_with_kv', 0):.3f}  prefill {r['prefill_tokens_per_s']:8.0f}")
    if "op_us" in r:
        print("   " + "  ".join(f"{op} {us:.0f}" for op, us in r["op_us"].items()))
PYTHON
}

bench ops --weights mxfp8_experts --routing uniform --batch 1,8,64 --context 1024 --tokens 16 --ops
bench mxfp8 --weights mxfp8_experts --routing uniform,free --batch 1,8,32,64 --context 1024 --tokens 64
[[ -n $quick ]] && exit 0
bench bf16 --weights bf16 --routing uniform,free --batch 1,8,32,64 --context 1024 --tokens 64
step_tokens=1024 bench invariant --weights mxfp8_experts --routing free --batch 1,64 --context 1024 \
  --tokens 32 --batch-invariant
bench long8k --weights mxfp8_experts --routing free --batch 64 --context 8192 --tokens 32
bench long32k --weights mxfp8_experts --routing free --batch 16 --context 32768 --tokens 32
bench paths --weights mxfp8_experts --routing free --moe-path auto,expert_centric,literal \
  --batch 1,4,8 --context 1024,8192,32768 --tokens 32
