"""What the user has is safe: files in the way, former runs, two runs at once."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import unittest

import tool


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def contents(folder):
    return {path.relative_to(folder): digest(path) for path in sorted(folder.rglob("*")) if path.is_file()}


class FilesTest(tool.ToolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data, cls.config = cls.corpus()
        cls.model = cls.directory / "run"
        tool.run("train", cls.config, "--data", cls.data, "--out", cls.model, "--set", "training.epochs=2", "--quiet", check=0)

    def refused(self, *arguments, words):
        result = tool.run(*arguments, check=2)
        self.assertIn(words, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        return result

    def test_decode_does_not_replace_hand_made_labels(self):
        for name, suffix in (("textgrid", "TextGrid"), ("csv", "csv"), ("phn", "phn"), ("lab", "lab"), ("audacity", "txt")):
            folder = self.directory / f"recordings-{name}"
            shutil.copytree(self.data / "test", folder)
            labels = folder / f"r00002.{suffix}"
            labels.write_text("made by hand\n")
            before = contents(folder)
            command = ("decode", self.model, folder, "--out", folder, "--format", name)
            first = "r00000" if name == "phn" else "r00002"
            self.refused(*command, words=f"{first}.{suffix} (and" if name == "phn" else f"{first}.{suffix} ")  # gold of the corpus is gold, too
            self.assertEqual(contents(folder), before, "something was written")
            tool.run(*command, "--overwrite", check=0)
            self.assertNotEqual(labels.read_text(), "made by hand\n")
            tool.run(*command, check=0)  # all of them are ours now
            labels.write_text(labels.read_text() + "corrected by hand\n")
            self.refused(*command, words=labels.name)
            self.assertIn("corrected by hand", labels.read_text())

    def test_the_list_of_outputs_is_what_b2sum_writes(self):
        out = self.directory / "listed"
        tool.run("decode", self.model, self.data / "test", "--out", out, "--format", "csv", check=0)
        lines = (out / ".segfuse-outputs").read_text().splitlines()
        files = sorted(path for path in out.iterdir() if path.suffix == ".csv")
        self.assertEqual(sorted(lines), sorted(
            f"{hashlib.blake2b(path.read_bytes(), digest_size=32).hexdigest()}  {path.name}" for path in files))
        tool.run("decode", self.model, self.data / "test", "--out", out, "--format", "csv", check=0)
        self.assertEqual((out / ".segfuse-outputs").read_text().splitlines(), lines)
        (out / ".segfuse-outputs").unlink()
        self.refused("decode", self.model, self.data / "test", "--out", out, "--format", "csv", words="r00000.csv (and 3 files")

    def test_outputs_of_one_decode_do_not_replace_each_other(self):
        folder = self.directory / "colliding"
        folder.mkdir()
        for name in ("a.wav", "a.frames.wav"):
            shutil.copy(self.data / "test/r00000.wav", folder / name)
        out = self.directory / "collided"
        self.refused("decode", self.model, folder, "--out", out, "--format", "csv", "--posteriors", words="a.frames.csv")
        self.assertFalse(out.exists())
        tool.run("decode", self.model, folder, "--out", out, "--format", "phn", "--posteriors", check=0)

    def test_a_run_is_continued_or_overwritten_never_lost(self):
        out = self.directory / "finished"
        shutil.copytree(self.model, out)
        before = contents(out)
        command = ("train", self.config, "--data", self.data, "--out", out, "--quiet", "--set", "training.epochs=2")
        self.refused(*command, words="--resume")
        self.assertEqual(contents(out), before)
        tool.run(*command, "--resume", check=0)
        self.assertEqual(digest(out / "model.safetensors"), digest(self.model / "model.safetensors"))
        self.assertFalse((out / "model.previous.safetensors").exists())
        tool.run(*command, "--overwrite", "--set", "training.seed=5", check=0)
        self.assertNotEqual(digest(out / "model.safetensors"), digest(self.model / "model.safetensors"))
        self.assertEqual(digest(out / "model.previous.safetensors"), digest(self.model / "model.safetensors"))
        (out / "checkpoint.safetensors").unlink()
        self.refused(*command, "--resume", words="no checkpoint")
        self.refused(*command, words="finished run")
        (out / "model.safetensors").unlink()
        shutil.copy(self.model / "checkpoint.safetensors", out)
        self.refused(*command, words="started run")

    def test_a_head_of_a_comparison_is_not_lost_either(self):
        out = self.directory / "compared"
        shutil.copytree(self.model, out / "softmax")
        self.refused("train", self.config, "--data", self.data, "--out", out, "--compare", words="softmax")
        self.assertFalse((out / "model.safetensors").exists())

    def test_reports_of_others_stay(self):
        out = self.directory / "reports"
        out.mkdir()
        (out / "metrics.json").write_text("mine")
        for command in (("eval", self.model), ("train", self.config, "--data", self.data)):
            self.refused(*command, "--out", out, words="metrics.json")
        self.assertEqual((out / "metrics.json").read_text(), "mine")
        self.assertEqual([path.name for path in out.iterdir()], ["metrics.json"])
        tool.run("eval", self.model, "--out", out, "--overwrite", check=0)
        tool.run("eval", self.model, "--out", out, check=0)
        before = contents(self.model)
        self.refused("eval", self.model, "--out", self.model, words="directory has a training")
        self.assertEqual(contents(self.model), before)

    def test_other_commands_keep_what_is_there(self):
        mine = self.directory / "notes"
        mine.mkdir()
        program = tool.SOURCE / "examples/layer_norm.sf"
        memory = tool.SOURCE / "tests/golden/memory/steps.json"
        bad = self.directory / "nan.sf"
        bad.write_text('fusion "m" {\n symbols B\n %0 = input "x" : f32[B]\n %1 = neg(%0)\n output %1\n}\n#: x = 1 nan\n')
        commands = {
            "a.c": (("compile", program, "--emit=c", "--out"), 0), "a.h": (("compile", program, "--emit=h", "--out"), 0),
            "page.html": (("doctor", "memory", memory, "--html"), 0), "fork.html": (("doctor", "fork", os.getpid(), "--html"), None),
            "least.sf": (("doctor", "numerics", bad, "--size", "B=2", "--write"), 1)}
        for name, (command, done) in commands.items():
            with self.subTest(name=name):
                (mine / name).write_text("mine")
                self.refused(*command, mine / name, words=name)
                self.assertEqual((mine / name).read_text(), "mine")
                tool.run(*command, mine / name, "--overwrite", check=done)
                self.assertNotEqual((mine / name).read_text(), "mine")
                tool.run(*command, mine / name, check=done)
        # The header counts as much as the program beside it.
        (mine / "a.c").unlink()
        (mine / "a.h").write_text("mine")
        self.refused("compile", program, "--emit=c", "--out", mine / "a.c", words="a.h")
        self.assertFalse((mine / "a.c").exists())
        corpus = self.directory / "other-corpus"
        (corpus / "train").mkdir(parents=True)
        (corpus / "train/r00001.wav").write_text("mine")
        self.refused("synth", corpus, "--train", 3, "--test", 1, words="r00001.wav")
        self.assertEqual([path.name for path in corpus.rglob("*") if path.is_file()], ["r00001.wav"])

    def test_a_pipe_is_written_to(self):
        result = tool.run("compile", tool.SOURCE / "examples/layer_norm.sf", "--emit=h", "--out", "/dev/stdout", check=0)
        self.assertIn("int layer_norm(", result.stdout)

    def test_a_file_that_the_shell_opened_is_written_to(self):
        path = self.directory / "opened.h"
        with path.open("w") as opened:
            result = subprocess.run([tool.SEGFUSE, "compile", tool.SOURCE / "examples/layer_norm.sf", "--emit=h", "--out",
                                     "/dev/stdout"], stdout=opened, stderr=subprocess.PIPE, text=True)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("int layer_norm(", path.read_text())
        self.assertEqual([entry.name for entry in path.parent.glob("opened*")], ["opened.h"])

    def test_two_trainings_into_one_directory(self):
        out = self.directory / "twice"
        command = [tool.SEGFUSE, "train", str(self.config), "--data", str(self.data), "--out", str(out), "--json",
                   "--set", "training.epochs=100000"]
        first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            for line in first.stderr:  # from its first epoch on it holds the directory
                if line.startswith("epoch "):
                    break
            for more in ((), ("--resume",), ("--overwrite",)):
                result = self.refused("train", self.config, "--data", self.data, "--out", out, *more, words=f"process {first.pid}")
                self.assertIn("another training", result.stderr)
        finally:
            first.kill()
            first.wait()
            first.stderr.close()
        # The lock of a killed one is nobody's.
        self.refused("train", self.config, "--data", self.data, "--out", out, words="started run")
        result = tool.run("train", self.config, "--data", self.data, "--out", out, "--overwrite", "--quiet",
                          "--set", "training.epochs=1", "--json", check=0)
        self.assertIn("label_error_rate", json.loads(result.stdout))
        self.assertEqual([path.name for path in out.iterdir() if re.match(r"\.segfuse-(training|.*partial)", path.name)], [])


class CommandsTest(tool.ToolTest):
    """Commands in manifests run when the user says so, and never because of a model file."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data, cls.config = cls.corpus()
        cls.folder = cls.directory / "dl"
        shutil.copytree(cls.data, cls.folder)
        tool.run("train", cls.config, "--data", ".", "--out", ".", "--set", "training.epochs=1", "--quiet", check=0, cwd=cls.folder)
        rows = ["id\taudio\tlabels\tsplit"]
        for split in ("train", "test"):
            for path in sorted((cls.folder / split).glob("*.wav")):
                rows.append(f"{split}-{path.stem}\ttouch pwned; cat {split}/{path.name} |\t{split}/{path.stem}.phn\t{split}")
        (cls.folder / "manifest.tsv").write_text("\n".join(rows) + "\n")
        cls.rows = len(rows) - 1

    def ran(self):
        found = (self.folder / "pwned").exists()
        (self.folder / "pwned").unlink(missing_ok=True)
        return found

    def test_a_model_file_runs_nothing(self):
        for more in ((), ("--allow-commands",)):
            result = tool.run("eval", ".", "--split", "test", *more, cwd=self.folder, check=2)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertIn("--allow-commands", result.stderr)
            self.assertFalse(self.ran())

    def test_commands_need_a_flag_and_are_shown_first(self):
        model = self.folder / "model.safetensors"
        out = self.directory / "trained"
        commands = (("eval", model, "--split", "test", "--data", self.folder),
                    ("train", self.config, "--out", out, "--set", "training.epochs=1", "--data", self.folder),
                    ("doctor", "numerics", self.config, "--frames", "8", "--sequences", "1", "--data", self.folder))
        for command in commands:
            with self.subTest(command=command[0]):
                result = tool.run(*command, check=2)
                self.assertIn("manifest.tsv:2: \"touch pwned; cat train/r00000.wav |\" is a command", result.stderr)
                self.assertFalse(self.ran())
                result = tool.run(*command, "--allow-commands", check=0)
                self.assertTrue(self.ran())
                shown = [line for line in result.stderr.splitlines() if "runs touch pwned" in line]
                count = 4 if command[0] == "eval" else self.rows
                self.assertEqual(len(shown), count, result.stderr)


