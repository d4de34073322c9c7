"""Systems side by side, in one training and between two, and what a report says of its run."""

import json
import os
import re
import shutil
import unittest

import small_corpus
import tool


def report_of(folder, name="report.html"):
    page = (folder / name).read_text()
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


class CompareTest(small_corpus.CorpusTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.a = cls.directory / "run a"
        cls.command = ("train", cls.config, "--data", cls.data, "--out", cls.a, "--compare", "--set", "training.epochs=2")
        cls.metrics = json.loads(tool.run(*cls.command, "--json", "--threads", "1", check=0).stdout)

    def test_a_former_comparison_is_not_left_beside_another_model(self):
        out = self.directory / "again"
        shutil.copytree(self.a, out)
        before = (out / "model.safetensors").read_bytes()
        plain = ("train", self.config, "--data", self.data, "--out", out, "--set", "training.epochs=1", "--overwrite")
        refused = tool.run(*plain, check=2).stderr
        self.assertRegex(refused, "again/(linear_chain|softmax): this directory has the results of an earlier comparison")
        self.assertEqual((out / "model.safetensors").read_bytes(), before)
        tool.run(*plain, "--compare", check=0)
        for name in ("linear_chain", "softmax"):
            shutil.rmtree(out / name)
        tool.run(*plain, check=0)

    def test_places_without_a_run_are_named(self):
        for place, words in (("nowhere", "nowhere: no such directory"), ("report.html", "report.html: this is a file")):
            refused = tool.run("compare", self.a, self.a / place, check=2).stderr
            self.assertIn(words, refused)

    def test_compare_shows_four_systems(self):
        metrics = self.metrics
        systems = metrics["systems"]
        self.assertEqual(list(systems), ["semi_markov", "linear_chain", "softmax", "softmax_cleaned"])
        chosen = systems["softmax_cleaned"]["clean_up"]
        self.assertEqual(chosen["chosen_by"], "label_error")
        self.assertGreater(chosen["minimum_frames"] + chosen["vote_frames"], 2)
        self.assertLess(systems["softmax_cleaned"]["label_error_rate"], systems["softmax"]["label_error_rate"])
        self.assertEqual(metrics["bootstrap"]["recordings"], 4)
        for name, system in systems.items():
            low, high = system["intervals"]["label_error_rate"]
            self.assertTrue(low <= system["label_error_rate"] <= high, name)
            if name == "semi_markov":
                self.assertNotIn("difference", system)
                continue
            difference = system["difference"]["label_error_rate"]
            self.assertEqual(system["difference"]["to"], "semi_markov")
            self.assertEqual(difference["value"], system["label_error_rate"] - metrics["label_error_rate"])
            self.assertTrue(difference["interval"][0] <= difference["value"] <= difference["interval"][1], name)
        out = self.directory / "compared again"
        table = tool.run("train", self.config, "--data", self.data, "--out", out, "--compare", "--threads", 2, "--set",
                         "training.epochs=2", check=0).stdout
        for line in ("softmax_cleaned: ", "; the best label_error of ", "minus semi_markov", " ±", "95 % bootstrap interval over 4 rec"):
            self.assertIn(line, table)
        again = json.loads((out / "metrics.json").read_text())
        for name, system in systems.items():
            for key in ("intervals", "difference", "clean_up", "counts"):
                self.assertEqual(system.get(key), again["systems"][name].get(key), "bits depend on the threads")
        self.assertEqual((out / "recordings.json").read_text(), (self.a / "recordings.json").read_text())
        report = report_of(out)
        self.assertEqual(report["systems"][-1], "per-frame softmax, cleaned up")
        self.assertIn("softmax_cleaned: ", " ".join(report["notes"]))
        error = report["metrics"][0]
        self.assertTrue(all(text.startswith("±") for text in error["interval"]))
        self.assertRegex(error["difference"][3], r"^[+−]?[0-9.]+.% \([+−]?[0-9.]+.% to [+−]?[0-9.]+.%\)$")
        for head in ("linear_chain", "softmax"):
            again = json.loads(tool.run("eval", self.a / head, "--json", check=0).stdout)
            self.assertEqual(again["label_error_rate"], metrics["systems"][head]["label_error_rate"])

    def test_figures_of_the_fields(self):
        label = sorted(self.metrics["by_label"])[0]
        out, other = self.directory / "fields", self.directory / "fields-again"
        settings = ["--set", f'evaluation.background=["{label}"]', "--set", "evaluation.edge_tolerance=0.05",
                    "--set", "training.epochs=2"]
        said = tool.run("train", self.config, "--data", self.data, "--out", out, *settings, check=0).stdout
        self.assertIn("segment err", said)
        metrics = json.loads((out / "metrics.json").read_text())
        self.assertEqual(metrics["background"], [label])
        self.assertNotIn(label, metrics["by_label"])
        self.assertEqual(metrics["counts"]["foreground"]["gold"],
                         sum(row["gold"] for row in metrics["by_label"].values()))
        mean = sum(row["f1"] for row in metrics["by_label"].values()) / len(metrics["by_label"])
        self.assertAlmostEqual(metrics["chunk_f1_macro"], mean)
        for key in ("segment_error_rate", "chunk_f1", "chunk_f1_macro", "edge_sensitivity_50ms", "edge_ppv_50ms"):
            low, high = metrics["intervals"][key]
            self.assertTrue(low <= metrics[key] <= high, key)
        onsets = next(iter(metrics["by_label"].values()))["onsets"]
        self.assertEqual(onsets["sensitivity"], onsets["hits"] / onsets["gold"])
        report = report_of(out)
        self.assertEqual(report["tables"][0]["head"][:3], ["label", "gold", "decoded"])
        self.assertEqual(len(report["tables"][0]["rows"]), len(metrics["by_label"]))
        # Without that key it is the label of gaps, under the name that it is measured with.
        folded, fold = self.directory / "fields-folded", self.directory / "fold.tsv"
        fold.write_text(f"{label}\tquiet\n")
        tool.run("train", self.config, "--data", self.data, "--out", folded, "--set", f'data.fill_label="{label}"', "--set",
                 f'data.metric_fold="{fold}"', "--set", "training.epochs=1", check=0)
        measured = json.loads((folded / "metrics.json").read_text())
        self.assertEqual(measured["background"], ["quiet"])
        self.assertNotIn("quiet", measured["by_label"])
        # They take no part in the training, so what there is can go on with others.
        tool.run("train", self.config, "--data", self.data, "--out", other, "--set", "training.epochs=2", check=0)
        plain = json.loads((other / "metrics.json").read_text())
        self.assertEqual(plain["label_error_rate"], metrics["label_error_rate"])
        tool.run("train", self.config, "--data", self.data, "--out", other, "--resume", *settings, check=0)
        resumed = json.loads((other / "metrics.json").read_text())
        self.assertEqual(resumed["by_label"], metrics["by_label"])
        # So can a model that was measured otherwise be measured so.
        again = tool.run("eval", self.a, *settings[:4], "--json", check=0)
        self.assertEqual(json.loads(again.stdout)["by_label"], metrics["by_label"])
        self.assertNotIn("evaluation.background names", again.stderr)
        said = tool.run("eval", self.a, "--set", 'evaluation.background = ["nothing"]', check=0).stderr
        self.assertIn("evaluation.background names 'nothing', which no measured segment has", said)
        labels = sorted({label for path in self.data.rglob("*.phn") for _, _, label in small_corpus.rows_of(path)})
        said = tool.run("eval", self.a, "--set", f"evaluation.background={json.dumps(labels)}", check=0).stderr
        self.assertIn("no segment is left to evaluate without the background", said)
        refused = tool.run("eval", self.a, "--set", "model.width=3", check=2).stderr
        self.assertIn("'model.width=3' is not a setting of [evaluation]", refused)
        # Two runs side by side.
        compared = self.directory / "fields-compared"
        self.assertIn("segment err", tool.run("compare", out, other, "--out", compared, check=0).stdout)
        result = json.loads((compared / "compare.json").read_text())["systems"][str(out)]
        for key in ("by_label", "background", "edge_tolerance"):
            self.assertEqual(result[key], metrics[key])
        self.assertEqual(result["edge_ppv_50ms"], metrics["edge_ppv_50ms"])
        refused = tool.run("compare", out, self.a, check=2).stderr
        self.assertIn("evaluation.background", refused)
        # A run of a version that did not count them: the rest is compared.
        file = other / "recordings.json"
        old = json.loads(file.read_text())
        del old["edge_tolerance"], old["background"]
        for row in old["recordings"]:
            for counts in row["counts"].values():
                del counts["foreground"], counts["by_label"]
        file.write_text(json.dumps(old))
        result = json.loads(tool.run("compare", out, other, "--json", check=0).stdout)["systems"][str(out)]
        self.assertEqual(result["label_error_rate"], metrics["label_error_rate"])
        self.assertNotIn("chunk_f1", result)
        self.assertNotIn("by_label", result)

    def test_one_recording_has_no_interval(self):
        data, _ = self.corpus(test=1)
        out = self.directory / "one"
        said = tool.run("train", self.config, "--data", data, "--out", out, "--compare", "--set", "training.epochs=1",
                        check=0).stdout
        self.assertIn("no interval can be given", said)
        self.assertNotIn("±", said)
        metrics = json.loads((out / "metrics.json").read_text())
        self.assertIsNone(metrics["intervals"]["label_error_rate"])
        self.assertIsNone(metrics["systems"]["softmax"]["difference"]["label_error_rate"]["interval"])
        self.assertIn("no interval can be given", (out / "report.html").read_text())

    def test_nothing_measured_is_no_perfect_figure(self):
        data, _ = self.corpus(test=1)
        folder = self.directory / "train-only"
        (folder / "train").mkdir(parents=True)
        for path in (data / "train").glob("r0000[01].*"):
            shutil.copy(path, folder / "train")
        out = self.directory / "none"
        said = tool.run("train", self.config, "--data", folder, "--out", out, "--compare", "--set", "training.epochs=1",
                        check=0).stdout
        self.assertIn("Nothing was measured", said)
        self.assertRegex(said, r"(?m)^semi_markov +-( +-)+$")
        self.assertNotRegex(said, r"[01]\.0000")
        metrics = json.loads((out / "metrics.json").read_text())
        for system in (metrics, *metrics["systems"].values()):
            for key in metrics["intervals"]:
                self.assertIsNone(system[key], key)

    @unittest.skipIf(os.environ.get("SEGFUSE_SANITIZE"), "ranks are tested without sanitizers")
    def test_ranks_compare_to_the_same_bits(self):
        counts = []
        for name, more in (("one process", ()), ("two ranks", ("--ranks", 2))):
            out = self.directory / name
            tool.run("train", self.config, "--data", self.data, "--out", out, "--compare", "--set", "training.epochs=1",
                     "--set", "training.shards=2", *more, check=0)
            counts.append((out / "recordings.json").read_text())
        self.assertEqual(*counts)
        self.assertEqual(json.loads(counts[0])["systems"], ["semi_markov", "linear_chain", "softmax", "softmax_cleaned"])

    def test_the_report_says_what_the_run_was_made_of(self):
        run = self.metrics["run"]
        self.assertEqual(run["command_line"].split()[1:3], ["train", str(self.config)])
        self.assertIn(f"'{self.a}'", run["command_line"])
        self.assertEqual((run["device"], run["threads"], run["seed"]), ("CPU", 1, 1))
        self.assertEqual(run["overrides"], ["training.epochs=2"])
        self.assertIn("epochs = 2", run["configuration"])
        self.assertEqual(set(run["data_hash"]), {"train", "dev", "test"})
        report = report_of(self.a)
        rows = dict(report["environment"])
        self.assertEqual(rows["command line"], run["command_line"])
        self.assertEqual(rows["hash of the test data"], run["data_hash"]["test"])
        self.assertEqual(rows["overrides"], "training.epochs=2")
        self.assertIn("epochs = 2", report["config"])

    def test_worst_recordings_and_doubted_labels(self):
        worst = self.metrics["worst_recordings"]
        rates = [row["label_error_rate"] for row in worst]
        self.assertEqual(rates, sorted(rates, reverse=True))
        self.assertEqual(sum(row["errors"] for row in worst),
                         sum(self.metrics["counts"]["labels"][key] for key in ("substitutions", "insertions", "deletions")))
        doubted = self.metrics["doubted_labels"]
        posteriors = [row["posterior"] for row in doubted]
        self.assertEqual(posteriors, sorted(posteriors))
        self.assertEqual(len(doubted), 20)
        report = report_of(self.a)
        self.assertEqual([row[0] for row in report["worst"]], [row["recording"] for row in worst])
        self.assertEqual([row[3] for row in report["doubted"]], [row["label"] for row in doubted])

    def test_a_planted_mistake_is_doubted(self):
        out, _, _ = self.train("teacher", self.data, "--set", "training.epochs=8")
        planted = []

        def swap_one(path, rows):
            if path.stem == "r00001" and path.parent.name == "test":
                middle = len(rows) // 2
                start, end, label = rows[middle]
                wrong = next(other for _, _, other in rows if other != label)
                rows[middle] = (start, end, wrong)
                planted.append((start / small_corpus.RATE, wrong))
            small_corpus.write_phn(path, rows)

        data = self.changed("mistaken", swap_one)
        doubted = json.loads(tool.run("eval", out, "--data", data, "--json", check=0).stdout)["doubted_labels"]
        self.assertEqual(doubted[0]["recording"].rsplit("/", 1)[-1], "r00001")
        self.assertAlmostEqual(doubted[0]["start"], planted[0][0], places=6)
        self.assertEqual(doubted[0]["label"], planted[0][1])
        self.assertNotEqual(doubted[0]["decoded"], doubted[0]["label"])

    def test_two_runs_side_by_side(self):
        b, metrics, _ = self.train("run b", self.data, "--set", "training.seed=7")
        out = self.directory / "side by side"
        table = tool.run("compare", self.a, b, "--out", out, check=0).stdout
        compared = json.loads((out / "compare.json").read_text())
        self.assertEqual(list(compared["systems"]), [str(self.a), str(b)])
        of_b = compared["systems"][str(b)]
        self.assertEqual(of_b["label_error_rate"], metrics["label_error_rate"])
        self.assertEqual(of_b["intervals"], metrics["intervals"])
        self.assertEqual(compared["systems"][str(self.a)]["intervals"], self.metrics["intervals"])
        difference = of_b["difference"]["label_error_rate"]
        self.assertEqual(difference["value"], metrics["label_error_rate"] - self.metrics["label_error_rate"])
        settings = {row["key"]: (row["first"], row["second"]) for row in compared["settings"]}
        self.assertEqual(settings["training.seed"], ("1", "7"))
        self.assertEqual(settings["training.epochs"], ("2", "3"))
        self.assertEqual(len(settings), 2)
        for words in ("minus", "training.seed", "over 4 recordings"):
            self.assertIn(words, table)
        self.assertEqual(report_of(out, "compare.html")["systems"], [str(self.a), str(b)])
        self.assertEqual(tool.run("compare", self.a, b, "--json", check=0).stdout, (out / "compare.json").read_text())
        back = json.loads(tool.run("compare", b, self.a, "--json", check=0).stdout)
        opposite = back["systems"][str(self.a)]["difference"]["label_error_rate"]["interval"]
        self.assertEqual(opposite, [-x for x in reversed(difference["interval"])])

    def test_systems_of_one_run_are_compared_as_the_training_did(self):
        compared = json.loads(tool.run("compare", self.a, self.a, "--system-b", "softmax_cleaned", "--json", check=0).stdout)
        cleaned = compared["systems"][f"{self.a} (softmax_cleaned)"]
        expected = self.metrics["systems"]["softmax_cleaned"]
        self.assertEqual(cleaned["difference"]["label_error_rate"], expected["difference"]["label_error_rate"])
        heads = {"key": "model.head", "first": '"semi_markov"', "second": '"softmax_cleaned"'}
        self.assertEqual(compared["settings"], [heads])
        wrong = tool.run("compare", self.a, self.a, "--system-b", "softmax_clean", check=2).stderr
        self.assertIn("did you mean 'softmax_cleaned'?", wrong)

    def test_other_recordings_are_refused(self):
        other, _ = self.corpus(test=3)
        fewer, _, _ = self.train("fewer", other)

        def relabel(path, rows):
            if path.stem == "r00002":
                rows[0] = (rows[0][0], rows[0][1], rows[1][2])
            small_corpus.write_phn(path, rows)

        relabelled = self.directory / "relabelled"
        tool.run("eval", self.a, "--data", self.changed("relabelled data", relabel), "--out", relabelled, check=0)
        tolerant, _, _ = self.train("tolerant", self.data, "--set", "evaluation.tolerances=[0.05]")
        bare = self.directory / "bare"
        bare.mkdir()
        for second, words in ((fewer, "is only in"), (relabelled, "the gold segments of"), (tolerant, "tolerances"),
                              (bare, "there is no recordings.json")):
            said = tool.run("compare", self.a, second, check=2).stderr
            self.assertIn(words, said)
            self.assertEqual(said.count("\n"), 1, said)

    def test_malformed_counts_are_named(self):
        broken = self.directory / "broken"
        shutil.copytree(self.a, broken)
        path = broken / "recordings.json"
        good = path.read_text()
        for old, new in (('"gold": "', '"gold": 3, "was": "'), ('"frames": ', '"frames": -'), ('"hits"', '"hit"'), ("{", "")):
            path.write_text(good.replace(old, new, 1))
            said = tool.run("compare", self.a, broken, check=3).stderr
            self.assertIn("recordings.json", said)


if __name__ == "__main__":
    unittest.main()
