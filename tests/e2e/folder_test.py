"""A folder is enough: trainings without a configuration, on data as people have it."""

import array
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import unittest
import wave

import tool

QUICK = ("--set", "training.epochs=2", "--set", "model.width=8", "--quiet")


def digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def segments_of(path):
    """Start, end and label of each line of a .phn file of 16 kHz, in seconds."""
    for line in path.read_text().splitlines():
        start, end, label = line.split()
        yield int(start) / 16000, int(end) / 16000, label


def textgrid(tiers):
    """Tiers of intervals, {name: [(start, end, text)]}."""
    end = max(interval[1] for tier in tiers.values() for interval in tier)
    text = (
        f'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n{end}\n<exists>\n{len(tiers)}\n'
    )
    for name, intervals in tiers.items():
        text += f'"IntervalTier"\n"{name}"\n0\n{end}\n{len(intervals)}\n'
        text += "".join(f'{a}\n{b}\n"{label}"\n' for a, b, label in intervals)
    return text


class RecordingsTest(tool.ToolTest):
    """Folders of synthetic recordings."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data, _ = cls.corpus(train=12, test=4)
        cls.recordings = sorted((cls.data / "train").glob("*.wav"))

    def folder(self, name, count, suffix=".csv", write=None):
        """A folder of that many recordings with labels beside them."""
        folder = self.directory / name
        folder.mkdir()
        for audio in self.recordings[:count]:
            shutil.copy(audio, folder)
            rows = list(segments_of(audio.with_suffix(".phn")))
            text = (
                write(rows)
                if write
                else "start,end,label\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows)
            )
            (folder / audio.stem).with_suffix(suffix).write_text(text)
        return folder

    def change_rate(self, path, times):
        """Of 16 kHz, with the same duration."""
        with wave.open(str(path)) as file:
            samples = memoryview(file.readframes(file.getnframes())).cast("h")
        count = int(len(samples) * times)
        with wave.open(str(path), "w") as file:
            file.setparams((1, 2, int(16000 * times), 0, "NONE", ""))
            file.writeframes(array.array("h", (samples[int(i / times)] for i in range(count))))

    def card(self, folder, *more, check=0):
        result = tool.run(
            "init",
            folder,
            "--out",
            self.directory / f"{folder.name}.toml",
            "--overwrite",
            *more,
            check=check,
        )
        return result.stdout if check == 0 else result.stderr


class FolderTest(RecordingsTest):
    def test_labels_that_look_the_same_are_named(self):
        """The same letter as one character, and as a letter with a mark."""
        folder = self.folder("forms", 6)
        paths = sorted(folder.rglob("*.csv"))
        label = paths[0].read_text().splitlines()[-1].split(",")[-1]
        for path, name in zip(paths, ("caf\u00e9", "cafe\u0301") * 3):
            lines = [line.split(",") for line in path.read_text().splitlines()]
            path.write_text("".join(",".join([*line[:-1], name if line[-1] == label else line[-1]]) + "\n" for line in lines))
        said = tool.run("train", folder, *QUICK, "--out", self.directory / "forms-model", check=0).stderr
        self.assertEqual(said.count("look the same and are two labels"), 1, said)
        self.assertIn("(bytes 63 61 66 65 cc81)", said)
        self.assertIn("(bytes 63 61 66 c3a9)", said)

    def test_a_folder_trains_like_the_file_that_init_writes(self):
        folder = self.folder("plain", 12)
        work = self.directory / "work"
        work.mkdir()
        trained = tool.run("train", folder, *QUICK, "--json", cwd=work, check=0)
        self.assertIn("label_error_rate", json.loads(trained.stdout))
        self.assertIn(f"data card of {folder}", trained.stderr)
        self.assertIn("output        plain-model", trained.stderr)
        for words in (
            "12 with labels",
            "16000 Hz",
            "4 labels",
            " K ",
            "9 to train on, 1 for development, 2 for test",
        ):
            self.assertIn(words, trained.stderr)
        self.assertNotIn("nan", trained.stderr)
        written = tool.run("init", folder, cwd=work, check=0)
        self.assertIn("configuration: plain.toml", written.stdout)
        tool.run("train", "plain.toml", "--out", "by-file", *QUICK, cwd=work, check=0)
        self.assertEqual(
            digest(work / "plain-model/model.safetensors"),
            digest(work / "by-file/model.safetensors"),
        )
        again = tool.run("train", folder, *QUICK, cwd=work, check=0)
        self.assertIn("report: plain-model-2/report.html", again.stdout)
        refused = tool.run("init", folder, cwd=work, check=2)
        self.assertIn("plain.toml: the file exists already", refused.stderr)
        (work / "plain.toml").write_text("mine")
        tool.run("init", folder, cwd=work, check=2)
        self.assertEqual((work / "plain.toml").read_text(), "mine")
        resumed = tool.run("train", folder, "--resume", cwd=work, check=2)
        self.assertIn("name it with --out", resumed.stderr)

    def test_the_effective_configuration(self):
        folder = self.folder("shown", 6)
        first = tool.run(
            "train",
            folder,
            "--print-config",
            "--set",
            "training.epochs=7",
            cwd=self.directory,
            check=0,
        ).stdout
        self.assertIn("epochs = 7", first)
        self.assertIn("beta2 = ", first)
        path = self.directory / "effective.toml"
        path.write_text(first)
        again = tool.run("train", path, "--print-config", check=0).stdout
        self.assertEqual(again, first)
        self.assertFalse((self.directory / "shown-model").exists())

    def test_the_card_shows_what_was_set(self):
        folder = self.folder("set", 8)
        rules = ["training.epochs=2", "training.batch_size=2", "training.fixed_length=60"]
        rules += ["training.select_by=loss", "model.width=8"]
        settings = [word for rule in rules for word in ("--set", rule)]
        trained = tool.run("train", folder, *settings, "--out", self.directory / "set-out", check=0)
        self.assertRegex(
            trained.stderr,
            r"\n  training +2 epochs, 2 pieces a step, pieces of 60 frames; "
            r"the one with the least development loss is kept\n  settings +"
            + ", ".join(map(re.escape, rules))
            + "; these replace the values above, and what follows from them\n",
        )
        self.assertNotIn("settings ", self.card(folder))

    def test_what_has_no_partner_is_left_aside(self):
        folder = self.folder("half", 8)
        for audio in self.recordings[5:8]:
            (folder / audio.stem).with_suffix(".csv").unlink()
        (folder / "notes.txt").write_text("not labels")
        card = self.card(folder)
        self.assertIn("5 with labels", card)
        self.assertIn("3 recordings without labels", card)
        self.assertIn("1 file that no recording belongs to: notes.txt", card)
        trained = tool.run("train", folder, *QUICK, "--out", self.directory / "half-out", check=0)
        self.assertEqual(trained.stderr.count("3 recordings without labels"), 1)
        self.assertNotIn("are left out", trained.stderr)  # a second time
        # A configuration of one's own still refuses.
        refused = tool.run(
            "train",
            self.directory / "half.toml",
            "--set",
            "data.unpaired=refuse",
            "--out",
            self.directory / "none",
            check=3,
        )
        self.assertIn("notes.txt: no audio file for these labels", refused.stderr)

    def test_few_recordings(self):
        folder = self.folder("three", 3)
        out = self.directory / "three-out"
        trained = tool.run("train", folder, "--set", "training.epochs=2", "--out", out, check=0)
        self.assertIn(
            "too few recordings for a development set; the last epoch is kept", trained.stderr
        )
        self.assertNotIn("nan", trained.stderr)
        self.assertIn("2 to train on, 0 for development, 1 for test", trained.stderr)
        one = self.folder("one", 1)
        self.assertIn("at least one recording to train on and one to test on", self.card(one, check=3))
        none = self.directory / "unlabelled"
        none.mkdir()
        shutil.copy(self.recordings[0], none)
        self.assertIn(
            "1 recordings and 0 label files, and none belong together", self.card(none, check=3)
        )
        empty = self.directory / "empty"
        empty.mkdir()
        self.assertIn("or sequences (FASTA), with label files", self.card(empty, check=3))

    def test_unlabelled_stretches_get_a_name_that_is_free(self):
        def without_second(rows):
            rows = [(a, b, "gap" if i == 2 else c) for i, (a, b, c) in enumerate(rows) if i != 1]
            return "start,end,label\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows)

        folder = self.folder("gaps", 6, write=without_second)
        card = self.card(folder)
        self.assertRegex(
            card,
            r'unlabelled +[\d.]+ s in 6 recordings \(\d+ %\), taken for segments of the label "gap2"',
        )
        self.assertIn('fill_label = "gap2"', (self.directory / "gaps.toml").read_text())
        tool.run("train", folder, *QUICK, "--out", self.directory / "gaps-out", check=0)

    def test_labels_that_were_cut_off_are_said(self):
        count = iter(range(100))

        def cut(rows):
            return "".join(f"{int(a * 16000)} {int(b * 16000)} {c}\n" for a, b, c in (rows[:2] if next(count) == 3 else rows))

        folder = self.folder("cut", 6, suffix=".phn", write=cut)
        card = self.card(folder)
        path = (folder / self.recordings[3].stem).with_suffix(".phn")
        self.assertRegex(card, rf"warning: {path}: its last label ends at [\d.]+ s, the recording at [\d.]+ s; .*counts as \"gap\"")
        self.assertEqual(card.count("its last label"), 1)

    def test_one_table_has_the_labels_of_birds_whose_files_have_the_same_names(self):
        folder = self.directory / "birds"
        rows = ["label,onset_s,offset_s,notated_path"]
        for number, audio in enumerate(self.recordings[:6]):
            bird, name = f"bird{number % 2}", f"{number // 2}.wav"
            (folder / bird).mkdir(parents=True, exist_ok=True)
            shutil.copy(audio, folder / bird / name)
            rows += [f"{label}{number % 2},{a},{b},/data/{bird}/{name}" for a, b, label in segments_of(audio.with_suffix(".phn"))]
        table = folder / "annotations.csv"
        table.write_text("\n".join(rows) + "\n")
        card = self.card(folder)
        self.assertIn("6 with labels", card)
        self.assertIn(f"{len(rows) - 1} segments", card)
        self.assertNotIn("unlabelled", card)
        table.write_text("\n".join(rows).replace("/bird0/", "/").replace("/bird1/", "/") + "\n")
        self.assertIn("before the one above it ends", self.card(folder, check=3))
        table.write_text("\n".join(rows).replace("/bird0/", "/a/").replace("/bird1/", "/b/") + "\n")
        self.assertIn("either may be the recording", self.card(folder, check=3))

    def test_times_of_another_unit_are_said(self):
        """Milliseconds where the format counts samples, and samples where it counts 100 ns."""
        def counted(per_second):
            return lambda rows: "".join(f"{round(a * per_second)} {round(b * per_second)} {c}\n" for a, b, c in rows)

        for name, suffix, per_second, unit in (("ms", ".phn", 1000, "samples"), ("htk", ".lab", 16000, "100 ns")):
            with self.subTest(unit=unit):
                card = self.card(self.folder(f"unit-{name}", 6, suffix=suffix, write=counted(per_second)))
                self.assertRegex(card, rf"warning: .*{suffix}: its last label ends at [\d.]+ s, the recording at .* "
                                       rf"the times of this format are {unit}, so check")
        # Half of each recording has labels, or they have hardly any; and the right unit has no warning.
        right = self.card(self.folder("unit-right", 6, suffix=".lab", write=counted(10_000_000)))
        half = self.card(self.folder("unit-half", 6, write=lambda rows: "start,end,label\n" + "".join(
            f"{a},{b},{c}\n" for a, b, c in rows if b < 0.7 * rows[-1][1])))
        for card in (right, half):
            self.assertNotIn("the times of this format", card)

    def test_unknown_stretches_take_no_part(self):
        def middle(rows):
            return "start,end,label\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows[2:-2])

        folder = self.folder("middle", 6, write=middle)
        labels = {}
        for name in ("gap", "unknown"):
            out = self.directory / f"middle-{name}"
            tool.run(
                "train", folder, *QUICK, "--set", f"data.unlabelled={name}", "--out", out, check=0
            )
            decoded = self.directory / f"middle-{name}-labels"
            tool.run("decode", out, folder, "--out", decoded, "--format", "csv", check=0)
            header = (out / "model.safetensors").read_bytes()[8:200000]
            labels[name] = b'unlabelled"' in header, b"\\u0001" in header
            text = (out / "report.html").read_text()
            self.assertEqual(
                "@" in text and 's"' in text and f"{self.recordings[0].stem}@" in text,
                name == "unknown",
            )
            frames = json.loads((out / "metrics.json").read_text())["frame_accuracy"]
            self.assertTrue(0 <= frames <= 1)
        self.assertFalse(labels["unknown"][1], "the mark of unlabelled stretches became a label")

    def test_tiers(self):
        number = iter(range(10**6))

        def words(rows):
            half = rows[len(rows) // 2][0]
            return textgrid(
                {
                    "words": [
                        (0, half, f"w{next(number)}"),
                        (half, rows[-1][1], f"w{next(number)}"),
                    ],
                    "phones": rows,
                }
            )

        folder = self.folder("words", 6, ".TextGrid", words)
        card = self.card(folder)
        self.assertIn('tier          "phones": its labels recur most often', card)
        self.assertIn('"words" (12 segments, 12 labels)', card)
        self.assertIn('"words": as requested', self.card(folder, "--tier", "words"))
        self.assertIn("did you mean 'words'?", self.card(folder, "--tier", "wrods", check=2))
        unclear = self.folder(
            "unclear", 6, ".TextGrid", lambda rows: textgrid({"a": rows, "b": rows})
        )
        self.assertIn("choose one with --tier", self.card(unclear, check=2))
        self.assertIn('"b": as requested', self.card(unclear, "--tier", "b"))

    def test_labels_that_training_lacks_or_hardly_has(self):
        count = iter(range(100))

        def odd(rows):  # the first recording is for test, the third for training
            i = next(count)
            if i in (0, 2):
                rows[1] = (*rows[1][:2], "unheard" if i == 0 else "rare")
            return "start,end,label\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows)

        folder = self.folder("odd", 6, write=odd)
        card = self.card(folder)
        self.assertIn('hardly learned: "rare" (1)', card)
        self.assertIn(
            'not in the training recordings, so every segment decoded there counts as wrong: "unheard"',
            card,
        )
        tool.run("train", folder, *QUICK, "--out", self.directory / "odd-out", check=0)

    def test_presets(self):
        folder = self.folder("presets", 4)
        self.assertIn("preset        birdsong", self.card(folder))
        self.assertIn(
            "preset        generic: as requested", self.card(folder, "--preset", "generic")
        )
        self.assertIn("did you mean 'speech'?", self.card(folder, "--preset", "speach", check=2))
        self.assertIn(
            "uses frequencies from 20000 Hz on", self.card(folder, "--preset", "mouse", check=2)
        )
        for times, words in ((12, "16000 Hz (3), 192000 Hz (1)"), (1 / 16, "1000 Hz (1), 16000 Hz")):
            self.change_rate(folder / self.recordings[0].name, times)
            card = self.card(folder)  # one recording does not choose for the others
            self.assertIn(words, card)
            self.assertIn("preset        birdsong", card)
        refused = tool.run("train", self.directory / "presets.toml", "--preset", "bat", check=2)
        self.assertIn("--preset is for a folder", refused.stderr)
        refused = tool.run("train", folder, "--data", folder, check=2)
        self.assertIn("two places for the data", refused.stderr)


class CommandsTest(tool.ToolTest):
    def test_the_page_of_keys_is_up_to_date(self):
        page = tool.run("config", "--markdown", check=0).stdout
        self.assertEqual(
            page,
            (tool.SOURCE / "docs/configuration.md").read_text(),
            "write it again: segfuse config --markdown > docs/configuration.md",
        )
        keys = json.loads(tool.run("config", "--json", check=0).stdout)
        text = tool.run("config", check=0).stdout
        for key in keys:
            self.assertIn(f"`{key['key'].split('.')[-1]}`", page)
            self.assertIn(key["key"], text)
            self.assertTrue(key["doc"] and key["type"], key)
        # Every key that a configuration may have stands there: the effective one has them all but those without a default.
        config = self.directory / "empty.toml"
        config.write_text("")
        effective = tool.run("train", config, "--print-config", check=0).stdout
        section, found = "", set()
        for line in effective.splitlines():
            if line.startswith("["):
                section = line.strip("[]") + "."
            elif "=" in line:
                found.add(section + line.split(" = ")[0])
        self.assertEqual(found, {key["key"] for key in keys if key["default"] is not None})

    def test_commands_are_listed_and_guessed(self):
        listed = tool.run(check=2)
        for command in ("train", "init", "decode", "config", "completion"):
            self.assertRegex(listed.stdout, rf"(?m)^  {command} ")
        self.assertIn("numerics", tool.run("doctor", check=2).stdout)
        self.assertIn(
            "there is no command 'trian'; did you mean 'train'?", tool.run("trian", check=2).stderr
        )
        self.assertIn(
            "there is no command 'doctor frok'; did you mean 'fork'?",
            tool.run("doctor", "frok", check=2).stderr,
        )
        for command in (("train",), ("decode",), ("doctor", "fork")):
            text = tool.run(*command, "--help", check=0).stdout
            for option in ("--device", "--threads", "--quiet", "--json"):
                self.assertIn(option, text)

    def test_completion(self):
        script = tool.run("completion", "bash", check=0).stdout

        def complete(*words):
            line = " ".join(f"'{word}'" for word in words)
            run = f"{script}\nCOMP_WORDS=({line}) COMP_CWORD={len(words) - 1}\n_segfuse\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
            return subprocess.run(
                ["bash", "-c", run], capture_output=True, text=True, check=True
            ).stdout.split()

        self.assertEqual(complete("segfuse", "tr"), ["train"])
        self.assertEqual(complete("segfuse", "doctor", "nu"), ["numerics"])
        self.assertEqual(complete("segfuse", "train", "x.toml", "--pres"), ["--preset"])
        self.assertIn("--device", complete("segfuse", "doctor", "fork", "--"))
        self.assertEqual(complete("segfuse", "info", "--pres"), [])
        for shell in ("zsh", "fish"):
            script = tool.run("completion", shell, check=0).stdout
            for word in ("train", "preset", "numerics", "device"):
                self.assertIn(word, script)
            if shutil.which(shell):
                subprocess.run([shell, "-n"], input=script, text=True, check=True)
        self.assertIn("bash", tool.run("completion", "tcsh", check=2).stderr)


class DecodeTest(tool.ToolTest):
    def test_decode_goes_on_and_resumes(self):
        data, config = self.corpus()
        model = self.directory / "run"
        tool.run(
            "train",
            config,
            "--data",
            data,
            "--out",
            model,
            "--set",
            "training.epochs=1",
            "--quiet",
            check=0,
        )
        inputs, out = self.directory / "inputs", self.directory / "labels"
        inputs.mkdir()
        for audio in sorted((data / "test").glob("*.wav")):
            shutil.copy(audio, inputs)
        names = sorted(path.stem for path in inputs.glob("*.wav"))
        broken = inputs / f"{names[1]}.wav"
        whole = broken.read_bytes()
        broken.write_bytes(whole[:100])
        decode = ("decode", model, inputs, "--out", out, "--format", "csv")
        first = tool.run(*decode, check=3)
        self.assertEqual(len(first.stdout.splitlines()), len(names) - 1)
        self.assertIn(broken.name, first.stderr)
        broken.write_bytes(whole)
        mine = out / f"{names[0]}.csv"
        mine.write_text("mine")
        refused = tool.run(*decode, check=2)
        self.assertIn(mine.name, refused.stderr)
        before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.csv")}
        resumed = tool.run(*decode, "--resume", check=0)
        self.assertIn(f"{names[1]}.csv", resumed.stdout)
        self.assertIn(
            f"{len(names) - 1} of {len(names)} recordings have their labels already", resumed.stdout
        )
        self.assertEqual({name: (out / name).stat().st_mtime_ns for name in before}, before)
        self.assertEqual(mine.read_text(), "mine")
        rows = json.loads(tool.run(*decode, "--resume", "--json", check=0).stdout)
        self.assertEqual([row["skipped"] for row in rows], [True] * len(names))
        # What was asked for beside the labels is not there yet; labels of others stay in the way.
        self.assertIn(mine.name, tool.run(*decode, "--resume", "--posteriors", check=2).stderr)
        mine.unlink()
        tool.run(*decode, "--resume", "--posteriors", check=0)
        self.assertEqual(len(list(out.glob("*.frames.csv"))), len(names))
        # Two recordings of one name are still told apart.
        (self.directory / "twin").mkdir()
        twin = shutil.copy(broken, self.directory / "twin")
        self.assertIn(
            broken.stem, tool.run(*decode[:3], twin, *decode[3:], "--resume", check=2).stderr
        )


class GrammarTest(RecordingsTest):
    """What may follow, begin, end and how long it lasts, from the configuration to the labels."""

    def grammar(self, name, *more, check=0):
        return tool.run(
            "train",
            self.toml,
            *QUICK,
            *[word for setting in more for word in ("--set", setting)],
            "--out",
            self.directory / name,
            check=check,
        )

    def broken(self, model, least):
        """Decoded segments of the first label that are too short, and pairs that may not be."""
        out = self.directory / f"{model}-labels"
        tool.run(
            "decode", self.directory / model, self.data / "test", "--out", out, "--format", "csv"
        )
        short = pairs = 0
        for path in out.glob("*.csv"):
            rows = [line.split(",")[:3] for line in path.read_text().splitlines()[1:]]
            short += sum(float(b) - float(a) < least - 1e-6 for a, b, _ in rows)
            pairs += sum((a[2], b[2]) not in self.pairs for a, b in zip(rows, rows[1:]))
        return short, pairs

    def test_what_is_decoded_obeys_the_grammar(self):
        folder = self.folder("ruled", 12)
        self.card(folder)
        self.toml = self.directory / "ruled.toml"
        self.pairs, firsts, durations = set(), set(), []
        for audio in self.recordings[:12]:
            rows = list(segments_of(audio.with_suffix(".phn")))
            self.pairs |= {(a[2], b[2]) for a, b in zip(rows, rows[1:])}
            firsts.add(rows[0][2])
            durations += [b - a for a, b, _ in rows]
        labels = sorted({label for pair in self.pairs for label in pair})
        hop = 0.0025
        least = int(min(durations) / hop - 1) * hop
        self.assertGreater(least, 0)
        rules = [
            f"grammar.next.{a}={json.dumps([b for b in labels if (a, b) in self.pairs])}"
            for a in labels
        ] + [f"grammar.shortest.{a}={least:.4f}" for a in labels]
        rules += ["features.hop_ms=2.5", "training.epochs=1", "training.fixed_length=0"]
        self.grammar("free", *rules[-3:])
        self.grammar("ruled-model", *rules)
        self.assertEqual(self.broken("ruled-model", least), (0, 0))
        self.assertNotEqual(self.broken("free", least), (0, 0))

        label = labels[0]
        missing = sorted(firsts)[0]
        others = json.dumps([name for name in labels if name != missing])
        for setting, why in (
            (f"grammar.first={others}", f"'{missing}' at 0 s begins the recording"),
            (f"grammar.longest.{label}=0.01", "grammar.longest says at most"),
            (f"grammar.next.{label}=['nobody']", "the training recordings have no label 'nobody'"),
            (f"grammar.shortest.{label}=0", "must be above 0 seconds"),
        ):
            with self.subTest(setting):
                result = self.grammar("refused", setting, check=None)
                self.assertIn(result.returncode, (2, 3))
                self.assertIn(why, result.stderr)


if __name__ == "__main__":
    unittest.main()
