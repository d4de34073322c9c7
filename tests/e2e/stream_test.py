"""Decoding while it comes: the segments of decoding a file, whatever the pieces, and ends of every kind."""

import array
import csv
import itertools
import json
import os
import re
import signal
import subprocess
import unittest
import wave

import small_corpus
import tool
import values_test

RATE = small_corpus.RATE


class StreamTest(tool.ToolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data, cls.config = cls.corpus()
        cls.model = cls.train("model")
        sounds = b""
        for path in sorted(cls.data.rglob("*.wav")):
            with wave.open(str(path)) as file:
                sounds += file.readframes(file.getnframes())
        # Longer than what is decoded at once, and no whole number of frames.
        cls.samples = sounds[:2 * (20 * RATE + 77)]

    @classmethod
    def train(cls, name, *more):
        out = cls.directory / name
        tool.run("train", cls.config, "--data", cls.data, "--out", out, "--set", "training.epochs=3", *more, check=0)
        return out

    def wav(self, name, samples, rate=RATE, channels=1):
        path = self.directory / f"{name}.wav"
        with wave.open(str(path), "wb") as file:
            file.setnchannels(channels)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(samples)
        return path

    def decoded(self, path, model=None, *more):
        """The segments of `segfuse decode`, as (start, end, label)."""
        out = self.directory / "decoded"
        tool.run("decode", model or self.model, path, "--out", out, "--format", "csv", "--overwrite", *more, check=0)
        with open(out / f"{path.stem}.csv", newline="") as file:
            return [(float(row["start"]), float(row["end"]), row["label"]) for row in csv.DictReader(file)]

    @staticmethod
    def start(*arguments):
        return subprocess.Popen([tool.SEGFUSE, "stream", *map(str, arguments)], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def stream(self, pieces, *arguments, model=None, check=0):
        """The segments, or with another code the sentence, of what comes in these pieces."""
        process = self.start(model or self.model, *arguments)
        try:
            for piece in pieces:
                process.stdin.write(piece)
                process.stdin.flush()
        except BrokenPipeError:
            pass
        output, error = process.communicate()
        self.assertEqual(process.returncode, check, error)
        self.segments = self.parsed(output)
        return self.segments if check == 0 else error.decode()

    @staticmethod
    def parsed(output):
        rows = [json.loads(line) for line in output.decode().splitlines()]
        return [(row["start"], row["end"], row["label"]) for row in rows]

    def same(self, found, wanted):
        self.assertEqual([label for _, _, label in found], [label for _, _, label in wanted])
        for one, other in zip(found, wanted, strict=True):
            for a, b in zip(one[:2], other[:2], strict=True):
                self.assertAlmostEqual(a, b, places=6)

    def cut(self, data, sizes=(1, 2, 3, 4097, 31)):
        sizes = itertools.cycle(sizes)
        at = 0
        while at < len(data):
            size = next(sizes)
            yield data[at:at + size]
            at += size

    def test_the_segments_are_those_of_decode(self):
        wanted = self.decoded(self.wav("whole", self.samples))
        self.assertGreater(len(wanted), 20)
        self.same(self.stream(self.cut(self.samples)), wanted)
        self.assertEqual(self.stream([self.samples]), self.segments)
        self.assertEqual(self.segments[0][0], 0)
        for before, after in itertools.pairwise(self.segments):
            self.assertEqual(before[1], after[0])
        # A header, of a file and of one whose writer did not know its length.
        header = (self.directory / "whole.wav").read_bytes()[:44]
        for size in (header[40:], b"\xff\xff\xff\xff", b"\0\0\0\0"):
            self.same(self.stream(self.cut(header[:40] + size + self.samples)), wanted)
        floats = array.array("f", [x / 32768 for x in array.array("h", self.samples)]).tobytes()
        self.same(self.stream(self.cut(floats), "--encoding", "f32le"), wanted)

    def test_every_head(self):
        path = self.wav("heads", self.samples[:2 * 10 * RATE])
        for head in ("linear_chain", "softmax"):
            with self.subTest(head=head):
                model = self.train(head, "--set", f"model.head={head}")
                self.same(self.stream([self.samples[:2 * 10 * RATE]], model=model), self.decoded(path, model))

    def test_causal_encoders(self):
        path = self.wav("causal", self.samples[:2 * (10 * RATE + 3)])
        samples = self.samples[:2 * (10 * RATE + 3)]
        least = {}
        for name, settings in (("conv", ["model.subsample=2"]),
                               ("lstm", ["model.recurrent_blocks=1"]),
                               ("gru", ["model.recurrent_blocks=2", "model.recurrence=gru"]),
                               ("ssm", ["model.recurrent_blocks=2", "model.recurrence=ssm"])):
            with self.subTest(name):
                more = [word for one in ["model.causal=true", *settings] for word in ("--set", one)]
                model = self.train(f"causal-{name}", *more)
                self.same(self.stream(self.cut(samples), model=model), self.decoded(path, model))
                error = self.stream([], "--lookahead", 0.001, model=model, check=2)
                least[name] = float(error.split("expected at least ")[1].split(" s")[0])
        # The network of the others looks ahead, too.
        error = self.stream([], "--lookahead", 0.001, check=2)
        self.assertLess(least["lstm"], float(error.split("expected at least ")[1].split(" s")[0]) - 0.01)
        self.assertIn("attention uses all earlier frames", self.stream(
            [], model=self.train("causal-attention", "--set", "model.causal=true", "--set", "model.attention_blocks=1"),
            check=2))

    def test_joined_pieces_slopes_and_other_rates(self):
        model = self.train("joined", "--set", "model.long_segments=joined", "--set", "model.max_duration=5",
                           "--set", "features.deltas=2")
        samples = self.samples[:2 * (5 * RATE + 3)]
        self.same(self.stream(self.cut(samples), model=model), self.decoded(self.wav("joined", samples), model))
        rate = RATE * 3 // 4
        wanted = self.decoded(self.wav("rate", samples, rate=rate))
        self.same(self.stream(self.cut(samples), "--rate", rate), wanted)

    def test_the_front_end_of_kaldi(self):
        samples = self.samples[:2 * (5 * RATE + 3)]
        path = self.wav("kaldi", samples)
        for edges in ("true", "false"):
            with self.subTest(snip_edges=edges):
                model = self.train(f"kaldi-{edges}", "--set", "features.kind=kaldi_fbank", "--set",
                                   f"features.snip_edges={edges}")
                wanted = self.decoded(path, model)
                self.assertAlmostEqual(wanted[-1][1], len(samples) / 2 / RATE, places=6)
                self.same(self.stream(self.cut(samples), model=model), wanted)
                # With the smallest lookahead that is allowed.
                error = self.stream([], "--lookahead", 0.001, model=model, check=2)
                least = re.search(r"at least ([0-9.]+) s", error).group(1)
                whole = self.stream([samples], "--lookahead", least, model=model)
                self.assertEqual(self.stream(self.cut(samples), "--lookahead", least, model=model), whole)

    def test_channels_are_chosen_as_in_files(self):
        one = array.array("h", self.samples[:2 * 3 * RATE])
        both = array.array("h", [x for a, b in zip(one, reversed(one), strict=True) for x in (a, b)]).tobytes()
        path = self.wav("stereo", both, channels=2)
        for channel in ("1", "mean"):
            self.same(self.stream(self.cut(both), "--channels", 2, "--channel", channel),
                      self.decoded(path, self.model, "--channel", channel))
        self.assertIn("2 channels; choose one", self.stream([both], "--channels", 2, check=3))

    def test_with_a_lookahead_segments_come_before_the_end(self):
        process = self.start(self.model, "--lookahead", 3)
        process.stdin.write(self.samples[:2 * 12 * RATE])
        process.stdin.flush()
        # Nothing more comes, and what is 3 s old is decided: the first segment can be read.
        first = json.loads(process.stdout.readline())
        self.assertEqual(first["start"], 0)
        end = first["end"]
        while end < 8:
            row = json.loads(process.stdout.readline())
            self.assertEqual(row["start"], end)
            end = row["end"]
        rest, error = process.communicate()
        self.assertEqual(process.returncode, 0, error)
        self.assertAlmostEqual(self.parsed(rest)[-1][1], 12)
        # However it comes.
        whole = self.stream([self.samples], "--lookahead", 3)
        self.assertEqual(self.stream(self.cut(self.samples), "--lookahead", 3), whole)
        for lookahead in ("0.001", "-1", "nan", "inf"):
            self.assertIn("expected at least", self.stream([], f"--lookahead={lookahead}", check=2))

    def test_short_streams(self):
        self.assertIn("the stream was empty", self.stream([], check=3))
        one = self.stream([b"\x01\x00"])
        self.assertEqual([(a, b) for a, b, _ in one], [(0, 1 / RATE)])
        self.same(one, self.decoded(self.wav("one", b"\x01\x00")))

    def test_what_is_wrong_is_said(self):
        half = self.samples[:2 * RATE]
        whole = self.stream([half])
        self.assertIn("1 bytes of a sample", self.stream([half, b"x"], check=3))
        self.assertEqual(self.segments, whole)  # of what came
        header = self.wav("cut", self.samples).read_bytes()[:44]
        self.assertIn("before the end that its header announces", self.stream([header, half], check=3))
        self.assertEqual(self.segments, whole)
        self.assertIn("leave the encoding out", self.stream([header, half], "--encoding", "s16le", check=2))
        self.assertIn("does not begin with the header", self.stream([half], "--encoding", "wav", check=3))
        self.assertIn("8000 were requested", self.stream([header, half], "--rate", 8000, check=2))
        self.assertIn("integers of 16 bits", self.stream([header[:34] + b"\x08" + header[35:], half], check=3))
        # What came before it in the same piece is not lost.
        first = [x / 32768 for x in array.array("h", half)]
        for bad in (float("nan"), float("inf")):
            values = array.array("f", [*first, bad, 0]).tobytes()
            for pieces in (self.cut(values), [values]):
                self.assertIn(f"sample {RATE} is", self.stream(pieces, "--encoding", "f32le", check=3))
                self.assertEqual(self.segments, whole)
        self.assertIn("trained on audio", self.stream([], "--encoding", "text", check=2))

    def test_models_that_need_the_whole_recording_are_refused(self):
        for name, settings, words in (
                ("attention", ["model.attention_blocks=1"], "needs the whole recording"),
                ("recurrent", ["model.recurrent_blocks=1"], "needs the whole recording"),
                ("normalised", ["features.normalise_recording=true"], "features over the whole"),
                ("whisper", ["features.kind=whisper", "features.n_mels=80"], "the loudest frame")):
            with self.subTest(name):
                more = [word for one in [*settings, "training.epochs=1"] for word in ("--set", one)]
                self.assertIn(words, self.stream([self.samples[:100]], model=self.train(name, *more), check=2))

    def test_an_interruption_ends_the_input(self):
        part = self.samples[:2 * 12 * RATE]
        wanted = self.stream([part], "--lookahead", 3)
        for one in (signal.SIGINT, signal.SIGTERM):
            process = self.start(self.model, "--lookahead", 3)
            process.stdin.write(part)
            process.stdin.flush()
            found = b""
            # All of it has been read when what is 3 s old is written.
            while not found or self.parsed(found)[-1][1] < 8:
                line = process.stdout.readline()
                self.assertTrue(line, found)
                found += line
            process.send_signal(one)
            found += process.stdout.read()
            error = process.stderr.read()
            self.assertEqual(process.wait(), 130, error)
            self.assertIn(b"interrupted", error)
            self.same(self.parsed(found)[:len(wanted) // 2], wanted[:len(wanted) // 2])
            self.assertLessEqual(self.parsed(found)[-1][1], 12)
            process.stdin.close()
            process.stdout.close()
            process.stderr.close()

    def test_nobody_reads(self):
        for ignored in (False, True):
            read, write = os.pipe()
            os.close(read)
            process = subprocess.Popen([tool.SEGFUSE, "stream", str(self.model)], stdin=subprocess.PIPE, stdout=write,
                                       stderr=subprocess.PIPE, restore_signals=not ignored)
            os.close(write)
            _, error = process.communicate(self.samples)
            if ignored:  # the sentence of every command
                self.assertEqual(process.returncode, 4, error)
                self.assertIn(b"cannot write to standard output", error)
            else:  # the end of every command in a pipe
                self.assertEqual(process.returncode, -signal.SIGPIPE, error)
                self.assertNotIn(b"cannot write", error)


class ValuesStreamTest(values_test.ValuesFolder):
    def test_rows_of_numbers(self):
        folder = self.folder("tables", write=self.as_tables)
        work = self.directory / "work"
        work.mkdir()
        tool.run("train", folder, "--set", "training.epochs=5", "--set", "model.width=16", "--out", work / "model", check=0)
        rows, _ = values_test.recording(1, 50)
        text = values_test.table(rows)
        tool.run("decode", work / "model", folder / "r01.csv", "--out", work / "labels", "--format", "csv", check=0)
        with open(work / "labels/r01.csv", newline="") as file:
            wanted = [(float(row["start"]), float(row["end"]), row["label"]) for row in csv.DictReader(file)]
        floats = array.array("f", [x for row in rows for x in row]).tobytes()
        for data, more in ((text, []), (text.replace(",", " ").removesuffix("\n"), []),
                           (floats, ["--encoding", "f32le", "--channels", "3", "--rate", "50"])):
            result = subprocess.run([tool.SEGFUSE, "stream", str(work / "model"), *more], capture_output=True,
                                    input=data.encode() if isinstance(data, str) else data, check=True)
            found = StreamTest.parsed(result.stdout)
            self.assertEqual([label for _, _, label in found], [label for _, _, label in wanted])
            for one, other in zip(found, wanted, strict=True):
                self.assertAlmostEqual(one[0], other[0], places=6)
                self.assertAlmostEqual(one[1], other[1], places=6)
        # The rows before one that is wrong are not lost.
        good = "\n".join(text.splitlines()[:200]) + "\n"
        alone = tool.run("stream", work / "model", input=good, check=0).stdout
        for bad in ("1,2\n", "1,x,3\n", "1,1e39,3\n"):
            self.assertEqual(tool.run("stream", work / "model", input=good + bad + "1,2,3\n", check=3).stdout, alone)
        for data, words in (("1,2,3\n1,2\n", ":2: 2 fields"), ("1,2,3\n1,x,3\n", ":2: field 2 is"),
                            ("1,2,3\n1,1e39,3\n", "row 1, column 1 is inf"), ("1,2\n", "columns"), ("", "the stream was empty")):
            result = tool.run("stream", work / "model", input=data, check=3)
            self.assertIn(words, result.stderr)
        tool.run("stream", work / "model", "--encoding", "wav", input="", check=2)
        tool.run("stream", work / "model", "--rate", "51", input="", check=2)


if __name__ == "__main__":
    unittest.main()
