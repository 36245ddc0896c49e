"""Bad input through the real binary: a documented exit code, a message that names the object, the value
got and the value wanted, and nothing lost."""
import json

import bad_checkpoints
import harness
from harness import BAD_INPUT, NOT_FOUND, UNAVAILABLE, USAGE

BAD_CHECKPOINTS = {  # how it is made, and what the error has to name
    "nan_weights": [bad_checkpoints.EXPERT, "NaN"],
    "missing_tensor": [bad_checkpoints.EXPERT, "missing"],
    "extra_tensor": ["model.bonus.weight"],
    "misshaped_tensor": [bad_checkpoints.EXPERT, "63", "64"],
    "truncated": ["model.safetensors", "data_offsets"],
    "overlapping": ["model.safetensors", "overlap"],
    "huge_header": ["model.safetensors", "1152921504606846976"],
}


class BadStart(harness.Case):
    """Processes that must not start."""

    def refused(self, process, code, *texts):
        self.expect_end(process, code, *texts)
        self.assertNotIn("internal fault", process.log())

    def test_bad_yaml_names_file_line_value_and_what_was_expected(self):
        path = self.folder / "worker.yaml"
        for text, wanted in (
                ("worker:\n  nam: x\n", ["worker.yaml:2", "worker.nam"]),
                ("engine:\n  threads: many\n", ["worker.yaml:2", "engine.threads", "'many'", "whole number"]),
                ("engine:\n\n  kv_block_tokens: -3\n", ["worker.yaml:3", "engine.kv_block_tokens", "-3"]),
                ("weights:\n  swap: never\n", ["worker.yaml:2", "'never'", "two_arenas", "host_staged"]),
                ("log: [1, 2]\n", ["worker.yaml:1", "log is a list", "section"]),
                ("worker:\n  name: 'open\n", ["worker.yaml:2", "quote"]),
                ("worker: [\n", ["worker.yaml:2", "not YAML"]),
                ("worker:\n  name: a\n  name: b\n", ["worker.yaml:3", "worker.name"])):
            path.write_text(text)
            for command in (["worker", "--config", path], ["config", "check", "worker", path]):
                done = self.run_command(*command, "--set", f"model.checkpoint={harness.ARITH[1]}", code=USAGE)
                for part in wanted:
                    self.assertIn(part, done.stderr, text)

    def test_a_missing_configuration_file(self):
        for command in (["worker", "--config"], ["trainer", "--config"], ["config", "check", "worker"]):
            done = self.run_command(*command, self.folder / "none.yaml", code=NOT_FOUND)
            self.assertIn(f"{self.folder}/none.yaml", done.stderr)

    def test_bad_checkpoints_at_the_start_of_a_worker(self):
        self.refused(self.start_worker("none", model__checkpoint=self.folder / "none"), NOT_FOUND,
                     "model.checkpoint", f"{self.folder}/none")
        for name, texts in BAD_CHECKPOINTS.items():
            with self.subTest(checkpoint=name):
                directory = getattr(bad_checkpoints, name)(harness.ARITH[1], self.folder / name)
                self.refused(self.start_worker(f"w-{name}", model__checkpoint=directory), BAD_INPUT,
                             str(directory), *texts)

    def test_another_architecture_is_named(self):
        directory = bad_checkpoints.with_config(harness.ARITH[1], self.folder / "llama",
                                                architectures=["LlamaForCausalLM"], model_type="llama")
        self.refused(self.start_worker(model__checkpoint=directory), BAD_INPUT, "LlamaForCausalLM",
                     "Qwen3MoeForCausalLM")

    def test_a_malformed_tokenizer(self):
        directory = bad_checkpoints.bad_tokenizer(harness.ARITH[1], self.folder / "copy")
        self.refused(self.start_worker(model__checkpoint=directory), BAD_INPUT, f"{directory}/tokenizer.json")

    def test_a_log_in_use_by_another_worker(self):
        first = self.start_worker("first")
        self.wait_until("it serves", lambda: first.version() == 1, alive=[first])
        second = self.start_worker("second", log__directory=self.folder / "first-log")
        self.refused(second, UNAVAILABLE, f"{self.folder}/first-log", str(first.popen.pid))
        self.assertEqual(first.version(), 1)
        self.assertEqual(first.terminate(), 0)

    def test_addresses_in_use(self):
        trainer = self.start_trainer(tasks__source="none")
        worker = self.start_worker()
        self.wait_until("both run", lambda: worker.version() == 1 and "listening" in trainer.log())
        self.refused(self.start_trainer("second", tasks__source="none"), UNAVAILABLE, self.endpoint)
        self.refused(self.start_trainer("third", tasks__source="none", trainer__state_directory=self.folder / "trainer",
                                        trainer__bind="tcp://127.0.0.1:*"), UNAVAILABLE, f"{self.folder}/trainer")
        self.refused(self.start_worker("other", metrics__port=worker.metrics_port), UNAVAILABLE, "metrics.port")

    def test_a_bind_beyond_loopback_needs_curve(self):
        for settings in (dict(trainer__bind="tcp://0.0.0.0:*"),
                         dict(checkpoints__tcp_bind="tcp://0.0.0.0:*", checkpoints__publish=[harness.ARITH[1]])):
            self.refused(self.start_trainer(f"open{len(settings)}", **settings), UNAVAILABLE, "0.0.0.0", "insecure")
        allowed = self.start_trainer("allowed", trainer__bind="tcp://0.0.0.0:*", trainer__insecure=True)
        self.wait_until("it listens", lambda: "listening" in allowed.log(), alive=[allowed])

    def test_missing_files_of_a_trainer(self):
        self.refused(self.start_trainer("a", checkpoints__publish=[self.folder / "none"]), NOT_FOUND,
                     f"{self.folder}/none")
        self.refused(self.start_trainer("b", tasks__source="jsonl", tasks__file=self.folder / "no.jsonl"), NOT_FOUND,
                     f"{self.folder}/no.jsonl")
        self.refused(self.start_trainer("c", trainer__secret_key_file=self.folder / "key",
                                        trainer__allowed_clients_file=self.folder / "allowed"), NOT_FOUND,
                     f"{self.folder}/key.secret")

    def test_a_bad_line_in_a_task_file(self):
        for line, texts in (('{"prompt": "1+1=", "in_flight": "sometimes"}', ["sometimes", "keep"]),
                            ('{"prompt": "1+1=", "prompt_ids": [1]}', ["exactly one"]),
                            ('{"prompt": "1+1=", "sampling": {"temperature": -1}}', ["temperature", "-1"]),
                            ('{"prompt": "1+1=", "colour": 1}', ["colour", "known"]),
                            ('{"prompt": "1+1=", "env": "warehouse"}', ["unknown env 'warehouse'", "single_turn"]),
                            ('{"prompt": ', ["JSON"])):
            path = self.folder / "tasks.jsonl"
            path.write_text('{"prompt": "1+1="}\n' + line + "\n")
            name = f"t{abs(hash(line))}"
            self.refused(self.start_trainer(name, tasks__source="jsonl", tasks__file=path), BAD_INPUT,
                         "tasks.jsonl:2", *texts)

    def test_generate_refuses_prompts_it_cannot_run(self):
        generate = ["generate", "--checkpoint", harness.ARITH[1]]
        for arguments, code, texts in (
                (["--prompt-ids", "1,2,9999"], BAD_INPUT, ["9999", "272"]),
                (["--prompt-ids=1,-2"], USAGE, ["prompt_ids[1] is -2", "wanted >= 0"]),
                (["--prompt-ids", ",".join(["1"] * 600)], BAD_INPUT, ["600", "512"]),
                (["--prompt", "1+1=", "--temperature", "-1"], USAGE, ["temperature", "-1"]),
                (["--prompt", "1+1=", "--max-tokens", "0"], USAGE, ["max_tokens", "0"]),
                (["--chat", self.folder / "none.json"], NOT_FOUND, ["none.json"])):
            done = self.run_command(*generate, *arguments, code=code)
            for text in texts:
                self.assertIn(text, done.stderr, arguments)
        no_tokenizer = self.run_command("generate", "--checkpoint", harness.GOLDEN / "qwen3moe-tiny", "--prompt", "a",
                                        code=NOT_FOUND)
        self.assertIn("qwen3moe-tiny/tokenizer.json", no_tokenizer.stderr)
        self.run_command("generate", "--checkpoint", self.folder / "none", "--prompt", "a", code=NOT_FOUND)


