#!/usr/bin/env python3
"""The demo: one trainer and two workers as three processes on loopback.

The trainer starts on arith-v1 and streams addition problems; it publishes v2 and v3 while samples are
in flight. One worker is killed with SIGKILL in the middle and started again. At the end both logs are
replayed to a second, empty trainer, and what that one takes is compared byte by byte with what the
first one took. Shares no code with warproll: it starts programs and reads files.
"""
import argparse
import json
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
DEADLINE_S = 300


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Demo:
    def __init__(self, warproll, directory, tasks, device):
        self.warproll = str(pathlib.Path(warproll).resolve())
        self.directory = pathlib.Path(directory).resolve()
        self.tasks = tasks
        self.device = device
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.deadline = time.monotonic() + DEADLINE_S
        self.running = {}
        self.failures = []

    def start(self, name, command, *settings):
        arguments = [self.warproll, command]
        for setting in settings:
            arguments += ["--set", setting]
        self.running[name] = subprocess.Popen(arguments, cwd=self.directory)

    def start_trainer(self, name, *settings):
        self.start(name, "trainer", f"trainer.bind={self.endpoint}",
                   f"trainer.state_directory={self.directory}/{name}",
                   f"trainer.trajectories={self.directory}/{name}.jsonl",
                   "trainer.heartbeat_ms=100", "trainer.liveness_ms=1500", *settings)

    def start_worker(self, name):
        self.start(name, "worker", f"worker.name={name}", f"trainer.endpoint={self.endpoint}",
                   f"model.checkpoint={GOLDEN}/arith-v1", f"log.directory={self.directory}/{name}-log",
                   "engine.threads=1", "engine.kv_memory_mb=64", "log.min_free_mb=64",
                   f"engine.device={self.device}")

    def end(self, name, sign=signal.SIGTERM):
        process = self.running.pop(name)
        process.send_signal(sign)
        return process.wait(timeout=60)

    def wait(self, what, condition):
        while not condition():
            dead = [name for name, process in self.running.items() if process.poll() not in (None, 0)]
            if dead or time.monotonic() > self.deadline:
                raise SystemExit(f"demo: {what}: " + (f"{dead} ended early" if dead else "too slow"))
            time.sleep(0.02)

    def expect(self, holds, text):
        print(("  ok    " if holds else "  FAIL  ") + text)
        if not holds:
            self.failures.append(text)

    def lines(self, name):
        path = self.directory / f"{name}.jsonl"
        return path.read_bytes().splitlines() if path.exists() else []

    def records(self, name):
        """Exactly the bytes a trainer took: {(producer, seq): record}, through `log export`."""
        path = self.directory / f"{name}.records"
        subprocess.run([self.warproll, "log", "export", "--trainer-state", f"{self.directory}/{name}",
                        "--format", "records", "--output", str(path)], check=True)
        data, offset, found = path.read_bytes(), 0, []
        while offset < len(data):
            record_bytes = int.from_bytes(data[offset:offset + 8], "little")
            tensors_bytes = int.from_bytes(data[offset + 8:offset + 16], "little")
            end = offset + 16 + record_bytes + tensors_bytes
            found.append(data[offset + 16:end])
            offset = end
        return found

    def run(self):
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        checkpoints = ",".join(str(GOLDEN / f"arith-v{v}") for v in (1, 2, 3))
        samples = 4 * self.tasks
        print(f"demo: {self.tasks} tasks of 4 samples, two workers on {self.device}, files in {self.directory}")
        self.start_trainer("trainer", f"tasks.count={self.tasks}", "tasks.group_size=4",
                           "tasks.open_per_worker=64", "sampling.temperature=0.5", "sampling.max_tokens=8",
                           f"checkpoints.publish=[{checkpoints}]",
                           f"checkpoints.every_samples={samples // 4}")
        self.start_worker("worker-1")
        self.start_worker("worker-2")
        self.wait("a third of the samples", lambda: len(self.lines("trainer")) >= samples // 3)
        print("demo: SIGKILL worker-1")
        self.end("worker-1", signal.SIGKILL)
        time.sleep(0.3)
        print("demo: worker-1 starts again")
        self.start_worker("worker-1")
        self.wait("all tasks", lambda: self.running["trainer"].poll() == 0)
        self.running.pop("trainer")
        for name in ("worker-1", "worker-2"):
            self.expect(self.end(name) == 0, f"{name} drained on SIGTERM and ended with 0")
        self.replay()
        self.check(samples)

    def replay(self):
        print("demo: replaying both logs to an empty trainer")
        self.start_trainer("replayed", "tasks.source=none", "logging.level=warn")
        for name in ("worker-1", "worker-2"):
            subprocess.run([self.warproll, "replay", "--log", f"{self.directory}/{name}-log",
                            "--to", self.endpoint], check=True)
        self.expect(self.end("replayed") == 0, "the second trainer ended with 0")

    def check(self, samples):
        print("demo: checks")
        summary = json.loads((self.directory / "trainer" / "summary.json").read_text())
        versions = {row["weight_version"]: row for row in summary["rewards"]["by_version"]}
        accuracy = versions.get(3, {}).get("mean_reward", 0.0)
        self.expect(accuracy > 0.9, f"version 3 answers {100 * accuracy:.1f} % right (wanted > 90 %)")
        for version in (2, 3):
            rows = [u for u in summary["updates"] if u["weight_version"] == version and u["committed"]]
            flown = [u for u in rows if u["in_flight_sequences"] > 0]
            stalls = ", ".join(f"{u['worker']} {u['stall_us'] / 1000:.2f} ms = {u['stall_steps']} steps"
                               f" with {u['in_flight_sequences']} in flight" for u in rows)
            self.expect(bool(flown), f"swap to version {version} under load: {stalls}")
        once = subprocess.run([sys.executable, str(ROOT / "scripts" / "check_exactly_once.py"),
                               str(self.directory / "trainer" / "issued.jsonl"),
                               str(self.directory / "trainer.jsonl")], capture_output=True, text=True)
        self.expect(once.returncode == 0, f"every issued sample exactly once: {once.stdout.strip()}")
        self.expect(len(self.lines("trainer")) == samples, f"{samples} samples in trainer.jsonl")
        if self.device == "cuda":  # a record says where it was made
            elsewhere = [line for line in self.lines("trainer")
                         if not json.loads(line)["engine_version"].endswith(" cuda")]
            self.expect(not elsewhere, f"{samples - len(elsewhere)} of {samples} samples were made on a GPU")
        self.check_replay()
        print(f"  {summary['rewards']['tokens']} tokens, {summary['tokens_per_s']:.0f} tokens/s, "
              f"{summary['leases_taken_back']} leases taken back, {summary['resent']} resent, "
              f"{summary['second_samples']} second samples")

    def check_replay(self):
        # A task that was made twice (the killed worker's, issued again) is in both logs, and a trainer
        # keeps the first to come; so the replay is compared sample by sample where both kept the same.
        took, replayed = self.records("trainer"), set(self.records("replayed"))
        same = sum(record in replayed for record in took)
        others = self.logged_records()
        self.expect(all(record in others for record in took),
                    f"{len(took)} records of the trainer are in the workers' logs byte by byte")
        self.expect(len(replayed) == len(took) and same >= len(took) - self.made_twice(),
                    f"replay: {len(replayed)} taken, {same} byte-identical to the first run, "
                    f"{len(took) - same} the other one of {self.made_twice()} made twice")
        lines, replayed_lines = set(self.lines("trainer")), set(self.lines("replayed"))
        self.expect(len(lines & replayed_lines) == same,
                    f"the same {same} lines of JSON in both trajectory files")

    def logged_records(self):
        found = set()
        for name in ("worker-1", "worker-2"):
            path = self.directory / f"{name}.records"
            subprocess.run([self.warproll, "log", "export", f"{self.directory}/{name}-log", "--format",
                            "records", "--output", str(path)], check=True, capture_output=True)
            data, offset = path.read_bytes(), 0
            while offset < len(data):
                size = sum(int.from_bytes(data[offset + i:offset + i + 8], "little") for i in (0, 8))
                found.add(data[offset + 16:offset + 16 + size])
                offset += 16 + size
        return found

    def made_twice(self):
        return len(self.logged_records()) - len(self.records("trainer"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--warproll", required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--tasks", type=int, default=3000)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="of the workers' models")
    options = parser.parse_args()
    demo = Demo(options.warproll, options.directory, options.tasks, options.device)
    started = time.monotonic()
    try:
        demo.run()
    finally:
        for process in demo.running.values():
            process.kill()
    print(f"demo: {time.monotonic() - started:.1f} s, "
          + ("everything held" if not demo.failures else f"{len(demo.failures)} checks FAILED"))
    return 1 if demo.failures else 0


if __name__ == "__main__":
    sys.exit(main())
