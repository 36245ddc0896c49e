"""The commands on a run's leftovers and on a running worker: help, log, replay, config, doctor, metrics,
health, and the drain on SIGTERM."""
import json
import re
import signal
import time

import harness

COMMANDS = ["", "worker", "trainer", "generate", "replay", "log", "log ls", "log show", "log stats", "log verify",
            "log export", "log repair", "checkpoint", "checkpoint inspect", "checkpoint verify",
            "checkpoint quantize", "checkpoint diff", "bench", "bench decode", "bench moe", "bench sync", "config",
            "config check", "config show", "keygen", "doctor"]


class Help(harness.Case):
    def subcommands(self, help_text):
        section = help_text.partition("Subcommands:\n")[2].partition("\n\n")[0]
        return re.findall(r"^  (\S+)", section, re.M)

    def test_every_command_has_help_with_examples_and_exit_codes(self):
        found = [""]
        for command in found:  # grows: what the help lists is looked at too
            text = self.run_command(*command.split(), "--help").stdout
            self.assertIn("Exit codes: 0 done", text, command)
            if command:
                self.assertRegex(text, r"Examples:\n  warproll " + command.split()[0], command)
            found += [f"{command} {name}".strip() for name in self.subcommands(text)]
        self.assertEqual(sorted(found), sorted(COMMANDS))

    def test_usage_errors_end_with_2_and_say_what_is_wrong(self):
        for arguments, text in (
                ([], "subcommand is required"),
                (["fly"], "unknown command 'fly', known: worker trainer"),
                (["log", "fly"], "unknown command 'fly', known: ls show"),
                (["log", "ls"], "directory is required"),
                (["worker", "--bind", "x"], "--bind"),
                (["generate", "--checkpoint", "x"], "prompt"),
                (["generate", "--checkpoint", "x", "--prompt", "a", "--prompt-ids", "1"], "prompt"),
                (["config", "check", "boat", "x.yaml"], "boat")):
            done = self.run_command(*arguments, code=harness.USAGE)
            self.assertIn(text, done.stderr + done.stdout, arguments)

    def test_version(self):
        self.assertRegex(self.run_command("--version").stdout, r"^warproll \d+\.\d+\.\d+\n$")


class BenchSync(harness.Case):
    def sync(self, *arguments, code=harness.OK):
        return self.run_command("bench", "sync", "--random", harness.GOLDEN / "qwen3moe-tiny" / "config.json",
                                "--weights", "bf16", "--device", "cpu", *arguments, code=code)

    def test_updates_come_while_a_worker_decodes_on_a_cpu(self):
        small = ["--transport", "none", "--batch", 2, "--context", 8, "--tokens", 128, "--bucket-mb", 1,
                 "--baseline-ms", 200, "--json"]
        for arguments in (["--updates", 3], ["--updates", 2, "--quantise-mxfp8"], ["--layers", 1]):
            rows = json.loads(self.sync(*small, *arguments).stdout)
            for row in rows:
                self.assertTrue(row["digests_equal"], row)
                self.assertGreater(row["tokens_per_s_before"], 0)
                self.assertGreater(row["stream_bytes"], 0)
                self.assertEqual((row["transport"], row["swap"]), ("none", "two_arenas"))
            self.assertEqual(len(rows), arguments[1] if arguments[0] == "--updates" else 1)

    def test_what_cannot_be_is_said(self):
        self.assertIn("needs a GPU", self.sync(code=harness.BAD_INPUT).stderr)
        done = self.sync("--transport", "none", "--context", 5000, code=harness.BAD_INPUT)
        self.assertIn("exceed the model's 1024 positions", done.stderr)
        done = self.sync("--transport", "none", "--stream", "arena", code=harness.BAD_INPUT)
        self.assertIn("--stream arena: what is packed is the arena of a worker on a GPU", done.stderr)


