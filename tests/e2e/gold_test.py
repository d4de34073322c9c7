"""What the trainer makes of gold labels, channels and features: nothing is changed in silence."""

import json
import pathlib
import shutil
import struct
import unittest

import tool
from small_corpus import RATE, CorpusTest, read_wav, rows_of, write_phn, write_wav

def write_csv(path, rows):
    path.write_text("start,end,label\n" + "".join(f"{a / RATE},{b / RATE},{label}\n" for a, b, label in rows))


def without_times(metrics):
    return {key: value for key, value in metrics.items() if "seconds" not in key and key not in ("data", "model", "run")}


class GoldTest(CorpusTest):
    def test_neighbours_of_one_label_stay_apart(self):
        def halve(path, rows):
            halves = []
            for start, end, label in rows:
                middle = start + (end - start) // 2 // 160 * 160
                halves += [(start, middle, label), (middle, end, label)] if middle > start else [(start, end, label)]
            write_phn(path, halves)
        data = self.changed("halved", halve)
        segments = sum(len(rows_of(path)) for path in (data / "test").glob("*.phn"))
        out, metrics, errors = self.train("of-halves", data, "--set", "model.subsample=1")
        self.assertEqual(metrics["counts"]["labels"]["gold"], segments)
        self.assertNotIn("they were joined", errors)
        # What is decoded is right when it is the gold.
        again = self.directory / "again"
        (again / "test").mkdir(parents=True)
        tool.run("decode", out, data / "test", "--out", again / "test", "--format", "phn", check=0)
        for path in (data / "test").glob("*.wav"):
            shutil.copy(path, again / "test")
        decoded = sum(len(rows_of(path)) for path in (again / "test").glob("*.phn"))
        figures = json.loads(tool.run("eval", out, "--data", again, "--json", check=0).stdout)
        self.assertEqual((figures["label_error_rate"], figures["counts"]["labels"]["gold"]), (0, decoded))

    def test_a_folding_map_says_what_it_joins(self):
        fold = self.directory / "fold.tsv"
        labels = sorted({label for path in self.data.rglob("*.phn") for _, _, label in rows_of(path)})
        fold.write_text(f"{labels[0]}\t{labels[1]}\n")
        rows = [[label for _, _, label in rows_of(path)] for path in (self.data / "test").glob("*.phn")]
        joins = sum({a, b} == set(labels[:2]) for row in rows for a, b in zip(row, row[1:]))
        self.assertGreater(joins, 0)
        out, metrics, errors = self.train("folded", self.data, "--set", f"data.fold={fold}")
        self.assertEqual(metrics["counts"]["labels"]["gold"], sum(map(len, rows)) - joins)
        self.assertRegex(errors, rf"neighbours of different labels one label; they were joined: '{labels[1]}' \d+")
        self.assertIn(f"joined in the gold: '{labels[1]}' {joins}", (out / "report.html").read_text().replace("&#39;", "'"))

    def test_labels_that_end_before_the_audio(self):
        """The end that is filled for training is the end that counts, in the choice of the epoch and in the figures."""
        def cut(path, rows):
            self.ends[path.stem] = rows[-1][1]
            while rows[-1][1] > self.ends[path.stem] - 0.5 * RATE:
                rows.pop()
            write_csv(path.with_suffix(".csv"), rows)
        def fill(path, rows):
            end = rows[-1][1]
            while rows[-1][1] > end - 0.5 * RATE:
                rows.pop()
            write_csv(path.with_suffix(".csv"), rows + [(rows[-1][1], end, "rest")])
        self.ends = {}
        early, whole = self.changed("early", cut), self.changed("whole", fill)
        model, figures, _ = self.train("of-early", early, "--set", "data.fill_label=rest")
        other, filled, _ = self.train("of-whole", whole, "--set", "data.fill_label=rest")
        self.assertEqual(without_times(figures), without_times(filled))
        for split in ("dev", "test"):
            seen = [json.loads(tool.run("eval", model, "--data", data, "--split", split, "--json", check=0).stdout)
                    for data in (early, whole)]
            self.assertEqual(without_times(seen[0]), without_times(seen[1]))
        self.assertIn("rest", figures["durations"])

    def test_repeated_syllables_are_counted_where_asked(self):
        fold = self.directory / "syllables.tsv"
        labels = sorted({label for path in self.data.rglob("*.phn") for _, _, label in rows_of(path)})
        fold.write_text(f"{labels[0]}\t\n")
        rows = [[label for _, _, label in rows_of(path)] for path in sorted((self.data / "test").glob("*.phn"))]
        left = [[label for label in row if label != labels[0]] for row in rows]
        touching = sum(a == b for row in left for a, b in zip(row, row[1:]))
        self.assertGreater(touching, 0)
        for merge, expected in (("true", sum(map(len, left)) - touching), ("false", sum(map(len, left)))):
            _, metrics, _ = self.train(f"merge-{merge}", self.data, "--set", f"data.metric_fold={fold}",
                                       "--set", f"data.metric_merge={merge}", "--set", "training.epochs=1")
            self.assertEqual(metrics["counts"]["labels"]["gold"], expected)

    def test_labels_that_training_lacks_count_as_wrong(self):
        # The development set is every tenth of the training list, from the sixth on.
        unseen = [sorted((self.data / "train").glob("*.phn"))[5], sorted((self.data / "test").glob("*.phn"))[0]]
        unseen = [(path.parent.name, path.name) for path in unseen]
        def rename(path, rows):
            if (path.parent.name, path.name) in unseen:
                rows = [(a, b, "zz" if i == 1 else label) for i, (a, b, label) in enumerate(rows)]
            write_phn(path, rows)
        data = self.changed("unseen", rename)
        for more in ((), ("--set", "model.head=linear_chain"), ("--set", "model.head=softmax")):
            out, metrics, errors = self.train("of-unseen", data, *more)
            self.assertIn("labels that the training set lacks, so every segment decoded there counts as wrong: 'zz' 2", errors)
            self.assertEqual(metrics["durations"]["zz"]["gold"], 1)
            self.assertEqual(metrics["durations"]["zz"]["predicted"], 0)
            shutil.rmtree(out)
        _, _, errors = self.train("by-loss", data, "--set", "training.select_by=loss", check=2)
        self.assertIn("set training.select_by to label_error", errors)

    def test_the_report_has_the_configuration_of_the_run(self):
        out, _, _ = self.train("configured", self.data, "--set", "features.n_mels=12")
        report = (out / "report.html").read_text()
        for line in ("epochs = 3", "n_mels = 12", "warmup = 0.1", "select_by = ", str(self.data)):
            self.assertIn(line, report)
        self.assertNotIn("epochs = 6", report)
        again = self.directory / "configured-eval"
        tool.run("eval", out, "--out", again, check=0)
        self.assertIn("n_mels = 12", (again / "report.html").read_text())

    def test_the_table_shows_every_tolerance(self):
        out = self.directory / "tolerances"
        text = tool.run("--quiet", "train", self.config, "--data", self.data, "--out", out, "--set", "training.epochs=1",
                        "--set", "evaluation.tolerances=[0.0125,0.05]", check=0).stdout
        figures = json.loads((out / "metrics.json").read_text())
        for key in ("boundary_f1_12.5ms", "r_value_12.5ms", "boundary_f1_50ms", "r_value_50ms"):
            self.assertIn(f"{figures[key]:.4f}", text)
        self.assertIn("boundary F1 12.5ms", text)
        self.assertNotIn(" -", text)

    def test_several_channels_are_never_averaged_without_a_word(self):
        out, _, _ = self.train("mono", self.data)
        audio = sorted((self.data / "test").glob("*.wav"))[0]
        _, signal = read_wav(audio)
        opposite = [max(-32767, -x) for x in signal]
        stereo = self.directory / "stereo"
        stereo.mkdir()
        write_wav(stereo / audio.name, RATE, opposite, signal)
        refused = tool.run("decode", out, stereo, "--out", self.directory / "no", check=3)
        self.assertIn(f"{audio.name}: the file has 2 channels; choose one", refused.stderr)
        def labels(source, *more):
            folder = self.directory / "labels"
            shutil.rmtree(folder, ignore_errors=True)
            tool.run("decode", out, source, "--out", folder, "--format", "csv", *more, check=0)
            return (folder / f"{audio.stem}.csv").read_text()
        self.assertEqual(labels(stereo, "--channel", "1"), labels(audio))
        self.assertNotEqual(labels(stereo, "--channel", "mean"), labels(audio))
        tool.run("decode", out, stereo, "--out", self.directory / "no", "--channel", "left", check=2)
        shutil.copy(audio.with_suffix(".phn"), stereo)
        (stereo / "manifest.tsv").write_text(f"id\taudio\tsplit\tchannel\nx\t{audio.name}\ttest\t1\n")
        self.assertIn("0.", tool.run("eval", out, "--data", stereo, check=0).stdout)
        # A configuration's channel, and its refusals.
        for audio in sorted(self.data.rglob("*.wav"))[:1]:
            broken = self.directory / "one-stereo"
            shutil.copytree(self.data, broken)
            _, signal = read_wav(audio)
            write_wav(broken / audio.relative_to(self.data), RATE, signal, [0] * len(signal))
        _, _, errors = self.train("one", broken, check=3)
        self.assertIn("features.channel = 0", errors)
        self.train("one", broken, "--set", "features.channel=0")
        self.train("two", broken, "--set", "features.channel=both", check=3)


    def test_segments_longer_than_k_are_joined(self):
        """Cut with K = 12 frames and put together again: gold and decoded segments count once."""
        rows = [rows_of(path) for path in sorted((self.data / "test").glob("*.phn"))]
        longer = sum(end - start > 12.5 * RATE / 100 for row in rows for start, end, _ in row)
        self.assertGreater(longer, 3)
        found = {}
        for kind in ("cut", "joined"):
            out, metrics, errors = self.train(f"long-{kind}", self.data, "--set", "model.max_duration=12", "--set",
                                              f'model.long_segments="{kind}"', "--set", "training.epochs=12")
            self.assertIn("gold segments are longer than what their labels may last (at most K = 12 frames)", errors)
            self.assertRegex(errors, r"\d+ gold and \d+ of \d+ decoded segments last as long as their label may")
            self.assertGreaterEqual(metrics["segments_at_limit"]["gold"], longer)
            self.assertEqual(metrics["counts"]["labels"]["gold"], sum(map(len, rows)))
            folder = self.directory / f"long-labels-{kind}"
            tool.run("decode", out, self.data / "test", "--out", folder, "--format", "phn", "--k-best", "3", check=0)
            decoded = [rows_of(path) for path in sorted(folder.glob("*.phn"))]
            longest = max(end - start for row in decoded for start, end, _ in row) * 100 / RATE
            neighbours = sum(a[2] == b[2] for row in decoded for a, b in zip(row, row[1:]))
            found[kind] = (metrics["label_error_rate"], longest, neighbours)
            again = json.loads(tool.run("eval", out, "--json", check=0).stdout)
            self.assertEqual(again["label_error_rate"], metrics["label_error_rate"])
        self.assertLessEqual(found["cut"][1], 12.01)
        self.assertGreater(found["cut"][2], 0)
        self.assertGreater(found["joined"][1], 12.01)
        self.assertEqual(found["joined"][2], 0, "no label follows itself in this corpus")
        self.assertLess(found["joined"][0], found["cut"][0])


