"""BF16 checkpoints published to workers that quantise them: what is served is the export, bit for bit, and a
fleet that does not agree about it is told so."""
import re

import harness


class QuantisedUpdates(harness.Case):
    def publish(self, name, transport="tcp", quantise="mxfp8"):
        endpoint = f"tcp://127.0.0.1:{harness.free_port()}"
        trainer = self.start_trainer(
            name, trainer__bind=endpoint, tasks__count=150, tasks__group_size=2, tasks__open_per_worker=4,
            checkpoints__publish=[harness.ARITH[1], harness.ARITH[2]], checkpoints__every_samples=20,
            checkpoints__transport=transport, checkpoints__directory=self.folder / f"versions-{name}",
            checkpoints__quantise=quantise)
        return trainer, self.start_worker(f"w-{name}", trainer__endpoint=endpoint, model__quantise="mxfp8")

    def test_the_served_weights_are_those_of_the_export(self):
        text = self.run_command("checkpoint", "quantize", harness.ARITH[2], "--to", self.folder / "export")
        export = re.search(r"weight_digest ([0-9a-f]{32})", text.stdout + text.stderr)[1]
        for transport in ("tcp", "directory"):
            with self.subTest(transport=transport):
                trainer, worker = self.publish(transport, transport)
                self.expect_end(trainer, 0, seconds=60)
                self.assertEqual(worker.version(), 2)
                self.assertIn(f"now serves version 2, digest {export}", worker.log())
                self.check_exactly_once(transport)
                self.assertEqual(worker.terminate(), 0)

    def test_a_fleet_that_does_not_agree_is_told(self):
        trainer, worker = self.publish("plain", quantise="none")
        self.wait_until("the refusal", lambda: "rejects version 1" in trainer.log(), 30, [worker, trainer])
        self.assertIn("quantise is 'none' (checkpoints.quantise of warproll trainer), this worker's layout wants "
                      "'mxfp8' (model.quantise)", trainer.log())
        self.assertEqual((worker.version(), worker.health()["http_status"]), (1, 200))
        self.assertEqual(worker.terminate(), 0)
        self.assertEqual(trainer.terminate(), 0)


if __name__ == "__main__":
    harness.main()
