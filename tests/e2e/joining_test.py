"""Ranks that join a training while it runs: the same files as of an undisturbed training."""

import os
import random
import re
import signal
import socket
import time
import unittest

import tool
from ranks import RanksTestCase, digest, listening_ports, shared_memory, tensors, workers_of

KILLS = int(os.environ.get("SEGFUSE_RANK_KILLS", "5"))
DIE_WITHIN = os.environ["SEGFUSE_DIE_WITHIN_LIBRARY"]
EIGHT = ["--set", "training.batch_size=8", "--set", "training.shards=8", "--set", "training.epochs=120"]
JOINS = re.compile(r"rank (\d+) \(host \S+, pid (\d+)\) joins; (\d+) of (\d+) ranks go on")


class JoiningTest(RanksTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        tool.run(*cls.arguments("long", *EIGHT), check=0)
        cls.expected = [digest(cls.directory / "long" / name) for name in cls.files]

    def ranks(self, out, *more, count=4, least=1, restarts=100, env=None):
        return self.start(*self.arguments(out, "--ranks", str(count), "--min-ranks", str(least), "--restarts", str(restarts),
                                          *EIGHT, *more), env=env)

    def lines_until(self, process, pattern):
        """What is said until a line that has it, or until the end."""
        said = []
        for line in process.stderr:
            said.append(line)
            if re.search(pattern, line):
                break
        return "".join(said)

    def test_eight_then_five_then_eight(self):
        shared = shared_memory()
        process = self.ranks("eight", count=8, least=5, restarts=3)
        self.wait_for_training(process)
        everybody = workers_of(process)
        self.assertEqual(sorted(everybody), list(range(8)))
        for rank in (2, 5, 7):
            os.kill(everybody[rank], signal.SIGKILL)
        said = self.lines_until(process, r"joins; 8 of 8 ranks go on")
        self.assertIn("5 of 8 ranks go on", said)
        self.assertEqual(sorted(int(rank) for rank, _, _, _ in JOINS.findall(said)), [2, 5, 7], said)
        now = workers_of(process)
        self.assertEqual(sorted(now), list(range(8)))
        code, _, errors = self.finish(process)
        self.assertEqual(code, 0, errors)
        self.check_files("eight")
        self.check_gone([*everybody.values(), *now.values()])
        self.assertEqual(listening_ports(now.values()), set())
        self.assertEqual(shared_memory() - shared, set())

    def test_one_of_two_that_is_lost_before_the_training_begins(self):
        # The bits are those of two ranks, though one alone chooses the number of shards.
        words = ["--set", "training.batch_size=8", "--set", "training.epochs=120"]
        tool.run(*self.arguments("two", *words), "--set", "training.shards=2", check=0)
        process = self.start(*self.arguments("early", "--ranks", "2", "--min-ranks", "1", "--restarts", "1", *words))
        self.lines_until(process, "2 ranks, on TCP")
        os.kill(workers_of(process)[1], signal.SIGKILL)
        said = self.lines_until(process, JOINS)
        code, _, errors = self.finish(process)
        self.assertEqual(code, 0, said + errors)
        self.assertIn("joins; 2 of 2 ranks go on", said)
        for name in self.files:
            self.assertEqual(tensors(self.directory / "early" / name), tensors(self.directory / "two" / name))

    def test_killed_ranks_are_replaced_and_leave_no_trace(self):
        rng = random.Random(20261127)
        shared = shared_memory()
        kills = joined = trainings = 0
        while kills < KILLS:
            out = f"killed-{trainings}"
            trainings += 1
            process = self.ranks(out)
            said = self.lines_until(process, r"^epoch ")
            everybody = set()
            for _ in range(rng.choice((1, 2, 3, 4))):
                workers = workers_of(process)
                everybody.update(workers.values())
                victims = {rank: pid for rank, pid in workers.items() if rank > 0}
                if not victims:
                    break
                # Also one that is to join, at any moment of its life.
                time.sleep(rng.choice((0, rng.uniform(0, 0.1), rng.uniform(0, 1))))
                try:
                    os.kill(victims[rng.choice(sorted(victims))], signal.SIGKILL)
                    kills += 1
                except ProcessLookupError:
                    pass
                if rng.random() < 0.6:
                    said += self.lines_until(process, JOINS)
            everybody.update(workers_of(process).values())
            code, output, errors = self.finish(process)
            self.assertEqual(code, 0, said + errors)
            self.assertEqual(output.count("report: "), 1)
            self.check_files(out)
            self.check_gone(everybody)
            joined += len(JOINS.findall(said + errors))
        print(f"{kills} processes killed in {trainings} trainings, {joined} joined: same files")
        self.assertGreater(joined, 0)
        self.assertEqual(shared_memory() - shared, set())

    def test_a_newcomer_that_dies_within_a_message(self):
        died = 0
        for number in range(KILLS):
            kind = ("data", "words", "data")[number % 3]
            # Each process of that rank dies there: the first one, and those that are to join.
            place = 60 + number if number % 4 == 0 else 1 + number % 9
            env = {"LD_PRELOAD": DIE_WITHIN, "SEGFUSE_DIE_WITHIN": f"{1 + number % 3}:{kind}:{place}:{(0, 5, 16, 100)[number % 4]}"}
            code, _, errors = self.finish(self.ranks("within", "--overwrite", restarts=3, env=env))
            self.assertEqual(code, 0, (env, errors))
            self.check_files("within")
            died += "is started again, to join the others" in errors
        print(f"{died} of {KILLS} trainings lost processes within a message: same files")
        self.assertGreater(died, KILLS // 3)

    def test_by_hand(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        endless = ["--set", "training.epochs=100000"]

        def begin(rank, *more, data=self.data, **variables):
            env = {"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port), "SEGFUSE_JOB_KEY": "the key of this very test", **variables}
            words = self.arguments("hand", "--min-ranks", "1", *EIGHT, *endless, *more)
            words[words.index("--data") + 1] = str(data)
            process = self.start(*words, env=env)
            self.addCleanup(process.kill)
            return process

        ranks = [begin(rank) for rank in range(3)]
        self.wait_for_training(ranks[0])
        ranks[2].send_signal(signal.SIGKILL)
        self.lines_until(ranks[0], "2 of 3 ranks go on")
        ranks[2].communicate()
        other = self.directory / "other"
        tool.run("synth", other, "--train", 12, "--test", 4, "--labels", 4, "--seed", 5, check=0)
        for more, data, text in (
                (["--set", "training.clip=3"], self.data, r"this process cannot join the ranks, which do not train the same .*training.clip"),
                (["--set", "model.dropout=0.1"], self.data, r"cannot join the ranks, .*model.dropout"),
                ([], other, r"cannot join the ranks, .*features of the training recordings"),
                (["--compare"], self.data, r"the ranks do not agree on --compare: rank 2 .* has given; ranks 0 and 1 have not given")):
            got, _, errors = self.finish(begin(2, *more, data=data))
            self.assertEqual(got, 2, errors)
            self.assertRegex(errors, text)
            self.assertEqual(errors.count("segfuse: "), 1, errors)
            self.assertIsNone(ranks[0].poll())
        ranks[2] = begin(2)
        said = self.lines_until(ranks[0], JOINS)
        self.assertIn(f"pid {ranks[2].pid}) joins; 3 of 3 ranks go on", said)
        self.wait_for_training(ranks[0])
        ranks[0].send_signal(signal.SIGINT)
        for rank in ranks:
            got, _, errors = self.finish(rank)
            self.assertEqual(got, 130, errors)
        self.check_gone(rank.pid for rank in ranks)

    def test_a_comparison_cannot_be_joined(self):
        process = self.start(*self.arguments("compared", "--ranks", "3", "--min-ranks", "1", "--restarts", "5", "--compare",
                                             *EIGHT))
        self.wait_for_training(process)
        os.kill(workers_of(process)[2], signal.SIGKILL)
        code, _, errors = self.finish(process)
        self.assertEqual(code, 0, errors)
        self.assertNotIn("is started again", errors)


if __name__ == "__main__":
    unittest.main()
