"""A folder of recordings that are not audio is enough: arrays, tables and sequences with labels beside them."""

import csv
import json
import math
import random
import unittest

import tool
from folder_test import QUICK, digest, textgrid

MEANS = {"rest": (0.0, 0.0, 1.0), "step": (2.0, -1.0, 0.0), "turn": (-2.0, 1.0, 3.0)}


def recording(seed, rate):
    """Rows of three values, and their labels as (start, end, label) in seconds."""
    draw = random.Random(seed)
    rows, labels, last = [], [], "turn"
    for _ in range(8 + seed % 3):
        label = draw.choice([one for one in MEANS if one != last])
        length = draw.randint(6, 20)
        labels.append((len(rows) / rate, (len(rows) + length) / rate, label))
        rows += [[mean + draw.gauss(0, 0.4) for mean in MEANS[label]] for _ in range(length)]
        last = label
    return rows, labels


def array(rows):
    return tool.npy((len(rows), len(rows[0])), [value for row in rows for value in row])


def table(rows):
    return "x,y,z\n" + "".join(",".join(map(repr, row)) + "\n" for row in rows)


def csv_labels(labels):
    return "start,end,label\n" + "".join(f"{a:.6f},{b:.6f},{label}\n" for a, b, label in labels)


class ValuesFolder(tool.ToolTest):
    def folder(self, name, count=12, rate=50.0, write=None):
        """A folder of that many recordings; write(path without an ending, rows, labels) writes one."""
        folder = self.directory / name
        folder.mkdir()
        for i in range(count):
            rows, labels = recording(i, rate)
            (write or self.as_arrays)(folder / f"r{i:02}", rows, labels)
        return folder

    @staticmethod
    def as_arrays(stem, rows, labels):
        stem.with_suffix(".npy").write_bytes(array(rows))
        stem.with_suffix(".csv").write_text(csv_labels(labels))

    @staticmethod
    def as_tables(stem, rows, labels):
        stem.with_suffix(".csv").write_text(table(rows))
        stem.with_suffix(".TextGrid").write_text(textgrid({"moves": labels}))

    def init(self, folder, *more, check=0):
        result = tool.run("init", folder, "--out", self.directory / f"{folder.name}.toml", "--overwrite", *more, check=check)
        return result.stdout if check == 0 else result.stderr

    def refused(self, folder, *more, check=3):
        """The one sentence that init says, without the program's name."""
        error = self.init(folder, *more, check=check)
        self.assertEqual(len(error.splitlines()), 1, error)
        self.assertTrue(error.startswith("segfuse: "), error)
        return error.removeprefix("segfuse: ").strip()


