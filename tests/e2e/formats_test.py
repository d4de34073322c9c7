"""Recordings and labels as others write them: other sample rates, other formats."""

import json
import math
import shutil
import struct
import unittest
import zlib

import tool
from small_corpus import RATE, CorpusTest, read_wav, rows_of, write_phn, write_wav


def at_rate(samples, rate):
    """The samples of a 16 kHz signal at another rate, by straight lines between them."""
    out = []
    for i in range(len(samples) * rate // RATE):
        at = i * RATE / rate
        left = int(at)
        right = min(left + 1, len(samples) - 1)
        out.append(round(samples[left] + (at - left) * (samples[right] - samples[left])))
    return out


class RatesTest(CorpusTest):
    def test_recordings_of_another_rate_are_resampled_and_counted(self):
        rate = 44100

        def faster(path, rows):
            _, samples = read_wav(path)
            write_wav(path, rate, at_rate(samples, rate))
            write_phn(path.with_suffix(".phn"), [(a * rate // RATE, b * rate // RATE, label) for a, b, label in rows])

        data = self.changed("at-44100", faster, ".wav")
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
        data = self.changed("slow", lambda path, rows: (write_wav(path, 50, read_wav(path)[1]), write_phn(path.with_suffix(".phn"), rows)), ".wav")
        _, _, errors = self.train("of-slow", data, check=3)
        self.assertIn("sample rate 50 Hz; it cannot be resampled to 16000 Hz", errors)

    def test_stacked_channels_train_and_decode(self):
        def both(path, rows):
            _, samples = read_wav(path)
            write_wav(path, RATE, samples, samples[::-1])
            write_phn(path.with_suffix(".phn"), rows)

        data = self.changed("stereo", both, ".wav")
        _, _, errors = self.train("of-stereo", data, check=3)
        self.assertIn('"stack" for all', errors)
        model, _, _ = self.train("of-stack", data, "--set", "features.channel=stack")
        tool.run("decode", model, data / "test", "--out", self.directory / "decoded-stack", check=0)
        tool.run("eval", model, "--data", data, check=0)
        result = tool.run("decode", model, self.data / "test", "--out", self.directory / "decoded-mono", check=3)
        self.assertIn("its features have 16 columns, those of the model 32", result.stderr)


def write_labels(path, rows):
    path.write_text("start,end,label\n" + "".join(f"{a / RATE},{b / RATE},{label}\n" for a, b, label in rows))


def mat_element(kind, data):
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def mat_array(kind, rows, columns, name, content):
    return mat_element(14, mat_element(6, struct.pack("<II", kind, 0)) + mat_element(5, struct.pack("<ii", rows, columns))
                       + mat_element(1, name.encode()) + content)


def mat_variable(name, value):
    """A variable of a MAT-file, compressed as MATLAB does it: a text or a column of numbers."""
    if isinstance(value, str):
        array = mat_array(4, 1, len(value), name, mat_element(17, value.encode("utf-16-le")))
    else:
        array = mat_array(6, len(value), 1, name, mat_element(9, struct.pack(f"<{len(value)}d", *value)))
    packed = zlib.compress(array)
    return struct.pack("<II", 15, len(packed)) + packed


class LabelsTest(CorpusTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = cls.directory / "model"
        tool.run("train", cls.config, "--data", cls.data, "--out", cls.model, "--quiet", check=0)

    def test_what_decode_writes_is_read_back_as_it_was(self):
        table = (tool.SOURCE / "docs/data.md").read_text().split("| `--format` |")[1].split("\n\n")[0].splitlines()[2:]
        names = [row.split("|")[1].strip() for row in table if "read only" not in row]
        self.assertGreater(len(names), 15)
        names.remove("notmat")  # it has no room for these labels: test_songs_of_evtaf
        for name in names:
            with self.subTest(format=name):
                folder = self.directory / f"read-{name}"
                (folder / "test").mkdir(parents=True)
                for path in (self.data / "test").glob("*.wav"):
                    shutil.copy(path, folder / "test")
                tool.run("decode", self.model, folder / "test", "--out", folder / "test", "--format", name, check=0)
                result = json.loads(tool.run("eval", self.model, "--data", folder, "--json", check=0).stdout)
                self.assertEqual(result["label_error_rate"], 0)
                self.assertGreater(result["frame_accuracy"], 0.999)
        result = tool.run("decode", self.model, self.data / "test", "--out", self.directory / "none", "--format", "yarden", check=2)
        self.assertIn("no label format 'yarden' to write", result.stderr)

    def test_songs_of_evtaf(self):
        def as_cbin(path, rows):
            _, samples = read_wav(path)
            path.with_suffix(".cbin").write_bytes(struct.pack(f">{len(samples)}h", *samples))
            path.with_suffix(".rec").write_text(f"File created: once\n\nADFREQ =  {RATE:.7E}\nChans =  1\nSamples =  {len(samples)}\n")
            path.unlink()
            kept = rows[1:-1]  # what lies before and behind is silence
            variables = {"onsets": [a * 1000 / RATE for a, _, _ in kept], "offsets": [b * 1000 / RATE for _, b, _ in kept],
                         "labels": "".join(label[-1] for _, _, label in kept)}
            header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
            (path.parent / f"{path.stem}.cbin.not.mat").write_bytes(
                header + b"".join(mat_variable(key, value) for key, value in variables.items()))

        data = self.changed("evtaf", as_cbin, ".wav")
        _, _, errors = self.train("of-evtaf-gaps", data, check=3)
        self.assertIn("name a label to fill gaps with", errors)
        model, metrics, _ = self.train("of-evtaf", data, "--set", "data.fill_label=silence")
        self.assertGreater(metrics["counts"]["labels"]["gold"], 20)
        songs = self.directory / "songs"
        (songs / "test").mkdir(parents=True)
        for path in (data / "test").iterdir():
            if path.suffix in (".cbin", ".rec"):
                shutil.copy(path, songs / "test")
        letters = self.directory / "letters.tsv"
        letters.write_text("silence\t-\n")
        model, _, _ = self.train("of-letters-alone", data, "--set", "data.fill_label=silence", "--set", f"data.fold={letters}")
        tool.run("decode", model, songs / "test", "--out", songs / "test", "--format", "notmat", check=0)
        self.assertEqual(len(list((songs / "test").glob("*.cbin.not.mat"))), 4)
        result = json.loads(tool.run("eval", model, "--data", songs, "--json", check=0).stdout)
        self.assertEqual(result["label_error_rate"], 0)
        out = self.directory / "decoded-evtaf"
        tool.run("decode", model, data / "test", "--out", out, "--format", "raven", check=0)
        self.assertEqual(len(list(out.glob("*.selections.txt"))), 4)


def bands(samples, hop=160):
    """Rows of the energies of four tones in each hop of a signal."""
    rows = []
    for at in range(0, len(samples), hop):
        piece = samples[at:at + hop]
        row = []
        for cycles in (4, 9, 16, 25):
            angle = 2 * math.pi * cycles / hop
            real = sum(x * math.cos(angle * i) for i, x in enumerate(piece))
            imaginary = sum(x * math.sin(angle * i) for i, x in enumerate(piece))
            row.append(math.log1p(math.hypot(real, imaginary)))
        rows.append(row)
    return rows


def write_npy(path, rows):
    path.write_bytes(tool.npy((len(rows), len(rows[0])), [value for row in rows for value in row]))


class ValuesTest(CorpusTest):
    VALUES = ("--set", "features.kind=values", "--set", "features.frame_rate=100")

    def test_arrays_and_tables_train_decode_and_agree(self):
        rows_by_name = {}

        def as_npy(path, rows):
            _, samples = read_wav(path)
            rows_by_name[path.stem, path.parent.name] = bands(samples)
            write_npy(path.with_suffix(".npy"), rows_by_name[path.stem, path.parent.name])
            write_labels(path.with_suffix(".csv"), rows)
            path.unlink()

        def as_table(path, rows):
            text = "".join(",".join(map(repr, row)) + "\n" for row in rows_by_name[path.stem, path.parent.name])
            path.with_suffix(".csv").write_text("a,b,c,d\n" + text)
            write_labels(path.parent / f"{path.stem}_labels.csv", rows)
            path.unlink()

        arrays = self.changed("arrays", as_npy, ".wav")
        _, _, errors = self.train("of-arrays-alone", arrays, check=3)
        self.assertIn("no audio file", errors)
        _, _, errors = self.train("without-rate", arrays, "--set", "features.kind=values", check=3)
        self.assertIn("'features.frame_rate' is required for kind = \"values\": the number of rows per second", errors)
        model, metrics, errors = self.train("of-arrays", arrays, *self.VALUES, "--set", "training.epochs=12")
        self.assertNotIn("resampled", errors)
        self.assertGreater(metrics["frame_accuracy"], 0.5)
        tables = self.changed("tables", as_table, ".wav")
        again = json.loads(tool.run("eval", model, "--data", tables, "--json", check=0).stdout)
        self.assertEqual(again["label_error_rate"], metrics["label_error_rate"])
        out = self.directory / "decoded-arrays"
        tool.run("decode", model, arrays / "test", "--out", out, "--format", "csv", check=0)
        self.assertEqual(len(list(out.glob("*.csv"))), 4)
        # Others are refused by name.
        other = self.directory / "other"
        other.mkdir()
        write_npy(other / "narrow.npy", [[0.0, 1.0]])
        write_npy(other / "bad.npy", [[0.0, 1.0, math.nan, 0.0]])
        result = tool.run("decode", model, other, "--out", self.directory / "decoded-other", check=3)
        self.assertIn("narrow.npy: its features have 2 columns, those of the model 4", result.stderr)
        self.assertIn("bad.npy: row 0, column 2 is nan", result.stderr)

    def test_sequences_of_letters(self):
        data = self.directory / "genome"
        data.mkdir()
        text, labels = "", ""
        for i in range(20):
            pieces = [("repeat", "ACACACACACAC"), ("poly", "TTTTTTTT"), ("repeat", "ACACAC"), ("poly", "TTTTT" + "T" * (i % 4))]
            text += f">c{i:02}\n" + "".join(letters for _, letters in pieces) + "\n"
            at = 0
            for label, letters in pieces:
                labels += f"c{i:02}\t{at}\t{at + len(letters)}\t{label}\n"
                at += len(letters)
        (data / "genome.fa").write_text(text)
        (data / "genome.bed").write_text(labels)
        _, metrics, _ = self.train("of-letters", data, "--set", "features.kind=values", "--set", "features.frame_rate=1",
                                   "--set", "training.epochs=20", "--set", "evaluation.tolerances=[1]")
        self.assertGreater(metrics["frame_accuracy"], 0.9)


if __name__ == "__main__":
    unittest.main()
