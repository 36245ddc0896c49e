#!/usr/bin/env bash
# Installs the Debian packages of scripts/packages.txt that are missing (root or sudo), and with
# --python a virtual environment in build/venv with tests/requirements.txt.
# Does nothing, quickly, when everything is there.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v dpkg-query >/dev/null; then
  echo "setup: this is not a Debian system (no dpkg-query). Install by hand what scripts/packages.txt lists." >&2
  exit 3
fi
missing=()
while read -r package; do
  [[ -z $package || $package == \#* ]] && continue
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done < scripts/packages.txt

if ((${#missing[@]})); then
  echo "setup: installing ${missing[*]}"
  as_root=()
  if [[ $(id -u) -ne 0 ]]; then
    if ! command -v sudo >/dev/null; then
      echo "setup: not root and no sudo. Run as root: apt-get install ${missing[*]}" >&2
      exit 3
    fi
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

if [[ ${1:-} == --python ]]; then
  stamp=build/venv/.requirements
  if ! cmp -s tests/requirements.txt "$stamp"; then
    echo "setup: Python environment for the tests in build/venv"
    mkdir -p build
    python3 -m venv build/venv
    build/venv/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
    cp tests/requirements.txt "$stamp"
  fi
fi
