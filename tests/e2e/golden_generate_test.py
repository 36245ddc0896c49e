"""`warproll generate` on every golden model against what transformers computed, and the checkpoint
commands on the golden pair of a BF16 model and its MXFP8 export."""
import json
import shutil

import numpy

import harness
import safetensors_file

MODELS = sorted(path.name for path in harness.GOLDEN.glob("qwen3moe-*") if path.is_dir())
TOLERANCE = 1e-4


def log_softmax(logits):
    wide = logits.astype(numpy.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - numpy.log(numpy.exp(wide).sum(axis=-1, keepdims=True))


class GoldenGenerate(harness.Case):
    def generate(self, model, prompt, **flags):
        arguments = [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", value)]
        done = self.run_command("generate", "--checkpoint", harness.GOLDEN / model, "--prompt-ids",
                                ",".join(map(str, prompt)), "--ignore-eos", "--json", *arguments)
        return json.loads(done.stdout)

    def golden(self, model, number):
        tensors = safetensors_file.read(harness.GOLDEN / f"{model}_golden.safetensors")
        prefix = f"prompt{number}."
        return {name[len(prefix):]: array for name, (_, array) in tensors.items() if name.startswith(prefix)}

    def test_greedy_ids_and_raw_logprobs_of_every_golden_model(self):
        self.assertEqual(len(MODELS), 10)
        for model in MODELS:
            with self.subTest(model=model):
                golden = self.golden(model, 0)
                prompt, greedy = golden["ids"].tolist(), golden["greedy"].tolist()
                sample = self.generate(model, prompt, max_tokens=len(greedy))
                self.assertEqual(sample["token_ids"], greedy)
                self.assertEqual(sample["prompt_ids"], prompt)
                self.assertEqual(sample["finish_reason"], "length")
                numpy.testing.assert_allclose(sample["raw_logprobs"], golden["greedy_raw_logprobs"], rtol=0,
                                              atol=TOLERANCE)

    def test_echo_logprobs_are_those_of_the_golden_logits(self):
        for model in MODELS:
            with self.subTest(model=model):
                golden = self.golden(model, 1)
                prompt = golden["ids"].tolist()
                done = self.run_command("generate", "--checkpoint", harness.GOLDEN / model, "--prompt-ids",
                                        ",".join(map(str, prompt)), "--max-tokens", 1, "--ignore-eos", "--json",
                                        "--echo-logprobs")
                echoed = json.loads(done.stdout)["prompt_raw_logprobs"]
                self.assertIsNone(echoed[0])  # nothing comes before the first token
                wanted = log_softmax(golden["logits"])[numpy.arange(len(prompt) - 1), prompt[1:]]
                numpy.testing.assert_allclose(echoed[1:], wanted, rtol=0, atol=TOLERANCE)

    def test_the_same_seed_gives_the_same_sample_and_another_seed_another(self):
        prompt = self.golden("qwen3moe-tiny", 0)["ids"].tolist()
        first, again, other = (self.generate("qwen3moe-tiny", prompt, max_tokens=24, temperature=1, seed=seed)
                               for seed in (7, 7, 8))
        self.assertEqual(first, again)
        self.assertNotEqual(first["token_ids"], other["token_ids"])


class CheckpointCommands(harness.Case):
    BF16, MXFP8 = harness.GOLDEN / "qwen3moe-tiny", harness.GOLDEN / "qwen3moe-tiny-mxfp8"

    def test_quantize_equals_the_golden_export_byte_for_byte(self):
        made = self.folder / "made"
        self.run_command("checkpoint", "quantize", self.BF16, "--to", made)
        got, wanted = (safetensors_file.read(directory / "model.safetensors") for directory in (made, self.MXFP8))
        self.assertEqual(set(got), set(wanted))
        for name, (dtype, array) in wanted.items():
            self.assertEqual((got[name][0], got[name][1].shape), (dtype, array.shape), name)
            self.assertEqual(got[name][1].tobytes(), array.tobytes(), name)
        self.run_command("checkpoint", "verify", made)
        # The same weights: the digest that inspect, worker and trainer know it by is the same.
        digests = [self.run_command("checkpoint", "verify", directory).stdout.split("weight_digest ")[1][:32]
                   for directory in (made, self.MXFP8)]
        self.assertEqual(*digests)

    def test_quantize_does_not_overwrite(self):
        made = self.folder / "made"
        made.mkdir()
        (made / "precious").write_text("x")
        done = self.run_command("checkpoint", "quantize", self.BF16, "--to", made, code=harness.FAILED)
        self.assertIn(str(made), done.stderr)
        self.assertEqual([path.name for path in made.iterdir()], ["precious"])

    def test_diff_says_what_differs_in_its_exit_code(self):
        equal = self.run_command("checkpoint", "diff", harness.ARITH[1], harness.ARITH[1])
        self.assertIn("0 differ", equal.stdout)
        other = self.run_command("checkpoint", "diff", harness.ARITH[1], harness.ARITH[2], code=harness.FAILED)
        self.assertIn("model.embed_tokens.weight", other.stdout)
        missing = self.run_command("checkpoint", "diff", harness.ARITH[1], self.folder / "none",
                                   code=harness.NOT_FOUND)
        self.assertIn(str(self.folder / "none"), missing.stderr)

    def test_verify_finds_a_nan_and_a_truncated_file(self):
        copy = self.folder / "copy"
        shutil.copytree(harness.ARITH[1], copy)
        self.assertIn("0 problems", self.run_command("checkpoint", "verify", copy).stdout)
        tensors = safetensors_file.read(copy / "model.safetensors")
        dtype, array = tensors["model.norm.weight"]
        array = array.copy()
        array[3] = 0x7FC0  # a BF16 NaN
        safetensors_file.write(copy / "model.safetensors", tensors | {"model.norm.weight": (dtype, array)})
        done = self.run_command("checkpoint", "verify", copy, code=harness.FAILED)
        self.assertIn("model.norm.weight", done.stdout)
        data = (copy / "model.safetensors").read_bytes()
        (copy / "model.safetensors").write_bytes(data[:-1000])
        done = self.run_command("checkpoint", "verify", copy, code=harness.BAD_INPUT)
        self.assertIn("model.safetensors: tensor", done.stderr)

    def test_inspect_lists_tensors_and_names_a_foreign_architecture(self):
        done = self.run_command("checkpoint", "inspect", self.MXFP8, "--tensors")
        self.assertIn("model.layers.0.mlp.experts.0.gate_proj.weight_scale_inv", done.stdout)
        copy = self.folder / "copy"
        shutil.copytree(harness.ARITH[1], copy)
        config = json.loads((copy / "config.json").read_text())
        config.update(architectures=["LlamaForCausalLM"], model_type="llama")
        (copy / "config.json").write_text(json.dumps(config))
        done = self.run_command("checkpoint", "inspect", copy, code=harness.BAD_INPUT)
        self.assertIn("LlamaForCausalLM", done.stderr)


if __name__ == "__main__":
    harness.main()
