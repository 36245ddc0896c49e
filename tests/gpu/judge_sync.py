#!/usr/bin/env python3
"""The rows of several `warproll bench sync --json` runs as one table, one file and PASS/FAIL lines.

  judge_sync.py --out sync.json [--ratio 0.9] [--slowdown 0.05] [--stall-steps 1] NAME=ROWS.json ...

For each run the rows of one CTA cap are one line: medians of the rates, the worst stall. Digests have to
be equal in every row. A limit holds for a run when there is a cap with which all limits hold together:
the fastest such cap is named. NAME ending in "*": shown, and judged by its digests alone (host_staged, a point of a
curve).
Limits that are not given are not judged. Exit 1: something does not hold, or a run has no rows.
"""
import argparse
import json
import statistics
import sys

COLUMNS = [("max_ctas", "CTAs", 0), ("gb", "GB", 2), ("seconds", "seconds", 3), ("receive_s", "receive s", 3),
           ("gb_per_s", "GB/s", 2), ("bare_gb_per_s", "bare", 2), ("ratio", "ratio", 3), ("stall_us", "stall us", 0),
           ("stall_steps", "steps", 2), ("stall_phase", "in", None), ("noise_us", "noise us", 0),
           ("median_step_us", "step us", 0), ("slowdown", "slowdown", 3),
           ("bare_slowdown", "bare slowd.", 3), ("spare_sms", "spare", 0), ("swap", "swap", None)]


def merged(rows):
    """The rows of one cap as one."""
    worst = max(rows, key=lambda row: row["stall_us"])
    line = dict(worst, gb=worst["stream_bytes"] / 1e9, digests_equal=all(row["digests_equal"] for row in rows))
    line["restarted_sequences"] = sum(row["restarted_sequences"] for row in rows)
    for key in ("seconds", "receive_s", "gb_per_s", "bare_gb_per_s", "ratio", "noise_us", "median_step_us", "slowdown",
                "bare_slowdown"):
        values = [row[key] for row in rows if row.get(key) is not None]
        line[key] = statistics.median(values) if values else None
    return line


def cell(value, decimals):
    if value is None:
        return "-"
    return str(value) if decimals is None else f"{value:.{decimals}f}"


def print_table(runs):
    table = [["run"] + [title for _, title, _ in COLUMNS]]
    for name, lines in runs:
        table += [[name] + [cell(line.get(key), decimals) for key, _, decimals in COLUMNS] for line in lines]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        cells = [text.rjust(width) for text, width in zip(row, widths)]
        print("  ".join([row[0].ljust(widths[0])] + cells[1:]))


def judge(name, lines, limits):
    """Yields (holds, text); holds is None: a note."""
    if not lines:
        yield False, f"{name}: no rows"
        return
    yield all(line["digests_equal"] for line in lines), f"{name}: digests equal, layouts too"
    restarted = sum(line["restarted_sequences"] for line in lines)
    if restarted:
        yield None, f"{name}: {restarted} sequences began anew during an update: their prefill is in its stall"
    if name.endswith("*"):
        return

    def misses(line):
        found = []
        if limits.ratio is not None and line["ratio"] is not None and line["ratio"] < limits.ratio:
            found.append(f"ratio {line['ratio']:.3f} (wanted {limits.ratio})")
        if limits.slowdown is not None and (line["slowdown"] is None or line["slowdown"] > limits.slowdown):
            found.append(f"slowdown {cell(line['slowdown'], 3)} (wanted {limits.slowdown})")
        if limits.stall_steps is not None and line["stall_steps"] > limits.stall_steps:
            found.append(f"stall {line['stall_steps']:.2f} steps in {line['stall_phase']} "
                         f"(wanted {limits.stall_steps})")
        return found

    good = [line for line in lines if not misses(line)]
    if good:
        best = max(good, key=lambda line: line["gb_per_s"])
        yield True, f"{name}: every limit holds with {best['max_ctas']} CTAs, {best['gb_per_s']:.2f} GB/s"
    else:
        best = min(lines, key=lambda line: (len(misses(line)), line["slowdown"] or 0, -line["gb_per_s"]))
        yield False, f"{name}: nearest with {best['max_ctas']} CTAs: {', '.join(misses(best))}"


def rows_of(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    for limit in ("--ratio", "--slowdown", "--stall-steps"):
        parser.add_argument(limit, type=float)
    parser.add_argument("runs", nargs="+", metavar="NAME=ROWS.json")
    options = parser.parse_args()
    found = {name: rows_of(path) for name, _, path in (run.partition("=") for run in options.runs)}
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump([{"run": name, **row} for name, rows in found.items() for row in rows], file, indent=1)
    runs = []
    for name, rows in found.items():
        caps = list(dict.fromkeys(row["max_ctas"] for row in rows))
        runs.append((name, [merged([row for row in rows if row["max_ctas"] == cap]) for cap in caps]))
    print_table(runs)
    failed = False
    for name, lines in runs:
        for holds, text in judge(name, lines, options):
            print("NOTE" if holds is None else "PASS" if holds else "FAIL", text)
            failed = failed or holds is False
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