class BadTasks(harness.Case):
    def test_tasks_a_worker_cannot_run_fail_with_a_reason_and_the_others_are_done(self):
        bad = {
            "long": (dict(prompt_ids=[20] * 600), ["600", "512"]),
            "range": (dict(prompt_ids=[20, 9999]), ["9999", "0..271"]),
            "pin": (dict(prompt="1+1=", in_flight="pin"), ["host_staged"]),
        }
        good = [dict(task_id=f"good-{i}", prompt=f"{i}+{i}=", group_size=2) for i in range(40)]
        rows = good[:20] + [dict(row, task_id=name) for name, (row, _) in bad.items()] + good[20:]
        harness.write_jsonl(self.folder / "tasks.jsonl", rows)
        trainer = self.start_trainer(tasks__source="jsonl", tasks__file=self.folder / "tasks.jsonl")
        worker = self.start_worker(weights__swap="host_staged")
        self.expect_end(trainer, 0)
        said = [json.loads(line)["message"] for line in trainer.log().splitlines()]
        for name, (_, texts) in bad.items():
            (message,) = [text for text in said if text.startswith(f"task {name} failed: ")]
            for text in texts:
                self.assertIn(text, message)
        taken = sorted((row["task_id"], row["sample_index"]) for row in self.trajectories())
        self.assertEqual(taken, sorted((row["task_id"], k) for row in good for k in range(2)))
        self.assertEqual(json.loads((self.folder / "trainer" / "summary.json").read_text())["failed_tasks"], len(bad))
        self.assertEqual(worker.metrics()["warproll_tasks_rejected_total"], len(bad))
        self.assertEqual(worker.terminate(), 0)


