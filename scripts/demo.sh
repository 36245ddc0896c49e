#!/usr/bin/env bash
# The main job, from a clean machine: installs missing packages, builds warproll, then runs a trainer
# and two workers through two checkpoint updates, a SIGKILL and a replay, and checks what came out.
# Exit 0: everything held. Files of the run: build/demo.
#   scripts/demo.sh                  the workers' models on the CPU
#   scripts/demo.sh --device cuda    on a GPU, which both share; needs nvcc to build
# More options: python3 scripts/demo_run.py --help.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ${1:-} == -h || ${1:-} == --help ]]; then sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0; fi
[[ " $* " == *" --device cuda "* || " $* " == *" --device=cuda "* ]] && preset=cuda || preset=cpu

scripts/setup.sh
mkdir -p build
cmake --preset "$preset" -DWARPROLL_TESTS=OFF -B "build/demo-$preset" >"build/demo-$preset.configure.log" ||
  { cat "build/demo-$preset.configure.log"; exit 1; }
cmake --build "build/demo-$preset" --target warproll -j "$(nproc)"
exec python3 scripts/demo_run.py --warproll "build/demo-$preset/warproll" --directory build/demo "$@"
