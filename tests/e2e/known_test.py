"""Decoding of recordings of which something is known: boundaries, and labels of frames."""

import csv
import shutil
import subprocess
import unittest

import tool
from small_corpus import RATE, CorpusTest, read_wav, rows_of, write_wav

HOP = 0.01


class KnownTest(CorpusTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = cls.directory / "model"
        tool.run("train", cls.config, "--data", cls.data, "--out", cls.model, "--set", "training.epochs=3", check=0)
        cls.sounds = sorted(cls.data.rglob("*.wav"))[:3]
        cls.truth = cls.directory / "truth"
        cls.truth.mkdir()
        for sound in cls.sounds[:2]:
            shutil.copy(sound.with_suffix(".phn"), cls.truth)

    def decoded(self, name, *more, sounds=None, model=None, check=0):
        out = self.directory / name
        result = tool.run("decode", model or self.model, *(sounds or self.sounds), "--out", out, "--format", "csv", *more,
                          check=check)
        if check != 0:
            return result.stderr
        found = {}
        for path in sorted(set(out.glob("*.csv")) - set(out.glob("*.frames.csv"))):
            with open(path, newline="") as file:
                found[path.stem] = [(float(row["start"]), float(row["end"]), row["label"], float(row["start_confidence"]))
                                    for row in csv.DictReader(file)]
        return found

    def test_boundaries_are_boundaries_of_the_result(self):
        plain = self.decoded("plain")
        found = self.decoded("bounded", "--boundaries", self.truth, "--min-risk")
        found = self.decoded("likeliest", "--boundaries", self.truth)
        for sound in self.sounds[:2]:
            known = {round(start / RATE / HOP) for start, _, _ in rows_of(sound.with_suffix(".phn"))}
            starts = {round(start / HOP): confidence for start, _, _, confidence in found[sound.stem]}
            self.assertLessEqual(known, set(starts))
            for start in known:
                self.assertAlmostEqual(starts[start], 1, places=5)
        self.assertNotEqual({sound.stem: found[sound.stem] for sound in self.sounds[:2]},
                            {sound.stem: plain[sound.stem] for sound in self.sounds[:2]})
        # A recording without such a file is decoded as ever.
        self.assertEqual(found[self.sounds[2].stem], plain[self.sounds[2].stem])

    def test_a_long_recording_is_bound_too(self):
        folder = self.directory / "of-long"
        folder.mkdir()
        rate, samples = read_wav(self.sounds[0])
        long = self.directory / "long.wav"
        write_wav(long, rate, (samples * (201 * rate // len(samples) + 1))[:201 * rate])
        plain = self.decoded("long-plain", sounds=[long])["long"]
        start, end, label, _ = max(plain, key=lambda segment: segment[1] - segment[0])
        middle = round((start + end) / 2 / HOP)
        (folder / "long.csv").write_text(f"start,end,label\n{start},{middle * HOP},{label}\n")
        found = self.decoded("long-bound", "--boundaries", folder, sounds=[long])["long"]
        self.assertIn(middle, {round(start / HOP) for start, _, _, _ in found})
        self.assertNotIn(middle, {round(start / HOP) for start, _, _, _ in plain})

    def test_ends_that_no_label_covers_are_not_known(self):
        """Labels of a training may end a little before the recording; here that says that its end is not known."""
        sound = self.sounds[0]
        rate, samples = read_wav(sound)
        frames = -(-len(samples) // round(rate * HOP))
        folder = self.directory / "ends"
        folder.mkdir()
        plain = {round(start / HOP) for start, _, _, _ in self.decoded("ends-plain", sounds=[sound])[sound.stem]}
        at = min(set(range(3, 9)) - plain)
        until = max(set(range(frames - 9, frames - 2)) - plain)
        label = rows_of(sound.with_suffix(".phn"))[0][2]
        (folder / f"{sound.stem}.csv").write_text(f"start,end,label\n{at * HOP:.2f},{until * HOP:.2f},{label}\n")
        starts = {round(start / HOP) for start, _, _, _ in
                  self.decoded("ends-bound", "--boundaries", folder, sounds=[sound])[sound.stem]}
        self.assertLessEqual({at, until}, starts)
        whole = self.directory / "whole"
        whole.mkdir()
        (whole / f"{sound.stem}.csv").write_text(f"start,end,label\n0,{len(samples) / rate},{label}\n")
        found = self.decoded("whole-known", "--known", whole, "--boundaries", whole, sounds=[sound])[sound.stem]
        self.assertEqual({label for _, _, label, _ in found}, {label})

    def test_a_gap_of_less_than_a_frame_is_none(self):
        """Tables are rounded to milliseconds, so their segments do not always touch."""
        sound = self.sounds[0]
        plain = self.decoded("touching", sounds=[sound])[sound.stem]
        folder = self.directory / "gaps"
        folder.mkdir()
        (folder / f"{sound.stem}.csv").write_text("start,end,label\n" + "".join(
            f"{start:.4f},{end - 0.0002:.4f},{label}\n" for start, end, label, _ in plain))
        found = self.decoded("of-gaps", "--boundaries", folder, "--known", folder, sounds=[sound])[sound.stem]
        self.assertEqual([row[:3] for row in found], [row[:3] for row in plain])

    def test_a_pipe_is_bound_as_a_file_is(self):
        sound = self.sounds[0]
        wanted = self.decoded("of-file", "--boundaries", self.truth, sounds=[sound])[sound.stem]
        folder = self.directory / "piped"
        folder.mkdir()
        shutil.copy(self.truth / f"{sound.stem}.phn", folder / "stdin.phn")
        out = self.directory / "of-pipe"
        subprocess.run([tool.SEGFUSE, "decode", self.model, "-", "--boundaries", folder, "--out", out, "--format", "csv"], check=True,
                       input=sound.read_bytes(), capture_output=True, timeout=100)
        with open(out / "stdin.csv", newline="") as file:
            found = [(float(row["start"]), float(row["end"]), row["label"]) for row in csv.DictReader(file)]
        self.assertEqual(found, [row[:3] for row in wanted])

    def test_folders_of_nothing_and_labels_of_nobody_are_said(self):
        empty = self.directory / "empty"
        empty.mkdir()
        result = tool.run("decode", self.model, self.sounds[0], "--known", empty, "--out", self.directory / "of-nothing", check=0)
        self.assertIn("no label file of any of the 1 recordings", result.stderr)
        (empty / f"{self.sounds[0].stem}.csv").write_text("start,end,label\n0.1,0.2,zz\n")
        said = self.decoded("of-nobody", "--known", empty, sounds=self.sounds[:1], check=3)
        labels = len({label for path in self.data.rglob("*.phn") for _, _, label in rows_of(path)})
        self.assertIn(f'label "zz" is not among the {labels} labels of the model', said)

    def test_a_recording_of_which_nothing_is_known_is_decoded_as_alone(self):
        alone = self.decoded("alone", "--posteriors", sounds=self.sounds[2:])
        beside = self.decoded("beside", "--posteriors", "--boundaries", self.truth)
        name = self.sounds[2].stem
        self.assertEqual(alone[name], beside[name])
        self.assertEqual((self.directory / f"alone/{name}.frames.csv").read_bytes(),
                         (self.directory / f"beside/{name}.frames.csv").read_bytes())

    def test_labels_hold_where_they_are(self):
        sound = self.sounds[0]
        rows = rows_of(sound.with_suffix(".phn"))
        labels = sorted({label for _, _, label in rows})
        folder = self.directory / "known"
        folder.mkdir()
        # Wrong on purpose, of a part: nothing but what is known says so. In another format.
        at, until = 0.31, 0.62
        wrong = labels[0] if rows[1][2] != labels[0] else labels[1]
        (folder / f"{sound.stem}.csv").write_text(f"start,end,label\n{at},{until},{wrong}\n")
        found = self.decoded("labelled", "--known", folder, sounds=[sound])[sound.stem]
        for start, end, label, _ in found:
            if start < until - 1e-6 and end > at + 1e-6:
                self.assertEqual(label, wrong)
        both = self.decoded("both", "--known", folder, "--boundaries", folder, sounds=[sound])[sound.stem]
        starts = {round(start / HOP) for start, _, _, _ in both}
        self.assertLessEqual({31, 62}, starts)
        chain = self.directory / "softmax"
        tool.run("train", self.config, "--data", self.data, "--out", chain, "--set", "training.epochs=1", "--set",
                 "model.head=softmax", check=0)
        for start, end, label, _ in self.decoded("runs", "--known", folder, sounds=[sound], model=chain)[sound.stem]:
            if start < until - 1e-6 and end > at + 1e-6:
                self.assertEqual(label, wrong)
        self.assertIn("--boundaries needs a semi-Markov model; this one has the head softmax",
                      self.decoded("refused", "--boundaries", folder, model=chain, check=2))

    def test_what_does_not_fit_is_said(self):
        sound = self.sounds[0]
        self.assertIn("--known: ", self.decoded("refused", "--known", self.directory / "nowhere", check=2))
        self.assertIn("is not a directory of label files", self.decoded("refused", "--boundaries", sound, check=2))
        self.assertIn("would be written where label files are read",
                      self.decoded("truth", "--boundaries", self.truth, check=2))
        folder = self.directory / "other"
        folder.mkdir()
        (folder / f"{sound.stem}.csv").write_text("start,end,label\n0.1,0.2,nobody\n")
        self.assertIn("nobody", self.decoded("refused", "--known", folder, sounds=[sound], check=3))
        # Of boundaries the labels do not matter.
        self.decoded("nobody", "--boundaries", folder, sounds=[sound])
        (folder / f"{sound.stem}.csv").write_text("start,end,label\n0.1,5000,a\n")
        self.assertIn(f"{sound.stem}.csv", self.decoded("refused", "--boundaries", folder, sounds=[sound], check=3))


if __name__ == "__main__":
    unittest.main()
