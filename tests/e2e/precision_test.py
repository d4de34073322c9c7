"""Trainings in other precisions: nearly as good, the same bits in every way that float32 has them, and said where a run is described."""

import json
import unittest

from ranks import RanksTestCase, digest, tensors

import tool

BF16 = ["--set", "training.precision=bf16"]


class PrecisionTest(RanksTestCase):
    @classmethod
    def arguments(cls, out, *more):
        return super().arguments(out, "--set", "training.shards=4", *more)

    def train(self, out, *more, check=0):
        result = tool.run(*self.arguments(out, *more), check=check)
        return self.directory / out, result.stderr

    def metrics(self, folder):
        return json.loads((folder / "metrics.json").read_text())

    def test_bf16_learns_as_float32_does_and_gives_the_same_bits_on_any_ranks(self):
        one, _ = self.train("bf16", *BF16)
        self.assertNotEqual(digest(one / "model.safetensors"), self.expected[0])
        exact = self.metrics(self.directory / "one")["frame_accuracy"]
        found = self.metrics(one)["frame_accuracy"]
        self.assertGreater(exact, 0.8)
        self.assertAlmostEqual(found, exact, delta=0.05)
        for out, more in (("again", []), ("ranks", ["--ranks", "2"])):
            folder, _ = self.train(out, *BF16, *more)
            for name in self.files:
                self.assertEqual(digest(folder / name), digest(one / name), f"{out}: {name}")

    def test_the_run_says_it_and_a_resumed_one_keeps_it(self):
        folder, _ = self.train("kept", *BF16)
        self.assertIn('precision = "bf16"', self.metrics(folder)["run"]["configuration"])
        self.assertIn("precision of training steps", (folder / "report.html").read_text())
        before = digest(folder / "model.safetensors")
        self.train("kept", *BF16, "--resume")
        self.assertEqual(digest(folder / "model.safetensors"), before)
        for more, found in (([], "nothing"), (["--set", "training.precision=tf32"], '"tf32"')):
            _, errors = self.train("kept", "--resume", *more, check=2)
            self.assertIn(f'(training.precision: "bf16" then, {found} now)', errors)

    def test_an_interrupted_run_goes_on_with_the_same_bits(self):
        whole, _ = self.train("whole", *BF16)
        half = self.start(*self.arguments("half", *BF16, "--checkpoint-every", "0.000001"))
        self.wait_for_training(half)
        half.kill()
        self.finish(half)
        self.train("half", *BF16, "--resume")
        self.assertEqual(digest(self.directory / "half/model.safetensors"), digest(whole / "model.safetensors"))

    def test_cpus_have_no_tf32(self):
        folder, _ = self.train("tf32", "--set", "training.precision=tf32")
        self.assertEqual(tensors(folder / "model.safetensors"), self.expected_tensors[0])

    def test_other_precisions_are_refused(self):
        _, errors = self.train("half", "--set", "training.precision=float16", check=2)
        self.assertIn("'training.precision' is 'float16', which is not among 'float32', 'tf32' and 'bf16'", errors)

    def test_doctor_numerics_examines_the_steps_of_the_precision(self):
        """Casts are operations as others: results are within the bounds of bf16, and a NaN is named."""
        command = ["doctor", "numerics", self.config, "--data", self.data, *BF16, "--json"]
        found = json.loads(tool.run(*command, check=0).stdout)
        self.assertEqual(found["findings"], [])
        exact = json.loads(tool.run(*command[:5], "--json", check=0).stdout)
        self.assertGreater(found["operations"], exact["operations"])
        tf32 = tool.run(*command[:5], "--set", "training.precision=tf32", check=0).stdout
        self.assertIn("the products of TF32 steps are examined in float32", tf32)


if __name__ == "__main__":
    unittest.main()