class ConfigAndDoctor(harness.Case):
    def test_the_shown_configuration_is_the_file_of_the_repository_and_passes_its_check(self):
        for kind in ("worker", "trainer"):
            shown = self.run_command("config", "show", kind).stdout
            path = self.folder / f"{kind}.yaml"
            path.write_text(shown)
            repository = harness.ROOT / "configs" / f"{kind}.yaml"
            # model.checkpoint has no default.
            complete = ["--set", f"model.checkpoint={harness.ARITH[1]}"] if kind == "worker" else []
            both = [self.run_command("config", "show", kind, file, *complete).stdout for file in (path, repository)]
            self.assertEqual(*both)
            self.run_command("config", "check", kind, repository, *complete)
            changed = self.run_command("config", "show", kind, path, *complete, "--set", "logging.level=warn").stdout
            self.assertIn("level: warn", changed)
        done = self.run_command("config", "check", "worker", harness.ROOT / "configs" / "worker.yaml",
                                code=harness.USAGE)
        self.assertIn("model.checkpoint is empty", done.stderr)

    def test_doctor_passes_what_runs_and_names_what_does_not(self):
        self.run_command("doctor")
        trainer = self.start_trainer(tasks__source="none")
        self.wait_until("the trainer listens", lambda: "listening on" in trainer.log(), alive=[trainer])
        worker_yaml = harness.ROOT / "configs" / "worker.yaml"
        good = ["doctor", "--worker", worker_yaml, "--set", f"model.checkpoint={harness.ARITH[1]}",
                "--set", f"trainer.endpoint={self.endpoint}", "--set", "log.min_free_mb=1"]
        self.run_command(*good)
        bad = self.run_command(*good, "--set", f"model.checkpoint={self.folder}/none", code=harness.FAILED)
        self.assertIn(f"{self.folder}/none", bad.stdout)
        nobody = f"tcp://127.0.0.1:{harness.free_port()}"
        away = self.run_command(*good, "--set", f"trainer.endpoint={nobody}", code=harness.FAILED)
        self.assertIn("Connection refused", away.stdout)
        sender = self.run_command("doctor", "--trainer", harness.ROOT / "configs" / "trainer.yaml",
                                  "--set", "checkpoints.transport=nccl", "--set", "checkpoints.nccl_device=1000",
                                  code=harness.FAILED)
        self.assertRegex(sender.stdout, "checkpoints.nccl_device +(this build has no nccl|GPU 1000: this machine has)")
        self.assertEqual(trainer.terminate(), 0)