class BadUpdates(harness.Case):
    def test_a_published_checkpoint_that_does_not_fit_is_refused_and_the_old_version_serves_on(self):
        bad_shape = harness.GOLDEN / "qwen3moe-tiny"
        llama = bad_checkpoints.with_config(harness.ARITH[1], self.folder / "llama",
                                            architectures=["LlamaForCausalLM"], model_type="llama")
        nan = bad_checkpoints.nan_weights(harness.ARITH[1], self.folder / "nan")
        missing = bad_checkpoints.missing_tensor(harness.ARITH[1], self.folder / "missing")
        for name, directory, transport, texts in (
                ("shape", bad_shape, "tcp", ["hidden_size"]),
                ("llama", llama, "directory", ["LlamaForCausalLM"]),
                ("missing", missing, "tcp", [bad_checkpoints.EXPERT]),
                ("nan", nan, "tcp", [bad_checkpoints.EXPERT, "NaN"]),
                ("nan-directory", nan, "directory", [bad_checkpoints.EXPERT, "NaN"])):
            with self.subTest(update=name):
                endpoint = f"tcp://127.0.0.1:{harness.free_port()}"
                trainer = self.start_trainer(
                    name, trainer__bind=endpoint, tasks__count=150, tasks__group_size=2, tasks__open_per_worker=4,
                    checkpoints__publish=[harness.ARITH[1], directory], checkpoints__every_samples=20,
                    checkpoints__transport=transport, checkpoints__directory=self.folder / f"versions-{name}")
                worker = self.start_worker(f"w-{name}", trainer__endpoint=endpoint)
                self.wait_until("the refusal", lambda: "version 2 is aborted" in trainer.log(), 30, [worker, trainer])
                for text in texts:
                    self.assertIn(text, trainer.log())
                    self.assertIn(text, worker.health()["last_update_failure"])
                self.expect_end(trainer, 0, seconds=60)
                self.assertEqual((worker.version(), worker.health()["http_status"]), (1, 200))
                self.check_exactly_once(name)
                self.assertEqual(worker.terminate(), 0)
                rows = json.loads((self.folder / name / "summary.json").read_text())["updates"]
                self.assertEqual([row["committed"] for row in rows if row["weight_version"] == 2], [False])

    def test_an_unreadable_checkpoint_stops_the_trainer_and_a_mended_one_lets_it_go_on(self):
        target = bad_checkpoints.truncated(harness.ARITH[2], self.folder / "v2")
        settings = dict(tasks__count=150, tasks__group_size=2, tasks__open_per_worker=4,
                        checkpoints__publish=[harness.ARITH[1], target], checkpoints__every_samples=20)
        trainer, worker = self.start_trainer(**settings), self.start_worker()
        self.expect_end(trainer, BAD_INPUT)
        self.assertIn(f"{target}/model.safetensors", trainer.log())
        self.assertEqual(worker.version(), 1)
        (target / "model.safetensors").write_bytes((harness.ARITH[2] / "model.safetensors").read_bytes())
        trainer = self.start_trainer(**settings)
        self.expect_end(trainer, 0)
        self.assertEqual(worker.version(), 2)
        self.check_exactly_once()
        self.assertEqual(worker.terminate(), 0)


if __name__ == "__main__":
    harness.main()
