"""Ranks that are started again after one was lost: the same files as of an undisturbed training."""

import json
import os
import random
import re
import shutil
import signal
import time
import unittest

import tool
from ranks import RanksTestCase, digest, listening_ports, shared_memory, workers_of

KILLS = int(os.environ.get("SEGFUSE_RANK_KILLS", "5"))
DIE_WITHIN = os.environ["SEGFUSE_DIE_WITHIN_LIBRARY"]
FOUR = ["--set", "training.shards=4"]
TWO_EPOCHS = ["--set", "training.epochs=2"]
OFTEN = ["--checkpoint-every", "0.000001"]
ENDLESS = ["--set", "training.epochs=100000"]
# What the launcher says of a process that it starts again.
LOST = re.compile(r"(?:rank (\d+)|the process) \(pid \d+\) was killed by signal 9 \(Killed\)(?: in step (\d+), (.*?), [0-9.]+ m?s after)?")


def metrics(folder):
    """Without what took time, and how it was started."""
    found = json.loads((folder / "metrics.json").read_text())
    del found["run"]
    return {name: value for name, value in found.items() if not name.endswith("seconds")}


class RestartTest(RanksTestCase):
    def train(self, out, *more, env=None):
        return self.start(*self.arguments(out, *FOUR, *more), env=env)

    def planted(self, out, deaths, *more, once=True):
        """A training whose ranks die as tests/support/system/die_within.cpp says."""
        env = {"LD_PRELOAD": DIE_WITHIN, "SEGFUSE_DIE_WITHIN": deaths}
        if once:
            mark = self.directory / f"died-{out}-{len(list(self.directory.iterdir()))}"
            env["SEGFUSE_DIE_ONCE"] = str(mark)
        return self.finish(self.train(out, *more, env=env))

    def check_run(self, out, like="one", also=()):
        """Each file that an undisturbed training writes, and no other one."""
        folder, whole = self.directory / out, self.directory / like
        self.assertEqual(sorted(os.listdir(folder)), sorted([*os.listdir(whole), *also]))
        for name in ("model.safetensors", "checkpoint.safetensors", "recordings.json", "sequence.svg"):
            self.assertEqual(digest(folder / name), digest(whole / name), name)
        self.assertEqual(metrics(folder), metrics(whole))

    def test_planted_deaths(self):
        """One of each phase: the meeting, the data, an exchange, a checkpoint, the results."""
        for deaths, rank in (("1:words:1:5", 1), ("0:words:3:0", 0), ("2:data:40:16", 2), ("0:data:90:0", 0), ("0:files:20:1", 0)):
            out = "planted-" + deaths.replace(":", "-")
            code, said, errors = self.planted(out, deaths, "--ranks", "3", "--restarts", "1", *OFTEN)
            self.assertEqual(code, 0, errors)
            [lost] = LOST.finditer(errors)
            self.assertEqual(int(lost[1]), rank, errors)
            self.assertEqual(errors.count("all ranks start again"), 1, errors)
            self.assertEqual(errors.count("(restart 1 of 1)"), 1, errors)
            self.assertEqual(said.count("report: "), 1)
            self.check_run(out)

    def test_random_kills(self):
        rng = random.Random(20261126)
        shared = shared_memory()
        begin = time.monotonic()
        self.finish(self.train("timed", "--ranks", "3"))
        seconds = time.monotonic() - begin
        kills = trainings = launchers = late = 0
        phases = {}
        while kills < KILLS:
            out = f"killed-{trainings}"
            trainings += 1
            code, more = None, []
            while code != 0:
                process = self.train(out, "--ranks", "3", "--restarts", "100", *OFTEN, *more)
                everybody, ports = set(), set()
                for _ in range(rng.randint(1, 6)):
                    time.sleep(rng.uniform(0, 0.7 * seconds))
                    found = workers_of(process)
                    ports |= listening_ports([process.pid, *found.values()])
                    everybody |= set(found.values())
                    if kills == KILLS or process.poll() is not None or not found:
                        break
                    victim = rng.choice([*found.values(), *found.values(), *found.values(), process.pid])
                    try:
                        os.kill(victim, signal.SIGKILL)
                        kills += 1
                    except ProcessLookupError:
                        late += 1
                    if victim == process.pid:
                        launchers += 1
                        break
                code, _, errors = self.finish(process)
                self.assertIn(code, (0, -signal.SIGKILL), errors)
                for lost in LOST.finditer(errors):
                    phase = re.sub(r" \(.*", "", lost[3] or "before the meeting")
                    phases[phase] = phases.get(phase, 0) + 1
                self.check_gone(everybody)
                self.assertEqual(ports & listening_ports(int(name) for name in os.listdir("/proc") if name.isdigit()), set())
                more = ["--resume"]
            self.check_run(out)
            shutil.rmtree(self.directory / out)
        print(f"{kills} processes killed in {trainings} trainings, {launchers} launchers among them: same files; by phase: {phases}")
        self.assertEqual(shared_memory() - shared, set())

    def test_one_process(self):
        process = self.train("alone", "--restarts", "2", *OFTEN)
        self.wait_for_training(process)
        [victim] = workers_of(process).values()
        os.kill(victim, signal.SIGKILL)
        code, said, errors = self.finish(process)
        self.assertEqual(code, 0, errors)
        self.assertRegex(errors, rf"the process \(pid {victim}\) was killed by signal 9 \(Killed\) in step \d+, .*; it starts again after step \d+, "
                                 r"from \S+/alone/checkpoint.safetensors \(restart 1 of 2\)")
        self.assertEqual(re.findall(r"starts again after step (\d+)", errors), re.findall(r"resuming after (\d+) of 36 steps", errors))
        self.assertEqual(said.count("report: "), 1)
        self.check_run("alone")
        # A GPU or the CPU that was chosen by --devices is passed on.
        code, _, errors = self.planted("device", "0:files:9:0", "--devices", "cpu", "--restarts", "1")
        self.assertEqual((code, errors.count("it starts again")), (0, 1), errors)
        self.check_run("device")

    def test_one_process_does_not_outlive_its_launcher(self):
        process = self.train("orphan", "--restarts", "2", *ENDLESS)
        self.wait_for_training(process)
        [worker] = workers_of(process).values()
        process.kill()
        self.finish(process)
        self.check_gone([worker])
        self.assertTrue((self.directory / "orphan/checkpoint.safetensors").exists())
        self.assertFalse((self.directory / "orphan/ranks.json").exists())

    def test_a_death_at_any_file_of_a_run_that_replaces_another(self):
        """The checkpoint of the run that is replaced is nothing to go on from, and its model is kept."""
        former = self.directory / "former"
        tool.run(*self.arguments("former", *FOUR, *TWO_EPOCHS, "--set", "training.seed=9"), check=0)
        tool.run(*self.arguments("short", *FOUR, *TWO_EPOCHS), check=0)
        kept = digest(former / "model.safetensors")
        died = 0
        while True:
            out = f"replaced-{died}"
            shutil.copytree(former, self.directory / out)
            code, _, errors = self.planted(out, f"0:files:{died + 1}:1", *TWO_EPOCHS, "--overwrite", "--restarts", "1")
            self.assertEqual(code, 0, errors)
            self.check_run(out, "short", also=["model.previous.safetensors"])
            self.assertEqual(digest(self.directory / out / "model.previous.safetensors"), kept, errors)
            if "(restart 1 of 1)" not in errors:
                break
            died += 1
        self.assertGreater(died, 12)

    def test_a_run_of_others_is_not_continued(self):
        """Neither the same training nor another one, where the rank dies before it could refuse."""
        shutil.copytree(self.directory / "one", self.directory / "others")
        (self.directory / "others/model.safetensors").unlink()
        before = digest(self.directory / "others/checkpoint.safetensors")
        code, _, errors = self.planted("others", "1:words:1:0", "--ranks", "2", "--restarts", "3")
        self.assertEqual(code, 2, errors)
        self.assertIn("all ranks start again from the beginning, since there is no checkpoint yet (restart 1 of 3)", errors)
        self.assertIn("this directory has a started run", errors)
        self.assertEqual(digest(self.directory / "others/checkpoint.safetensors"), before)
        self.assertFalse((self.directory / "others/model.safetensors").exists())

    def test_with_compare_each_head_goes_on_from_its_own(self):
        small = [*TWO_EPOCHS, "--compare"]
        tool.run(*self.arguments("heads", *FOUR, *small), check=0)
        before = sorted(str(path.relative_to(self.directory / "heads")) for path in (self.directory / "heads").rglob("*"))
        shutil.copytree(self.directory / "heads", self.directory / "compared")
        # In the second head, whose former checkpoint is of another seed.
        tool.run(*self.arguments("compared", *FOUR, *small, "--set", "training.seed=9", "--overwrite"), check=0)
        code, _, errors = self.planted("compared", "0:files:12:1", *small, "--overwrite", "--restarts", "1")
        self.assertEqual((code, errors.count("it starts again")), (0, 1), errors)
        after = sorted(str(path.relative_to(self.directory / "compared")) for path in (self.directory / "compared").rglob("*"))
        self.assertEqual([name for name in after if "previous" not in name], before)
        for name in before:
            if name.endswith(".safetensors"):
                self.assertEqual(digest(self.directory / "heads" / name), digest(self.directory / "compared" / name), name)

    def test_the_same_death_each_time(self):
        code, _, errors = self.planted("again", "1:data:8:16", "--ranks", "2", "--restarts", "2", once=False)
        self.assertEqual(code, 4, errors)
        lost = [(one[1], one[2]) for one in LOST.finditer(errors)]
        self.assertEqual(lost, [("1", lost[0][1])] * 3, errors)
        self.assertEqual(re.findall(r"\(restart (\d) of 2\)", errors), ["1", "2"])
        self.assertRegex(errors, r"rank 1 \(pid \d+\) was killed .*; it was restarted 2 times already \(--restarts 2\)")
        # Rank 0 cannot take its file away where it is killed.
        for name, where, more in (("first", "0:data:8:16", ("--ranks", "2")), ("only", "0:files:9:0", ())):
            code, _, errors = self.planted(name, where, "--restarts", "1", *more, once=False)
            self.assertEqual(code, 4, errors)
            self.assertTrue((self.directory / name / ".segfuse-training").exists())
            self.assertFalse((self.directory / name / "ranks.json").exists())

    def test_a_rank_that_is_stopped(self):
        process = self.train("stopped", "--ranks", "2", "--restarts", "1", "--comm-timeout", "2")
        self.wait_for_training(process)
        victim = workers_of(process)[1]
        os.kill(victim, signal.SIGSTOP)
        code, _, errors = self.finish(process)
        self.assertEqual(code, 0, errors)
        self.assertRegex(errors, rf"rank 1 \(pid {victim}\) did not end within 5 s after the failure and was killed .*; all ranks start again after step \d+")
        self.check_gone([victim])
        self.check_run("stopped")

    def test_in_place_first(self):
        code, _, errors = self.planted("both", "2:data:9:0,0:data:120:16", "--ranks", "3", "--min-ranks", "2", "--restarts", "2")
        self.assertEqual(code, 0, errors)
        self.assertIn("2 of 3 ranks go on (generation 1)", errors)
        self.assertRegex(errors, r"rank 2 is started again, to join the others \(restart 1 of 2\)")
        self.assertRegex(errors, r"all ranks start again .*\(restart 2 of 2\)")
        self.check_run("both")
        code, _, errors = self.planted("in-place", "2:data:9:0", "--ranks", "3", "--min-ranks", "2", "--restarts", "1")
        self.assertEqual((code, errors.count("start again")), (0, 0), errors)
        self.check_run("in-place")

    def test_what_would_end_them_again_is_not_started_again(self):
        damaged = self.directory / "damaged"
        shutil.copytree(self.data, damaged)
        next(damaged.glob("train/*.wav")).write_bytes(b"RIFF, and no more")
        away = {"CUDA_VISIBLE_DEVICES": ""}
        for name, ranks in (("ranks", ["--ranks", "2"]), ("alone", [])):
            for kind, code, more, env in (("usage", 2, ["--set", "training.shards=3"], {}), ("data", 3, ["--data", str(damaged)], {}),
                                          ("not-finite", 2, ["--set", "training.learning_rate=1e30", "--set", "training.warmup=0", "--set", "training.clip=0"], {}),
                                          ("device", 4, ["--device", "cuda"], away)):
                arguments = [word for word in self.arguments(f"{kind}-{name}", *FOUR, *ranks, "--restarts", "3")]
                if kind == "data":
                    at = arguments.index("--data")
                    del arguments[at:at + 2]
                found, _, errors = self.finish(self.start(*arguments, *more, env=env))
                self.assertEqual(found, code, (kind, ranks, errors))
                self.assertNotIn("(restart", errors)

    def test_a_wish_to_end_is_none_to_start_again(self):
        for name, number, of_rank, ranks in (("ctrl-c", signal.SIGINT, None, ["--ranks", "2"]), ("rank", signal.SIGTERM, 1, ["--ranks", "2"]),
                                             ("one", signal.SIGTERM, None, []), ("child", signal.SIGHUP, 0, [])):
            process = self.train(f"wish-{name}", *ranks, "--restarts", "3", *ENDLESS)
            self.wait_for_training(process)
            found = workers_of(process)
            os.kill(process.pid if of_rank is None else found[of_rank], number)
            code, _, errors = self.finish(process)
            self.assertEqual(code, 130, errors)
            self.assertNotIn("(restart", errors)
            self.assertEqual(errors.count("continue with --resume"), 1, errors)
            self.check_gone(found.values())

    def test_ranks_of_others_are_theirs(self):
        for variables, text in (({"WORLD_SIZE": "4", "RANK": "1"}, "torchrun started these 4 processes (WORLD_SIZE=4)"),
                                ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, "Open MPI started these 2 processes (OMPI_COMM_WORLD_SIZE=2)"),
                                ({"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "2"}, "Slurm started these 3 processes (SLURM_STEP_NUM_TASKS=3)")):
            result = tool.run(*self.arguments("theirs", "--restarts", "3"), env=variables)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(f"--restarts 3: {text} and is the one to restart them", result.stderr)
        result = tool.run(*self.arguments("theirs", "--ranks", "2", "--restarts", "-1"))
        self.assertEqual((result.returncode, "--restarts -1: expected" in result.stderr), (2, True), result.stderr)
        self.assertFalse((self.directory / "theirs").exists())


if __name__ == "__main__":
    unittest.main()