class RunLeftovers(harness.Case):
    """One short run over three versions; then its log is looked at in every way."""

    def setUp(self):
        super().setUp()
        trainer = self.start_trainer(tasks__count=150, tasks__group_size=4, sampling__temperature=0.8,
                                     checkpoints__publish=[harness.ARITH[v] for v in (1, 2, 3)],
                                     checkpoints__every_samples=150)
        self.worker = self.start_worker()
        self.expect_end(trainer, 0, seconds=60)
        self.wait_until_acknowledged(self.worker)
        self.log = self.folder / "worker-log"
        self.samples = {(row["task_id"], row["sample_index"]): row for row in self.trajectories()}
        self.assertEqual(len(self.samples), 600)

    def versions_of(self, row):
        return {run["weight_version"] for run in row["version_runs"]}

    def exported(self, *arguments):
        done = self.run_command("log", "export", self.log, *arguments)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def replay(self, name, *arguments, code=harness.OK):
        """What another trainer took from a replay; its address is not the one that the worker knows."""
        endpoint = f"tcp://127.0.0.1:{harness.free_port()}"
        trainer = self.start_trainer(name, tasks__source="none", trainer__bind=endpoint)
        done = self.run_command("replay", "--log", self.log, "--to", endpoint, *arguments, code=code)
        self.assertEqual(trainer.terminate(), 0)
        return done, self.trajectories(name)

    def test_a_live_log_is_listed_shown_checked_exported_and_repaired(self):
        self.assertTrue(self.worker.running())
        stats = self.check_log(self.log)
        self.assertEqual((stats["produced"], stats["stored_samples"]), (600, 600))
        listing = self.run_command("log", "ls", self.log, "--limit", 20).stdout.splitlines()
        self.assertEqual(len(listing), 21)
        shown = json.loads(self.run_command("log", "show", self.log, 7).stdout)
        self.assertEqual((shown["seq"], shown["trajectory_id"].split("-")[1]), (7, "7"))
        self.run_command("log", "show", self.log, 601, code=harness.NOT_FOUND)
        self.assertEqual(len(self.exported()), 600)
        for version in (1, 2, 3):
            keys = {(row["task_id"], row["sample_index"]) for row in self.exported("--weight-version", version)}
            self.assertEqual(keys, {key for key, row in self.samples.items() if version in self.versions_of(row)})
        group = self.exported("--group", "arith-1-7")
        self.assertEqual(sorted(row["sample_index"] for row in group), [0, 1, 2, 3])
        self.assertEqual([row["seq"] for row in self.exported("--from", 10, "--to-seq", 12)], [10, 11, 12])
        self.assertEqual(len(self.exported("--since", "1h")), 600)
        self.assertEqual(self.exported("--until", "1h"), [])
        self.run_command("log", "repair", self.log, "--to", self.folder / "repaired")
        self.assertEqual(self.check_log(self.folder / "repaired")["stored_samples"], 600)
        copies = [self.run_command("log", "export", directory, "--format", "records", text=False).stdout
                  for directory in (self.log, self.folder / "repaired")]
        self.assertEqual(*copies)
        self.assertEqual(self.worker.terminate(), 0)
        self.check_log(self.log)

    def test_replays_by_version_group_and_time_and_as_new(self):
        wanted = {key for key, row in self.samples.items() if 2 in self.versions_of(row)}
        done, taken = self.replay("by-version", "--weight-version", 2)
        self.assertEqual({(row["task_id"], row["sample_index"]) for row in taken}, wanted)
        self.assertIn(f"{len(wanted)} samples replayed, {len(wanted)} acknowledged, 0 refused", done.stdout)
        for row in taken:  # the record is the stored one
            self.assertEqual(row["token_ids"], self.samples[row["task_id"], row["sample_index"]]["token_ids"])
            self.assertEqual(row["seq"], self.samples[row["task_id"], row["sample_index"]]["seq"])
        _, taken = self.replay("by-group", "--group", "arith-1-20")
        self.assertEqual(sorted(row["sample_index"] for row in taken), [0, 1, 2, 3])
        _, taken = self.replay("by-time", "--until", "1h")
        self.assertEqual(taken, [])
        done, again = self.replay("by-time")  # the same trainer state, the whole log, twice
        self.assertEqual(len(again), 600)
        done, again = self.replay("by-time")
        self.assertIn("600 acknowledged", done.stdout)
        self.assertEqual(len(again), 600)
        _, twice = self.replay("by-time", "--as-new")
        self.assertEqual(len(twice), 1200)
        self.assertEqual(len({(row["task_id"], row["sample_index"]) for row in twice}), 1200)
        self.assertEqual(self.worker.terminate(), 0)

    def test_a_replay_keeps_its_rate(self):
        started = time.monotonic()
        _, taken = self.replay("slow", "--rate", 50, "--to-seq", 100)
        self.assertEqual(len(taken), 100)
        self.assertGreater(time.monotonic() - started, 99 / 50 - 0.2)

    def test_a_replay_into_nothing_gives_up_and_a_replay_to_a_file_needs_no_trainer(self):
        done = self.run_command("replay", "--log", self.log, "--to", self.endpoint, "--deadline-s", 1,
                                code=harness.UNAVAILABLE)
        self.assertIn("no progress for 1 s", done.stderr)
        self.run_command("replay", "--log", self.log, "--output", self.folder / "all.jsonl")
        self.assertEqual(len((self.folder / "all.jsonl").read_text().splitlines()), 600)
        self.run_command("replay", "--log", self.folder / "none", "--to", self.endpoint, code=harness.NOT_FOUND)