class TrainTest(ValuesFolder):
    def test_a_folder_of_arrays_trains_and_decodes(self):
        folder = self.folder("arrays")
        work = self.directory / "work"
        work.mkdir()
        trained = tool.run("train", folder, "--set", "training.epochs=20", "--set", "model.width=16", "--json", cwd=work, check=0)
        self.assertGreater(json.loads(trained.stdout)["frame_accuracy"], 0.9)
        frames = sum(len(recording(i, 50)[0]) for i in range(12))
        for words in (
            "12 with labels",
            f"frames        {frames}, a row each, of 20 ms",
            "50 rows a second: rows over the end of the last label, which agree in all 12 recordings",
            "channels      3\n",
            "3 labels",
            "preset        generic: the recordings are not audio",
            "9 to train on, 1 for development, 2 for test",
        ):
            self.assertIn(words, trained.stderr)
        for word in ("nan", "Hz", "windows"):
            self.assertNotIn(word, trained.stderr.split("epoch")[0])
        # The file that init writes gives the same model.
        tool.run("init", folder, cwd=work, check=0)
        by_file = ("train", "arrays.toml", "--out", "by-file", "--set", "training.epochs=20", "--set", "model.width=16")
        tool.run(*by_file, cwd=work, check=0)
        self.assertEqual(digest(work / "arrays-model/model.safetensors"), digest(work / "by-file/model.safetensors"))
        # What is decoded has the times of the labels.
        decoded = tool.run("decode", "arrays-model", folder, "--out", "decoded", "--format", "csv", cwd=work, check=0)
        self.assertNotIn("resampled", decoded.stderr)
        self.assertEqual(len(list((work / "decoded").glob("*.csv"))), 12)
        close = total = 0
        for i in range(12):
            with open(work / f"decoded/r{i:02}.csv", newline="") as file:
                rows = [(float(row["start"]), float(row["end"]), row["label"]) for row in csv.DictReader(file)]
            gold = recording(i, 50)[1]
            self.assertAlmostEqual(rows[-1][1], gold[-1][1], places=6)
            found = {(round(start, 2), label) for start, _, label in rows}
            close += sum((round(start, 2), label) in found for start, _, label in gold)
            total += len(gold)
        self.assertGreater(close / total, 0.8)
        measured = json.loads(tool.run("eval", "arrays-model", "--json", cwd=work, check=0).stdout)
        self.assertGreater(measured["frame_accuracy"], 0.9)

    def test_tables_and_arrays_are_one_training(self):
        models = []
        for name, write in (("as-arrays", self.as_arrays), ("as-tables", self.as_tables)):
            out = self.directory / f"{name}-model"
            folder = self.folder(name, write=write)
            tool.run("train", folder, *QUICK, "--out", out, check=0)
            models.append(json.loads((out / "metrics.json").read_text())["label_error_rate"])
            listed = tool.run("decode", out, folder, "--out", self.directory / f"{name}-labels", "--json", check=0)
            self.assertEqual(len(json.loads(listed.stdout)), 12)
        self.assertEqual(*models)

    def test_recordings_are_never_replaced_by_their_labels(self):
        folder = self.folder("tables-read", count=4, write=self.as_tables)
        model = self.directory / "tables-read-model"
        tool.run("train", folder, "--frame-rate", "50", "--out", model, *QUICK, "--quiet", check=0)
        before = (folder / "r00.csv").read_bytes()
        for more in ([], ["--overwrite"]):
            result = tool.run("decode", model, folder, "--out", folder, "--format", "csv", *more, check=2)
            self.assertIn("choose another directory with --out", result.stderr)
            self.assertEqual((folder / "r00.csv").read_bytes(), before)

    def test_a_row_of_one_value(self):
        def narrow(stem, rows, labels):
            values = [row[0] for row in rows]
            stem.with_suffix(".npy").write_bytes(tool.npy((len(values),), values, "d"))
            stem.with_suffix(".txt").write_text("".join(f"{a}\t{b}\t{label}\n" for a, b, label in labels))

        folder = self.folder("narrow", write=narrow)
        self.assertIn("channels      1\n", self.init(folder))
        tool.run("train", folder, *QUICK, "--out", self.directory / "narrow-model", check=0)

    def test_sequences_of_letters_count_positions(self):
        folder = self.directory / "genome"
        folder.mkdir()
        pieces = [("repeat", "ACACACAC"), ("poly", "TTTTTT")]
        text = bed = ""
        for i in range(8):
            text += f">c{i}\n" + "".join(letters for _, letters in pieces) + "\n"
            bed += f"c{i}\t0\t8\trepeat\nc{i}\t8\t14\tpoly\n"
        (folder / "all.fa").write_text(text)
        (folder / "all.bed").write_text(bed)
        card = self.init(folder)
        self.assertIn("1 rows a second: the labels count positions", card)
        self.assertIn("channels      4\n", card)
        self.assertNotIn("warning: " + str(folder), card)
        tool.run("train", folder, *QUICK, "--out", self.directory / "genome-model", check=0)
        # Rows of sequences that are not there are said to be left out.
        strangers = "".join(f"chr{i}\t0\t8\trepeat\n" for i in range(5))
        (folder / "all.bed").write_text(bed + strangers)
        words = ('its rows of 5 names are not used, since no recording or sequence has this name: '
                 '"chr0", "chr1", "chr2" and 2 more')
        self.assertIn(words, self.init(folder))
        trained = tool.run("train", folder, *QUICK, "--out", self.directory / "genome-strangers", check=0)
        self.assertIn(words, trained.stderr)

    def test_a_manifest_names_values(self):
        folder = self.folder("listed", 6)
        inner = folder / "inner"
        inner.mkdir()
        lines = ["audio\tlabels\tsplit"]
        for i, path in enumerate(sorted(folder.glob("*.npy"))):
            path.rename(inner / path.name)
            lines.append(f"inner/{path.name}\t{path.stem}.csv\t{'test' if i == 0 else 'train'}")
        (folder / "manifest.tsv").write_text("\n".join(lines) + "\n")
        card = self.init(folder)
        self.assertIn("50 rows a second", card)
        self.assertIn("1 for test, as given", card)
        ids = self.folder("by-id", 6)
        (ids / "manifest.csv").write_text("id\n" + "".join(f"{path.stem}\n" for path in sorted(ids.glob("*.npy"))))
        self.assertIn("50 rows a second", self.init(ids))


