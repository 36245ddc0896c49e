#!/usr/bin/env bash
# A relocatable tarball of warproll: the binary, the shared libraries it needs and the configurations.
# It runs where there is a glibc of at least this machine's, for `cuda` also the GPU's driver.
#   scripts/bundle.sh          with CUDA where there is nvcc, else without
#   scripts/bundle.sh cpu      without CUDA (or: cuda, with)
# Writes build/warproll-VERSION-linux-ARCH[-cuda].tar.gz and says its size.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v "${CUDACXX:-nvcc}" >/dev/null && preset=cuda || preset=cpu
case ${1:-} in
  '') ;;
  cpu | cuda) preset=$1 ;;
  -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "bundle.sh: unknown argument '$1', wanted cpu or cuda" >&2; exit 2 ;;
esac

scripts/setup.sh
cmake --preset "$preset" -DWARPROLL_TESTS=OFF -B "build/bundle-$preset" >/dev/null
cmake --build "build/bundle-$preset" --target warproll -j "$(nproc)"
version=$("build/bundle-$preset/warproll" --version | cut -d' ' -f2)
name="warproll-$version-linux-$(uname -m)$([[ $preset == cuda ]] && echo -cuda || true)"
rm -rf "build/$name"
cmake --install "build/bundle-$preset" --prefix "build/$name" --strip >/dev/null
strip --strip-unneeded "build/$name"/lib/*.so* 2>/dev/null || true
"build/$name/bin/warproll" --version >/dev/null
tar -C build -czf "build/$name.tar.gz" "$name"
rm -rf "build/$name"
echo "build/$name.tar.gz: $(du -h "build/$name.tar.gz" | cut -f1)"
