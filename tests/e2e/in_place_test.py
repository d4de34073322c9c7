"""Ranks that go on without one that is lost: the same files as of an undisturbed training."""

import json
import os
import random
import signal
import time
import unittest

import tool
from ranks import RanksTestCase, shared_memory, workers_of

KILLS = int(os.environ.get("SEGFUSE_RANK_KILLS", "6"))
MESSAGES = int(os.environ.get("SEGFUSE_RANK_MESSAGES", "6"))
DIE_WITHIN = os.environ["SEGFUSE_DIE_WITHIN_LIBRARY"]
FOUR = ["--set", "training.shards=4"]
ENDLESS = ["--set", "training.epochs=100000"]


class InPlaceTest(RanksTestCase):
    def ranks(self, out, *more, count=4, least=1, env=None):
        return self.start(*self.arguments(out, "--ranks", str(count), "--min-ranks", str(least), *FOUR, *more), env=env)

    def test_nobody_is_lost(self):
        code, _, errors = self.finish(self.ranks("whole", least=4))
        self.assertEqual(code, 0, errors)
        self.check_files("whole")

    def test_killed_ranks_leave_no_trace_in_the_files(self):
        rng = random.Random(20261125)
        shared = shared_memory()
        kills = trainings = late = 0
        while kills < KILLS:
            out = f"killed-{trainings}"
            trainings += 1
            process = self.ranks(out)
            everybody = []
            for _ in range(rng.choice((1, 2, 3))):
                # Behind any line of an epoch, and a little later: in a step, an exchange, a score.
                for _ in range(rng.choice((1, 1, 2, 4))):
                    self.wait_for_training(process)
                victims = {rank: pid for rank, pid in workers_of(process).items() if rank > 0}
                everybody += victims.values()
                if not victims:
                    break
                time.sleep(rng.uniform(0, 0.1))
                try:
                    os.kill(victims[rng.choice(sorted(victims))], signal.SIGKILL)
                    kills += 1
                except ProcessLookupError:
                    late += 1
            code, said, errors = self.finish(process)
            self.assertEqual(code, 0, errors)
            self.assertEqual(said.count("report: "), 1)
            self.check_files(out)
            self.check_gone(everybody)
        print(f"{kills} processes killed in {trainings} trainings: same files")
        self.assertEqual(shared_memory() - shared, set())

    def test_a_rank_that_dies_within_a_message(self):
        died = 0
        for number in range(MESSAGES):
            kind = ("data", "words", "data")[number % 3]
            # A rank sends more than 400 messages of data here, and a handful of words.
            place = 1 + 7 * number % 400 if kind == "data" else 1 + number // 3 % 6
            env = {"LD_PRELOAD": DIE_WITHIN, "SEGFUSE_DIE_WITHIN": f"{1 + number % 3}:{kind}:{place}:{(0, 5, 16, 100)[number % 4]}"}
            code, _, errors = self.finish(self.ranks("within", "--overwrite", env=env))
            self.assertEqual(code, 0, (env, errors))
            self.check_files("within")
            died += "go on (generation 1)" in errors
        print(f"{died} of {MESSAGES} trainings lost a rank within a message: same files")
        self.assertGreater(died, MESSAGES // 2)

    def test_a_loss_is_said_and_shown(self):
        process = self.ranks("said", *ENDLESS)
        self.wait_for_training(process)
        victim = workers_of(process)[2]
        os.kill(victim, signal.SIGKILL)
        asked = {"generation": 0}
        while asked["generation"] == 0:
            self.assertIsNone(process.poll())
            asked = json.loads(tool.run("doctor", "ranks", self.directory / "said", "--json", check=0).stdout)
        self.assertEqual([row["lost"] for row in asked["ranks"]], [False, False, True, False])
        self.assertIn("generation 1: 3 of them are left", tool.run("doctor", "ranks", self.directory / "said", check=0).stdout)
        process.send_signal(signal.SIGINT)
        code, _, errors = self.finish(process)
        self.assertEqual(code, 130, errors)
        self.assertRegex(errors, rf"rank 2 \(host \S+, pid {victim}\) was lost in step \d+, .*; 3 of 4 ranks go on \(generation 1\)")
        self.assertRegex(errors, rf"rank 2 \(pid {victim}\) was killed by signal 9 \(Killed\) in step \d+, ")
        self.assertEqual(errors.count("continue with --resume"), 1, errors)
        self.assertEqual(errors.count("was lost"), 1, errors)

    def test_what_cannot_be_mended_ends_all(self):
        for out, victim, least in (("first", 0, 1), ("few", 2, 3)):
            process = self.ranks(out, *ENDLESS, count=3, least=least)
            self.wait_for_training(process)
            workers = workers_of(process)
            os.kill(workers[victim], signal.SIGKILL)
            code, _, errors = self.finish(process)
            self.assertEqual(code, 4, errors)
            self.assertEqual(errors.count("was lost in step"), 1, errors)
            self.assertRegex(errors, rf"rank {victim} \(host \S+, pid {workers[victim]}\) was lost in step \d+, ")
            self.assertRegex(errors, rf"rank {victim} \(pid {workers[victim]}\) was killed by signal 9")
            self.assertEqual("2 of 3 ranks would be left, and --min-ranks is 3" in errors, out == "few", errors)
            self.check_gone(workers.values())

    def test_what_makes_no_sense_is_refused(self):
        for more, text in (
                (["--ranks", "2", "--min-ranks", "3"], "--min-ranks 3: there are 2 ranks; expected 1 to 2"),
                (["--ranks", "2", "--min-ranks", "-1"], "--min-ranks -1: there are 2 ranks"),
                (["--min-ranks", "2"], "this is one process"),
                (["--ranks", "2", "--min-ranks", "2", "--comm", "nccl"], "leave --comm nccl out")):
            result = tool.run(*self.arguments("refused", *more))
            self.assertEqual(result.returncode, 2, (more, result.stderr))
            self.assertIn(text, result.stderr)


if __name__ == "__main__":
    unittest.main()
