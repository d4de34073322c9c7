"""Several files beside a recording: which are its labels, which its order of labels."""

import shutil
import unittest

import small_corpus
import tool

QUICK = ("--set", "training.epochs=1", "--set", "model.width=8", "--quiet")


def write_sphere(path, samples):
    """16-bit NIST SPHERE, as TIMIT has it."""
    header = (f"NIST_1A\n   1024\nsample_count -i {len(samples)}\nsample_rate -i {small_corpus.RATE}\nchannel_count -i 1\n"
              "sample_n_bytes -i 2\nsample_byte_format -s2 01\nsample_coding -s3 pcm\nend_head\n")
    body = b"".join(value.to_bytes(2, "little", signed=True) for value in samples)
    path.write_bytes(header.encode().ljust(1024) + body)


class BesideTest(tool.ToolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data, cls.config = cls.corpus(train=12, test=4)
        cls.recordings = sorted((cls.data / "train").glob("*.wav"))

    def timit(self, name, count=8):
        """Speakers with a recording SA1 each, in the layout of TIMIT."""
        folder = self.directory / name
        for number, audio in enumerate(self.recordings[:count]):
            speaker = folder / f"DR{number % 2 + 1}" / f"FCJF{number}"
            speaker.mkdir(parents=True)
            samples = small_corpus.read_wav(audio)[1]
            write_sphere(speaker / "SA1.WAV", samples)
            rows = small_corpus.rows_of(audio.with_suffix(".phn"))
            small_corpus.write_phn(speaker / "SA1.PHN", rows)
            middle = rows[len(rows) // 2][0]
            small_corpus.write_phn(speaker / "SA1.WRD", [(0, middle, "she"), (middle, rows[-1][1], "had")])
            (speaker / "SA1.TXT").write_text(f"0 {len(samples)} She had your dark suit.\n")
        return folder

    def card(self, folder, *more, check=0):
        out = self.directory / f"{folder.name}.toml"
        result = tool.run("init", folder, "--out", out, "--overwrite", *more, check=check)
        return result.stdout if check == 0 else result.stderr

    def test_timit_trains_on_its_phones(self):
        folder = self.timit("TIMIT")
        out = self.directory / "timit-out"
        trained = tool.run("train", folder, "--out", out, *QUICK[:-1], check=0)
        self.assertIn("8 with labels", trained.stderr)
        self.assertIn('tier          "phn": of several label files beside a recording, .phn is read before .wrd; --tier chooses', trained.stderr)
        self.assertIn('"wrd" (16 segments, 2 labels)', trained.stderr)
        self.assertIn("SA1.PHN is read, SA1.", trained.stderr)
        self.assertNotIn("She", trained.stdout + trained.stderr)
        tool.run("eval", out, "--data", folder, "--split", "all", "--quiet", check=0)

    def test_words_where_they_are_asked_for(self):
        folder = self.timit("words")
        card = self.card(folder, "--tier", "wrd")
        self.assertIn('tier          "wrd": as requested', card)
        self.assertIn("2 labels, 16 segments", card)
        self.assertIn('tier          "wrd": as requested', self.card(folder, "--tier", "WRD"))
        self.assertIn("did you mean 'wrd'?", self.card(folder, "--tier", "wrt", check=2))
        out = self.directory / "words-out"
        tool.run("train", self.config, "--data", folder, "--set", "data.tier=wrd",
                 "--out", out, *QUICK, check=0)
        decoded = self.directory / "words-decoded"
        audio = folder / "DR1/FCJF0/SA1.WAV"
        tool.run("decode", out, audio, "--out", decoded, "--format", "csv", "--quiet", check=0)
        labels = {line.split(",")[2] for line in (decoded / "SA1.csv").read_text().splitlines()[1:]}
        self.assertLessEqual(labels, {"had", "she"})

    def test_words_alone_are_no_phones(self):
        folder = self.timit("mixed")
        (folder / "DR1/FCJF0/SA1.PHN").unlink()
        card = self.card(folder)
        self.assertIn("7 with labels", card)
        self.assertIn("1 recording without labels: SA1.WAV", card)
        refused = tool.run("train", self.config, "--data", folder, "--out", self.directory / "mixed-out", "--quiet", check=3)
        self.assertIn("labels end in .phn for some recordings", refused.stderr)

    def test_a_manifest_chooses_likewise(self):
        folder = self.timit("listed")
        lines = ["id\taudio"]
        lines += [f"{n}\t{path.relative_to(folder)}" for n, path in enumerate(sorted(folder.rglob("*.WAV")))]
        (folder / "manifest.tsv").write_text("\n".join(lines) + "\n")
        self.assertIn('"phn": of several label files', self.card(folder))
        self.assertIn("2 labels, 16 segments", self.card(folder, "--tier", "wrd"))

    def test_labels_of_another_tier_are_said(self):
        folder = self.timit("named")
        lines = ["id\taudio\tlabels"]
        for number, audio in enumerate(sorted(folder.rglob("*.WAV"))):
            name = audio.relative_to(folder)
            lines.append(f"{number}\t{name}\t{name.with_suffix('.WRD' if number < 3 else '.PHN')}")
        (folder / "manifest.tsv").write_text("\n".join(lines) + "\n")
        arguments = ("train", self.config, "--data", folder, "--out", self.directory / "named-out", *QUICK[:-1])
        said = tool.run(*arguments, "--set", "data.tier=phn", check=0).stderr
        self.assertIn('the tier is "phn", and 3 of 8 recordings have labels of another tier', said)
        self.assertNotIn("another tier", tool.run(*arguments, "--overwrite", check=0).stderr)
        for path in (folder / "manifest.tsv", folder / "none.CSV"):
            refused = tool.run("train", path, "--print-config", check=2)
            self.assertIn(f"'{path}' is a table, and training takes a folder or a TOML file", refused.stderr)
        # Nobody chose between files beside each other.
        card = self.card(folder)
        self.assertIn('"phn": the first kind of label files that most recordings have', card)
        self.assertNotIn("before .wrd", card)
        card = tool.run("init", folder, "--out", self.directory / "named.toml", "--overwrite", "--tier", "phn", check=0)
        self.assertIn("3 of 8 recordings have labels of another tier", card.stdout + card.stderr)

    def test_labels_of_two_programs_are_not_chosen_from(self):
        folder = self.directory / "two"
        folder.mkdir()
        for audio in self.recordings[:6]:
            shutil.copy(audio, folder)
            shutil.copy(audio.with_suffix(".phn"), folder)
            rows = small_corpus.rows_of(audio.with_suffix(".phn"))
            text = "".join(f"{a / small_corpus.RATE},{b / small_corpus.RATE},x{c}\n" for a, b, c in rows)
            (folder / audio.stem).with_suffix(".csv").write_text("start,end,label\n" + text)
        refused = self.card(folder, check=3)
        self.assertIn("a second file for the recording", refused)
        self.assertIn("or choose by the ending, as with --tier", refused)
        self.assertIn(" xs01 ", self.card(folder, "--tier", "csv"))
        self.assertIn(" s01 ", self.card(folder, "--tier", "phn"))

    def test_an_order_beside_labels_is_no_label_file(self):
        for ending in (".txt", ".TXT", ".lab"):
            folder = self.directory / f"order{ending}"
            folder.mkdir()
            for audio in self.recordings[:6]:
                shutil.copy(audio, folder)
                shutil.copy(audio.with_suffix(".phn"), folder)
                labels = [label for _, _, label in small_corpus.rows_of(audio.with_suffix(".phn"))]
                (folder / audio.stem).with_suffix(ending).write_text(" ".join(labels))
            with self.subTest(ending=ending):
                out = self.directory / f"order{ending}-out"
                tool.run("train", folder, "--out", out, *QUICK, check=0)
                # Orders are found whatever the case of their ending.
                aligned = self.directory / f"order{ending}-aligned"
                tool.run("align", out, folder, "--out", aligned, "--format", "csv", "--quiet", check=0)
                self.assertEqual(len(list(aligned.glob("*.csv"))), 6)

    def test_an_order_without_labels_leaves_its_recording_unlabelled(self):
        folder = self.directory / "half"
        folder.mkdir()
        for number, audio in enumerate(self.recordings[:8]):
            shutil.copy(audio, folder)
            if number < 5:
                shutil.copy(audio.with_suffix(".phn"), folder)
            else:
                (folder / audio.stem).with_suffix(".txt").write_text("a b c\n")
        card = self.card(folder)
        self.assertIn("5 with labels", card)
        self.assertIn("3 texts without times, which are not labels", card)
        for path in folder.glob("*.phn"):
            path.with_suffix(".txt").write_text("a b c\n")
            path.unlink()
        self.assertIn("have no times, as orders of labels for segfuse align", self.card(folder, check=3))

    def test_broken_labels_are_still_named(self):
        folder = self.directory / "broken"
        folder.mkdir()
        for number, audio in enumerate(self.recordings[:6]):
            shutil.copy(audio, folder)
            rows = small_corpus.rows_of(audio.with_suffix(".phn"))
            text = "".join(f"{a / small_corpus.RATE}\t{b / small_corpus.RATE}\t{c}\n" for a, b, c in rows)
            (folder / audio.stem).with_suffix(".txt").write_text(text if number else text.replace("\t", " "))
        commas = self.directory / "commas"
        shutil.copytree(folder, commas)
        for path in commas.glob("*.txt"):
            path.write_text(text.replace(".", ","))
        self.assertRegex(self.card(commas, check=3), r'txt:1: the start is "0,0"; expected a number with a decimal point')
        self.assertIn(f"{self.recordings[0].stem}.txt:1: 1 fields between tabs", self.card(folder, check=3))


if __name__ == "__main__":
    unittest.main()