class TerminalTest(tool.ToolTest):
    """Names out of files and processes are shown, and do not steer the terminal."""

    EVIL = "\x1b]0;owned\x07\x1b[31m\u009b2J"
    SHOWN = r"\u001b]0;owned\u0007\u001b[31m\u009b2J"

    def shown(self, *arguments, check=None):
        result = tool.run(*arguments, check=check)
        for stream in (result.stdout, result.stderr):
            self.assertEqual([c for c in stream if (c < " " and c not in "\n\t") or "\x7f" <= c <= "\x9f"], [])
        self.assertIn(self.SHOWN, result.stdout + result.stderr)
        return result

    def test_messages(self):
        self.shown("doctor", "memory", self.directory / f"{self.EVIL}.json", check=3)
        self.shown("synth", self.directory / self.EVIL, "--train", 1, "--test", 1, check=0)
        self.shown(self.EVIL, check=2)
        self.shown("compile", self.directory / f"{self.EVIL}.sf", "--json", check=3)

    def test_tensor_names(self):
        header = json.dumps({f"parameter.{self.EVIL}": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}).encode()
        model = self.directory / "evil.safetensors"
        model.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
        self.shown("eval", model, check=3)

    def test_reports(self):
        text = (tool.SOURCE / "tests/golden/memory/steps.json").read_text()
        record = self.directory / "record.json"
        record.write_text(text.replace("weights", json.dumps(self.EVIL)[1:-1]))
        self.assertNotEqual(record.read_text(), text)
        self.shown("doctor", "memory", record, check=0)
        report = tool.run("doctor", "memory", record, "--json", check=0)
        self.assertIn(self.EVIL, "".join(map(str, self.strings(json.loads(report.stdout)))))
        log = self.directory / "rmm.csv"
        log.write_text((tool.SOURCE / "tests/golden/memory/rmm.csv").read_text().replace("allocate,", f"{self.EVIL},", 1))
        self.shown("doctor", "memory", log, check=3)

    def strings(self, value):
        if isinstance(value, dict):
            return [s for k, v in value.items() for s in [k, *self.strings(v)]]
        return [s for v in value for s in self.strings(v)] if isinstance(value, list) else [value]

    def test_process_names(self):
        program = self.directory / "e\x1b[31mvil"
        shutil.copy("/bin/cat", program)
        child = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.addCleanup(child.wait)
        self.addCleanup(child.stdin.close)
        result = tool.run("doctor", "fork", child.pid)
        self.assertNotIn("\x1b", result.stdout)
        self.assertIn(r"e\u001b[31mvil", result.stdout)


if __name__ == "__main__":
    unittest.main()