class RunningWorker(harness.Case):
    def test_metrics_and_health_of_a_serving_worker(self):
        trainer = self.start_trainer(tasks__count=50, tasks__group_size=4, checkpoints__publish=[harness.ARITH[1]])
        worker = self.start_worker()
        self.expect_end(trainer, 0)
        self.wait_until_acknowledged(worker)
        health = worker.health()
        self.assertEqual((health["http_status"], health["state"], health["weight_version"], health["log_intake"],
                          health["update_state"]), (200, "serving", 1, "open", "idle"))
        self.assertRegex(health["weight_digest"], r"^[0-9a-f]{32}$")
        metrics = worker.metrics()
        self.assertEqual(metrics["warproll_sealed_samples_total"], 200)
        self.assertEqual(metrics['warproll_log_samples{place="produced"}'], 200)
        self.assertEqual(metrics['warproll_log_samples{place="committed"}'], 200)
        self.assertEqual(metrics["warproll_tasks_accepted_total"], 50)
        self.assertEqual(metrics["warproll_weight_version"], 1)
        self.assertGreater(metrics["warproll_sampled_tokens_total"], 200)
        self.assertGreaterEqual(metrics["warproll_forwarded_tokens_total"], metrics["warproll_sampled_tokens_total"])
        self.assertEqual(worker.http("/elsewhere")[0], 404)
        text = worker.http("/metrics")[1]
        self.assertIn("# TYPE warproll_sampled_tokens_total counter", text)
        self.assertIn("# HELP warproll_kv_blocks_free ", text)
        self.wait_until("the worker notices", lambda: worker.health()["connected"] is False)
        self.assertEqual(worker.terminate(), 0)

    def test_sigterm_drains_a_worker_with_samples_in_flight(self):
        trainer = self.start_trainer(tasks__count=0, tasks__group_size=4, sampling__max_tokens=64,
                                     tasks__open_per_worker=32)
        worker = self.start_worker(model__checkpoint=harness.ARITH[2], engine__max_running_sequences=8)
        self.wait_until("samples in flight", lambda: worker.metrics().get("warproll_running_sequences", 0) >= 4,
                        alive=[trainer, worker])
        self.assertEqual(worker.terminate(), 0)
        self.assertIn("state draining", worker.log())
        self.assertIn(" 0 not yet committed by the trainer", worker.log())
        stats = self.check_log(self.folder / "worker-log")
        self.assertEqual(stats["committed"], stats["produced"])
        # Everything it had accepted was finished: no task is half done.
        rows = self.trajectories()
        groups = {task: sum(row["task_id"] == task for row in rows) for task in {row["task_id"] for row in rows}}
        self.assertEqual(set(groups.values()), {4})
        self.assertEqual(trainer.terminate(), 0)

    def test_a_second_sigterm_ends_a_drain_at_once(self):
        trainer = self.start_trainer(tasks__count=0, sampling__max_tokens=400, tasks__open_per_worker=64,
                                     trainer__liveness_ms=60000)
        worker = self.start_worker(model__checkpoint=harness.ARITH[2])
        self.wait_until("samples in flight", lambda: worker.metrics().get("warproll_running_sequences", 0) >= 4)
        trainer.signal(signal.SIGSTOP)  # nothing is acknowledged: the drain does not end by itself
        self.wait_until("unacknowledged samples", lambda: worker.metrics()['warproll_log_samples{place="outbox"}'] > 0)
        worker.signal(signal.SIGTERM)
        self.wait_until("draining", lambda: "state draining" in worker.log())
        worker.signal(signal.SIGTERM)
        self.assertEqual(worker.wait(), 128 + signal.SIGTERM)

    def test_the_trainer_can_drain_the_workers_at_its_end(self):
        trainer = self.start_trainer(tasks__count=20, trainer__drain_workers=True)
        worker = self.start_worker()
        self.expect_end(trainer, 0)
        self.expect_end(worker, 0, "state draining")
        self.check_exactly_once()

    def test_bench_measures_every_batch_size(self):
        done = self.run_command("bench", "decode", "--checkpoint", harness.ARITH[3], "--batch", "1,4", "--context",
                                8, "--tokens", 8, "--json")
        rows = json.loads(done.stdout)
        self.assertEqual([row["batch"] for row in rows], [1, 4])
        self.assertTrue(all(row["tokens_per_s"] > 0 for row in rows))

    def test_bench_moe_without_a_gpu_says_so(self):
        done = self.run_command("bench", "moe", code=5)
        self.assertIn("built without CUDA", done.stderr)


if __name__ == "__main__":
    harness.main()
