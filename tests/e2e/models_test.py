"""Pretrained models: what is listed, names in the place of paths, damaged files, fine-tuning by name; what an installation has."""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import unittest
import wave

import tool
from init_test import ONE_EPOCH, tensors
from small_corpus import CorpusTest

TREE = tool.SOURCE / "models"
FIELDS = ["name", "title", "recordings", "sample_rate", "hop_ms", "labels", "licence", "figure", "bytes", "sha256", "path"]


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_index(folder):
    """An index of the models FOLDER/NAME/model.safetensors."""
    rows = ""
    for file in sorted(folder.glob("*/model.safetensors")):
        values = {"name": file.parent.name, "title": "tones", "recordings": "synthetic", "licence": "Apache-2.0",
                  "figure": "label error 1 %", "sample_rate": 16000, "hop_ms": 10, "labels": ["a", "b"],
                  "bytes": file.stat().st_size, "sha256": digest(file)}
        rows += "[[model]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    (folder / "index.toml").write_text(rows)


def state_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class ModelsTest(CorpusTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.directory / "models"
        tool.run("train", cls.config, "--data", cls.data, "--out", cls.directory / "trained", "--set", "training.epochs=2",
                 check=0)
        (cls.folder / "tones").mkdir(parents=True)
        cls.file = cls.folder / "tones/model.safetensors"
        shutil.copy(cls.directory / "trained/model.safetensors", cls.file)
        (cls.folder / "tones/card.md").write_text("# tones\n\nOf a test.\n")
        write_index(cls.folder)
        cls.before = state_of(cls.folder)
        cls.sound = sorted((cls.data / "test").glob("*.wav"))[0]

    def tearDown(self):
        self.assertEqual(state_of(self.folder), self.before, "the folder of the models was written to")

    def named(self, *arguments, check=0, folder=None, **how):
        """The command where SEGFUSE_MODELS names the folder of this test."""
        return tool.run(*arguments, check=check, env={"SEGFUSE_MODELS": str(folder or self.folder)}, **how)

    def test_the_list(self):
        listed = json.loads(self.named("models", "--json").stdout)
        self.assertEqual([list(row) for row in listed], [FIELDS] * len(listed))
        self.assertEqual((listed[0]["name"], listed[0]["path"]), ("tones", str(self.file)))
        # Behind it stand those of the build, which are those of the tree.
        names = [row["name"] for row in listed[1:]]
        self.assertEqual(sorted(names), sorted(path.parent.name for path in TREE.glob("*/model.safetensors")))
        text = self.named("models").stdout
        for row in listed:
            for words in (row["name"], row["title"], row["recordings"], row["licence"], row["figure"], row["labels"][0]):
                self.assertIn(words, text)
        card = self.named("models", "tones").stdout
        self.assertEqual(card, "# tones\n\nOf a test.\n")
        self.assertEqual(json.loads(self.named("models", "tones", "--json").stdout), {**listed[0], "card": card})
        self.assertIn("models", tool.run("completion", "bash", check=0).stdout)

    def test_a_name_stands_for_its_file(self):
        def decoded(model):
            out = self.directory / "decoded"
            self.named("decode", model, self.sound, "--out", out, "--overwrite", "--format", "csv")
            return (out / f"{self.sound.stem}.csv").read_bytes()

        self.assertEqual(decoded("tones"), decoded(self.file))
        by_name, by_path = (json.loads(self.named("eval", model, "--data", self.data, "--json").stdout)
                            for model in ("tones", self.file))
        self.assertEqual(by_name["counts"], by_path["counts"])
        self.assertEqual(by_name["model"], "tones")
        order = self.directory / "orders"
        order.mkdir()
        labels = json.loads(tensors(self.file)[1]["model"])["labels"]
        (order / f"{self.sound.stem}.txt").write_text(" ".join(labels))
        self.named("align", "tones", self.sound, "--orders", order, "--out", self.directory / "aligned")
        with wave.open(str(self.sound)) as file:
            samples = file.readframes(file.getnframes())
        streamed = [subprocess.run([tool.SEGFUSE, "stream", model], input=samples, capture_output=True, check=True,
                                   env={**os.environ, "SEGFUSE_MODELS": str(self.folder)}).stdout
                    for model in ("tones", self.file)]
        self.assertTrue(streamed[0])
        self.assertEqual(streamed[0], streamed[1])

    def test_fine_tuning_by_name_is_that_by_path(self):
        found = []
        for name, init in (("by-name", "tones"), ("by-path", str(self.file))):
            out = self.directory / name
            self.named("train", self.config, "--data", self.data, "--out", out, "--init", init, *ONE_EPOCH)
            values, metadata = tensors(out / "model.safetensors")
            # What the user called it stands in the settings.
            self.assertIn(init, metadata["config"] + metadata["model"])
            found.append((values, {key: text.replace(init, "INIT") for key, text in metadata.items()}))
        self.assertEqual(found[0], found[1])
        self.assertIn(digest(self.file), found[0][1]["recipe"])

    def test_a_folder_of_results_takes_no_models_name(self):
        empty = self.directory / "nothing here"
        empty.mkdir()
        for out in ("tones", "tones/", "./tones"):
            said = self.named("train", self.config, "--data", self.data, "--out", out, "--init", "tones", *ONE_EPOCH,
                              check=2, cwd=empty).stderr
            self.assertIn("starts from the pretrained model of this name", said)
        self.assertEqual(list(empty.iterdir()), [])

    def test_an_existing_path_wins(self):
        here = self.directory / "here"
        shutil.copytree(self.directory / "trained", here / "tones")
        damaged = self.directory / "damaged"  # where the name is not looked for
        (damaged / "tones").mkdir(parents=True)
        (damaged / "tones/model.safetensors").write_bytes(b"no model")
        shutil.copy(self.folder / "index.toml", damaged)
        for model in ("tones", "./tones", "tones/model.safetensors"):
            self.named("decode", model, self.sound, "--out", "labels", "--overwrite", folder=damaged, cwd=here)
        (here / "tones/model.safetensors").unlink()
        said = self.named("decode", "tones", self.sound, "--out", "labels", check=3, cwd=here).stderr
        self.assertIn("tones/model.safetensors", said)

    def test_a_damaged_file_is_refused(self):
        damaged = self.directory / "flipped"
        shutil.copytree(self.folder, damaged)
        file = damaged / "tones/model.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1  # a weight: the file is still a model
        file.write_bytes(content)
        said = tool.run("decode", file, self.sound, "--out", self.directory / "of-path", check=3).stderr
        self.assertIn(f"segfuse: {file}: the checksum (CRC-32) of its content is ", said)
        for command in (["decode", "tones", self.sound, "--out", self.directory / "of-name"],
                        ["train", self.config, "--data", self.data, "--out", self.directory / "of-init", "--init", "tones"]):
            result = self.named(*command, "--quiet", check=3, folder=damaged)
            said = f"segfuse: {file}: the file is damaged or was changed: its SHA-256 is {digest(file)}, expected " \
                   f"{digest(self.file)} as {damaged / 'index.toml'} says; install the models again\n"
            self.assertEqual(result.stderr, said)

    def test_what_is_not_there(self):
        said = self.named("decode", "tonse", self.sound, "--out", self.directory / "none", check=3).stderr
        self.assertRegex(said, r"^segfuse: tonse: there is no file or folder and no pretrained model of this name; "
                               r"did you mean 'tones'\? \(looked in \S+, \S+share/segfuse/models; SEGFUSE_MODELS names other "
                               r"folders\)\n$")
        self.assertIn(str(self.folder), said)
        said = self.named("models", "tonse", check=3).stderr
        self.assertIn("did you mean 'tones'?", said)
        # What can only be a path is called one.
        said = self.named("decode", "out/tonse", self.sound, "--out", self.directory / "none", check=3).stderr
        self.assertIn("out/tonse", said)
        self.assertNotIn("pretrained", said)
        said = self.named("models", folder=self.directory / "nowhere", check=3).stderr
        self.assertIn("/nowhere', where there is no index.toml", said)


class InstalledTest(unittest.TestCase):
    """What `cmake --install` placed; the test consumer_install runs before."""

    @unittest.skipUnless("SEGFUSE_PREFIX" in os.environ, "SEGFUSE_PREFIX names no installation")
    def test_the_installed_command_has_the_models_of_the_tree(self):
        prefix = pathlib.Path(os.environ["SEGFUSE_PREFIX"])
        listed = json.loads(subprocess.run([prefix / "bin/segfuse", "models", "--json"], capture_output=True, check=True).stdout)
        self.assertEqual(len(listed), len(list(TREE.glob("*/model.safetensors"))))
        for row in listed:
            self.assertEqual(pathlib.Path(row["path"]), prefix / "share/segfuse/models" / row["name"] / "model.safetensors")
            self.assertEqual(digest(pathlib.Path(row["path"])), row["sha256"])
        self.assertTrue((prefix / "share/segfuse/models/licences/festvox-ru.txt").is_file())


if __name__ == "__main__":
    unittest.main()
