"""A killed or interrupted training loses nothing: resumed, it ends with the same bits."""

import hashlib
import os
import random
import re
import signal
import subprocess
import time
import unittest

import tool

KILLS = int(os.environ.get("SEGFUSE_KILLS", "50"))


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
        delay = 0.4 * self.seconds
        for attempt in range(40):
            process = subprocess.Popen(self.command(out), stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True)
            time.sleep(delay)
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
                delay *= 0.7
            else:  # it was still reading the recordings, where Ctrl-C simply ends it
                delay *= 1.3
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
        out = self.directory / "other"
        subprocess.run(self.command(out), check=True, stdout=subprocess.DEVNULL)
        result = tool.run("train", self.config, "--data", self.data, "--out", out, "--resume", "--set",
                          "training.learning_rate=1e-4", check=2)
        self.assertIn("another configuration", result.stderr)
        damaged = out / "checkpoint.safetensors"
        damaged.write_bytes(damaged.read_bytes()[:100])
        result = tool.run("train", self.config, "--data", self.data, "--out", out, "--resume", check=3)
        self.assertIn("checkpoint.safetensors", result.stderr)


if __name__ == "__main__":
    unittest.main()
