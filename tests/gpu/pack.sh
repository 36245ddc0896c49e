#!/usr/bin/env bash
# What a run on another machine needs beside the source tree, as one archive: warproll, the GPU tests, the
# benches without messaging libraries, and the libraries they need.
#   tests/gpu/pack.sh BUILD ARCHIVE.tar.xz      BUILD: a cmake build folder of the cuda preset
# There: mkdir /tmp/run && tar -xJf ARCHIVE.tar.xz -C /tmp/run, then tests.sh, one_gpu.sh or two_gpus.sh with
# /tmp/run.
set -euo pipefail
if [[ $# -ne 2 ]]; then sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2; fi
build=$(realpath "$1")
archive=$(realpath -m "$2")
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cmake --build "$build" --target warproll gpu_tests warproll-bench-moe warproll-bench-step
cmake --install "$build" --prefix "$stage" --strip >/dev/null
for program in tests/gpu/nccl_one_gpu tests/test_{kernels,rollout_engine,weights_sync}_gpu \
  kernels/bench/warproll-bench-{moe,step}; do
  strip -o "$stage/bin/${program##*/}" "$build/$program"
done
strip --strip-unneeded "$stage"/lib/*.so* 2>/dev/null || true
for program in "$stage"/bin/*; do
  lacks=$(LD_LIBRARY_PATH="$stage/lib" ldd "$program" | awk '/=> \// {print $3}' |
          grep -vE "^$stage|/(libc|libm|libdl|librt|libpthread|libresolv)[.-]" || true)
  for library in $lacks; do cp -L "$library" "$stage/lib/"; done
done
mkdir -p "$(dirname "$archive")"
# The programs hold much of the same device code: one window over all of them.
tar -C "$stage" -cf - . | xz -T1 --lzma2=preset=3,dict=256MiB >"$archive"
echo "$archive: $(du -h "$archive" | cut -f1)"