class FrameRateTest(ValuesFolder):
    def rate(self, name, rate, *more):
        folder = self.folder(name, 6, rate)
        self.init(folder, *more)
        text = (self.directory / f"{name}.toml").read_text()
        return float(text.split("frame_rate = ")[1].split()[0])

    def test_the_rate_is_the_simplest_that_all_agree_on(self):
        for name, rate in (("video", 29.97), ("thirds", 1000 / 3), ("slow", 0.1), ("ecg", 500.0), ("half", 12.5)):
            # A part of a row at the end of a recording is all that it may be wrong by.
            longest = max(len(recording(i, rate)[0]) for i in range(6))
            self.assertLess(abs(self.rate(name, rate) / rate - 1) * longest, 1, name)
        for name, rate in (("slow-again", 0.1), ("ecg-again", 500.0), ("half-again", 12.5)):
            self.assertEqual(self.rate(name, rate), rate)

    def test_what_the_user_says_wins(self):
        self.assertEqual(self.rate("said", 50.0, "--frame-rate", "49.9"), 49.9)
        self.assertIn("49.9 rows a second: as requested", self.init(self.directory / "said", "--frame-rate", "49.9"))
        config = self.directory / "said.toml"
        shown = tool.run("train", config, "--frame-rate", "48", "--print-config", check=0).stdout
        self.assertIn("frame_rate = 48", shown)
        wrong = self.refused(self.directory / "said", "--frame-rate", "60")
        self.assertIn("check that they belong together", wrong)
        self.assertIn("r00.csv:", wrong)

    def test_labels_that_end_early_do_not_agree(self):
        def early(stem, rows, labels):
            self.as_arrays(stem, rows, labels[: 5 if stem.name == "r03" else None])

        folder = self.folder("early", 6, write=early)
        words = self.refused(folder, check=2)
        self.assertRegex(words, r"50 a second in r0\d.npy .* a second in r03.npy .* say how many rows are a second with --frame-rate")
        card = self.init(folder, "--frame-rate", "50")
        self.assertIn('in 1 recording', card)

    def test_labels_that_count_rows_say_nothing(self):
        def phn(stem, rows, labels):
            stem.with_suffix(".npy").write_bytes(array(rows))
            stem.with_suffix(".phn").write_text("".join(f"{round(50 * a)} {round(50 * b)} {label}\n" for a, b, label in labels))

        folder = self.folder("counted", 6, write=phn)
        self.assertIn("the labels count rows, and nothing says how long a row is", self.refused(folder, check=2))
        self.init(folder, "--frame-rate", "50")
        tool.run("train", folder, *QUICK, "--frame-rate", "50", "--out", self.directory / "counted-model", check=0)

    def test_refused_choices(self):
        folder = self.folder("choices", 6)
        for rate, words in (("fast", "is 'fast'"), ("0", "above 0"), ("-5", "above 0"), ("nan", "above 0"), ("1e10", "up to 1e9")):
            self.assertIn(words, self.refused(folder, f"--frame-rate={rate}", check=2))
        self.assertIn("the preset 'birdsong' is for sound", self.refused(folder, "--preset", "birdsong", check=2))
        self.assertIn("preset        generic: as requested", self.init(folder, "--preset", "generic"))
        sound, _ = self.corpus(train=4, test=2)
        self.assertIn("--frame-rate is for recordings that are not audio", self.refused(sound, "--frame-rate", "50", check=2))


