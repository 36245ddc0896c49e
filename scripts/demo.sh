#!/usr/bin/env bash
# The main job, from a clean machine: installs missing packages, builds warproll, then runs a trainer
# and two workers through two checkpoint updates, a SIGKILL and a replay, and checks what came out.
# Exit 0: everything held. Files of the run: build/demo.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ${1:-} == -h || ${1:-} == --help ]]; then sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 0; fi

scripts/setup.sh
mkdir -p build
cmake --preset cpu -DWARPROLL_TESTS=OFF -B build/demo-cpu >build/demo-cpu.configure.log ||
  { cat build/demo-cpu.configure.log; exit 1; }
cmake --build build/demo-cpu --target warproll -j "$(nproc)"
exec python3 scripts/demo_run.py --warproll build/demo-cpu/warproll --directory build/demo "$@"
