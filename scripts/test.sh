#!/usr/bin/env bash
# Every test, from a clean machine: packages, format, build, ctest; then the same tests under
# AddressSanitizer + UBSan, those with threads under ThreadSanitizer, a short run of every fuzzer, and,
# where there is nvcc, the worker with CUDA and the kernels alone, for every GPU they are for (their
# tests skip without a GPU).
#   scripts/test.sh            all of it
#   scripts/test.sh cpu        only the optimised build (also: cuda, kernels, asan, tsan, fuzz; any of them)
# Exit 0: everything passed. The last lines say what each part did and how long it took.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,8s/^# \{0,1\}//p' "$0"; }
parts=()
for argument in "$@"; do
  case $argument in
    cpu | cuda | kernels | asan | tsan | fuzz) parts+=("$argument") ;;
    -h | --help) usage; exit 0 ;;
    *) echo "test.sh: unknown part '$argument', wanted cpu, cuda, kernels, asan, tsan or fuzz" >&2; exit 2 ;;
  esac
done
((${#parts[@]})) || parts=(cpu cuda kernels asan tsan fuzz)

scripts/setup.sh --python
scripts/check_format.sh

jobs=$(nproc)
summary=()
failed=()
sanitizer_settings() {  # of one part, in the environment
  export ASAN_OPTIONS="detect_leaks=1:abort_on_error=0:strict_string_checks=1"
  export UBSAN_OPTIONS="print_stacktrace=1"
  export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp:ignore_noninstrumented_modules=1:second_deadlock_stack=1"
  export LSAN_OPTIONS="suppressions=$PWD/tests/lsan.supp:print_suppressions=0"
}
sanitizer_settings
failed_tests() {  # of one part: the end of what each printed, out of ctest's log
  awk -v part="$1" '/^[0-9]+\/[0-9]+ Testing: /{n = 0} {line[n++] = $0}
       /^Test Failed\.$/{print "-- " part ": " line[0]; for (i = n > 150 ? n - 150 : 1; i < n; ++i) print line[i]}' \
    "build/$1/Testing/Temporary/LastTest.log"
}
for part in "${parts[@]}"; do
  start=$SECONDS
  if [[ $part == cuda || $part == kernels ]] && ! command -v "${CUDACXX:-nvcc}" >/dev/null; then
    summary+=("$part not built: no nvcc on PATH")
    continue
  fi
  echo "== $part: build"
  cmake --preset "$part" "-DWARPROLL_TEST_PYTHON=$PWD/build/venv/bin/python3" >"build/$part.configure.log" ||
    { cat "build/$part.configure.log"; exit 1; }
  cmake --build --preset "$part" -j "$jobs"
  built=$((SECONDS - start))
  echo "== $part: tests"
  if ctest --preset "$part" -j "$jobs" --timeout 600; then outcome=passed; else outcome=FAILED; failed+=("$part"); fi
  summary+=("$(printf '%-7s %s  build %4d s  tests %4d s' "$part" "$outcome" "$built" "$((SECONDS - start - built))")")
done

for part in "${failed[@]}"; do
  echo "== $part: what failed"
  failed_tests "$part"
done
echo "== summary"
printf '%s\n' "${summary[@]}"
exit $((${#failed[@]} > 0))
