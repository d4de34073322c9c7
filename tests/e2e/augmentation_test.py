"""Augmentation of training batches: off it changes nothing, on it gives the same bits on any number of threads and ranks and
after an interruption."""

import json
import shutil
import signal
import subprocess
import unittest

import tool
from ranks import digest, tensors

EVERYTHING = ("time_masks=1", "time_mask_ms=60", "frequency_masks=1", "frequency_mask_bands=4", "gain_db=6",
              "noise_snr_db=[10, 20]", "transpose_bands=1")
ON = [word for setting in EVERYTHING for word in ("--set", f"augmentation.{setting}")]
SHARDS = ["--set", "training.shards=2"]


class AugmentationTest(tool.ToolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data, cls.config = cls.corpus()
        tool.run(*cls.arguments("plain"), *SHARDS, check=0)
        tool.run(*cls.arguments("whole", "--threads", "1"), *SHARDS, *ON, check=0)

    @classmethod
    def arguments(cls, out, *more):
        return ["train", cls.config, "--data", cls.data, "--out", cls.directory / out, *more]

    def model(self, out):
        return self.directory / out / "model.safetensors"

    def metadata(self, path):
        data = path.read_bytes()
        return json.loads(data[8:8 + int.from_bytes(data[:8], "little")])["__metadata__"]

    def test_it_changes_the_model_and_is_said(self):
        self.assertNotEqual(tensors(self.model("whole")), tensors(self.model("plain")))
        said = json.loads((self.directory / "whole/metrics.json").read_text())
        self.assertIn("[augmentation]\ntime_masks = 1\n", said["run"]["configuration"])
        self.assertIn("noise_snr_db = [10, 20]", said["run"]["configuration"])
        self.assertIn("augmentation.gain_db", self.metadata(self.model("whole"))["recipe"])

    def test_off_no_file_knows_of_it(self):
        for file in ("model.safetensors", "checkpoint.safetensors"):
            self.assertNotIn("augmentation", "".join(self.metadata(self.directory / "plain" / file).values()))

    def test_threads_and_ranks_make_the_same_bits(self):
        tool.run(*self.arguments("threads", "--threads", "4"), *SHARDS, *ON, check=0)
        self.assertEqual(digest(self.model("threads")), digest(self.model("whole")))
        tool.run(*self.arguments("ranks", "--ranks", "2"), *SHARDS, *ON, check=0)
        self.assertEqual(digest(self.model("ranks")), digest(self.model("whole")))

    def test_an_interrupted_training_goes_on_with_the_same_bits(self):
        command = [str(word) for word in (tool.SEGFUSE, *self.arguments("stopped"), *SHARDS, *ON)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            if line.startswith("epoch   2"):
                break
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        self.assertIn(process.returncode, (0, 130), errors)  # 0: it was faster
        tool.run(*self.arguments("stopped", "--resume"), *SHARDS, *ON, check=0)
        self.assertEqual(digest(self.model("stopped")), digest(self.model("whole")))

    def test_a_run_with_other_settings_is_not_continued(self):
        for out, settings, words in (("plain", ON, "augmentation.time_masks: nothing then, 1 now"),
                                     ("whole", [*ON, "--set", "augmentation.gain_db=3"], "augmentation.gain_db: 6 then, 3 now")):
            copy = self.directory / f"{out}-copy"
            shutil.copytree(self.directory / out, copy)
            result = tool.run(*self.arguments(copy.name, "--resume"), *SHARDS, *settings, check=2)
            self.assertIn(words, result.stderr)

    def test_decoding_sees_the_recordings_as_they_are(self):
        # Measured again, the model has the figures of the training's end: neither of both was augmented.
        before = json.loads((self.directory / "whole/metrics.json").read_text())
        again = json.loads(tool.run("eval", self.directory / "whole", "--json", check=0).stdout)
        self.assertEqual(again["label_error_rate"], before["label_error_rate"])

    def test_what_means_nothing_is_refused(self):
        for settings, words in (
                (["time_masks=-1"], "time_masks"),
                (["time_masks=1"], "'augmentation.time_mask_ms' must be above 0, as time_masks is"),
                (["time_mask_ms=50"], "'augmentation.time_masks' must be above 0, as time_mask_ms is"),
                (["time_masks=1", "time_mask_ms=4"], "'augmentation.time_mask_ms' is 4, less than a frame, which has 10 ms"),
                (["frequency_masks=2"], "'augmentation.frequency_mask_bands' must be above 0"),
                (["frequency_masks=2", "frequency_mask_bands=16"], "must be less than features.n_mels, which is 16"),
                (["transpose_bands=16"], "must be less than features.n_mels, which is 16"),
                (["gain_db=-3"], "gain_db"),
                (["gain_db=61"], "gain_db"),
                (["noise_snr_db=[20, 10]"], "the smaller one first"),
                (["noise_snr_db=[10]"], "must be two numbers"),
                (["noise_snr_db=[-41, 10]"], "from -40 to 120"),
                (["pitch=3"], "pitch")):
            result = tool.run(*self.arguments("refused"), *(w for s in settings for w in ("--set", f"augmentation.{s}")))
            self.assertIn(result.returncode, (2, 3), settings)
            self.assertIn(words, result.stderr)
        for key in ("frequency_masks", "transpose_bands"):
            for kind in ("mfcc", "raw"):
                result = tool.run(*self.arguments("refused", "--set", f"features.kind={kind}", "--set", f"augmentation.{key}=1"))
                self.assertIn(f"needs features with bands, as features.kind = \"log_mel\"; found \"{kind}\"", result.stderr)
        result = tool.run(*self.arguments("refused", "--set", "features.normalise_recording=true", "--set", "augmentation.gain_db=6"))
        self.assertIn("'augmentation.gain_db' has no effect, because features.normalise_recording removes", result.stderr)
        self.assertFalse((self.directory / "refused").exists())


if __name__ == "__main__":
    unittest.main()
