"""A small corpus of WAV and .phn files, copies of it with other labels or signals, trainings of it."""

import json
import shutil
import struct
import wave

import tool

RATE = 16000


def read_wav(path):
    """Rate and samples of a 16-bit mono WAV."""
    with wave.open(str(path)) as file:
        return file.getframerate(), struct.unpack(f"<{file.getnframes()}h", file.readframes(file.getnframes()))


def write_wav(path, rate, *channels):
    """16-bit WAV of channels of one length."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(len(channels))
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(b"".join(struct.pack(f"<{len(channels)}h", *frame) for frame in zip(*channels, strict=True)))


def rows_of(path):
    """(start, end, label) of a .phn file, in samples."""
    return [(int(start), int(end), label) for start, end, label in map(str.split, path.read_text().splitlines())]


def write_phn(path, rows):
    path.write_text("".join(f"{start} {end} {label}\n" for start, end, label in rows))


class CorpusTest(tool.ToolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data, cls.config = cls.corpus()

    def changed(self, name, change, of=".phn"):
        """A copy of the corpus without labels; change(path of the file with that ending, rows of its labels) writes them anew."""
        folder = self.directory / name
        shutil.copytree(self.data, folder)
        for path in sorted(folder.rglob("*.phn")):
            rows = rows_of(path)
            path.unlink()
            change(path.with_suffix(of), rows)
        return folder

    def train(self, name, data, *more, check=0):
        out = self.directory / name
        result = tool.run("train", self.config, "--data", data, "--out", out, "--json", "--set", "training.epochs=3", *more,
                          check=check)
        return out, json.loads(result.stdout) if check == 0 else None, result.stderr
