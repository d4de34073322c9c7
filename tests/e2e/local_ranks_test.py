"""Ranks without an MPI: those that segfuse starts itself, torchrun's, and those that are started by hand."""

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
from ranks import LIMIT, RanksTestCase, children_of, listening_ports, shared_memory, workers_of

KILLS = int(os.environ.get("SEGFUSE_RANK_KILLS", "6"))
TORCHRUN = tool.SOURCE / ".venv-python/bin/torchrun"
MPIRUN = shutil.which("mpirun.openmpi")
FOUR = ["--set", "training.shards=4"]
ENDLESS = ["--set", "training.epochs=100000"]
KEY = {"SEGFUSE_JOB_KEY": "a key that nobody guesses"}


def free_port():
    import socket
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class LocalRanksTest(RanksTestCase):
    def ranks(self, count, out, *more, env=None):
        return self.start(*self.arguments(out, "--ranks", str(count), *more), env=env)

    def by_hand(self, *commands, hosts=None, **variables):
        """A process for each command, as a script would start them; on so many hosts, by their names alone."""
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(commands)), **KEY, **variables}
        def before(rank):
            return ["unshare", "--uts", "sh", "-c", f'hostname {hosts[rank]} && exec "$@"', "sh"] if hosts else []
        return [self.start(*command, env={**place, "RANK": str(rank)}, before=before(rank)) for rank, command in enumerate(commands)]

    def test_any_number_of_ranks_writes_the_same_files(self):
        for count in (2, 3, 4):
            code, out, errors = self.finish(self.ranks(count, f"on-{count}", *FOUR))
            self.assertEqual(code, 0, errors)
            self.check_files(f"on-{count}")
            self.assertEqual(errors.count("epoch  12"), 1, errors)
            self.assertEqual(out.count("report: "), 1, out)
            self.assertIn(f"{count} ranks, on TCP", errors)
            self.assertNotIn("rank 1 |", errors)

    def test_shards_are_chosen_and_said(self):
        code, out, errors = self.finish(self.ranks(3, "chosen", "--json"))
        self.assertEqual(code, 0, errors)
        self.assertIn("the same bits on 1 to 4 ranks: training.shards = 4", errors)
        self.check_tensors("chosen")
        self.assertEqual(json.loads(out)["head"], "semi_markov")
        # A run's command line is what its user typed.
        said = json.loads((self.directory / "chosen/metrics.json").read_text())
        self.assertIn(" --ranks 3 ", said["run"]["command_line"])

    def test_a_folder_is_enough_for_ranks_too(self):
        folder = self.directory / "folder"
        folder.mkdir()
        for path in sorted((self.data / "train").iterdir())[:12]:
            shutil.copy(path, folder)
        def train(out, *more):
            return self.finish(self.start("train", folder, "--out", self.directory / out, "--set", "training.epochs=1", *more))

        # What is derived from the folder does not depend on who trains.
        models = []
        for ranks in (1, 2):
            code, _, errors = train(f"folder-{ranks}", "--ranks", str(ranks), "--set", "training.batch_size=2", "--set",
                                    "training.shards=2")
            self.assertEqual(code, 0, errors)
            self.assertIn("2 recordings a step", errors)
            models.append((self.directory / f"folder-{ranks}/model.safetensors").read_bytes())
        self.assertEqual(models[0], models[1])
        code, _, errors = train("folder-refused", "--ranks", "2")
        self.assertEqual(code, 2, errors)
        self.assertIn("training.batch_size, which is 1; set training.batch_size to a multiple of 2", errors)

    def test_no_mpi_is_needed(self):
        code, _, errors = self.finish(self.ranks(2, "bare", *FOUR, env={"PATH": str(self.directory)}))
        self.assertEqual(code, 0, errors)
        self.check_files("bare")

    def test_a_killed_rank_ends_all_and_nothing_is_lost(self):
        rng = random.Random(20261124)
        shared = shared_memory()
        kills = resumed = trainings = 0
        while kills < KILLS:
            out, count = f"killed-{trainings}", 4
            trainings += 1
            while True:
                process = self.start(*self.arguments(out, "--resume", "--checkpoint-every", "0.000001", *(["--ranks", str(count)] if count > 1 else [])))
                killed, workers = False, []
                if kills < KILLS and count > 1:
                    # When it trains, and a little later: during a step, an exchange, a checkpoint.
                    self.wait_for_training(process)
                    time.sleep(rng.uniform(0, 0.15))
                    workers = children_of(process.pid)
                    victims = [*workers, process.pid]
                    try:
                        os.kill(rng.choice(victims) if workers else process.pid, signal.SIGKILL)
                        killed = True
                    except ProcessLookupError:
                        pass
                code, _, errors = self.finish(process)
                kills += killed
                self.check_gone(workers)
                if code == 0:
                    break
                self.assertTrue(killed, errors)
                self.assertIn(code, (4, -signal.SIGKILL), errors)
                resumed += 1
                count = rng.choice((1, 2, 3, 4))
            self.check_tensors(out)
        print(f"{kills} processes killed, {resumed} times resumed on another number of ranks: same bits")
        self.assertGreater(resumed, 0)
        self.assertEqual(shared_memory() - shared, set())

    def test_ctrl_c_saves_once_and_leaves_nothing(self):
        shared = shared_memory()
        for name, number, whom in (("ctrl-c", signal.SIGINT, 0), ("scheduler", signal.SIGTERM, 0), ("one-rank", signal.SIGTERM, 2), ("terminal", signal.SIGHUP, 0)):
            process = self.ranks(3, name, *FOUR, *ENDLESS)
            self.wait_for_training(process)
            family = [process.pid, *children_of(process.pid)]
            self.assertEqual(len(family), 4)
            ports = listening_ports(family)
            self.assertTrue(ports)
            os.kill(family[whom], number)
            code, out, errors = self.finish(process)
            self.assertEqual(code, 130, errors)
            self.assertEqual(errors.count("continue with --resume"), 1, errors)
            self.assertNotIn("rank 1 |", errors)
            self.assertEqual(out, "")
            self.check_gone(family[1:])
            self.assertEqual(ports & listening_ports(int(p.name) for p in pathlib.Path("/proc").iterdir() if p.name.isdigit()), set())
            self.assertTrue((self.directory / name / "checkpoint.safetensors").exists())
            self.assertFalse((self.directory / name / "ranks.json").exists())
        self.assertEqual(shared_memory() - shared, set())

    def test_no_rank_has_memory_that_a_child_would_lack(self):
        process = self.ranks(3, "forks", *FOUR, *ENDLESS)
        self.wait_for_training(process)
        for rank, pid in [("launcher", process.pid), *workers_of(process).items()]:
            found = json.loads(tool.run("doctor", "fork", str(pid), "--json", check=0).stdout)
            self.assertFalse(found["at_risk"], (rank, found))
            self.assertEqual(found["pinned_bytes"], 0, rank)
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(process)[0], 130)

    def test_an_interrupted_training_goes_on(self):
        process = self.ranks(2, "goes-on", *FOUR)
        self.wait_for_training(process)
        process.send_signal(signal.SIGINT)
        code, _, errors = self.finish(process)
        self.assertIn(code, (0, 130), errors)
        tool.run(*self.arguments("goes-on", "--resume", "--ranks", "3", *FOUR), check=0)
        self.check_files("goes-on")

    def test_ctrl_c_before_the_first_step(self):
        for wait in (0.0, 0.02, 0.1):
            process = self.ranks(2, f"early-{wait}", *ENDLESS)
            while not children_of(process.pid):
                self.assertIsNone(process.poll())
            time.sleep(wait)
            process.send_signal(signal.SIGINT)
            family = children_of(process.pid)
            code, _, errors = self.finish(process)
            self.assertEqual(code, 130, errors)
            self.check_gone(family)

    def test_the_launcher_may_be_killed(self):
        process = self.ranks(3, "orphans", *FOUR, *ENDLESS)
        self.wait_for_training(process)
        workers = children_of(process.pid)
        self.assertEqual(len(workers), 3)
        process.kill()
        self.finish(process)
        self.check_gone(workers)

    def test_the_rank_that_went_is_named(self):
        for out, blow, more, texts in (
                ("named", signal.SIGKILL, [], [r"rank (2) \(host \S+, pid (\d+)\) was lost in step \d+, ", r"rank (2) \(pid (\d+)\) was killed by signal 9 \(Killed\) in step \d+, "]),
                ("stopped", signal.SIGSTOP, ["--comm-timeout", "2"], [r"rank (2) \(host \S+, pid (\d+)\) "])):
            process = self.ranks(3, out, *FOUR, *ENDLESS, *more)
            self.wait_for_training(process)
            asked = json.loads(tool.run("doctor", "ranks", self.directory / out, "--json", check=0).stdout)
            rows = asked["ranks"] if isinstance(asked, dict) else asked
            self.assertEqual(len(rows), 3)
            victim = [row["pid"] for row in rows if row["rank"] == 2][0]
            workers = children_of(process.pid)
            os.kill(victim, blow)
            code, _, errors = self.finish(process)
            self.assertEqual(code, 4, errors)
            for text in texts:
                found = re.findall(text, errors)
                self.assertEqual(found[:1], [("2", str(victim))], errors)
                self.assertEqual(len(found), 1, errors)
            self.check_gone(workers)
            self.assertFalse((self.directory / out / "ranks.json").exists())

    def test_what_is_wrong_is_said_once(self):
        for name, code, more, text in (
                ("few", 2, ["--set", "training.shards=2"], "2 shards feed 2 ranks at most"),
                ("odd", 2, ["--set", "training.batch_size=3"], "4 shards do not divide training.batch_size, which is 3"),
                ("wild", 2, ["--set", "training.learning_rate=1e8", "--set", "training.clip=0"], "lower training.learning_rate"),
                ("wrong", 2, ["--set", "training.epochs=many"], "'training.epochs' must be an integer"),
                ("mpi", 2, ["--comm", "mpi"], "no launcher of an MPI did")):
            shutil.rmtree(self.directory / name, ignore_errors=True)
            found, out, errors = self.finish(self.ranks(3, name, *more))
            self.assertEqual(found, code, errors)
            self.assertIn(text, errors)
            if name != "mpi":  # said before they have met
                self.assertEqual(errors.count(text), 1, errors)
                self.assertNotIn("rank 1 |", errors)
            self.assertNotIn("report: ", out)
        broken = self.directory / "broken"
        broken.mkdir()
        (broken / "checkpoint.safetensors").write_bytes(b"no checkpoint")
        code, _, errors = self.finish(self.ranks(2, "broken", "--resume", "--overwrite"))
        self.assertEqual(code, 3, errors)
        self.assertEqual(errors.count("checkpoint.safetensors"), 1, errors)

    def test_what_cannot_be_started_is_refused(self):
        for more, text in (
                (["--ranks=5000"], "between 2 and 4096"),
                (["--ranks=-3"], "between 2 and 4096"),
                (["--ranks", "8"], "8 shards do not divide"),
                (["--ranks", "2", "--devices", "all"], "excludes"),
                (["--devices", "gpu:0"], "--devices 'gpu:0' does not name GPUs; expected all, cpu, or GPUs as in cuda:0-3"),
                (["--devices", "cuda:"], "does not name GPUs"),
                (["--devices", "cuda:3-1"], "does not name GPUs"),
                (["--devices", "cuda:0,"], "does not name GPUs"),
                (["--devices", "all", "--device", "cuda:1"], "both say where to train"),
                (["--comm", "ucx"], "nccl")):
            result = tool.run(*self.arguments("refused", *more))
            self.assertEqual(result.returncode, 2, (more, result.stderr))
            self.assertIn(text, result.stderr)
        if not shutil.which("nvidia-smi"):
            result = tool.run(*self.arguments("refused", "--devices", "cuda:0-1"))
            self.assertEqual(result.returncode, 4, result.stderr)
            self.assertIn("libcuda", result.stderr)
        inside = tool.run(*self.arguments("refused", "--ranks", "2"), env={"RANK": "0", "WORLD_SIZE": "2"})
        self.assertEqual(inside.returncode, 2, inside.stderr)
        self.assertIn("leave --ranks and --devices out", inside.stderr)

    def test_one_device_is_one_process(self):
        result = tool.run(*self.arguments("cpu", *FOUR, "--devices", "cpu"), check=0)
        self.assertNotIn("ranks, on", result.stderr)
        self.check_files("cpu")

    def test_ranks_by_hand_meet_where_the_environment_says(self):
        processes = self.by_hand(*[self.arguments("by-hand", *FOUR)] * 3)
        for rank, process in reversed(list(enumerate(processes))):
            code, out, errors = self.finish(process)
            self.assertEqual(code, 0, errors)
            self.assertEqual(out.count("report: "), rank == 0, out)
        self.check_files("by-hand")

    @unittest.skipUnless(subprocess.run(["unshare", "--uts", "true"], capture_output=True).returncode == 0, "no right to give processes another host name")
    def test_ranks_of_two_machines_write_the_same_files(self):
        for name, hosts, said in (("halves", "aabb", True), ("in-turn", "abab", False), ("uneven", "aaab", False)):
            processes = self.by_hand(*[self.arguments(name, *FOUR)] * 4, hosts=hosts)
            for rank, process in reversed(list(enumerate(processes))):
                code, _, errors = self.finish(process)
                self.assertEqual(code, 0, errors)
                self.assertEqual("gradients are summed within each of 2 machines first" in errors, said and rank == 0, errors)
            self.check_files(name)

    def test_ranks_by_hand_end_together(self):
        processes = self.by_hand(*[self.arguments("hand-killed", *FOUR, *ENDLESS)] * 3)
        self.wait_for_training(processes[0])
        processes[1].kill()
        self.assertEqual(self.finish(processes[1])[0], -signal.SIGKILL)
        code, _, errors = self.finish(processes[0])
        self.assertEqual(code, 4)
        self.assertIn("rank 1 (host", errors)
        self.assertEqual(self.finish(processes[2])[::2], (4, ""))

    def test_ranks_by_hand_that_differ_are_refused(self):
        first, other = self.by_hand(self.arguments("mixed"), self.arguments("mixed", "--set", "training.learning_rate=1e-3"))
        code, _, errors = self.finish(first)
        self.assertEqual(code, 2, errors)
        self.assertIn("rank 1 does not train the same as rank 0", errors)
        self.assertIn("training.learning_rate: 0.005 then, 0.001 now", errors)
        self.assertEqual(self.finish(other)[0], 2)

    def test_ranks_by_hand_need_a_key(self):
        [alone] = self.by_hand(self.arguments("keyless"), WORLD_SIZE="2", SEGFUSE_JOB_KEY="")
        code, _, errors = self.finish(alone)
        self.assertEqual(code, 2, errors)
        self.assertIn("set SEGFUSE_JOB_KEY", errors)

    @unittest.skipUnless(TORCHRUN.exists(), "PyTorch is not installed; make test-python installs it")
    def test_torchrun_starts_ranks(self):
        for name, options in (("standalone", ["--standalone"]), ("port", ["--master-addr", "127.0.0.1", "--master-port", str(free_port())])):
            line = [TORCHRUN, *options, "--nproc-per-node", "2", "--no-python", tool.SEGFUSE, *self.arguments(name, *FOUR)]
            process = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual(process.returncode, 0, process.stderr)
            self.assertIn("2 ranks, on TCP", process.stderr)
            self.check_files(name)

    @unittest.skipIf(MPIRUN is None, "Open MPI's mpirun is not installed")
    def test_ranks_of_an_mpi_may_use_tcp(self):
        line = [MPIRUN, "--oversubscribe", "--bind-to", "none", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "-n", "2",
                tool.SEGFUSE, *self.arguments("tcp", *FOUR, "--comm", "tcp")]
        process = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, env={**os.environ, **KEY})
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertIn("2 ranks, on TCP", process.stderr)
        self.check_files("tcp")


if __name__ == "__main__":
    unittest.main()
