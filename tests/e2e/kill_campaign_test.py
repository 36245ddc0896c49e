"""SIGKILL of workers, the trainer, or both, at random instants of one run in which checkpoints are
published all the time, over both transports: nothing is lost, nothing is taken twice, and every
worker ends on the newest version."""
import json
import random
import time

import harness

KILLS = 50
WORKERS = ("worker-1", "worker-2")
VERSIONS = 30  # v1, v2, v3, v1, ...: a different digest each time; the last is an arith-v3
SAMPLES_A_VERSION = 150


class KillCampaign(harness.Case):
    def start_process(self, name):
        if name != "trainer":
            self.running[name] = self.start_worker(name)
            return
        self.transport = {"tcp": "directory", "directory": "tcp"}[self.transport]
        self.running[name] = self.start_trainer(
            tasks__count=self.count, tasks__group_size=4, tasks__open_per_worker=8,
            sampling__temperature=0.7, checkpoints__publish=self.checkpoints,
            checkpoints__every_samples=SAMPLES_A_VERSION, checkpoints__transport=self.transport,
            checkpoints__deadline_ms=int(2500 * harness.options.slowness), logging__level="info")

    def committed(self):
        try:
            return json.loads((self.folder / "trainer" / "published.json").read_text())["committed"]
        except (OSError, ValueError):
            return 0

    def campaign(self, rng, kills):
        """Kills at random instants; a killed process starts again after a random pause."""
        killed = {"trainer": 0, "worker-1": 0, "worker-2": 0}
        while sum(killed.values()) < kills:
            time.sleep(rng.uniform(0.01, 0.6) * harness.options.slowness)
            names = rng.choice([["trainer"], ["worker-1"], ["worker-2"], ["worker-1", "worker-2"],
                                ["trainer", "worker-1"], ["trainer", "worker-1", "worker-2"]])
            for name in names:
                self.assertTrue(self.running[name].running(),
                                f"{name} ended by itself with {self.running[name].popen.returncode}")
                self.running[name].kill()
                killed[name] += 1
            time.sleep(rng.uniform(0, 0.3))
            for name in rng.sample(names, len(names)):
                self.start_process(name)
        return killed

    def test_nothing_is_lost_or_taken_twice_over_fifty_kills(self):
        seed = random.SystemRandom().randrange(1 << 32)
        kills = harness.options.rounds or KILLS
        print(f"seed {seed}, {kills} kills", flush=True)
        self.checkpoints = [harness.ARITH[1 + i % 3] for i in range(VERSIONS)]
        self.transport, self.count, self.running = "directory", 0, {}
        for name in ("trainer", *WORKERS):
            self.start_process(name)
        self.wait_until("first samples", lambda: len(self.lines()) > 50, 60)
        killed = self.campaign(random.Random(seed), kills)
        print(f"killed {killed}, {len(self.lines())} taken, {self.committed()} versions", flush=True)
        alive = list(self.running.values())
        self.wait_until("the last version", lambda: self.committed() == VERSIONS and
                        all(self.running[name].version() == VERSIONS for name in WORKERS), 120, alive)
        # The run has no end: it gets one, where the tasks issued so far end.
        self.assertEqual(self.running["trainer"].terminate(), 0)
        self.count = len((self.folder / "trainer" / "issued.jsonl").read_bytes().splitlines())
        self.start_process("trainer")
        self.expect_end(self.running["trainer"], 0, seconds=90)
        for name in WORKERS:
            self.assertEqual(self.running[name].version(), VERSIONS)
            self.assertEqual(self.running[name].terminate(), 0)
        print(self.check_exactly_once())
        for name in WORKERS:
            self.check_log(self.folder / f"{name}-log")


if __name__ == "__main__":
    harness.main()
