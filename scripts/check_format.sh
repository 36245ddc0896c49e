#!/usr/bin/env bash
# clang-format 14 over every C++ and CUDA file that git knows (or, without git, that is here).
#   scripts/check_format.sh          says what is not formatted, exit 1
#   scripts/check_format.sh --fix    formats it
set -euo pipefail
cd "$(dirname "$0")/.."
formatter=$(command -v clang-format-14 || command -v clang-format)
list() {
  git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' 2>/dev/null ||
    find kernels protocol weights_sync rollout worker tests -regex '.*\.\(h\|cpp\|cu\|cuh\)'
}
if [[ ${1:-} == --fix ]]; then
  list | xargs -r "$formatter" -i
else
  list | xargs -r "$formatter" --dry-run --Werror
fi
