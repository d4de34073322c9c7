"""Recordings and labels as others write them: other sample rates, other formats."""

import json
import shutil
import struct
import unittest
import wave

import tool

RATE = 16000


def read_wav(path):
    """Rate and samples of a 16-bit mono WAV."""
    with wave.open(str(path)) as file:
        return file.getframerate(), struct.unpack(f"<{file.getnframes()}h", file.readframes(file.getnframes()))


def write_wav(path, rate, *channels):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(len(channels))
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(b"".join(struct.pack(f"<{len(channels)}h", *frame) for frame in zip(*channels)))


def rows_of(path):
    """(start, end, label) of a .phn file, in samples."""
    return [(int(start), int(end), label) for start, end, label in map(str.split, path.read_text().splitlines())]


def write_phn(path, rows):
    path.write_text("".join(f"{start} {end} {label}\n" for start, end, label in rows))


def at_rate(samples, rate):
    """The samples of a 16 kHz signal at another rate, by straight lines between them."""
    out = []
    for i in range(len(samples) * rate // RATE):
        at = i * RATE / rate
        left = int(at)
        right = min(left + 1, len(samples) - 1)
        out.append(round(samples[left] + (at - left) * (samples[right] - samples[left])))
    return out


class FormatsTest(tool.ToolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data, cls.config = cls.corpus()

    def changed(self, name, change):
        """A copy of the corpus; change(path of a WAV file, rows of its labels) writes both anew."""
        folder = self.directory / name
        shutil.copytree(self.data, folder)
        for path in sorted(folder.rglob("*.wav")):
            labels = path.with_suffix(".phn")
            rows = rows_of(labels)
            labels.unlink()
            change(path, rows)
        return folder

    def train(self, name, data, *more, check=0):
        out = self.directory / name
        result = tool.run("train", self.config, "--data", data, "--out", out, "--json", "--set", "training.epochs=3", *more,
                          check=check)
        return out, json.loads(result.stdout) if check == 0 else None, result.stderr


class RatesTest(FormatsTest):
    def test_recordings_of_another_rate_are_resampled_and_counted(self):
        rate = 44100

        def faster(path, rows):
            _, samples = read_wav(path)
            write_wav(path, rate, at_rate(samples, rate))
            write_phn(path.with_suffix(".phn"), [(a * rate // RATE, b * rate // RATE, label) for a, b, label in rows])

        data = self.changed("at-44100", faster)
        _, before, errors = self.train("of-16000", self.data)
        self.assertNotIn("resampled", errors)
        model, metrics, errors = self.train("of-44100", data)
        count = len(list(data.rglob("*.wav")))
        self.assertEqual(errors.count(f"resampled to 16000 Hz: {count} recordings of 44100 Hz"), 1, errors)
        # The same segments at the same times: what was learnt is nearly the same.
        self.assertEqual(metrics["counts"]["labels"]["gold"], before["counts"]["labels"]["gold"])
        self.assertLess(abs(metrics["frame_accuracy"] - before["frame_accuracy"]), 0.1)
        # Labels that count samples count those of the file.
        out = self.directory / "decoded-44100"
        result = tool.run("decode", model, data / "test", "--out", out, "--format", "phn", check=0)
        self.assertIn("resampled to 16000 Hz: 4 recordings of 44100 Hz", result.stderr)
        for path in sorted((data / "test").glob("*.wav")):
            _, samples = read_wav(path)
            end = rows_of(out / f"{path.stem}.phn")[-1][1]
            self.assertEqual(end, len(samples), path)

    def test_rates_too_far_apart_are_refused(self):
        data = self.changed("slow", lambda path, rows: (write_wav(path, 50, read_wav(path)[1]), write_phn(path.with_suffix(".phn"), rows)))
        _, _, errors = self.train("of-slow", data, check=3)
        self.assertIn("sample rate 50 Hz; it cannot be resampled to 16000 Hz", errors)

    def test_stacked_channels_train_and_decode(self):
        def both(path, rows):
            _, samples = read_wav(path)
            write_wav(path, RATE, samples, samples[::-1])
            write_phn(path.with_suffix(".phn"), rows)

        data = self.changed("stereo", both)
        _, _, errors = self.train("of-stereo", data, check=3)
        self.assertIn('"stack" for all', errors)
        model, _, _ = self.train("of-stack", data, "--set", "features.channel=stack")
        tool.run("decode", model, data / "test", "--out", self.directory / "decoded-stack", check=0)
        tool.run("eval", model, "--data", data, check=0)
        result = tool.run("decode", model, self.data / "test", "--out", self.directory / "decoded-mono", check=3)
        self.assertIn("its features have 16 columns, those of the model 32", result.stderr)


if __name__ == "__main__":
    unittest.main()
