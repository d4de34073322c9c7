"""A killed or interrupted training loses nothing: resumed, it ends with the same bits."""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
import unittest

import tool

KILLS = int(os.environ.get("SEGFUSE_KILLS", "50"))


def metadata(path):
    data = path.read_bytes()
    return json.loads(data[8:8 + int.from_bytes(data[:8], "little")])["__metadata__"]


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class ResumeTest(tool.ToolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data, cls.config = cls.corpus()
        cls.config.write_text(cls.config.read_text().replace("epochs = 6", "epochs = 40"))
        begin = time.monotonic()
        tool.run("train", cls.config, "--data", cls.data, "--out", cls.directory / "whole", check=0)
        cls.seconds = time.monotonic() - begin
        cls.expected = digest(cls.directory / "whole/model.safetensors")

    def command(self, out, *more):
        return [tool.SEGFUSE, "train", str(self.config), "--data", str(self.data), "--out", str(out), "--resume", "--quiet", *more]

    def test_kill_at_random_moments(self):
        rng = random.Random(20260101)
        kills = trainings = midway = 0
        while kills < KILLS:
            trainings += 1
            out = self.directory / f"killed-{trainings}"
            finished = False
            while not finished:
                process = subprocess.Popen(self.command(out), stdout=subprocess.DEVNULL,
                                           stderr=subprocess.PIPE, text=True)
                try:
                    # Short enough that most kills fall into the training itself.
                    limit = rng.uniform(0.02, 0.5 * self.seconds) if kills < KILLS else None
                    _, errors = process.communicate(timeout=limit)
                    self.assertEqual(process.returncode, 0, errors)
                    finished = True
                except subprocess.TimeoutExpired:
                    process.kill()
                    _, errors = process.communicate()
                    kills += 1
                if found := re.search(r"resuming after (\d+) of (\d+) steps", errors):
                    midway += int(found.group(1)) < int(found.group(2))
            self.assertEqual(digest(out / "model.safetensors"), self.expected)
        print(f"{kills} kills over {trainings} trainings, {midway} resumed midway: same bits")
        self.assertGreaterEqual(midway, min(5, KILLS // 4))

    def test_ctrl_c_saves_and_exits_130(self):
        out = self.directory / "interrupted"
        interrupted = 0
        for attempt in range(40):
            command = [word for word in self.command(out) if word != "--quiet"]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                       text=True)
            for line in process.stderr:
                if line.startswith("epoch "):  # it trains
                    break
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate()
            if process.returncode == 130:
                self.assertIn("--resume", errors)
                self.assertTrue((out / "checkpoint.safetensors").exists())
                interrupted += 1
                if interrupted == 3:
                    break
            elif process.returncode == 0:  # it had ended already: again, from the start
                self.assertEqual(digest(out / "model.safetensors"), self.expected)
                out = self.directory / f"interrupted-{attempt}"
            else:
                self.fail(f"exit status {process.returncode}: {errors}")
        self.assertGreater(interrupted, 0)
        subprocess.run(self.command(out), check=True, capture_output=True)
        self.assertEqual(digest(out / "model.safetensors"), self.expected)

    def test_threads_do_not_change_the_bits(self):
        for threads in (1, 3):
            out = self.directory / f"threads-{threads}"
            subprocess.run(self.command(out, "--threads", str(threads)), check=True,
                           capture_output=True)
            self.assertEqual(digest(out / "model.safetensors"), self.expected)

    def test_a_checkpoint_of_another_run_is_refused(self):
        """The recipe is all that a run is made of: settings, labels, features as computed, gold. What differs is named."""
        out = self.directory / "other"
        short = ["--set", "training.epochs=2"]
        tool.run("--quiet", "train", self.config, "--data", self.data, "--out", out, *short, check=0)
        before = digest(out / "model.safetensors")
        def refusal(data, *more):
            result = tool.run("train", self.config, "--data", data, "--out", out, "--resume", *short, *more, check=2)
            self.assertEqual(digest(out / "model.safetensors"), before)
            return result.stderr
        for setting, words in (("training.learning_rate=1e-4", "training.learning_rate: 0.005 then, 0.0001 now"),
                               ("training.epochs=3", "training.epochs: 2 then, 3 now"),
                               ("features.kind=mfcc", 'features.kind: "log_mel" then, "mfcc" now'),
                               ("features.fmin=300", "features.fmin: 20 then, 300 now"),
                               ("features.preemphasis=0.5", "features.preemphasis: 0.97 then, 0.5 now"),
                               ("features.window_ms=30", "features.window_ms: 25 then, 30 now"),
                               ("features.normalise_recording=true", "features.normalise_recording: false then, true now"),
                               ("training.select_by=loss", "training.select_by: ")):
            self.assertIn(words, refusal(self.data, "--set", setting))
        self.assertIn("start from this one's model (--init)", refusal(self.data, "--set", "training.epochs=3"))
        self.assertNotIn("--init", refusal(self.data, "--set", "features.fmin=300"))
        # Other labels of the same order, other gold, other audio.
        def corpus(name, change):
            folder = self.directory / name
            shutil.copytree(self.data, folder)
            for path in sorted((folder / "train").iterdir()):
                change(path)
            return folder
        def rename(path):
            if path.suffix == ".phn":
                path.write_text(re.sub(r" (\w+)$", r" \1x", path.read_text(), flags=re.M))
        def move(path):
            if path.suffix == ".phn":
                rows = [row.split() for row in path.read_text().splitlines()]
                if int(rows[1][1]) - int(rows[1][0]) > 320:
                    rows[0][1] = rows[1][0] = str(int(rows[1][0]) + 160)
                path.write_text("".join(" ".join(row) + "\n" for row in rows))
        def drown(path):
            if path.suffix == ".wav":
                data = path.read_bytes()
                path.write_bytes(data[:44] + random.Random(path.name).randbytes(len(data) - 44))
        names = refusal(corpus("renamed", rename))
        self.assertRegex(names, r"label 0: (\w+) then, \1x now")
        self.assertIn("gold segments of the training recordings", refusal(corpus("moved", move)))
        self.assertIn("features of the training recordings", refusal(corpus("drowned", drown)))
        # What is measured at the end is part of the run.
        tested = self.directory / "tested"
        shutil.copytree(self.data, tested)
        for path in sorted((tested / "test").iterdir()):
            drown(path)
        self.assertIn("features of the test recordings", refusal(tested))
        # Where the data lie is no matter, nor what the run is called.
        elsewhere = self.directory / "elsewhere"
        shutil.copytree(self.data, elsewhere)
        tool.run("train", self.config, "--data", elsewhere, "--out", out, "--resume", *short, "--set", "title=Another", check=0)
        recipe = json.loads(metadata(out / "model.safetensors")["recipe"])
        self.assertEqual((recipe["features.kind"], recipe["training.epochs"]), ('"log_mel"', "2"))
        damaged = out / "checkpoint.safetensors"
        damaged.write_bytes(damaged.read_bytes()[:100])
        result = tool.run("train", self.config, "--data", self.data, "--out", out, "--resume", check=3)
        self.assertIn("checkpoint.safetensors", result.stderr)


if __name__ == "__main__":
    unittest.main()
