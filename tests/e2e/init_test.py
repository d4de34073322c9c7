"""A training that begins with the weights of another model (training.init)."""

import hashlib
import json
import shutil
import struct
import unittest

import tool
from small_corpus import CorpusTest, read_wav, write_phn, write_wav

ONE_EPOCH = ["--set", "training.epochs=1", "--set", "training.average=0"]
STILL = [*ONE_EPOCH, "--set", "training.learning_rate=0"]  # its weights are those that it began with


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tensors(path):
    """Name: (shape, numbers) of a model file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + size + at for at in entry["data_offsets"])
            code = {"F32": "f", "F64": "d"}[entry["dtype"]]
            found[name] = entry["shape"], struct.unpack(f"<{(end - begin) // struct.calcsize(code)}{code}", data[begin:end])
    return found, {key: value for key, value in header["__metadata__"].items() if key != "crc32"}


def labels_of(path):
    return json.loads(tensors(path)[1]["model"])["labels"]


class InitTest(CorpusTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        tool.run("train", cls.config, "--data", cls.data, "--out", cls.directory / "source", check=0)
        cls.source = cls.directory / "source/model.safetensors"
        cls.hash = digest(cls.source)

    def tearDown(self):
        self.assertEqual(digest(self.source), self.hash, "the model that a training began with was changed")

    def begin(self, name, *more, data=None, init=None, check=0):
        return self.train(name, data or self.data, "--init", init or self.directory / "source", *more, check=check)

    def test_without_learning_it_is_the_same_model(self):
        out, figures, errors = self.begin("same", *STILL)
        self.assertIn(f"4 of 4 labels known from {self.directory / 'source'}\n", errors)
        self.assertEqual(tensors(out / "model.safetensors")[0], tensors(self.source)[0])
        run = figures["run"]["initial_model"]
        self.assertEqual(run["sha256"], self.hash)
        self.assertIn(self.hash, (out / "report.html").read_text())
        settings = json.loads((out / "recordings.json").read_text())["settings"]
        self.assertEqual(json.loads(settings["training.init"]), str(self.directory / "source"))
        recipe = json.loads(tensors(out / "model.safetensors")[1]["recipe"])
        self.assertEqual(recipe["SHA-256 of training.init"], self.hash)

    def test_other_labels(self):
        """Two labels keep their names, one is new, one has no recordings any more: scores are copied by name."""
        former = labels_of(self.source)
        new_name = {former[0]: "zz", former[1]: former[2], former[2]: former[2], former[3]: former[3]}
        data = self.changed("relabelled", lambda path, rows: write_phn(path, [(a, b, new_name[label]) for a, b, label in rows]))
        for path in data.rglob("*.wav"):  # another microphone: the features are still normalised as the model has it
            rate, samples = read_wav(path)
            write_wav(path, rate, [value // 3 for value in samples])
        out, _, errors = self.begin("other", *STILL, "--set", "model.long_segments=\"joined\"", data=data)
        self.assertRegex(errors, r"2 of 3 labels known from \S+ \(new: zz\)\n")
        now = labels_of(out / "model.safetensors")
        self.assertEqual(now, [former[2], former[3], "zz"])
        (old, _), (new, _) = tensors(self.source), tensors(out / "model.safetensors")
        known = [(now.index(label), former.index(label)) for label in now[:2]]
        for name, (shape, values) in new.items():
            old_shape, old_values = old[name]
            if name == "parameter.crf.transition":
                for a, old_a in known:
                    for b, old_b in known:
                        self.assertEqual(values[3 * a + b], old_values[4 * old_a + old_b], name)
            elif name.startswith(("parameter.emission.", "parameter.crf.")):
                parts = 2 if "emission" in name else 1  # frames that share a position of the encoder
                rows = min(len(values) // (3 * parts), len(old_values) // (4 * parts))
                for row in range(rows):
                    for part in range(parts):
                        for c, old_c in known:
                            self.assertEqual(values[(row * parts + part) * 3 + c], old_values[(row * parts + part) * 4 + old_c], name)
            elif name != "duration_limit":
                self.assertEqual((shape, values), (old_shape, old_values), name)
        learned, _, _ = self.begin("learned", data=data)
        self.assertNotEqual(tensors(learned / "model.safetensors")[0]["parameter.stem.weight"], old["parameter.stem.weight"])

    def test_it_begins_better_than_from_nothing(self):
        _, with_init, _ = self.begin("ahead", *ONE_EPOCH)
        _, without, _ = self.train("from-nothing", self.data, *ONE_EPOCH)
        self.assertLess(with_init["label_error_rate"], without["label_error_rate"])

    def test_resumed_and_on_ranks_it_has_the_same_bits(self):
        shards = ["--set", "training.shards=2"]
        whole, _, _ = self.begin("whole", *shards)
        expected = tensors(whole / "model.safetensors")
        self.assertEqual(tensors(self.begin("on-two", *shards, "--ranks", "2")[0] / "model.safetensors")[0], expected[0])
        # A checkpoint of every step; a copy of the first run's last one ends at once with the same model.
        shutil.copytree(whole, self.directory / "again")
        (self.directory / "again/model.safetensors").unlink()
        _, _, errors = self.begin("again", *shards, "--resume")
        self.assertIn("resuming after", errors)
        self.assertEqual(tensors(self.directory / "again/model.safetensors")[0], expected[0])
        # The model is part of what a run is made of.
        _, _, errors = self.train("again", self.data, *shards, "--resume", check=2)
        self.assertIn(f"SHA-256 of training.init: {self.hash} then, nothing now", errors)
        _, _, errors = self.begin("again", *shards, "--resume", init=whole, check=2)
        self.assertIn("SHA-256 of training.init", errors)

    def test_a_folder_takes_features_and_encoder_of_the_model(self):
        out = self.directory / "folder"
        result = tool.run("train", self.data, "--init", self.source, "--out", out, *ONE_EPOCH, check=0)
        self.assertIn(f"4 of 4 labels known from {self.source}", result.stderr)
        (old, before), (new, after) = tensors(self.source), tensors(out / "model.safetensors")
        self.assertEqual({n: s for n, (s, _) in new.items() if "stem" in n}, {n: s for n, (s, _) in old.items() if "stem" in n})
        self.assertEqual(new["normalisation.mean"], old["normalisation.mean"])
        then, now = json.loads(before["recipe"]), json.loads(after["recipe"])
        for key in ("features.n_mels", "features.hop_ms", "model.width", "model.dilations"):
            self.assertEqual(then[key], now[key])

    def test_what_does_not_fit_is_refused(self):
        for setting, words in (("features.n_mels=20", "features.n_mels: 16 then, 20 now"),
                               ("model.width=32", "model.width: 16 then, 32 now"),
                               ("model.causal=true", "model.causal: false then, true now"),
                               ("model.dilations=[1]", "model.dilations: [1, 2] then, [1] now")):
            _, _, errors = self.begin("refused", "--set", setting, check=2)
            self.assertIn(words, errors)
            self.assertIn("cannot start from this model", errors)
        _, _, errors = self.begin("refused", init=self.directory / "nowhere", check=3)
        self.assertIn("nowhere", errors)
        damaged = self.directory / "damaged.safetensors"
        damaged.write_bytes(self.source.read_bytes()[:500])
        self.assertIn("damaged.safetensors", self.begin("refused", init=damaged, check=3)[2])
        audio = sorted(self.data.rglob("*.wav"))[0]
        self.assertIn(f"{audio}: byte 8: this is not a safetensors file", self.begin("refused", init=audio, check=3)[2])
        # Into its own folder, whatever is allowed to be replaced there.
        for more in (["--overwrite"], ["--resume"]):
            self.assertIn("would replace it", self.begin("source", *more, check=2)[2])

    def test_a_comparison_is_said_to_lean(self):
        _, _, errors = self.begin("leaning", "--compare", *ONE_EPOCH)
        self.assertIn("the comparison favours that head; leave --init out", errors)
        self.assertNotIn("favours", self.begin("upright", *ONE_EPOCH)[2])

    def test_families_of_durations(self):
        """Their parameters are in the file, decode, and go on where the family is the same."""
        old = tensors(self.source)[0]
        for family, count in (("geometric", 1), ("negative_binomial", 2), ("poisson", 1), ("log_normal", 2), ("buckets", 3)):
            with self.subTest(family):
                settings = ["--set", f"model.durations={family}", "--set", "model.duration_buckets=3"]
                out, _, _ = self.begin(family, *ONE_EPOCH, *settings)
                shape, values = tensors(out / "model.safetensors")[0]["parameter.crf.duration"]
                self.assertEqual(shape, [count, 4])
                self.assertNotEqual(values, old["parameter.crf.duration"][1][:len(values)])
                again, _, _ = self.begin(f"{family}-again", *STILL, *settings, init=out)
                self.assertEqual(tensors(again / "model.safetensors")[0]["parameter.crf.duration"], (shape, values))
                sound = sorted(self.data.rglob("*.wav"))[0]
                tool.run("decode", out, sound, "--out", self.directory / f"{family}-decoded", check=0)
        _, _, errors = self.begin("chain", "--set", "model.durations=poisson", "--set", "model.head=linear_chain", check=2)
        self.assertIn("needs model.head = \"semi_markov\"", errors)

    def test_another_head_keeps_encoder_and_emission(self):
        out, _, _ = self.begin("softmax", *STILL, "--set", "model.head=softmax")
        new = tensors(out / "model.safetensors")[0]
        old = tensors(self.source)[0]
        parameters = [name for name in new if name.startswith("parameter.")]
        self.assertTrue(parameters)
        self.assertFalse([name for name in parameters if name.startswith("parameter.crf")])
        for name in parameters:
            self.assertEqual(new[name], old[name], name)


if __name__ == "__main__":
    unittest.main()
