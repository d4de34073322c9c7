"""Ranks that mpirun starts share a training: the same files on any number of them, and after any of them was killed."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time
import unittest

import tool
from ranks import LIMIT, RanksTestCase, alive, children_of

KILLS = int(os.environ.get("SEGFUSE_RANK_KILLS", "6"))
MPIRUN = shutil.which("mpirun.openmpi")
# The wheel of the Python tests: an MPI with the standard ABI.
MPICH = tool.SOURCE / ".venv-python/bin/mpiexec.hydra"

@unittest.skipIf(MPIRUN is None, "Open MPI's mpirun is not installed")
class RanksTest(RanksTestCase):
    def launch(self, ranks, *commands):
        """mpirun with a command for all ranks, or one for each of several groups: (ranks, arguments)."""
        line = [MPIRUN, "--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            line.append("--allow-run-as-root")
        if ranks is not None:
            commands = [(ranks, commands)]
        for i, (count, command) in enumerate(commands):
            line += ([":"] if i else []) + ["-n", str(count), tool.SEGFUSE, *command]
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_any_number_of_ranks_writes_the_same_files(self):
        for ranks in (2, 3, 4):
            code, out, errors = self.finish(self.launch(ranks, *self.arguments(f"on-{ranks}", "--set", "training.shards=4")))
            self.assertEqual(code, 0, errors)
            self.check_files(f"on-{ranks}")
            self.assertEqual(errors.count("epoch  12"), 1, errors)
            self.assertEqual(out.count("report: "), 1, out)
            self.assertIn(f"{ranks} ranks, on Open MPI", errors)

    @unittest.skipUnless(MPICH.exists(), "the wheel mpich is not installed; make test-python installs it")
    def test_another_mpi_writes_the_same_files(self):
        line = [MPICH, "-n", "3", tool.SEGFUSE, *self.arguments("mpich", "--set", "training.shards=4")]
        process = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertIn("3 ranks, on MPICH", process.stderr)
        self.check_files("mpich")

    def test_no_rank_has_memory_that_a_child_would_lack(self):
        process = self.launch(3, *self.arguments("forks", "--set", "training.shards=4", "--set", "training.epochs=100000"))
        self.wait_for_training(process)
        ranks = [pid for pid in children_of(process.pid) if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "segfuse"]
        self.assertEqual(len(ranks), 3)
        for pid in ranks:
            found = json.loads(tool.run("doctor", "fork", str(pid), "--json", check=0).stdout)
            self.assertFalse(found["at_risk"], found)
        os.kill(ranks[1], signal.SIGTERM)
        self.assertEqual(self.finish(process)[0], 130)

    def test_shards_are_chosen_and_said(self):
        code, _, errors = self.finish(self.launch(3, *self.arguments("chosen")))
        self.assertEqual(code, 0, errors)
        self.assertIn("the same bits on 1 to 4 ranks: training.shards = 4", errors)
        self.check_tensors("chosen")

    def test_a_killed_rank_ends_all_and_nothing_is_lost(self):
        rng = random.Random(20261123)
        kills = resumed = trainings = 0
        while kills < KILLS:
            out = f"killed-{trainings}"
            trainings += 1
            ranks = 4
            while True:
                process = self.launch(ranks, *self.arguments(out, "--resume", "--checkpoint-every", "0.000001"))
                killed = False
                if kills < KILLS:
                    # When it trains, and a little later: during a step, an exchange, a checkpoint.
                    self.wait_for_training(process)
                    time.sleep(rng.uniform(0, 0.15))
                    workers = children_of(process.pid)
                    if workers:
                        try:
                            os.kill(rng.choice(workers), signal.SIGKILL)
                            killed = True
                        except ProcessLookupError:
                            pass
                code, _, errors = self.finish(process)
                kills += killed
                if code == 0:
                    break
                self.assertTrue(killed, errors)
                resumed += 1
                ranks = rng.choice((1, 2, 3, 4))
            self.check_tensors(out)
        print(f"{kills} ranks killed, {resumed} times resumed on another number of ranks: same bits")
        self.assertGreater(resumed, 0)

    def test_the_others_name_the_rank_that_went(self):
        for out, blow, more, text in (
                ("named", signal.SIGKILL, [], r"rank (\d) \(host \S+, pid (\d+)\) was lost in step \d+, "),
                ("stopped", signal.SIGSTOP, ["--comm-timeout", "2"], r"rank (\d) \(host \S+, pid (\d+)\) ")):
            process = self.launch(3, *self.arguments(out, "--set", "training.epochs=100000", *more))
            self.wait_for_training(process)
            asked = json.loads(tool.run("doctor", "ranks", self.directory / out, "--json", check=0).stdout)
            ranks = asked["ranks"] if isinstance(asked, dict) else asked
            self.assertEqual(len(ranks), 3)
            victim = [row["pid"] for row in ranks if row["rank"] == 2][0]
            os.kill(victim, blow)
            code, _, errors = self.finish(process)
            if blow == signal.SIGSTOP and alive(victim):
                os.kill(victim, signal.SIGKILL)
            self.assertNotEqual(code, 0)
            found = re.search(text, errors)
            self.assertTrue(found, errors)
            self.assertEqual((int(found.group(1)), int(found.group(2))), (2, victim), errors)
            self.assertFalse((self.directory / out / "ranks.json").exists())

    def test_mpiruns_ranks_leave_nothing_behind(self):
        process = self.launch(3, *self.arguments("left"))
        self.wait_for_training(process)
        workers = children_of(process.pid)
        self.assertGreaterEqual(len(workers), 3)
        os.kill(workers[1], signal.SIGKILL)
        self.assertNotEqual(self.finish(process)[0], 0)
        self.check_gone(workers)

    def test_one_ranks_wish_to_end_saves_and_ends_all(self):
        out = "wish"
        process = self.launch(3, *self.arguments(out, "--set", "training.epochs=100000"))
        self.wait_for_training(process)
        os.kill(children_of(process.pid)[2], signal.SIGTERM)
        code, _, errors = self.finish(process)
        self.assertEqual(code, 130, errors)
        self.assertEqual(errors.count("continue with --resume"), 1, errors)
        self.assertTrue((self.directory / out / "checkpoint.safetensors").exists())

    def test_ranks_that_train_something_else_are_refused(self):
        code, _, errors = self.finish(self.launch(None, (1, self.arguments("mixed")), (1, self.arguments("mixed", "--set", "training.learning_rate=1e-3"))))
        self.assertEqual(code, 2, errors)
        self.assertIn("rank 1 does not train the same as rank 0", errors)
        self.assertIn("training.learning_rate: 0.005 then, 0.001 now", errors)

    def test_what_is_wrong_is_said_once(self):
        for name, more, text in (
                ("few", ["--set", "training.shards=2"], "2 shards feed 2 ranks at most"),
                ("odd", ["--set", "training.batch_size=3"], "4 shards do not divide training.batch_size, which is 3"),
                ("wild", ["--set", "training.learning_rate=1e8", "--set", "training.clip=0"], "lower training.learning_rate"),
                ("wrong", ["--set", "training.epochs=many"], "'training.epochs' must be an integer")):
            code, out, errors = self.finish(self.launch(3, *self.arguments(name, *more)))
            self.assertIn(code, (2, 3), errors)
            self.assertEqual(errors.count(text), 1, errors)
            self.assertNotIn("report: ", out)

    def test_a_checkpoint_goes_on_alone_with_its_shards(self):
        out = "alone"
        process = self.launch(4, *self.arguments(out, "--checkpoint-every", "0.000001"))
        self.wait_for_training(process)
        os.kill(children_of(process.pid)[0], signal.SIGKILL)
        self.finish(process)
        result = tool.run(*self.arguments(out, "--resume"), check=0)
        self.assertTrue(re.search(r"resuming after \d+ of \d+ steps", result.stderr), result.stderr)
        self.check_tensors(out)
        again = tool.run(*self.arguments(out, "--resume", "--set", "training.shards=2"))
        self.assertEqual(again.returncode, 2)
        self.assertIn("training.shards: 4 then, 2 now", again.stderr)


if __name__ == "__main__":
    unittest.main()
