"""What the whole-process tests share: real `warproll` processes on loopback, each in a folder of its
own, waited for by conditions with deadlines, and always ended.

A test file ends with `harness.main()`, which takes --warproll BINARY and, for slow builds,
--slowness FACTOR (of every deadline). Standard library only; shares no code with warproll.
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
ARITH = {version: GOLDEN / f"arith-v{version}" for version in (1, 2, 3)}
SCHEMAS = ROOT / "protocol"

# Exit codes, as documented (worker/terminal/exit_code.h).
OK, FAILED, USAGE, NOT_FOUND, BAD_INPUT, UNAVAILABLE = 0, 1, 2, 3, 4, 5

options = argparse.Namespace(warproll="", slowness=2.0, rounds=None)


reservations = []


def free_port():
    """A port nobody listens on, outside the range that outgoing connections are given. A test that
    runs beside this one does not get it either: the UDP port of that number stands for it."""
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        reservation = socket.socket(type=socket.SOCK_DGRAM)
        with socket.socket() as probe:
            try:
                reservation.bind(("127.0.0.1", port))
                probe.bind(("127.0.0.1", port))
                reservations.append(reservation)
                return port
            except OSError:
                reservation.close()


class Process:
    """One warproll process. Its stderr (the log) and stdout are files."""

    def __init__(self, name, folder, arguments):
        self.name = name
        self.log_path = folder / f"{name}.stderr"
        self.out_path = folder / f"{name}.stdout"
        self.log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        with open(self.log_path, "ab") as log, open(self.out_path, "ab") as out:
            self.popen = subprocess.Popen([options.warproll, *map(str, arguments)], cwd=folder,
                                          stdin=subprocess.DEVNULL, stdout=out, stderr=log)

    def log(self):
        """What this process has said; lines of earlier ones of the same name are left out."""
        with open(self.log_path, "rb") as file:
            file.seek(self.log_start)
            return file.read().decode("utf-8", "replace")

    def running(self):
        return self.popen.poll() is None

    def signal(self, number):
        self.popen.send_signal(number)

    def kill(self):
        self.popen.kill()
        self.popen.wait()

    def wait(self, seconds=60):
        return self.popen.wait(timeout=seconds * options.slowness)

    def terminate(self, seconds=60):
        """SIGTERM, then the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(seconds)


class Worker(Process):
    metrics_port = 0

    def http(self, path):
        """(status, body) of a GET, or (0, '') while nobody answers."""
        try:
            try:
                answer = urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}", timeout=5)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException):  # the latter: it ended amid an answer
            return 0, ""

    def health(self):
        status, body = self.http("/healthz")
        return dict(json.loads(body), http_status=status) if status else {}

    def metrics(self):
        """{'name' or 'name{label="x"}': value}"""
        lines = [line for line in self.http("/metrics")[1].splitlines() if line and line[0] != "#"]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def version(self):
        return self.health().get("weight_version")


