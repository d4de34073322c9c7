"""Recordings aligned with the order of their labels."""

import csv
import json
import shutil
import subprocess
import unittest

import small_corpus
import tool


class AlignTest(tool.ToolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data, config = cls.corpus(train=12, test=4)
        cls.model = cls.directory / "model"
        tool.run("train", config, "--data", cls.data, "--out", cls.model, "--quiet", check=0)
        cls.recordings = sorted((cls.data / "test").glob("*.wav"))
        cls.orders = cls.directory / "orders"
        cls.orders.mkdir()
        for audio in cls.recordings:
            (cls.orders / f"{audio.stem}.txt").write_text(" ".join(cls.gold(audio)) + "\n")

    @staticmethod
    def gold(audio):
        return [label for _, _, label in small_corpus.rows_of(audio.with_suffix(".phn"))]

    def folder(self, name, orders):
        """A folder of orders, {stem: text}."""
        folder = self.directory / name
        folder.mkdir()
        for stem, text in orders.items():
            (folder / stem).write_text(text)
        return folder

    def align(self, name, *more, inputs=None, check=0):
        out = self.directory / name
        result = tool.run("align", self.model, *(inputs or [self.data / "test"]), "--out", out, "--format", "csv", *more,
                          check=check)
        return out, result

    def rows(self, path):
        with open(path, newline="") as file:
            return list(csv.DictReader(file))

    def labels(self, path):
        return [row["label"] for row in self.rows(path)]

    def test_every_recording_has_the_labels_of_its_order(self):
        out, _ = self.align("plain", "--orders", self.orders)
        errors = []
        for audio in self.recordings:
            rows = self.rows(out / f"{audio.stem}.csv")
            self.assertEqual([row["label"] for row in rows], self.gold(audio))
            for row, (start, _, _) in zip(rows, small_corpus.rows_of(audio.with_suffix(".phn")), strict=True):
                errors.append(abs(float(row["start"]) - start / small_corpus.RATE))
                for name in ("posterior", "label_posterior"):
                    self.assertTrue(0 <= float(row[name]) <= 1)
            self.assertEqual(float(rows[0]["start"]), 0)
            for before, after in zip(rows, rows[1:], strict=False):
                self.assertEqual(before["end"], after["start"])
        self.assertLess(sum(errors) / len(errors), 0.03)

    def test_a_pipe_is_aligned_as_a_file_is(self):
        audio = self.recordings[0]
        wanted, _ = self.align("of-file", "--orders", self.orders, inputs=[audio])
        orders = self.folder("piped", {"stdin.txt": " ".join(self.gold(audio))})
        out = self.directory / "of-pipe"
        subprocess.run([tool.SEGFUSE, "align", self.model, "-", "--orders", orders, "--out", out, "--format", "csv"], check=True,
                       input=audio.read_bytes(), capture_output=True, timeout=100)
        self.assertEqual(self.rows(out / "stdin.csv"), self.rows(wanted / f"{audio.stem}.csv"))

    def test_what_is_read_is_never_replaced(self):
        place = self.directory / "in-place"
        place.mkdir()
        audio = self.recordings[0]
        shutil.copy(audio, place)
        order = place / f"{audio.stem}.txt"
        order.write_text(" ".join(self.gold(audio)))
        before = order.read_bytes()
        for more in (["--format", "audacity"], ["--format", "audacity", "--overwrite"],
                     ["--format", "audacity", "--resume"], ["--format", "htk"]):
            result = tool.run("align", self.model, place, "--out", place, *more, check=2)
            self.assertIn("choose another directory with --out", result.stderr)
            self.assertEqual(order.read_bytes(), before)
        tool.run("align", self.model, place, "--out", place, "--format", "csv", check=0)

    def test_orders_that_are_too_many_are_refused_soon(self):
        labels = sorted({label for audio in self.recordings for label in self.gold(audio)})
        one, two = labels[:2]
        text = f"{{{one}|{two}}}? " * 1000 + f"{one} " + f"{{{one}|{two}}} " * 12
        orders = self.folder("many", {f"{self.recordings[0].stem}.txt": text})
        _, result = self.align("many-out", "--orders", orders, inputs=self.recordings[:1], check=3)
        self.assertIn("expected a shorter order", result.stderr)

    def test_formats_and_places_are_those_of_decode(self):
        beside = self.directory / "beside"
        beside.mkdir()
        for audio in self.recordings[:2]:
            shutil.copy(audio, beside)
        first, second = self.recordings[:2]
        (beside / f"{first.stem}.lab").write_text("\n".join(self.gold(first)))
        (beside / f"{second.stem}.txt").write_text("\t".join(self.gold(second)))
        out = self.directory / "beside-out"
        result = tool.run("align", self.model, beside, "--out", out, "--json", check=0)
        rows = json.loads(result.stdout)
        self.assertEqual([row["segments"] for row in rows], [len(self.gold(a)) for a in (first, second)])
        for row in rows:
            self.assertLessEqual(row["log_probability"], 0)
        self.assertIn(f'text = "{self.gold(first)[0]}"', (out / f"{first.stem}.TextGrid").read_text())
        # The same files may be written again, somebody else's may not.
        tool.run("align", self.model, beside, "--out", out, check=0)
        (out / f"{first.stem}.TextGrid").write_text("mine")
        result = tool.run("align", self.model, beside, "--out", out, check=2)
        self.assertIn(f"{first.stem}.TextGrid", result.stderr)
        tool.run("align", self.model, beside, "--out", out, "--resume", check=0)
        self.assertEqual((out / f"{first.stem}.TextGrid").read_text(), "mine")

    def test_variants_and_optional_labels_are_chosen(self):
        audio = self.recordings[0]
        gold = self.gold(audio)
        first = next(label for label in self.gold(self.recordings[1]) if label != gold[0])
        words = [f"{{{first} {first}|{label}}}" if i == 0 else label for i, label in enumerate(gold)]
        # One that is not there is left out, one that is there is found.
        words[5:5] = [f"{gold[3]}?" if gold[3] not in (gold[4], gold[5]) else f"{first}?"]
        orders = self.folder("variants", {f"{audio.stem}.txt": " ".join(words)})
        out, _ = self.align("variants-out", "--orders", orders, inputs=[audio])
        found = self.labels(out / f"{audio.stem}.csv")
        self.assertEqual(found[0], gold[0])
        self.assertIn(found, (gold, gold[:5] + [words[5][:-1]] + gold[5:]))
        # A label that is optional everywhere stands for those that are not in the order.
        pause = max(set(gold), key=gold.count)
        orders = self.folder("pauses", {f"{audio.stem}.txt": " ".join(label for label in gold if label != pause)})
        out, _ = self.align("pauses-out", "--orders", orders, "--optional", pause, inputs=[audio])
        found = self.labels(out / f"{audio.stem}.csv")
        self.assertEqual([label for label in found if label != pause], [label for label in gold if label != pause])
        self.assertIn(pause, found)

    def test_what_is_wrong_with_one_recording_stops_only_that(self):
        stems = [audio.stem for audio in self.recordings]
        gold = self.gold(self.recordings[3])
        orders = self.folder("wrong", {
            f"{stems[0]}.txt": " ".join(gold * 40),
            f"{stems[1]}.txt": f"{gold[0]} x{gold[0]}",
            f"{stems[3]}.txt": " ".join(gold),
        })
        out, result = self.align("wrong-out", "--orders", orders, check=3)
        self.assertEqual(sorted(p.name for p in out.glob("*.csv")), [f"{stems[3]}.csv"])
        self.assertEqual(self.labels(out / f"{stems[3]}.csv"), gold)
        for text in ("3 of 4 recordings could not be aligned", "check that the order belongs to this recording",
                     f"{stems[1]}.txt:1:{len(gold[0]) + 2}: the model has no label", f"expected {stems[2]}.txt or"):
            self.assertIn(text, result.stderr)

    def test_an_order_that_the_grammar_forbids_is_refused(self):
        audio = self.recordings[0]
        model = self.directory / "ruled"
        tool.run("train", self.directory / "tiny.toml", "--data", self.data, "--out", model, "--quiet", "--set",
                 "training.epochs=1", "--set", 'grammar.next.s00=["s01", "s02", "s03"]', check=0)
        orders = self.folder("forbidden", {f"{audio.stem}.txt": " ".join(["s00", *self.gold(audio), "s00", "s00"])})
        out = self.directory / "forbidden-out"
        result = tool.run("align", model, audio, "--orders", orders, "--out", out, check=3)
        self.assertIn(f"{audio.name}: it cannot be aligned: the model's durations and grammar allow no", result.stderr)

    def test_usage(self):
        for more, text in ((("--optional", "zz"), "no label 'zz'"), (("--orders", self.directory / "none"), "no such directory")):
            _, result = self.align("usage", *more, check=2)
            self.assertIn(text, result.stderr)
        self.assertFalse((self.directory / "usage").exists())

    def test_segments_longer_than_k_are_one_segment_each(self):
        for long in ("cut", "joined"):
            model = self.directory / f"short-{long}"
            tool.run("train", self.directory / "tiny.toml", "--data", self.data, "--out", model, "--quiet", "--set",
                     "model.max_duration=6", "--set", f'model.long_segments="{long}"', check=0)
            out = self.directory / f"short-{long}-out"
            tool.run("align", model, self.data / "test", "--orders", self.orders, "--out", out, "--format", "csv", check=0)
            longest = 0
            for audio in self.recordings:
                rows = self.rows(out / f"{audio.stem}.csv")
                self.assertEqual([row["label"] for row in rows], self.gold(audio))
                longest = max(longest, *(float(row["end"]) - float(row["start"]) for row in rows))
            self.assertGreater(longest, 0.08)

    def test_heads_without_durations_align_as_well(self):
        for head in ("linear_chain", "softmax"):
            model = self.directory / head
            tool.run("train", self.directory / "tiny.toml", "--data", self.data, "--out", model, "--quiet", "--set",
                     f'model.head="{head}"', "--set", "training.epochs=2", check=0)
            out = self.directory / f"{head}-out"
            tool.run("align", model, self.data / "test", "--orders", self.orders, "--out", out, "--format", "csv", check=0)
            for audio in self.recordings:
                self.assertEqual(self.labels(out / f"{audio.stem}.csv"), self.gold(audio))


if __name__ == "__main__":
    unittest.main()
