"""A mixed run: every in-flight policy, every kind of sampling, weights swapped under way, sequences
preempted for lack of memory. Then `replay --regenerate` makes each stored sample again, alone, and every
token, logprob and route is the same bit for bit."""
import collections
import json
import random

import harness

SAMPLES = 520
SAMPLINGS = ({"temperature": 0}, {"temperature": 1}, {"temperature": 0.6, "top_p": 0.9},
             {"temperature": 1.3, "top_k": 5},
             {"temperature": 0.8, "min_p": 0.1}, {"temperature": 0.9, "top_p": 0.95, "top_k": 20, "min_p": 0.02})


class Regenerate(harness.Case):
    def tasks(self, rng):
        """Long ones, so that most are in flight when weights come, and groups that share a prompt."""
        rows, samples = [], 0
        while samples < (harness.options.rounds or SAMPLES):
            size = rng.choice([1, 2, 4])
            sampling = dict(rng.choice(SAMPLINGS), max_tokens=rng.choice([12, 40, 90]), ignore_eos=rng.random() < 0.8,
                            seed=rng.randrange(1, 1 << 40))
            prompt = "".join(f"{rng.randrange(1000)}+{rng.randrange(1000)}=" for _ in range(rng.choice([1, 1, 6])))
            rows.append(dict(task_id=f"t{len(rows)}", prompt=prompt, group_size=size, sampling=sampling,
                             in_flight=rng.choice(["keep", "recompute", "pin", "abort"]),
                             return_routes=rng.random() < 0.5))
            samples += size
        return rows, samples

    def check(self, activation_dtype):
        rng = random.Random(2026)
        rows, samples = self.tasks(rng)
        harness.write_jsonl(self.folder / "tasks.jsonl", rows)
        trainer = self.start_trainer(tasks__source="jsonl", tasks__file=self.folder / "tasks.jsonl",
                                     tasks__open_per_worker=40, checkpoints__every_samples=samples // 8,
                                     checkpoints__publish=[harness.ARITH[v] for v in (1, 2, 3, 1, 2, 3)])
        worker = self.start_worker(engine__kv_memory_mb=2, engine__max_running_sequences=32,
                                   engine__prefill_chunk_tokens=16, model__activation_dtype=activation_dtype)
        self.expect_end(trainer, 0, seconds=90)
        metrics = worker.metrics()
        self.assertEqual(worker.terminate(), 0)
        self.check_exactly_once()
        self.check_mixture(metrics)
        done = self.run_command("replay", "--log", self.folder / "worker-log", "--regenerate",
                                *[part for v in (1, 2, 3) for part in ("--checkpoint", harness.ARITH[v])], seconds=120)
        print(done.stdout.splitlines()[-1], end=" ", flush=True)
        self.assertIn(f"{samples} samples equal bit for bit", done.stdout)
        self.assertIn("0 differ, 0 without weights", done.stdout)

    def check_mixture(self, metrics):
        """The run was as mixed as this test is meant to be."""
        rows = self.trajectories()
        events = collections.Counter(event["kind"] for row in rows for event in row["events"])
        finish = collections.Counter(row["finish_reason"] for row in rows)
        preemptions = int(metrics["warproll_preemptions_total"])
        print(dict(events), dict(finish), f"{preemptions} preemptions", end=" ", flush=True)
        self.assertGreaterEqual(metrics["warproll_flips_total"], 2)
        self.assertGreater(preemptions, 20)
        for kind in ("flip_keep", "flip_recompute", "preempt_recompute"):
            self.assertGreater(events[kind], 0, kind)
        self.assertGreater(finish["abort"], 0)
        self.assertGreater(sum(len(row["version_runs"]) > 1 for row in rows), 0)

    def test_five_hundred_samples_of_a_mixed_run_are_made_again_bit_for_bit(self):
        self.check("f32")

    def test_the_same_with_16_bit_activations(self):
        self.check("bf16")

    def test_a_sample_whose_weights_are_not_given_is_said_and_fails(self):
        trainer = self.start_trainer(tasks__count=10)
        worker = self.start_worker()
        self.expect_end(trainer, 0)
        self.assertEqual(worker.terminate(), 0)
        log = self.folder / "worker-log"
        done = self.run_command("replay", "--log", log, "--regenerate", "--checkpoint", harness.ARITH[2],
                                code=harness.NOT_FOUND)
        self.assertIn("not among the --checkpoint directories", done.stdout + done.stderr)
        self.run_command("replay", "--log", log, "--regenerate", "--checkpoint", harness.ARITH[1])


if __name__ == "__main__":
    harness.main()
