"""Long recordings: decoded piece by piece, in memory that does not grow with them."""

import itertools
import json
import os
import subprocess
import threading
import unittest
import wave

import small_corpus
import tool

HOURS = int(os.environ.get("SEGFUSE_HOURS", "0"))
FRAMES = 20000  # longer recordings are decoded in pieces
RATE = small_corpus.RATE


class LongTest(tool.ToolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        data, config = cls.corpus()
        cls.data, cls.config = data, config
        cls.model = cls.train("model")
        cls.sounds = b""
        for path in sorted(data.rglob("*.wav")):
            with wave.open(str(path)) as file:
                cls.sounds += file.readframes(file.getnframes())

    @classmethod
    def train(cls, name, *more):
        out = cls.directory / name
        tool.run("train", cls.config, "--data", cls.data, "--out", out, "--set", "training.epochs=3", *more, check=0)
        return out

    def recording(self, name, frames):
        """Of so many frames of 10 ms."""
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        size = 2 * (frames * RATE // 100)
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            for at in range(0, size, len(self.sounds)):
                file.writeframes(self.sounds[:size - at])
        return path

    def decode(self, path, out, *more, model=None):
        tool.run("decode", model or self.model, path, "--out", self.directory / out, "--format", "csv", *more, check=0)
        return (self.directory / out / path.with_suffix(".csv").name).read_bytes()

    def through_a_pipe(self, path, out):
        """Which can be read once."""
        pipe = self.directory / out / "in" / path.name
        pipe.parent.mkdir(parents=True)
        os.mkfifo(pipe)
        writer = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()))
        writer.start()
        labels = self.decode(pipe, out)
        writer.join()
        return labels

    def test_the_same_bytes_as_read_and_decoded_whole(self):
        for frames in (FRAMES - 1, FRAMES + 1, 6 * 4096, 3 * 8192 + 1):
            with self.subTest(frames=frames):
                path = self.recording(f"r{frames}.wav", frames)
                pieces = self.decode(path, f"pieces{frames}", "--posteriors")
                self.assertEqual(pieces, self.through_a_pipe(path, f"pipe{frames}"))
                # Alternatives need all scores at once.
                self.assertEqual(pieces, self.decode(path, f"whole{frames}", "--posteriors", "--k-best", "1"))
                by_frame = [self.directory / out / f"r{frames}.frames.csv" for out in (f"pieces{frames}", f"whole{frames}")]
                self.assertEqual(by_frame[0].read_bytes(), by_frame[1].read_bytes())
                self.assertEqual(by_frame[0].read_text().count("\n"), frames + 1)
                best = json.loads((self.directory / f"whole{frames}" / f"r{frames}.json").read_text())["best"][0]
                self.assertEqual(len(best["segments"]) + 1, pieces.count(b"\n"))

    def test_every_head_has_the_same_bytes_in_pieces(self):
        path = self.recording("heads.wav", FRAMES + 5000)
        short = self.recording("heads-short.wav", FRAMES - 1)
        for head in ("semi_markov", "linear_chain", "softmax"):
            with self.subTest(head):
                model = self.train(head, "--set", f"model.head={head}")
                pieces = self.decode(path, head, "--posteriors", model=model)
                rows = (self.directory / head / "heads.frames.csv").read_text().splitlines()
                self.assertEqual(len(rows), FRAMES + 5001)
                self.assertEqual("boundary" in rows[0], head != "linear_chain")
                # What the recordings have in common is the same but near the cut.
                whole = self.decode(short, f"{head}-short", "--posteriors", model=model)
                self.assert_same_until((FRAMES - 2000) / 100, pieces, whole)
                same = (self.directory / f"{head}-short/heads-short.frames.csv").read_text().splitlines()
                self.assertEqual(rows[:FRAMES - 2000], same[:FRAMES - 2000])
                self.assertNotEqual(pieces, whole)
                if head == "softmax":
                    continue
                more = self.decode(path, f"{head}-whole", "--posteriors", "--k-best", "1", model=model)
                self.assertEqual(pieces, more)
                self.assertEqual((self.directory / f"{head}-whole" / "heads.frames.csv").read_text().splitlines(), rows)

    def test_front_ends_of_others_have_the_same_bytes_in_pieces(self):
        path = self.recording("front-ends.wav", FRAMES + 3000)
        for name, settings in (("kaldi", ["kind=kaldi_fbank"]),
                               ("centred", ["kind=kaldi_fbank", "snip_edges=false", "deltas=1"]),
                               ("whisper", ["kind=whisper", "n_mels=80"]),
                               ("whisper-normalised", ["kind=whisper", "n_mels=128", "normalise_recording=true"])):
            with self.subTest(name):
                more = [word for one in settings for word in ("--set", f"features.{one}")]
                model = self.train(name, *more)
                pieces = self.decode(path, f"{name}-pieces", "--posteriors", model=model)
                self.assertGreater(pieces.count(b"\n"), 100)
                self.assertEqual(pieces, self.decode(path, f"{name}-whole", "--posteriors", "--k-best", "1", model=model))

    def assert_same_until(self, second, one, other):
        """The rows of segments that end before that second."""
        rows = [[row for row in table.decode().splitlines()[1:] if float(row.split(",")[1]) < second] for table in (one, other)]
        self.assertGreater(len(rows[0]), second)
        self.assertEqual(rows[0], rows[1])

    def test_standard_input_is_decoded_as_a_file_is(self):
        out = self.directory / "stdin"
        for frames in (100, FRAMES + 1):
            path = self.recording(f"s{frames}.wav", frames)
            wanted = self.decode(path, "files")
            with open(path, "rb") as file:  # a file
                self.decode_input(out, stdin=file)
            self.assertEqual((out / "stdin.csv").read_bytes(), wanted)
            with subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE) as cat:  # a pipe
                self.decode_input(out, stdin=cat.stdout)
            self.assertEqual((out / "stdin.csv").read_bytes(), wanted)
            # A program that writes into a pipe does not know the length.
            streamed = path.read_bytes()
            self.decode_input(out, input=streamed[:4] + b"\xff" * 4 + streamed[8:40] + b"\xff" * 4 + streamed[44:])
            self.assertEqual((out / "stdin.csv").read_bytes(), wanted)
        failed = self.decode_input(out, input=b"no sound", check=3)
        self.assertIn("/dev/stdin: byte 0: not an audio file", failed)

    def test_folders_in_a_folder_are_decoded_into_such_folders(self):
        folder, out = self.directory / "deep", self.directory / "deep" / "labels"
        (folder / "one" / "two").mkdir(parents=True)
        for place in ("", "one/", "one/two/"):
            self.recording(f"deep/{place}x.wav", 100)
        for more in ([], ["--resume"]):  # what was decoded is not searched
            tool.run("decode", self.model, folder, "--out", out, "--format", "csv", *more, check=0)
            found = sorted(str(path.relative_to(out)) for path in out.rglob("*.csv"))
            self.assertEqual(found, ["one/two/x.csv", "one/x.csv", "x.csv"])
        (folder / "one" / "x.flac").write_bytes((folder / "x.wav").read_bytes())
        refused = tool.run("decode", self.model, folder, "--out", self.directory / "both", "--format", "csv", check=2)
        self.assertIn("one/x.csv", refused.stderr)
        empty = self.directory / "nothing" / "in"
        empty.mkdir(parents=True)
        self.assertIn("or below", tool.run("decode", self.model, empty.parent, "--out", out, check=3).stderr)

    def decode_input(self, out, check=0, **how):
        result = subprocess.run([tool.SEGFUSE, "decode", str(self.model), "-", "--out", str(out), "--format", "csv"],
                                stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, **how)
        self.assertEqual(result.returncode, check, result.stderr)
        return result.stderr.decode()

    def test_several_recordings_keep_their_order_and_one_that_breaks_stops_only_itself(self):
        folder = self.directory / "several"
        folder.mkdir()
        self.recording("several/a.wav", 500)
        self.recording("several/b.wav", FRAMES + 100)
        self.recording("several/d.wav", FRAMES + 100)
        broken = self.recording("several/c.wav", FRAMES + 100)
        broken.write_bytes(broken.read_bytes()[:-1000])
        out = self.directory / "several-out"
        result = tool.run("decode", self.model, folder, "--out", out, "--format", "csv", check=3)
        self.assertEqual(sorted(path.name for path in out.glob("*.csv")), ["a.csv", "b.csv", "d.csv"])
        self.assertIn("c.wav", result.stderr)
        self.assertIn("cut off", result.stderr)
        self.assertEqual((out / "b.csv").read_bytes(), (out / "d.csv").read_bytes())
        self.assertEqual(list(out.glob(".segfuse-*[!s]")), [])

    def peak(self, path, out, *more):
        """Most memory that decoding had at once, in bytes. With "-" the recording comes through a pipe."""
        arguments = ["decode", str(self.model), *([] if "-" in more else [str(path)]), *more, "--threads", "1",
                     "--out", str(self.directory / out), "--format", "csv"]
        actions = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        with subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE) as cat:
            actions.append((os.POSIX_SPAWN_DUP2, cat.stdout.fileno(), 0))
            child = os.posix_spawn(tool.SEGFUSE, [tool.SEGFUSE, *arguments], {**os.environ}, file_actions=actions)
            _, status, usage = os.wait4(child, 0)
        self.assertEqual(status, 0)
        return usage.ru_maxrss * 1024

    @unittest.skipIf(os.environ.get("SEGFUSE_SANITIZE"), "a sanitizer's memory is not that of a run")
    def test_memory_does_not_grow_with_the_recording(self):
        small = self.recording("small.wav", FRAMES + 1)
        large = self.recording("large.wav", 6 * FRAMES)
        for name, more in (("bare", []), ("posteriors", ["--posteriors"]), ("input", ["-"])):
            with self.subTest(name):
                # The features of five times as many frames are 6 MB, the network's values 100.
                self.assertLess(self.peak(large, f"{name}-large", *more) - self.peak(small, f"{name}-small", *more), 6e6)

    @unittest.skipUnless(HOURS > 1, "minutes; SEGFUSE_HOURS=24 runs it")
    def test_a_day(self):
        day = self.recording("day.wav", HOURS * 360000)
        self.assertLess(self.peak(day, "day", "--posteriors"), 300e6)
        day.unlink()
        hour = self.recording("hour.wav", 360000)
        self.assertLess(self.peak(hour, "hour", "--k-best", "1", "--posteriors"), 8e9)  # whole
        # What stands behind the cut is not felt twenty seconds before it.
        self.assert_same_until(3580, *((self.directory / f"{name}/{name}.csv").read_bytes() for name in ("day", "hour")))
        files = [open(self.directory / f"{name}/{name}.frames.csv") for name in ("day", "hour")]
        for file in files:
            self.addCleanup(file.close)
        for one, other in itertools.islice(zip(*files), 358000):
            self.assertEqual(one, other)


if __name__ == "__main__":
    unittest.main()
