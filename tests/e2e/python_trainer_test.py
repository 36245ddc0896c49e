"""A trainer that shares nothing with warproll but the schemas (python_trainer.py, written from
docs/protocol.md) serves tasks to a real worker and takes every trajectory; the greedy ids are those
that transformers computed."""
import json
import signal
import subprocess
import sys

import harness



class PythonTrainer(harness.Case):
    def start_python_trainer(self, tasks):
        harness.write_jsonl(self.folder / "tasks.jsonl", tasks)
        log = open(self.folder / "python-trainer.stderr", "ab")
        self.addCleanup(log.close)
        trainer = subprocess.Popen([sys.executable, harness.ROOT / "tests" / "e2e" / "python_trainer.py",
                                    self.endpoint, self.folder / "tasks.jsonl", self.folder / "out.jsonl"],
                                   stdout=subprocess.PIPE, stderr=log, text=True)
        self.addCleanup(trainer.wait)
        self.addCleanup(trainer.kill)
        self.addCleanup(trainer.stdout.close)
        self.assertEqual(trainer.stdout.readline().strip(), self.endpoint)
        return trainer

    def taken(self):
        with open(self.folder / "out.jsonl", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def golden(self):
        return json.loads((harness.GOLDEN / "arith-v1_golden.json").read_text())

    def finish(self, trainer, worker):
        self.assertEqual(trainer.wait(60 * harness.options.slowness), 0,
                         (self.folder / "python-trainer.stderr").read_text()[-3000:])
        self.assertEqual(worker.terminate(), 0)

    def test_all_golden_problems_as_text_and_as_ids(self):
        problems = self.golden()["problems"]
        self.assertEqual(len(problems), 256)
        ids = self.golden_prompt_ids(problems)
        tasks = []
        for i, problem in enumerate(problems):
            prompt = dict(promptText=problem["prompt"]) if i % 2 == 0 else dict(promptIds=ids[i])
            tasks.append(dict(taskId=f"p{i}", groupSize=1, inFlight="keep", env="single_turn",
                              sampling=dict(temperature=0, maxTokens=8, topP=1, seed=1), **prompt))
        trainer, worker = self.start_python_trainer(tasks), self.start_worker()
        self.finish(trainer, worker)
        got = {row["taskId"]: row for row in self.taken()}
        self.assertEqual(len(self.taken()), len(problems))
        for i, problem in enumerate(problems):
            row = got[f"p{i}"]
            self.assertEqual(row["tokenIds"][row["promptLen"]:], self.greedy(problem), problem)
            self.assertEqual(row["tokenIds"][:row["promptLen"]], ids[i], problem)

    def test_groups_arrive_once_when_the_worker_is_killed(self):
        tasks = [dict(taskId=f"g{i}", groupSize=4, inFlight="keep", promptText=f"{i}+{i}=", env="single_turn",
                      sampling=dict(temperature=1, maxTokens=8, topP=1, seed=i + 1)) for i in range(200)]
        trainer, worker = self.start_python_trainer(tasks), self.start_worker()
        self.wait_until("a part of the samples", lambda: len(self.taken_lines()) > 100, alive=[worker])
        worker.signal(signal.SIGKILL)
        worker.popen.wait()
        worker = self.start_worker()
        self.finish(trainer, worker)
        keys = [(row["taskId"], row["sampleIndex"]) for row in self.taken()]
        self.assertEqual(len(keys), len(set(keys)))
        self.assertEqual(set(keys), {(f"g{i}", k) for i in range(200) for k in range(4)})

    def test_a_task_the_worker_cannot_run_is_rejected_with_the_reason(self):
        common = dict(groupSize=1, inFlight="keep", sampling=dict(temperature=0, maxTokens=8, topP=1, seed=1))
        trainer = self.start_python_trainer([dict(common, taskId="good", promptText="1+1="),
                                             dict(common, taskId="bad", promptText="1+1=", env="warehouse")])
        self.finish(trainer, self.start_worker())
        self.assertIn("bad rejected unknown env 'warehouse', known: single_turn",
                      (self.folder / "python-trainer.stderr").read_text())
        self.assertEqual([row["taskId"] for row in self.taken()], ["good"])

    def taken_lines(self):
        return (self.folder / "out.jsonl").read_bytes().splitlines()

    def golden_prompt_ids(self, problems):
        """The tokenizer has one id for each byte that occurs and no merges."""
        tokenizer = json.loads((harness.ARITH[1] / "tokenizer.json").read_text())
        vocabulary = tokenizer["model"]["vocab"]
        return [[vocabulary[character] for character in problem["prompt"]] for problem in problems]

    def greedy(self, problem):
        return problem["greedy_ids"]


if __name__ == "__main__":
    harness.main()
