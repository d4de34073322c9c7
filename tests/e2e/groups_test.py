"""Recordings of one speaker or animal stay in one set, in splits that are dealt and in folds."""

import json
import shutil
import unittest

import small_corpus
import tool

QUICK = ("--set", "training.epochs=2", "--quiet")
BIRDS = {"anna": 5, "bert": 4, "carl": 3, "dora": 2, "emil": 2}  # recordings of each


class GroupsTest(small_corpus.CorpusTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.birds = cls.directory / "birds"   # a folder for each
        cls.flat = cls.directory / "flat"     # the name in that of the file, and in a manifest
        cls.flat.mkdir()
        audio = sorted(cls.data.rglob("*.wav"))
        rows = ["id\taudio\tbird"]
        for bird, count in BIRDS.items():
            (cls.birds / bird).mkdir(parents=True)
            for number in range(count):
                path = audio.pop()
                for file in (path, path.with_suffix(".phn")):
                    shutil.copy(file, cls.birds / bird / f"{number}{file.suffix}")
                    shutil.copy(file, cls.flat / f"{number}_{bird}{file.suffix}")
                rows.append(f"{number}_{bird}\tflat/{number}_{bird}.wav\t{bird}")
        cls.list = cls.directory / "list.tsv"
        cls.list.write_text("\n".join(rows) + "\n")

    def ids(self, out):
        return [row["id"] for row in json.loads((out / "recordings.json").read_text())["recordings"]]

    def test_folds_part_no_bird(self):
        out = self.directory / "folds"
        said = tool.run("study", self.config, "--data", self.birds, "--out", out, "--folds", "3", "--group", "folder", *QUICK, check=0)
        tested = [{name.split("/")[0] for name in self.ids(out / f"fold-{fold}")} for fold in (1, 2, 3)]
        # The largest first, each where the fewest recordings are: 5 | 4 | 3 2 2 -> 5 | 4 + 2 | 3 + 2.
        self.assertEqual(tested, [{"anna"}, {"bert", "emil"}, {"carl", "dora"}])
        self.assertIn("fold 2 of 3 is the test set, 6 of 16 recordings, 2 of 5 groups", said.stderr)
        self.assertEqual(len(self.ids(out)), 16)
        point, = json.loads((out / "study.json").read_text())["points"]
        self.assertEqual(point["runs"][0]["recordings"], {"train": 9, "dev": 2, "test": 5})
        few = tool.run("study", self.config, "--data", self.birds, "--out", self.directory / "few", "--folds", "6", "--group",
                       "folder", *QUICK, check=2)
        self.assertIn("there are 5 groups of recordings for 6 folds", few.stderr)

    def test_three_ways_to_say_it_give_one_split(self):
        models = []
        for name, data, group in (("a", self.birds, "folder"), ("b", self.list, "bird"), ("c", self.flat, "_([a-z]+)$")):
            out = self.directory / f"way-{name}"
            said = tool.run("train", self.config, "--data", data, "--out", out, "--set", f"data.group={group}", *QUICK, check=0)
            self.assertIn("recordings of 5 groups; 3 to train on, 1 for development, 1 for test", said.stderr)
            models.append({name.replace("/", "_") for name in self.ids(out)})
            metrics = json.loads((out / "metrics.json").read_text())
            self.assertIn("group = ", metrics["run"]["configuration"])
        self.assertEqual(models[0], {"dora_0", "dora_1"})
        self.assertEqual(models[1], models[2])
        # Measured again, by the rule in the model; all recordings of others need none.
        again = json.loads(tool.run("eval", self.directory / "way-b", "--json", check=0).stdout)
        self.assertEqual(again["label_error_rate"], metrics["label_error_rate"])
        tool.run("eval", self.directory / "way-b", "--data", self.birds, "--split", "all", check=0)

    def test_a_folder_says_what_it_is_made_of(self):
        toml = self.directory / "birds.toml"
        plain = tool.run("init", self.birds, "--out", toml, check=0).stdout
        self.assertIn("note: the recordings lie in 5 folders (anna, bert, carl, dora, emil), which the split parts; if each is a "
                      "speaker or an animal, --group folder keeps it in one set", plain)
        self.assertNotIn("group", toml.read_text())
        card = tool.run("init", self.birds, "--out", toml, "--group", "folder", "--overwrite", check=0).stdout
        self.assertIn("12 to train on, 2 for development, 2 for test (recordings of 5 groups: 3, 1 and 1)", card)
        self.assertNotIn("note: the recordings lie", card)
        self.assertIn('group = "folder"', toml.read_text())
        out = self.directory / "of-folder"
        tool.run("train", self.birds, "--group", "folder", "--out", out, *QUICK, check=0)
        self.assertEqual(self.ids(out), ["dora/0", "dora/1"])
        self.assertNotIn("folders", tool.run("init", self.flat, "--out", self.directory / "flat.toml", check=0).stdout)

    def test_a_split_that_is_given_may_part_them_and_is_said(self):
        given = self.directory / "given"
        for path in self.birds.rglob("*.*"):
            split = "test" if path.stem == "0" else "train"
            target = given / split / path.parent.name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        sentence = 'the given split separates recordings of one group: "anna" is in the train set and in the test set, and likewise 4 more'
        said = tool.run("train", self.config, "--data", given, "--out", self.directory / "torn", "--set", "data.group=folder", *QUICK,
                        check=0)
        self.assertIn(f"data.group: {sentence}", said.stderr)
        card = tool.run("init", given, "--group", "folder", "--out", self.directory / "given.toml", check=0).stdout
        self.assertIn(f"warning: {sentence}", card)

    def test_a_model_is_measured_on_recordings_whose_split_is_given(self):
        """They may have no groups, or other ones: nothing is dealt."""
        out = self.directory / "column"
        tool.run("train", self.config, "--data", self.list, "--out", out, "--group", "bird", *QUICK, check=0)
        said = tool.run("eval", out, "--data", self.data, "--out", self.directory / "column-eval", check=0)
        self.assertNotIn("group", said.stderr)
        dealt = tool.run("eval", out, "--data", self.flat, check=3)
        self.assertIn("data.group is \"bird\"", dealt.stderr)

    def test_what_does_not_fit_is_refused_by_name(self):
        for data, group, words in (
                (self.flat, "folder", 'the recording "0_anna" lies in no folder of its own in the corpus'),
                (self.birds, "bird", 'data.group is "bird", a column of a manifest, but there is no manifest'),
                (self.list, "speaker", 'list.tsv:1: no column "speaker" in the header, which data.group names; it has id, audio, bird'),
                (self.flat, "^(1)_", 'the recording "0_anna" does not fit data.group, which is "^(1)_"'),
                (self.flat, "([0-9])_(a)", "has 2 pairs of parentheses; expected one"),
                (self.flat, "([0-9]", "is not a regular expression"),
                (self.flat, "_[a-z](.*)$|(", "is not a regular expression"),
                (self.flat, "(_)", 'all 16 recordings are of one group, "_"')):
            result = tool.run("train", self.config, "--data", data, "--out", self.directory / "x", "--set", f"data.group={group}")
            self.assertIn(result.returncode, (2, 3), group)
            self.assertIn(words, result.stderr)
            self.assertFalse((self.directory / "x" / "model.safetensors").exists())

    def test_a_run_with_other_groups_is_not_continued(self):
        out = self.directory / "continued"
        tool.run("train", self.config, "--data", self.birds, "--out", out, *QUICK, check=0)
        result = tool.run("train", self.config, "--data", self.birds, "--out", out, "--resume", "--set", "data.group=folder", *QUICK,
                          check=2)
        self.assertIn('data.group: nothing then, "folder" now', result.stderr)


if __name__ == "__main__":
    unittest.main()
