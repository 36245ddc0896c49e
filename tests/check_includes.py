"""The include table of docs/architecture.md, checked: which folder may include which, which
third-party headers each folder alone touches, and heavy headers only in .cpp files."""

import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
FOLDERS = {
    "kernels": set(),
    "protocol": set(),
    "weights_sync": {"kernels", "protocol"},
    "rollout": {"kernels", "protocol"},
    "worker": {"kernels", "protocol", "weights_sync", "rollout"},
}
THIRD_PARTY = {  # header prefix -> folders that may include it
    "zmq": {"protocol"},
    "capnp/": {"protocol"},
    "kj/": {"protocol"},
    "nccl": {"weights_sync"},
    "cuda": {"kernels", "weights_sync"},
    "cublas": {"kernels"},
    "omp.h": {"kernels"},
    "rocksdb/": {"rollout"},
    "unicode/": {"rollout"},
    "pcre2": {"rollout"},
    "yaml-cpp/": {"worker"},
    "CLI/": {"worker"},
    "spdlog/": {"worker"},
    "prometheus/": {"worker"},
    "civetweb": {"worker"},
    "Civet": {"worker"},
}
HEAVY = ("nlohmann/", "yaml-cpp/", "CLI/", "spdlog/", "rocksdb/", "capnp/", "kj/", "zmq",
         "prometheus/", "xxhash", "zstd", "unicode/", "pcre2")
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.M)

problems = []
checked = 0
for folder, allowed in FOLDERS.items():
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
            continue
        checked += 1
        name = path.relative_to(ROOT)
        for included in INCLUDE.findall(path.read_text(encoding="utf-8")):
            top = included.split("/")[0]
            if "/" in included and top in FOLDERS and top != folder and top not in allowed:
                problems.append(f"{name}: includes {included}; {folder}/ may include only "
                                f"{sorted(allowed) or 'itself'}")
            for prefix, owners in THIRD_PARTY.items():
                if included.startswith(prefix) and folder not in owners:
                    problems.append(f"{name}: includes <{included}>; only {sorted(owners)} may")
            if (path.suffix in (".h", ".cuh") and included.startswith(HEAVY)
                    and included != "nlohmann/json_fwd.hpp"):
                problems.append(f"{name}: heavy header <{included}> in a header; move it to the .cpp")

if checked == 0:
    problems.append(f"no source files found under {ROOT}")
print("\n".join(problems) or f"{checked} files keep the include table")
sys.exit(bool(problems))
