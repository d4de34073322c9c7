"""Long recordings: decoded piece by piece, in memory that does not grow with them."""

import csv
import os
import threading
import unittest
import wave

import small_corpus
import tool

FRAMES = 20000  # longer recordings are decoded in pieces
RATE = small_corpus.RATE


class LongTest(tool.ToolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        data, config = cls.corpus()
        cls.model = cls.directory / "model"
        tool.run("train", config, "--data", data, "--out", cls.model, "--set", "training.epochs=3", check=0)
        cls.sounds = b""
        for path in sorted(data.rglob("*.wav")):
            with wave.open(str(path)) as file:
                cls.sounds += file.readframes(file.getnframes())

    def recording(self, name, frames):
        """Of so many frames of 10 ms."""
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        size = 2 * (frames * RATE // 100)
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes((self.sounds * (size // len(self.sounds) + 1))[:size])
        return path

    def decode(self, path, out, *more):
        tool.run("decode", self.model, path, "--out", self.directory / out, "--format", "csv", *more, check=0)
        return (self.directory / out / path.with_suffix(".csv").name).read_bytes()

    def through_a_pipe(self, path, out):
        """Which is read whole."""
        pipe = self.directory / out / "in" / path.name
        pipe.parent.mkdir(parents=True)
        os.mkfifo(pipe)
        writer = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()))
        writer.start()
        labels = self.decode(pipe, out)
        writer.join()
        return labels

    def test_the_same_bytes_as_read_whole_and_the_segments_of_the_whole(self):
        for frames in (FRAMES - 1, FRAMES + 1, 6 * 4096, 3 * 8192 + 1):
            with self.subTest(frames=frames):
                path = self.recording(f"r{frames}.wav", frames)
                pieces = self.decode(path, f"pieces{frames}")
                self.assertEqual(pieces, self.through_a_pipe(path, f"pipe{frames}"))
                # Alternatives need all scores at once.
                whole = self.decode(path, f"whole{frames}", "--k-best", "1")
                rows = [list(csv.reader(text.decode().splitlines())) for text in (pieces, whole)]
                self.assertEqual([row[:3] for row in rows[0]], [row[:3] for row in rows[1]])
                for mine, other in zip(rows[0][1:], rows[1][1:], strict=True):
                    for a, b in zip(mine[3:], other[3:], strict=True):
                        self.assertAlmostEqual(float(a), float(b), delta=1e-3)

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

    def peak(self, path, out):
        """Most memory that decoding had at once, in bytes."""
        before = os.posix_spawn(tool.SEGFUSE, [tool.SEGFUSE, "decode", str(self.model), str(path), "--out",
                                               str(self.directory / out), "--format", "csv", "--threads", "1"],
                                {**os.environ}, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
        _, status, usage = os.wait4(before, 0)
        self.assertEqual(status, 0)
        return usage.ru_maxrss * 1024

    @unittest.skipIf(os.environ.get("SEGFUSE_SANITIZE"), "a sanitizer's memory is not that of a run")
    def test_memory_does_not_grow_with_the_recording(self):
        small = self.peak(self.recording("small.wav", FRAMES + 1), "small")
        large = self.peak(self.recording("large.wav", 6 * FRAMES), "large")
        # The features of five times as many frames are 6 MB, the network's values 100.
        self.assertLess(large - small, 12e6)


if __name__ == "__main__":
    unittest.main()