class MalformedTest(ValuesFolder):
    def test_each_is_one_sentence_that_names_the_file(self):
        rows, labels = recording(1, 50.0)
        flat = [value for row in rows for value in row]
        spoilt = [*flat[:10], math.nan, *flat[11:]]
        text = table(rows).splitlines(keepends=True)
        late = [*labels[:-1], (labels[-1][0], labels[-1][1] + 5, labels[-1][2])]
        cases = {
            "nan.npy": (tool.npy((len(rows), 3), spoilt), labels, "nan.npy: row 3, column 1 is nan; expected finite numbers"),
            "whole.npy": (tool.npy((len(rows), 3), [int(value) for value in flat], "q"), labels, "whole.npy: the array has the type"),
            "deep.npy": (tool.npy((len(rows), 3, 1), flat), labels, "deep.npy: the array has 3 dimensions"),
            "empty.npy": (tool.npy((0, 3), []), labels, "empty.npy: there are no values"),
            "cut.npy": (array(rows)[:-40], labels, "cut.npy: byte 128: "),
            "wide.npy": (tool.npy((len(rows) // 2, 6), flat[: len(rows) // 2 * 6]), labels, "wide.npy: its rows have 6 values, those of r00.npy have 3"),
            "not.npy": (b"nothing", labels, "not.npy: byte 0: not a .npy file"),
            "ragged.csv": ("".join([*text[:4], "1,2\n", *text[4:]]).encode(), labels, "ragged.csv:5: 2 fields; the first line has 3"),
            "word.csv": ("".join([*text[:4], "1,2,three\n", *text[4:]]).encode(), labels, 'word.csv:5: field 3 is "three"; expected a number'),
            "infinite.csv": ("".join([*text[:4], "1,2,inf\n", *text[4:]]).encode(), labels, 'infinite.csv:5: field 3 is "inf"; expected a number'),
            "first.csv": ("".join(["1,nan,2\n", *text[1:]]).encode(), labels, 'first.csv:1: field 2 is "nan"; expected a number'),
            "header.csv": (text[0].encode(), labels, "header.csv: there are no values"),
            "late.npy": (array(rows), late, "late.csv"),
        }
        for name, (content, of, words) in cases.items():
            is_table = name.endswith(".csv")
            folder = self.folder(f"with-{name}", 4, write=self.as_tables if is_table else self.as_arrays)
            stem = folder / name.rpartition(".")[0]
            (self.as_tables if is_table else self.as_arrays)(stem, rows, of)
            (folder / name).write_bytes(content)
            rate = ("--frame-rate", "50")
            self.assertIn(words, self.refused(folder, *rate, check=3), name)
            out = self.directory / "never"
            trained = tool.run("train", folder, *rate, "--out", out, check=3)
            self.assertIn(words, trained.stderr, name)
            self.assertFalse((out / "model.safetensors").exists())

    def test_folders_without_pairs(self):
        folder = self.folder("alone", 4, write=lambda stem, rows, labels: stem.with_suffix(".npy").write_bytes(array(rows)))
        self.assertIn("4 recordings that are not audio (arrays, tables or sequences) and 0 label files", self.refused(folder))
        one = self.folder("single", 1)
        self.assertIn("at least one recording to train on and one to test on", self.refused(one))
        some = self.folder("some", 6)
        (some / "r05.csv").unlink()
        self.assertIn("1 recording without labels: r05.npy", self.init(some))

    def test_audio_wins(self):
        sound, _ = self.corpus(train=5, test=2)
        for i, path in enumerate(sorted((sound / "train").glob("*.wav"))):
            path.with_suffix(".npy").write_bytes(array(recording(i, 50.0)[0]))
        self.assertIn("16000 Hz", self.init(sound))


if __name__ == "__main__":
    unittest.main()
