#!/usr/bin/env bash
# What a run on another machine needs beside the source tree, as one archive: warproll, nccl_one_gpu and
# the libraries they need.
#   tests/gpu/pack.sh BUILD ARCHIVE.tar.gz      BUILD: a cmake build folder of the cuda preset
# There: mkdir /tmp/run && tar -xzf ARCHIVE.tar.gz -C /tmp/run, then one_gpu.sh or two_gpus.sh with /tmp/run.
set -euo pipefail
if [[ $# -ne 2 ]]; then sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 2; fi
build=$(realpath "$1")
archive=$(realpath -m "$2")
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cmake --build "$build" --target warproll nccl_one_gpu
cmake --install "$build" --prefix "$stage" --strip >/dev/null
strip -o "$stage/bin/nccl_one_gpu" "$build/tests/gpu/nccl_one_gpu"
strip --strip-unneeded "$stage"/lib/*.so* 2>/dev/null || true
lacks=$(LD_LIBRARY_PATH="$stage/lib" ldd "$stage/bin/nccl_one_gpu" | awk '/=> \// {print $3}' |
        grep -vE "^$stage|/(libc|libm|libdl|librt|libpthread|libresolv)[.-]" || true)
for library in $lacks; do cp -L "$library" "$stage/lib/"; done
mkdir -p "$(dirname "$archive")"
tar -C "$stage" -czf "$archive" .
echo "$archive: $(du -h "$archive" | cut -f1)"