class NumbersTest(tool.ToolTest):
    """What goes wrong with numbers names its file."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data, cls.config = cls.corpus()
        cls.model = cls.directory / "run"
        tool.run("--quiet", "train", cls.config, "--data", cls.data, "--out", cls.model, "--set", "training.epochs=2", check=0)

    def test_a_broken_parameter_is_named_with_its_file(self):
        broken = self.directory / "broken.safetensors"
        data = bytearray((self.model / "model.safetensors").read_bytes())
        size = int.from_bytes(data[:8], "little")
        begin = json.loads(data[8:8 + size])["parameter.block1.mix.weight"]["data_offsets"][0]
        data[8 + size + begin:8 + size + begin + 4] = b"\x00\x00\xc0\x7f"  # a quiet NaN
        broken.write_bytes(data.replace(b'"crc32"', b'"crc-0"'))  # with its checksum it would be refused as damaged
        audio = sorted((self.data / "test").glob("*.wav"))[0]
        for command in (("eval", broken, "--data", self.data), ("decode", broken, audio, "--out", self.directory / "x")):
            errors = tool.run(*command, check=3).stderr
            self.assertIn(f"{broken}: 'parameter.block1.mix.weight' holds nan", errors)

    def test_a_recording_out_of_range_is_named(self):
        loud = self.directory / "loud.wav"
        samples = struct.pack(f"<{RATE}f", *([3e38, -3e38] * (RATE // 2)))
        header = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(samples), b"WAVE", b"fmt ", 16, 3, 1, RATE, 4 * RATE, 4,
                             32, b"data", len(samples))
        loud.write_bytes(header + samples)
        errors = tool.run("decode", self.model, loud, "--out", self.directory / "x", check=3).stderr
        self.assertIn(str(loud), errors)
        self.assertNotIn("batch 0", errors)

    def test_a_training_that_diverges_before_the_development_set(self):
        result = tool.run("train", self.config, "--data", self.data, "--out", self.directory / "wild", "--set",
                          "training.learning_rate=1e9", "--set", "training.batch_size=100", "--set", "training.clip=0.1",
                          "--set", "training.warmup=0", check=2)
        self.assertIn("lower training.learning_rate", result.stderr)
        self.assertRegex(result.stderr, r"epoch \d+")

    def test_epochs_that_were_not_scored_show_no_figures(self):
        result = tool.run("train", self.config, "--data", self.data, "--out", self.directory / "rare", "--set",
                          "training.epochs=3", "--set", "training.select_every=2", check=0)
        lines = [line for line in result.stderr.splitlines() if line.startswith("epoch")]
        self.assertEqual([("dev label error" in line) for line in lines], [False, True, True])
        self.assertNotIn("nan", result.stderr)
        alone = self.directory / "alone"
        (alone / "train").mkdir(parents=True)
        for path in sorted((self.data / "train").glob("*.wav"))[:3]:
            for one in (path, path.with_suffix(".phn")):
                shutil.copy(one, alone / "train")
        result = tool.run("train", self.config, "--data", alone, "--out", self.directory / "few", check=0)
        self.assertNotIn("nan", result.stderr)


if __name__ == "__main__":
    unittest.main()
