"""CURVE: a worker whose key is on the list works end to end, weights included; one whose key is not on
it, or that has none, or that knows another trainer key, gets nothing. Replay works over it too."""
import harness


class Curve(harness.Case):
    def setUp(self):
        super().setUp()
        for name in ("trainer", "allowed", "stranger"):
            done = self.run_command("keygen", self.folder / name)
            self.assertIn(f"{name}.pub", done.stdout)
        (self.folder / "allow-list").write_text("# workers\n" + (self.folder / "allowed.pub").read_text())

    def public_key(self, name):
        return next(line for line in (self.folder / f"{name}.pub").read_text().splitlines() if line[:1] != "#").strip()

    def start_curve_trainer(self, name="trainer", **settings):
        return self.start_trainer(name, trainer__secret_key_file=self.folder / "trainer",
                                  trainer__allowed_clients_file=self.folder / "allow-list", **settings)

    def start_curve_worker(self, name, key, server_key=None):
        return self.start_worker(name, trainer__secret_key_file=self.folder / key,
                                 trainer__server_public_key=f"'{server_key or self.public_key('trainer')}'")

    def test_the_allowed_worker_works_and_the_others_get_nothing(self):
        trainer = self.start_curve_trainer(tasks__count=150, checkpoints__every_samples=150,
                                           checkpoints__publish=[harness.ARITH[v] for v in (1, 2, 3)])
        others = [self.start_curve_worker("stranger", "stranger"), self.start_worker("bare"),
                  self.start_curve_worker("misled", "allowed", self.public_key("stranger"))]
        # They had their chance: each has given a connection up before the allowed one comes.
        self.wait_until("the others have tried", lambda: all(
            other.metrics().get("warproll_reconnects_total", 0) >= 1 for other in others), 60, others)
        self.assertEqual(self.lines(), [])
        worker = self.start_curve_worker("allowed", "allowed")
        self.expect_end(trainer, 0, seconds=60)
        self.assertEqual(worker.version(), 3)
        self.check_exactly_once()
        for other in others:
            self.assertFalse(other.health()["connected"])
            self.assertEqual(other.metrics()["warproll_tasks_accepted_total"], 0)
            self.assertEqual(other.version(), 1)
        self.assertNotIn("stranger joined", trainer.log())
        self.assertNotIn("bare joined", trainer.log())
        self.wait_until_acknowledged(worker)
        self.check_log(self.folder / "allowed-log")
        self.assertEqual(worker.terminate(), 0)

    def test_a_replay_needs_a_key_on_the_list(self):
        trainer, worker = self.start_curve_trainer(tasks__count=20), self.start_curve_worker("allowed", "allowed")
        self.expect_end(trainer, 0)
        self.assertEqual(worker.terminate(), 0)
        again = self.start_curve_trainer("again", tasks__source="none")
        replay = ["replay", "--log", self.folder / "allowed-log", "--to", self.endpoint]
        keys = ["--server-public-key", self.public_key("trainer"), "--secret-key-file"]
        for arguments in ([], [*keys, self.folder / "stranger"]):
            done = self.run_command(*replay, "--deadline-s", 1, *arguments, code=harness.UNAVAILABLE)
            self.assertIn("no progress", done.stderr)
        done = self.run_command(*replay, *keys, self.folder / "allowed")
        self.assertIn("80 acknowledged", done.stdout)
        self.assertEqual(again.terminate(), 0)
        self.assertEqual(len(self.lines("again")), 80)

    def test_key_files_are_private_and_never_overwritten(self):
        secret = self.folder / "trainer.secret"
        self.assertEqual(secret.stat().st_mode & 0o777, 0o600)
        before = secret.read_bytes()
        done = self.run_command("keygen", self.folder / "trainer", code=harness.FAILED)
        self.assertIn("trainer.secret", done.stderr)
        self.assertEqual(secret.read_bytes(), before)
        secret.chmod(0o644)
        trainer = self.start_curve_trainer()
        self.expect_end(trainer, harness.UNAVAILABLE, "mode 0644", "0600")

    def test_half_a_configuration_is_refused(self):
        worker = self.start_worker(trainer__secret_key_file=self.folder / "allowed")
        self.expect_end(worker, harness.USAGE, "server_public_key")
        trainer = self.start_trainer(trainer__secret_key_file=self.folder / "trainer")
        self.assertNotEqual(trainer.wait(), 0)
        self.assertIn("allowed_clients_file", trainer.log())


if __name__ == "__main__":
    harness.main()
