#!/usr/bin/env python3
"""Reads what a run left behind and says whether every issued sample arrived exactly once.

    check_exactly_once.py ISSUED.jsonl TRAJECTORIES.jsonl

ISSUED.jsonl: {"task_id": ..., "group_size": n} for each task the trainer issued (trainer state).
TRAJECTORIES.jsonl: what it took. Shares no code with warproll. Exit 0: exactly once; 1: not.
"""
import collections
import json
import sys


def read(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def main(issued_path, trajectories_path):
    expected = {(task["task_id"], index)
                for task in read(issued_path) for index in range(task["group_size"])}
    taken = collections.Counter((t["task_id"], t["sample_index"]) for t in read(trajectories_path))
    missing = sorted(expected - set(taken))
    unknown = sorted(set(taken) - expected)
    repeated = sorted(key for key, count in taken.items() if count > 1)
    print(f"issued {len(expected)}  taken {sum(taken.values())}  missing {len(missing)}  "
          f"repeated {len(repeated)}  never issued {len(unknown)}")
    for name, keys in (("missing", missing), ("repeated", repeated), ("never issued", unknown)):
        for task_id, index in keys[:5]:
            print(f"  {name}: task {task_id} sample {index}")
    return 1 if missing or repeated or unknown or not expected else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
