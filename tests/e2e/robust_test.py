"""What surrounds a run goes wrong: one sentence, the right exit code, and what was done stays done."""

import json
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import unittest

import tool

SANITIZED = bool(os.environ.get("SEGFUSE_SANITIZE"))  # its memory is not that of a run


def limited(what, value):
    """For subprocess: sets a limit in the child."""
    return lambda: resource.setrlimit(what, (value, value))


class RobustTest(tool.ToolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data, cls.config = cls.corpus()
        cls.model = cls.directory / "model"
        tool.run("train", cls.config, "--data", cls.data, "--out", cls.model, "--set", "training.epochs=2",
                 check=0)

    def recordings(self, name):
        """A folder of six recordings, without labels."""
        folder = self.directory / name
        folder.mkdir()
        for path in sorted((self.data / "train").glob("*.wav"))[:6]:
            shutil.copy(path, folder)
        return folder

    def sentence(self, result):
        """The one sentence on standard error."""
        lines = result.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertTrue(lines[0].startswith("segfuse: "), result.stderr)
        self.assertNotIn("unexpected", lines[0])
        return lines[0]

    def test_one_bad_recording_stops_only_itself(self):
        folder = self.recordings("some-bad")
        paths = sorted(folder.glob("*.wav"))
        paths[1].write_bytes(paths[1].read_bytes()[:1000])
        # Finite samples whose features the model's scores do not survive.
        content = bytearray(paths[3].read_bytes())
        head = (b"RIFF" + struct.pack("<I", 36 + 4 * 16000) + b"WAVEfmt " +
                struct.pack("<IHHIIHH", 16, 3, 1, int.from_bytes(content[24:28], "little"),
                            4 * int.from_bytes(content[24:28], "little"), 4, 32) + b"data" +
                struct.pack("<I", 4 * 16000))
        paths[3].write_bytes(head + struct.pack("<f", 3e38) * 16000)
        paths[4].write_text("not audio")
        out = self.directory / "some-bad-out"
        result = tool.run("decode", self.model, folder, "--out", out, "--quiet", check=3)
        good = [paths[i] for i in (0, 2, 5)]
        self.assertEqual(sorted(p.stem for p in out.iterdir() if not p.name.startswith(".")), [p.stem for p in good])
        self.assertEqual([line.split()[0] for line in result.stdout.splitlines()],
                         [str(out / (p.stem + ".TextGrid")) for p in good])
        lines = result.stderr.strip().splitlines()
        self.assertEqual(lines[0], "segfuse: 3 of 6 recordings could not be decoded:")
        for line, bad in zip(lines[1:], (paths[1], paths[3], paths[4]), strict=True):
            self.assertIn(bad.name, line)
        # What is done is what it would have been without the others.
        alone = self.directory / "some-bad-alone"
        tool.run("decode", self.model, *good, "--out", alone, check=0)
        for path in good:
            self.assertEqual((alone / (path.stem + ".TextGrid")).read_bytes(),
                             (out / (path.stem + ".TextGrid")).read_bytes())
        rows = json.loads(tool.run("decode", self.model, folder, "--json", "--out",
                                   self.directory / "some-bad-json", check=3).stdout)
        self.assertEqual(["error" in row for row in rows], [False, True, False, True, True, False])

    @unittest.skipIf(SANITIZED, "its frames are larger")
    def test_a_small_stack_is_enough(self):
        """64 KiB (ulimit -s 64), of which arguments and the environment take a part."""
        out = self.directory / "small-stack"
        for arguments in (("train", self.data, "--out", out, "--set", "training.epochs=1"),
                          ("eval", out, "--json"),
                          ("decode", out, self.recordings("small-stack-in"), "--out", f"{out}-labels")):
            result = subprocess.run([tool.SEGFUSE, *map(str, arguments)], capture_output=True, text=True, env={},
                                    preexec_fn=limited(resource.RLIMIT_STACK, 64 << 10))
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_scheduler_s_signals_save(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            out = self.directory / f"signal-{number}"
            process = subprocess.Popen(
                [tool.SEGFUSE, "train", self.config, "--data", self.data, "--out", out, "--quiet", "--set",
                 "training.epochs=100000", "--checkpoint-every", "1e-9"],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            while not (out / "checkpoint.safetensors").exists():
                self.assertIsNone(process.poll())
            process.send_signal(number)
            _, errors = process.communicate()
            self.assertEqual(process.returncode, 130, errors)
            self.assertIn("continue with --resume", errors)

    def test_output_that_does_not_arrive_is_said(self):
        commands = [["eval", self.model, "--data", self.data, "--json"], ["info"], ["info", "--json"],
                    ["decode", self.model, self.data / "test", "--out", self.directory / "full", "--json"],
                    ["compile", tool.SOURCE / "examples/layer_norm.sf", "--emit=ir"]]
        for command in commands:
            with self.subTest(command=command), open("/dev/full", "w") as full:
                result = subprocess.run([tool.SEGFUSE, *map(str, command), "--quiet"], stdout=full,
                                        stderr=subprocess.PIPE, text=True)
                self.assertEqual(result.returncode, 4)
                last = result.stderr.splitlines()[-1]  # warnings may stand before it
                self.assertTrue(last.startswith("segfuse: cannot write to standard output: No space"), last)

    def test_a_limit_of_file_sizes_is_a_sentence(self):
        before = {p: p.read_bytes() for p in self.model.iterdir()}
        result = tool.run("train", self.config, "--data", self.data, "--out", self.directory / "small",
                          "--quiet", check=4, preexec_fn=limited(resource.RLIMIT_FSIZE, 4096))
        self.assertIn("ulimit -f", self.sentence(result))
        self.assertFalse((self.directory / "small").exists())
        self.assertEqual(before, {p: p.read_bytes() for p in self.model.iterdir()})

    def test_features_that_no_disk_takes_are_a_sentence(self):
        """More than is held in memory: what is beyond it goes to a file in the output folder."""
        data, out = self.directory / "values", self.directory / "no-room"
        for split in ("train", "test"):
            (data / split).mkdir(parents=True)
            with open(data / split / "x.npy", "wb") as file:  # of holes
                file.write(tool.npy((300_000, 128), []))
                file.truncate(128 + 300_000 * 128 * 4)
            (data / split / "x.csv").write_text("start,end,label\n0,150,a\n150,300,b\n")
        config = self.directory / "values.toml"
        config.write_text('[features]\nkind = "values"\nframe_rate = 1000\n')
        result = tool.run("train", config, "--data", data, "--out", out, "--quiet", check=4,
                          preexec_fn=limited(resource.RLIMIT_FSIZE, 1 << 20))
        self.assertEqual(self.sentence(result), f"segfuse: cannot write a scratch file in '{out}': File too large; "
                                                "the file size limit is reached (see ulimit -f)")
        self.assertFalse(out.exists() and [p.name for p in out.iterdir()])

    @unittest.skipIf(SANITIZED, "address space is limited")
    def test_too_little_memory_ends_at_once(self):
        seen = set()
        for mebibytes in range(30, 150, 15):
            result = subprocess.run(
                [tool.SEGFUSE, "train", self.config, "--data", self.data, "--out",
                 self.directory / f"memory-{mebibytes}", "--quiet", "--set", "training.epochs=1"],
                capture_output=True, text=True, timeout=300,
                preexec_fn=limited(resource.RLIMIT_AS, mebibytes << 20))
            seen.add(result.returncode)
            if "error while loading shared libraries" in result.stderr:
                continue  # the system's loader
            self.assertIn(result.returncode, (0, 4), (mebibytes, result.stderr))
            if result.returncode == 4:
                self.assertIn("memory", result.stderr.strip().splitlines()[-1])
        self.assertIn(4, seen)

    @unittest.skipIf(SANITIZED, "address space is limited")
    def test_few_threads_do(self):
        """Stacks of threads take all there is: fewer threads, or no memory, but no abort."""
        result = tool.run("decode", self.model, self.data / "test", "--out", self.directory / "threads",
                          "--threads", "2000", "--quiet", preexec_fn=limited(resource.RLIMIT_AS, 2 << 30))
        self.assertIn("of 2000 threads", result.stderr)
        self.assertIn(result.returncode, (0, 4), result.stderr)

    def test_bytes_that_are_not_utf8_cost_nothing(self):
        odd = os.fsencode(self.directory) + b"/bad\xffdata"
        shutil.copytree(os.fsencode(self.data), odd)
        out = self.directory / "odd"
        result = subprocess.run([os.fsencode(tool.SEGFUSE), b"train", os.fsencode(self.config), b"--data", odd,
                                 b"--out", os.fsencode(out), b"--quiet", b"--set", b"training.epochs=1"],
                                capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue((out / "model.safetensors").exists())
        audio = sorted(pathlib.Path(os.fsdecode(odd)).glob("test/*.wav"))[0]
        for arguments in ([out, audio, "--out", self.directory / "odd-out"],
                          [out, os.fsdecode(odd + b"/no\xfe.wav"), "--out", self.directory / "odd-out"]):
            result = subprocess.run([tool.SEGFUSE, "decode", *map(os.fspath, arguments), "--json"],
                                    capture_output=True)
            self.assertIn(result.returncode, (0, 3), result.stderr)
            self.assertIn("\N{REPLACEMENT CHARACTER}", json.dumps(json.loads(result.stdout),
                                                                  ensure_ascii=False))

    def test_standard_input_is_an_input(self):
        audio = sorted((self.data / "test").glob("*.wav"))[0]
        out = self.directory / "stdin"
        read, write = os.pipe()
        with subprocess.Popen(["cat", audio], stdout=write):
            os.close(write)
            tool.run("decode", self.model, "/dev/stdin", "--out", out, check=0, stdin=read)
        os.close(read)
        tool.run("decode", self.model, audio, "--out", out, check=0)
        self.assertEqual((out / "stdin.TextGrid").read_bytes(), (out / f"{audio.stem}.TextGrid").read_bytes())
        program = (tool.SOURCE / "examples/layer_norm.sf").read_text()
        tool.run("compile", "/dev/stdin", "--emit=ir", check=0, input=program)
        tool.run("train", "/dev/stdin", "--data", self.data, "--out", self.directory / "stdin-train", "--set",
                 "training.epochs=1", check=0, input=tool.TINY)
        result = tool.run("decode", self.model, "/dev/stdin", "--out", out, check=3, stdin=subprocess.DEVNULL)
        self.assertIn("/dev/stdin", self.sentence(result))

    def test_a_tag_before_the_audio_is_named(self):
        path = self.directory / "tagged.mp3"
        path.write_bytes(b"APETAGEX" + struct.pack("<IIII", 2000, 32, 0, 0xA0000000) + bytes(8) + b"\xff\xfb\x90\x64" + bytes(413))
        result = tool.run("decode", self.model, path, "--out", self.directory / "tagged", "--quiet", check=3)
        # libmpg123 writes warnings of its own.
        self.assertIn("an APE tag precedes the audio", result.stderr)

    def test_numbers_of_segmentations_have_a_bound(self):
        recording = sorted((self.data / "train").glob("*.wav"))[0]
        for flag, most in (("k-best", 1000), ("samples", 100000)):
            for count in (most + 1, 10**15, -1):
                result = tool.run("decode", self.model, recording, "--out", self.directory / "many", f"--{flag}={count}",
                                  "--quiet", check=2)
                self.assertIn(f"{flag} is {count}; expected 0 to {most}", self.sentence(result))

    def with_a_long_one(self, name, times):
        """Six recordings, and a seventh that is one of them that many times over."""
        folder = self.recordings(name)
        content = sorted(folder.glob("*.wav"))[0].read_bytes()
        size = (len(content) - 44) * times
        with open(folder / "b-long.wav", "wb") as file:
            file.write(content[:4] + struct.pack("<I", 36 + size) + content[8:40] + struct.pack("<I", size))
            for _ in range(times):
                file.write(content[44:])
        return folder

    @unittest.skipIf(SANITIZED, "a sanitizer's memory is another")
    def test_attention_that_memory_cannot_hold_stops_only_its_recording(self):
        folder = self.with_a_long_one("attended", 200)
        attentive = self.directory / "attentive"
        tool.run("train", self.config, "--data", self.data, "--out", attentive, "--set", "training.epochs=1", "--set",
                 "model.attention_blocks=1", "--quiet", check=0)
        out = self.directory / "attended-out"
        result = tool.run("decode", attentive, folder, "--out", out, "--quiet", "--threads", 1, check=3,
                          preexec_fn=limited(resource.RLIMIT_AS, 6 << 30))
        self.assertRegex(result.stderr, r"b-long\.wav: the model's attention over its \d+ frames needs [\d.]+ GiB, and "
                                        r"[\d.]+ GiB are left of ")
        self.assertIn("cut it into recordings of less than ", result.stderr)
        self.assertIn("1 of 7 recordings could not be decoded", result.stderr)
        self.assertEqual(len(list(out.glob("*.TextGrid"))), 6)

    @unittest.skipIf(SANITIZED, "a sanitizer's memory is another")
    def test_memory_that_runs_out_stops_only_its_recording(self):
        folder = self.with_a_long_one("too-long", 1500)
        out = self.directory / "too-long-out"
        result = tool.run("decode", self.model, folder, "--out", out, "--quiet", "--threads", 1, "--k-best", 1, check=4,
                          preexec_fn=limited(resource.RLIMIT_AS, 900 << 20))
        self.assertIn("1 of 7 recordings could not be decoded", result.stderr)
        self.assertIn("b-long.wav: there is not enough memory for this recording", result.stderr)
        self.assertEqual(len(list(out.glob("*.TextGrid"))), 6)
        # Beside data that is wrong the exit code is that of data.
        (folder / "c.wav").write_text("no audio")
        result = tool.run("decode", self.model, folder, "--out", out, "--quiet", "--threads", 1, "--k-best", 1, check=3,
                          preexec_fn=limited(resource.RLIMIT_AS, 900 << 20))
        self.assertIn("2 of 8 recordings could not be decoded", result.stderr)

    def test_links_that_lead_nowhere_are_not_passed_over(self):
        folder = self.directory / "links"
        folder.mkdir()
        shutil.copy(next(self.data.rglob("*.wav")), folder / "a.wav")
        (folder / "gone.wav").symlink_to("nothing.wav")
        (folder / "loop.wav").symlink_to("loop.wav")
        (folder / "loop").symlink_to("loop")
        (folder / "above").symlink_to("..")
        (folder / "zero.wav").symlink_to("/dev/zero")
        out = self.directory / "links-out"
        result = tool.run("decode", self.model, folder, "--out", out, "--quiet", check=3)
        self.assertIn("2 of 3 recordings could not be decoded", result.stderr)
        self.assertRegex(result.stderr, "gone.wav.*No such file")
        self.assertRegex(result.stderr, "loop.wav.*Too many levels of symbolic links")
        self.assertEqual([path.name for path in out.glob("*.TextGrid")], ["a.TextGrid"])

    def test_a_training_does_not_pass_over_such_links_either(self):
        folder = self.directory / "annex"
        shutil.copytree(self.data, folder)
        (folder / "train/above").symlink_to("..")
        kept = folder / "kept"
        kept.mkdir()
        out = ("--out", self.directory / "annex-out", "--quiet")
        for pattern in ("*.wav", "*.phn"):
            path = next(iter(sorted((folder / "train").glob(pattern))))
            path.rename(kept / path.name)
            path.symlink_to("../.git/annex/objects/x")
            for arguments in (["train", self.config, "--data", folder, *out], ["train", folder, *out],
                              ["eval", self.model, "--data", folder]):
                with self.subTest(pattern=pattern, arguments=arguments):
                    self.assertIn(f'{path}: a symbolic link to "../.git/annex/objects/x", where there is no file',
                                  self.sentence(tool.run(*arguments, check=3)))
            path.unlink()
            path.symlink_to(f"../kept/{path.name}")
        kept.rename(folder / "train.kept")
        tool.run("eval", self.model, "--data", folder, check=3)
        (folder / "train.kept").rename(kept)
        tool.run("eval", self.model, "--data", folder, check=0)

    def test_sound_that_is_not_scaled_is_said(self):
        samples = [20000 * ((i * i) % 977 / 977 - 0.5) for i in range(16000)]
        said = []
        for name, scale in (("loud", 100), ("whole", 1)):
            folder = self.directory / name
            folder.mkdir()
            for number in range(2):
                data = struct.pack(f"<{len(samples)}f", *(x / scale for x in samples))
                form = struct.pack("<HHIIHH", 3, 1, 16000, 64000, 4, 32)
                (folder / f"{number}.wav").write_bytes(b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " +
                                                       struct.pack("<I", 16) + form + b"data" + struct.pack("<I", len(data)) + data)
            said.append(tool.run("decode", self.model, folder, "--out", folder / "out", "--quiet", check=0).stderr)
        self.assertEqual(said[0], "")
        self.assertRegex(said[1], r"warning: .*/[01]\.wav: its samples are floating-point numbers up to 10000,")
        self.assertEqual(said[1].count("floating-point"), 1)

    def test_a_pipe_without_a_writer_is_refused(self):
        pipe = self.directory / "pipe.wav"
        os.mkfifo(pipe)
        result = tool.run("decode", self.model, pipe, "--out", self.directory / "pipe", "--quiet", check=3)
        self.assertIn("no process writes to it", self.sentence(result))

    def test_a_pipe_that_its_writer_closed_is_empty(self):
        """They waited for it for ever."""
        for arguments in (["decode", self.model, "-", "--out", self.directory / "closed"], ["compile", "/dev/stdin"],
                          ["eval", self.model, "--data", "/dev/stdin"], ["align", self.model, "-"]):
            with self.subTest(arguments=arguments):
                result = tool.run(*arguments, "--quiet", input="", timeout=60)
                self.assertIn(result.returncode, (2, 3))
                self.sentence(result)

    def test_paths_that_the_system_refuses_are_data(self):
        loop = self.directory / "loop"
        loop.symlink_to(loop)
        long = self.directory / ("x" * 300)
        for path in (loop, long):
            for arguments in (["decode", self.model, path, "--out", self.directory / "refused"],
                              ["eval", self.model, "--data", path], ["eval", path, "--data", self.data],
                              ["train", self.config, "--data", path, "--out", self.directory / "refused"],
                              ["doctor", "memory", path], ["compile", path]):
                with self.subTest(arguments=arguments):
                    self.assertIn(path.name[:20], self.sentence(tool.run(*arguments, "--quiet", check=3)))

    @unittest.skipUnless(os.geteuid() == 0, "needs another user")
    def test_folders_that_may_not_be_entered_are_data(self):
        """Root may enter every folder, so this is somebody else."""
        locked = self.directory / "locked"
        shutil.copytree(self.data, locked)
        os.chmod(self.directory, 0o755)
        for path in [self.model, *self.model.rglob("*"), self.data, *self.data.rglob("*")]:
            os.chmod(path, 0o755)
        open_to_all = self.directory / "everybody"
        open_to_all.mkdir()
        os.chmod(open_to_all, 0o777)
        program = open_to_all / "segfuse"
        shutil.copy(tool.SEGFUSE, program)
        os.chmod(program, 0o755)
        os.chmod(locked / "train", 0)
        for arguments in (["decode", self.model, locked / "train", "--out", open_to_all / "o"],
                          ["decode", self.model, locked / "train/r.wav", "--out", open_to_all / "o"],
                          ["eval", self.model, "--data", locked]):
            with self.subTest(arguments=arguments):
                result = subprocess.run([program, *map(str, arguments), "--quiet"], capture_output=True,
                                        text=True, user=65534, env={"PATH": os.environ["PATH"],
                                                                    "HOME": str(open_to_all),
                                                                    "SEGFUSE_BACKEND": "loops"})
                self.assertEqual(result.returncode, 3, result.stderr)
                self.assertIn("locked/train", self.sentence(result))
                self.assertIn("Permission denied", result.stderr)

    def test_json_that_nobody_may_nest_so_deeply(self):
        for text in ("[" * 200_000, '{"traceEvents":' + "[" * 200_000, '{"device_traces": 1e999}',
                     '{"format":' + "[" * 200_000):
            record = self.directory / "deep.json"
            record.write_text(text)
            for more in ([], ["--json"]):
                self.assertIn("deep.json", self.sentence(tool.run("doctor", "memory", record, *more, check=3)))
        record.write_bytes(b'{"format": "segfuse.memory\xff"}')
        result = tool.run("doctor", "memory", record, "--json", check=3)
        self.assertIn("not UTF-8", json.loads(result.stdout)["error"])


if __name__ == "__main__":
    unittest.main()
