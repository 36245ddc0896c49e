"""The trainer killed in every state of an update, and a worker killed in every state. Each time the old
version is served meanwhile, the fleet comes to the newest version by itself, and every sample is taken
exactly once.

How a state is caught: SIGSTOP of the process that the others wait for holds them in it; what the state
was is read from /healthz and from the trainer's log before the kill. A try that came too late is let go
and made again with the next update.
"""
import json
import re
import signal
import time

import big_checkpoint
import harness

NUM_EXPERTS = 384  # about 43 MiB
VERSIONS = 1500  # more than the run comes to
SAMPLES_A_VERSION = 60  # there is a moment between two updates
WORKERS = ("worker-1", "worker-2")
UNDER_WAY = ("receiving", "verifying", "ready")


class UpdateStates(harness.Case):
    def setUp(self):
        super().setUp()
        self.big = [big_checkpoint.write(harness.ARITH[v], self.folder / f"big-v{v}", NUM_EXPERTS) for v in (1, 2, 3)]
        self.count, self.running, self.heard_of = 0, {}, None
        for name in ("trainer", *WORKERS):
            self.start_process(name)
        self.w1, self.w2 = (self.running[name] for name in WORKERS)

    def start_process(self, name):
        if name == "trainer":
            self.running[name] = self.start_trainer(
                tasks__count=self.count, tasks__group_size=2, tasks__open_per_worker=8,
                checkpoints__publish=[self.big[i % 3].name for i in range(VERSIONS)], checkpoints__every_samples=SAMPLES_A_VERSION,
                checkpoints__bucket_mb=1, trainer__liveness_ms=int(2000 * harness.options.slowness),
                checkpoints__deadline_ms=int(30000 * harness.options.slowness))
        else:
            self.running[name] = self.start_worker(name, model__checkpoint=self.big[0], log__durability="os")

    # What can be seen.

    def events(self):
        """[(version, text)] of the running trainer's log lines about updates, read as they come."""
        trainer = self.running["trainer"]
        if self.heard_of is not trainer:
            self.heard_of, self.heard, self.heard_bytes = trainer, [], trainer.log_start
        with open(trainer.log_path, "rb") as file:
            file.seek(self.heard_bytes)
            data = file.read()
        data = data[:data.rfind(b"\n") + 1]
        self.heard_bytes += len(data)
        for line in data.splitlines():
            match = re.match(r"(\S+): version (\d+): (.*)", json.loads(line)["message"])
            if match:
                self.heard.append((int(match[2]), match[3]))
        return self.heard

    def said(self, text, after=0):
        """The version of which it was said first behind the first `after` events, or None."""
        return next((version for version, said in self.events()[after:] if text in said), None)

    def said_of(self, version, text):
        return any(of == version and text in said for of, said in self.events())

    def converged(self):
        versions = {self.running[name].version() for name in WORKERS}
        return len(versions) == 1 and None not in versions

    def worker(self):
        return self.running["worker-1"]

    # Catching states. Each gives False when the moment has passed; frozen processes stay frozen.

    def freeze(self, name):
        self.running[name].signal(signal.SIGSTOP)

    def thaw(self):
        for process in self.running.values():
            if process.running():
                process.signal(signal.SIGCONT)

    def poll(self, condition, seconds=3):
        deadline = time.monotonic() + seconds * harness.options.slowness
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            time.sleep(0.001)
        return None

    def catch_begun(self):
        """worker-1 has not yet answered a Begin that was sent to it."""
        seen = len(self.events())
        self.freeze("worker-1")
        version = self.poll(lambda: self.said("is offered to 2 workers", seen), 2)
        return version and not self.said_of(version, "worker-1 accepts")

    def catch_accepted(self):
        """worker-1 has accepted and waits for the Start, since worker-2 does not answer."""
        seen = len(self.events())
        self.freeze("worker-2")
        version = self.poll(lambda: self.said("worker-1 accepts", seen))
        return (version and not self.said_of(version, "worker-2 accepts")
                and self.worker().health()["update_state"] == "receiving")

    def receiving_bytes(self):
        health = self.worker().health()
        return (health.get("update_state") == "receiving"
                and 0 < health.get("update_received_bytes", 0) < health["update_total_bytes"])

    def catch_receiving(self):
        """A part of the bytes is at worker-1, and no more come: the trainer, which serves them, is stopped."""
        if not self.poll(self.receiving_bytes):
            return False
        self.freeze("trainer")
        return self.receiving_bytes()

    def catch_verifying(self):
        """worker-1 checks what it received; it cannot be held there, so the kill comes at once."""
        return self.poll(lambda: self.worker().health().get("update_state") == "verifying")

    def catch_ready(self):
        """worker-1 is ready and waits for the commit, since worker-2 is stopped amid its transfer."""
        seen = len(self.events())
        version = self.poll(lambda: self.said("worker-2 accepts", seen))
        if not version:
            return False
        self.freeze("worker-2")
        return (self.poll(lambda: self.said_of(version, "worker-1 is ready"))
                and not self.said_of(version, "worker-2 is ready")
                and self.worker().health()["update_state"] == "ready")

    def catch_committed(self):
        """The fleet's decision has fallen, and worker-1 has not said that it flipped."""
        seen = len(self.events())
        version = self.poll(lambda: self.said("worker-1 is ready", seen))
        if not version:
            return False
        self.freeze("worker-1")
        return (self.poll(lambda: self.said_of(version, "is committed"))
                and not self.said_of(version, "worker-1 serves"))

    # The test of one state and one victim.

    def check(self, catch, victim):
        deadline = time.monotonic() + 60 * harness.options.slowness
        while True:
            self.wait_until("a converged fleet", self.converged, 60)
            before = self.worker().version()
            if catch():
                break
            self.thaw()
            self.assertLess(time.monotonic(), deadline, "the state was never caught")
        self.running[victim].kill()
        last = self.events()[-1][0]
        self.thaw()
        if victim == "trainer":
            # Nobody can commit now: what worker-1 serves is the old version, or, once the decision has
            # fallen, the new one; it answers, and it goes on. (Nothing holds the fleet where it verifies:
            # the decision may have fallen before the kill.)
            served = {self.worker().version() for _ in range(5)}
            allowed = {before, last} if catch == self.catch_committed else {before, last - 1}
            if catch == self.catch_verifying:
                allowed.add(last)
            self.assertLessEqual(served, allowed)
        taken = len(self.lines())
        self.start_process(victim)
        self.wait_until("the newest version", lambda: self.converged() and self.worker().version() >= last, 60,
                        list(self.running.values()))
        self.wait_until("more samples", lambda: len(self.lines()) > taken, 60, list(self.running.values()))

    def finish(self):
        """The endless run gets an end, where the tasks issued so far end."""
        self.assertEqual(self.running["trainer"].terminate(), 0)
        self.count = len((self.folder / "trainer" / "issued.jsonl").read_bytes().splitlines())
        self.start_process("trainer")
        self.expect_end(self.running["trainer"], 0, seconds=90)
        self.assertTrue(self.converged())
        for name in WORKERS:
            self.assertEqual(self.running[name].terminate(), 0)
            self.check_log(self.folder / f"{name}-log")
        print(self.check_exactly_once(), end=" ", flush=True)

    def check_all(self, victim):
        for catch in (self.catch_begun, self.catch_accepted, self.catch_receiving, self.catch_verifying,
                      self.catch_ready, self.catch_committed):
            started = time.monotonic()
            self.check(catch, victim)
            print(f"{catch.__name__} {time.monotonic() - started:.1f} s,", end=" ", flush=True)
        self.finish()

    def test_the_trainer_is_killed_in_every_state(self):
        self.check_all("trainer")

    def test_a_worker_is_killed_in_every_state(self):
        self.check_all("worker-1")


if __name__ == "__main__":
    harness.main()
