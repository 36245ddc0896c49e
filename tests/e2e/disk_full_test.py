"""A full disk: the worker's log on a small file system pauses intake, goes on sending, says so, and goes
on when there is space; the same for the trainer's state. Nothing is lost.

Needs to mount a tmpfs; where that is not allowed the tests are skipped, and say so.
"""
import errno
import json
import os
import subprocess
import unittest

import harness

SIZE_MB = 32


class DiskFull(harness.Case):
    def setUp(self):
        super().setUp()
        self.small = self.folder / "small"
        self.small.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "none", self.small],
                                 capture_output=True, text=True)
        if mounted.returncode != 0:
            reason = f"SKIPPED, a tmpfs cannot be mounted here: {mounted.stderr.strip()}"
            print(reason, flush=True)
            raise unittest.SkipTest(reason)
        self.ballast = os.open(self.small / "ballast", os.O_CREAT | os.O_WRONLY)
        self.addCleanup(os.close, self.ballast)
        self.addCleanup(subprocess.run, ["umount", "-l", self.small], check=True)

    def fill(self, leave_bytes=0):
        """Grows the ballast file until so much is left. RocksDB reserves space for its files and gives it
        back, so what is left is looked at again and again."""
        block = b"x" * (1 << 16)
        free_bytes = lambda: os.statvfs(self.small).f_bavail * os.statvfs(self.small).f_frsize
        while free_bytes() > leave_bytes:
            try:
                os.pwrite(self.ballast, block[:max(1, min(len(block), free_bytes() - leave_bytes))],
                          os.fstat(self.ballast).st_size)
            except OSError as error:
                self.assertEqual(error.errno, errno.ENOSPC)

    def free(self):
        os.ftruncate(self.ballast, 0)

    def start_run(self, worker_log, trainer_state, min_free_mb):
        trainer = self.start_trainer(tasks__count=0, tasks__group_size=4, tasks__open_per_worker=2,
                                     trainer__state_directory=trainer_state)
        worker = self.start_worker(log__directory=worker_log, log__min_free_mb=min_free_mb)
        self.wait_until("first samples", lambda: len(self.lines()) > 50, alive=[trainer, worker])
        return trainer, worker

    def finish(self, trainer, worker, worker_log, trainer_state):
        self.assertEqual(trainer.terminate(), 0)
        issued = (trainer_state / "issued.jsonl").read_bytes().splitlines()
        trainer = self.start_trainer(tasks__count=len(issued), tasks__group_size=4, tasks__open_per_worker=2,
                                     trainer__state_directory=trainer_state)
        self.expect_end(trainer, 0, seconds=60)
        self.assertEqual(worker.terminate(), 0)
        expected = {(task["task_id"], k) for task in map(json.loads, issued) for k in range(task["group_size"])}
        keys = [(row["task_id"], row["sample_index"]) for row in self.trajectories()]
        self.assertEqual(len(keys), len(set(keys)))
        self.assertEqual(set(keys), expected)
        self.check_log(worker_log)

    def check_worker(self, min_free_mb, leave_bytes):
        log, state = self.small / "log", self.folder / "trainer"
        trainer, worker = self.start_run(log, state, min_free_mb)
        self.fill(leave_bytes)
        self.wait_until("intake pauses", lambda: worker.health().get("log_intake") == "paused", alive=[trainer, worker])
        health = worker.health()
        self.assertEqual(health["http_status"], 503)
        self.assertIn(str(log), health["log_pause_reason"])
        self.assertEqual(worker.metrics()["warproll_log_paused"], 1)
        # Sending goes on: what is sealed reaches the trainer.
        self.wait_until_acknowledged(worker, trainer)
        self.assertTrue(worker.health()["connected"])
        taken = len(self.lines())
        self.free()
        self.wait_until("intake goes on", lambda: worker.health().get("log_intake") == "open", 60, [trainer, worker])
        self.assertEqual(worker.health()["http_status"], 200)
        self.wait_until("new samples", lambda: len(self.lines()) > taken + 50, 60, [trainer, worker])
        self.finish(trainer, worker, log, state)

    def test_the_worker_pauses_below_its_free_space(self):
        self.check_worker(min_free_mb=8, leave_bytes=4 << 20)

    def test_the_worker_survives_a_disk_without_one_free_byte(self):
        self.check_worker(min_free_mb=0, leave_bytes=0)

    def test_the_trainer_takes_nothing_it_cannot_keep(self):
        log, state = self.folder / "worker-log", self.small / "state"
        trainer, worker = self.start_run(log, state, 1)
        self.fill()
        self.wait_until("the trainer says so", lambda: "paused: " in trainer.log() or "store: " in trainer.log(), 60,
                        [trainer, worker])
        self.assertTrue(worker.health()["connected"])
        self.free()
        taken = len(self.lines())
        self.wait_until("it goes on", lambda: len(self.lines()) > taken + 50, 60, [trainer, worker])
        self.finish(trainer, worker, log, state)


if __name__ == "__main__":
    harness.main()
