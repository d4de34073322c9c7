"""Studies: learning curves, folds, seeds and searches, which are trainings with overrides of their own."""

import json
import re
import shutil
import unittest

import small_corpus
import tool

QUICK = ("--set", "training.epochs=2")


def counts_of(folder):
    return json.loads((folder / "recordings.json").read_text())


def ids_of(folder):
    return [row["id"] for row in counts_of(folder)["recordings"]]


class StudyTest(small_corpus.CorpusTest):
    def study(self, name, *arguments, command="study", check=0):
        out = self.directory / name
        return out, tool.run(command, self.config, "--data", self.data, "--out", out, *QUICK, *arguments, check=check)

    def values(self, out):
        return json.loads((out / "study.json").read_text())

    def test_every_recording_is_in_a_test_fold_once(self):
        out, said = self.study("folds", "--folds", "4")
        folds = [ids_of(out / f"fold-{i}") for i in range(1, 5)]
        self.assertEqual(sorted(sum(folds, [])), ids_of(out))
        self.assertEqual(len(ids_of(out)), 16)
        self.assertEqual([len(fold) for fold in folds], [4, 4, 4, 4])
        self.assertEqual(folds[1], sorted(ids_of(out))[1::4])
        point, = self.values(out)["points"]
        errors = gold = 0
        for i, run in enumerate(point["runs"], 1):
            labels = json.loads((out / f"fold-{i}" / "metrics.json").read_text())["counts"]["labels"]
            errors += labels["substitutions"] + labels["insertions"] + labels["deletions"]
            gold += labels["gold"]
            self.assertEqual((run["folder"], run["fold"]), (f"fold-{i}", i))
            self.assertEqual(run["recordings"], {"train": 11, "dev": 1, "test": 4})
        system = point["systems"]["semi_markov"]
        self.assertEqual(system["label_error_rate"], errors / gold)
        low, high = system["intervals"]["label_error_rate"]
        self.assertTrue(low <= errors / gold <= high)
        self.assertEqual(point["bootstrap"]["recordings"], 16)
        for words in ("all runs", "fold-3", " ±", "bootstrap interval over 16 recordings"):
            self.assertIn(words, said.stdout)
        for words in ("run 3 of 4: fold-3", "data.folds: fold 3 of 4 is the test set, 4 of 16 recordings"):
            self.assertIn(words, said.stderr)
        # A fold's model is measured on its own fold, whoever asks.
        again = json.loads(tool.run("eval", out / "fold-2", "--json", check=0).stdout)
        self.assertEqual(again["label_error_rate"], point["runs"][1]["label_error_rate"])
        # A run of a study is a training that anybody can do again.
        alone = self.directory / "alone"
        tool.run("train", self.config, "--data", self.data, "--out", alone, *QUICK, "--set", "data.folds=4", "--set",
                 "data.test_fold=2", check=0)
        self.assertEqual((alone / "recordings.json").read_bytes(), (out / "fold-2" / "recordings.json").read_bytes())

    def test_two_studies_are_compared_over_all_recordings(self):
        a, _ = self.study("cross a", "--folds", "2")
        b, _ = self.study("cross b", "--folds", "2", "--set", "model.width=8")
        compared = json.loads(tool.run("compare", a, b, "--json", check=0).stdout)
        self.assertEqual(compared["bootstrap"]["recordings"], 16)
        self.assertEqual(compared["settings"], [{"key": "model.width", "first": "16", "second": "8"}])
        tool.run("compare", a / "fold-1", b / "fold-1", check=0)
        self.assertIn("is only in", tool.run("compare", a, b / "fold-1", check=2).stderr)

    def test_a_learning_curve_is_nested(self):
        out, said = self.study("curve", "--shares", "0.25,0.5,1", command="learncurve")
        points = self.values(out)["points"]
        self.assertEqual([point["train_recordings"] for point in points], [3, 6, 11])
        self.assertEqual([point["name"] for point in points], ["share-0.25", "share-0.5", "share-1"])
        self.assertIn("training.epochs=8", points[0]["overrides"])  # as many steps as with the whole set
        self.assertEqual(points[2]["overrides"], [])
        self.assertEqual(points[0]["runs"][0]["recordings"], {"train": 3, "dev": 1, "test": 4})
        self.assertIn("data.train_share: 3 of 11 training recordings", said.stderr)
        self.assertIn("share-0.25: 3 training recordings", said.stdout)
        page = (out / "study.html").read_text()
        report = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
        chart, = report["charts"]
        self.assertEqual(chart["x"], [3, 6, 11])
        self.assertEqual([round(value, 4) for value in chart["lines"][0]["values"]],
                         [round(point["systems"]["semi_markov"]["label_error_rate"], 4) for point in points])
        self.assertEqual(len(report["tables"][0]["rows"]), 3)
        self.assertEqual(len(report["tables"][1]["rows"]), 3)

    def test_shares_with_one_seed_are_nested_and_others_are_not(self):
        def trained(model):
            measured = self.directory / f"{model.name} measured"
            tool.run("eval", model, "--split", "train", "--out", measured, check=0)
            return set(ids_of(measured))

        sets = {}
        for share, seed in (("0.3", 1), ("0.6", 1), ("0.3", 2)):
            model = self.directory / f"share {share} {seed}"
            tool.run("train", self.config, "--data", self.data, "--out", model, "--set", "training.epochs=1", "--set",
                     f"data.train_share={share}", "--set", f"training.seed={seed}", check=0)
            sets[share, seed] = trained(model)
        self.assertEqual([len(kept) for kept in sets.values()], [3, 7, 3])
        self.assertLess(sets["0.3", 1], sets["0.6", 1])
        self.assertNotEqual(sets["0.3", 1], sets["0.3", 2])

    def test_seeds_have_a_spread_and_compared_systems_too(self):
        out, said = self.study("seeds", "--seeds", "3", "--compare")
        point, = self.values(out)["points"]
        self.assertEqual([run["seed"] for run in point["runs"]], [1, 2, 3])
        self.assertEqual(list(point["systems"]), ["semi_markov", "linear_chain", "softmax", "softmax_cleaned"])
        values = [run["label_error_rate"] for run in point["runs"]]
        spread = point["systems"]["semi_markov"]["over_seeds"]["label_error_rate"]
        mean = sum(values) / 3
        self.assertAlmostEqual(spread["mean"], mean, places=12)
        self.assertAlmostEqual(spread["standard_deviation"], (sum((v - mean) ** 2 for v in values) / 2) ** 0.5, places=12)
        self.assertEqual((spread["lowest"], spread["highest"]), (min(values), max(values)))
        # The same gold in every run: the rate of the sums is the mean of the rates.
        self.assertAlmostEqual(point["systems"]["semi_markov"]["label_error_rate"], mean, places=12)
        self.assertEqual(point["bootstrap"]["recordings"], 4)
        self.assertEqual(point["systems"]["softmax"]["difference"]["to"], "semi_markov")
        self.assertIn("over seeds, sd ", said.stdout)

    def test_a_search_is_decided_by_the_development_set(self):
        out, said = self.study("search", "--search", "training.learning_rate=1e-5,5e-3", "--search", "model.dilations=[1],[1,2]")
        values = self.values(out)
        points = values["points"]
        self.assertEqual([point["overrides"] for point in points],
                         [[f"training.learning_rate={rate}", f"model.dilations={dilations}"]
                          for rate in ("1e-5", "5e-3") for dilations in ("[1]", "[1,2]")])
        best = min(points, key=lambda point: point["dev_score"])
        self.assertEqual(values["chosen"], {"name": best["name"], "overrides": best["overrides"]})
        for point in points:
            metrics = json.loads((out / point["name"] / "metrics.json").read_text())
            self.assertEqual(point["dev_score"], metrics["dev_score"])
            self.assertEqual(metrics["selected_by"], "label_error")
        self.assertRegex(said.stdout, best["name"] + r": .*; dev label_error [0-9.]+, the best\n")
        self.assertEqual(said.stdout.count("the best"), 1)

    def test_resume_goes_on_and_does_nothing_twice(self):
        whole, _ = self.study("whole", "--folds", "3")
        part = self.directory / "part"
        shutil.copytree(whole, part)
        for name in ("study.json", "study.html", "recordings.json", ".segfuse-outputs"):
            (part / name).unlink()
        shutil.rmtree(part / "fold-3")
        models = [(part / f"fold-{i}" / "model.safetensors").read_bytes() for i in (1, 2)]
        _, refused = self.study("part", "--folds", "3", check=2)
        self.assertIn("this directory has a study; pass --resume to continue it", refused.stderr)
        _, said = self.study("part", "--folds", "3", "--resume")
        self.assertEqual([(part / f"fold-{i}" / "model.safetensors").read_bytes() for i in (1, 2)], models)
        self.assertEqual((part / "recordings.json").read_bytes(), (whole / "recordings.json").read_bytes())
        self.assertEqual(said.stderr.count("\nepoch   2 "), 1, said.stderr)
        # Once more, with nothing to do.
        _, said = self.study("part", "--folds", "3", "--resume")
        self.assertNotIn("\nepoch   2 ", said.stderr)
        # Another study does not go on in its place, and nothing of it is lost.
        _, refused = self.study("part", "--folds", "4", "--resume", check=2)
        self.assertIn("data.folds: 3 then, 4 now", refused.stderr)
        _, refused = self.study("part", "--seeds", "2", "--overwrite", check=2)
        self.assertRegex(refused.stderr, "part/fold-[123]: there is a run here that does not belong to this study")
        _, refused = self.study("part/fold-1", "--seeds", "2", check=2)
        self.assertIn("this directory has a training", refused.stderr)
        # Further seeds are more of the same.
        seeds, _ = self.study("more", "--seeds", "2")
        before = (seeds / "seed-2" / "model.safetensors").read_bytes()
        self.study("more", "--seeds", "3", "--resume")
        self.assertEqual((seeds / "seed-2" / "model.safetensors").read_bytes(), before)
        self.assertEqual(len(self.values(seeds)["points"][0]["runs"]), 3)

    def test_what_cannot_work_is_said_before_the_first_run(self):
        for arguments, words in (((), "must differ in something"),
                                 (("--folds", "1"), "--folds is 1; expected 2 or more"),
                                 (("--folds", "-2"), "--folds is -2"),
                                 (("--seeds", "0"), "--seeds is 0"),
                                 (("--search", "model.width"), "expected section.key=a,b,c"),
                                 (("--search", "model.width=8"), "expected section.key=a,b,c"),
                                 (("--seeds", "2", "--search", "training.seed=1,2"), "the search sets training.seed, and so does --seeds"),
                                 (("--search", "model.width=8,,16"), "expected section.key=a,b,c"),
                                 (("--search", "model.widht=8,16"), "did you mean 'width'?"),
                                 (("--search", "model.width=8,16", "--folds", "2"), "can be combined with --seeds only")):
            out, refused = self.study("refused", *arguments, check=2)
            self.assertIn(words, refused.stderr)
            self.assertEqual(refused.stderr.count("\n"), 1, refused.stderr)
            self.assertFalse(out.exists())
        for shares in ("0,1", "0.5,0.5", "1,0.5", "0.5,2", "half", "0.5,,1"):
            _, refused = self.study("refused", "--shares", shares, command="learncurve", check=2)
            self.assertIn("--shares ", refused.stderr)
        _, refused = self.study("refused", "--folds", "99", check=2)
        self.assertIn("there are 16 recordings for 99 folds", refused.stderr)
        for setting, words in (("data.folds=1", "at least 2"), ("data.train_share=0", "must be above 0")):
            refused = tool.run("train", self.config, "--data", self.data, "--out", self.directory / "no", "--set", setting,
                               check=2).stderr
            self.assertIn(words, refused)

    def test_a_folder_needs_no_configuration(self):
        out = self.directory / "of a folder"
        said = tool.run("study", self.data, "--folds", "2", "--out", out, *QUICK, check=0)
        self.assertEqual(len(ids_of(out)), 16)
        self.assertEqual(said.stderr.count("data card of"), 1, said.stderr)  # one data card for all runs


if __name__ == "__main__":
    unittest.main()