class Case(unittest.TestCase):
    """A test with a folder, a trainer address, and processes that end with it."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"warproll-{self._testMethodName[:40]}-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.processes = []
        self.addCleanup(self._end_all)

    def _end_all(self):
        failed = any(test is self for test, _ in self._outcome.result.failures + self._outcome.result.errors)
        for process in self.processes:
            process.popen.kill()
            process.popen.wait()
        for process in self.processes if failed else []:
            print(f"---- {process.name} ended with {process.popen.returncode}\n"
                  f"{process.log()[-6000:]}", file=sys.stderr)

    # Processes.

    def start(self, name, arguments, kind=Process):
        process = kind(name, self.folder, arguments)
        self.processes.append(process)
        return process

    def start_trainer(self, name="trainer", **settings):
        """settings: section__key=value. Defaults: quick heartbeats, JSON log, one file set a name."""
        values = {"trainer.bind": self.endpoint, "trainer.state_directory": self.folder / name,
                  "trainer.trajectories": self.folder / f"{name}.jsonl", "trainer.heartbeat_ms": 100,
                  "trainer.liveness_ms": int(1000 * options.slowness), "logging.format": "json",
                  "sampling.max_tokens": 8, "checkpoints.directory": self.folder / "versions"}
        return self.start(name, ["trainer", *set_options(values, settings)])

    def start_worker(self, name="worker", **settings):
        port = free_port()
        values = {"worker.name": name, "trainer.endpoint": self.endpoint, "model.checkpoint": ARITH[1],
                  "log.directory": self.folder / f"{name}-log", "engine.threads": 1,
                  "engine.kv_memory_mb": 32, "log.min_free_mb": 1, "metrics.port": port,
                  "trainer.reconnect_max_ms": 500, "logging.format": "json"}
        worker = self.start(name, ["worker", *set_options(values, settings)], Worker)
        worker.metrics_port = port
        return worker

    def run_command(self, *arguments, code=OK, seconds=60, text=True):
        """Runs a command to its end; its exit code must be `code`. Gives the CompletedProcess."""
        done = subprocess.run([options.warproll, *map(str, arguments)], cwd=self.folder, text=text,
                              stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=seconds * options.slowness)
        self.assertEqual(done.returncode, code,
                         f"exit code of {' '.join(map(str, arguments))}\n{done.stdout}\n{done.stderr}")
        return done

    # Waiting and reading.

    def wait_until(self, what, condition, seconds=30, alive=()):
        """Until condition() is true; its value. Fails at the deadline or when one of `alive` ended."""
        deadline = time.monotonic() + seconds * options.slowness
        while True:
            value = condition()
            if value:
                return value
            for process in alive:
                if not process.running():
                    self.fail(f"{what}: {process.name} ended with {process.popen.returncode}\n"
                              f"{process.log()[-3000:]}")
            if time.monotonic() > deadline:
                self.fail(f"{what}: not within {seconds * options.slowness:.0f} s")
            time.sleep(0.01)  # how often the condition is looked at

    def expect_end(self, process, code, *texts, seconds=30):
        """The process ends by itself with `code` and has said every one of `texts`."""
        self.assertEqual(process.wait(seconds), code, process.log()[-3000:])
        for text in texts:
            self.assertIn(text, process.log())

    def lines(self, name="trainer"):
        """The whole lines of a trainer's trajectory file."""
        path = self.folder / f"{name}.jsonl"
        if not path.exists():
            return []
        data = path.read_bytes()
        return data[:data.rfind(b"\n") + 1].splitlines()

    def trajectories(self, name="trainer"):
        return [json.loads(line) for line in self.lines(name)]

    def check_exactly_once(self, name="trainer"):
        done = subprocess.run([sys.executable, str(ROOT / "scripts" / "check_exactly_once.py"),
                               str(self.folder / name / "issued.jsonl"),
                               str(self.folder / f"{name}.jsonl")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.strip()

    def wait_until_acknowledged(self, worker, *alive):
        """Nothing sealed waits. A trainer may end before the worker has read its last acknowledgements."""
        self.wait_until("everything is acknowledged", alive=[worker, *alive], condition=lambda: worker.metrics().get(
            'warproll_log_samples{place="outbox"}') == 0)

    def check_log(self, directory, outbox=0):
        """The log is undamaged, S9 holds, and so many samples wait for the trainer. Gives the stats."""
        self.assertIn(" 0 findings", self.run_command("log", "verify", directory).stdout)
        stats = json.loads(self.run_command("log", "stats", directory, "--json").stdout)
        self.assertTrue(stats["accounting_holds"], stats)
        places = ("committed", "outbox", "dead_letters", "gaps")
        self.assertEqual(stats["produced"], sum(stats[place] for place in places), stats)
        self.assertEqual((stats["outbox"], stats["dead_letters"]), (outbox, 0), stats)
        return stats


def set_options(values, settings):
    values = dict(values)
    values.update({key.replace("__", "."): value for key, value in settings.items()})
    arguments = []
    for key, value in values.items():
        if isinstance(value, (list, tuple)):
            value = "[" + ",".join(map(str, value)) + "]"
        arguments += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
    return arguments


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main():
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--warproll", required=True, help="the binary")
    parser.add_argument("--slowness", type=float, default=2.0, help="factor of every deadline")
    parser.add_argument("--rounds", type=int, help="of tests that repeat; each has a default")
    parsed, rest = parser.parse_known_args()
    parsed.warproll = os.path.abspath(parsed.warproll)
    vars(options).update(vars(parsed))
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
