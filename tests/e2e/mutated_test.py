"""Damaged inputs of every reader, through the commands that a user types: an exit code, a sentence that names the file.

SEGFUSE_MUTATIONS: how many inputs in all (default 120), which the readers share; the seeds are fixed.
"""

import concurrent.futures
import os
import pathlib
import random
import re
import shutil
import subprocess
import unittest

import tool
from wfdb_test import annotations, leads_of, waves_of, write_signals

COUNT = int(os.environ.get("SEGFUSE_MUTATIONS", "120"))
LIMIT = 60  # seconds: a hang
CORPUS = tool.SOURCE / "tests/fuzz/corpus"
QUICK = ("--set", "training.epochs=1", "--set", "model.width=8", "--quiet")
HUGE = [b"1e308", b"-1", b"99999999999999999999", b"nan", b"inf", b"4294967296", b"0", b"1e-320"]
STRANGERS = sorted(path for path in CORPUS.rglob("*") if path.is_file())


def numbers_of(content):
    """Where runs of digits are."""
    places, begin = [], None
    for i, byte in enumerate(content + b" "):
        if 48 <= byte <= 57:
            begin = i if begin is None else begin
        elif begin is not None:
            places.append((begin, i))
            begin = None
    return places


def flip(rng, content):
    out = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(min(len(out), 512) if rng.random() < 0.5 else len(out))
        out[at] ^= 1 << rng.randrange(8)
    return bytes(out)


def lines(rng, content):
    rows = content.split(b"\n")
    a, b = rng.randrange(len(rows)), rng.randrange(len(rows))
    if rng.random() < 0.5:
        rows[a], rows[b] = rows[b], rows[a]
    else:
        rows.insert(a, rows[b])
    return b"\n".join(rows)


def number(rng, content):
    places = numbers_of(content[:65536])
    if not places:
        return flip(rng, content)
    begin, end = rng.choice(places)
    return content[:begin] + rng.choice(HUGE) + content[end:]


def insert(rng, content, what):
    at = rng.randrange(len(content) + 1)
    return content[:at] + what + content[at:]


MUTATIONS = [
    flip, lines, number,
    lambda rng, content: content[:rng.randrange(len(content))],
    lambda rng, content: content[rng.randrange(len(content)):],
    lambda rng, content: b"",
    lambda rng, content: insert(rng, content, bytes(rng.choice((1, 3, 100)))),
    lambda rng, content: insert(rng, content, b"\xff\xfe\xe9"),
    lambda rng, content: insert(rng, content, b"x" * 100_000),
    lambda rng, content: content.decode("latin-1").encode("utf-16"),
    lambda rng, content: rng.choice(STRANGERS).read_bytes(),
]


def mutated(rng, content):
    """Most damage leaves nearly everything as it is: then the first three."""
    return (rng.choice(MUTATIONS[:3]) if rng.random() < 0.5 else rng.choice(MUTATIONS))(rng, content)


def formats():
    """The rows of the table of label formats, which a unit test compares with that of the code."""
    return (tool.SOURCE / "docs/data.md").read_text().split("| `--format` |")[1].split("\n\n")[0].splitlines()[2:]


def state_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class MutatedTest(tool.ToolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data, cls.config = cls.corpus()
        cls.model = cls.directory / "model"
        tool.run("train", cls.config, "--data", cls.data, "--out", cls.model, *QUICK, check=0)
        cls.audio = sorted((cls.data / "test").glob("*.wav"))[0]
        cls.readers = {}
        cls.label_readers()
        cls.other_readers()

    @classmethod
    def add(cls, name, folder, file, command, piped=False):
        """Reader `name`: `file` of the folder is damaged, and command(folder) is run."""
        cls.readers[name] = (folder, file, command, piped)

    @classmethod
    def init(cls, folder):
        return ["init", folder, "--out", folder.parent / "out/x.toml"]

    @classmethod
    def label_readers(cls):
        for row in formats():
            name = row.split("|")[1].strip()
            if name == "wfdb":
                continue  # below
            folder = cls.directory / "seeds" / name
            folder.mkdir(parents=True)
            if "read only" in row or name == "notmat":
                seed = "yarden.mat" if name == "yarden" else "x.not.mat"
                for stem in ("a", "b"):
                    shutil.copy(cls.audio, folder / f"{stem}.wav")
                    file = seed if name == "yarden" else f"{stem}.wav.not.mat"
                    shutil.copy(CORPUS / "formats" / seed, folder / file)
            else:
                for path in sorted((cls.data / "test").glob("*.wav"))[:3]:
                    shutil.copy(path, folder)
                tool.run("decode", cls.model, folder, "--out", folder, "--format", name, "--quiet", check=0)
                file = sorted(p.name for p in folder.iterdir() if p.suffix != ".wav" and not p.name.startswith("."))[0]
            cls.add(f"labels {name}", folder, file, cls.init)

    @classmethod
    def other_readers(cls):
        def seeds(name):
            folder = cls.directory / "seeds" / name
            folder.mkdir(parents=True)
            return folder

        def decode(file):
            return lambda folder: ["decode", cls.model, folder / file, "--out", folder.parent / "out"]

        folder = seeds("wfdb")
        for n in range(3):
            waves = waves_of(n)
            write_signals(folder, f"r{n}", leads_of(waves))
            (folder / f"r{n}.atr").write_bytes(annotations([(a, 1, "") for a, _, _ in waves]))
        for file in ("r0.hea", "r0.dat", "r0.atr"):
            cls.add(f"wfdb {file[3:]}", folder, file, cls.init)
        folder = seeds("audio")
        shutil.copy(cls.audio, folder / "x.wav")
        shutil.copy(CORPUS / "sphere/mono.sph", folder / "x.sph")
        for file in ("x.wav", "x.sph"):
            cls.add(f"audio {file[2:]}", folder, file, decode(file))
        cls.add("stream", folder, "x.wav", lambda _: ["stream", cls.model], piped=True)
        folder = seeds("order")
        shutil.copy(cls.audio, folder / "x.wav")
        rows = cls.audio.with_suffix(".phn").read_text().splitlines()
        (folder / "x.txt").write_text(" ".join(row.split()[2] for row in rows))
        cls.add("orders", folder, "x.txt", lambda f: ["align", cls.model, f / "x.wav", "--out", f.parent / "out"])
        for file in ("a.npy", "one.npz", "x.csv", "x.fa"):
            folder = seeds(f"values-{file}")
            for stem in ("x", "y"):
                ending = pathlib.Path(file).suffix
                shutil.copy(CORPUS / "values" / file, folder / (stem + ending))
                (folder / f"{stem}.phn").write_text("0 1 a\n1 2 b\n")
            cls.add(f"values {ending}", folder, "x" + ending, lambda f: cls.init(f) + ["--frame-rate", "50"])
        folder = seeds("manifest")
        names = sorted((cls.data / "test").glob("*.wav"))
        for path in names:
            shutil.copy(path, folder)
            shutil.copy(path.with_suffix(".phn"), folder)
        (folder / "m.tsv").write_text("id\taudio\tlabels\tsplit\n" + "".join(f"{p.stem}\t{p.name}\t{p.stem}.phn\ttest\n" for p in names))
        cls.add("manifest", folder, "m.tsv", lambda f: ["eval", cls.model, "--data", f / "m.tsv"])
        folder = seeds("toml")
        shutil.copy(cls.config, folder / "x.toml")
        cls.add("toml", folder, "x.toml", lambda f: ["train", f / "x.toml", "--print-config"])
        folder = seeds("model")
        shutil.copy(cls.model / "model.safetensors", folder / "x.safetensors")
        cls.add("model", folder, "x.safetensors", lambda f: ["decode", f / "x.safetensors", cls.audio, "--out", f.parent / "out"])
        folder = seeds("compare")
        for file in ("metrics.json", "recordings.json"):
            shutil.copy(cls.model / file, folder)
            cls.add(file, folder, file, lambda f: ["compare", f, cls.model])
        folder = seeds("memory")
        for file in ("rmm.csv", "torch.json"):
            shutil.copy(CORPUS / "memory" / file, folder)
            cls.add(f"memory {file}", folder, file, lambda f, file=file: ["doctor", "memory", f / file])
        folder = seeds("program")
        shutil.copy(CORPUS / "ir/linear.sf", folder / "x.sf")
        cls.add("program", folder, "x.sf", lambda f: ["compile", f / "x.sf"])

    def one(self, name, index, taken=False):
        """What is wrong with how the command takes this input, whole as number 0; nothing, mostly."""
        folder, file, command, piped = self.readers[name]
        place = self.directory / "runs" / name.replace(" ", "-") / str(index)
        inputs = place / "in"
        shutil.copytree(folder, inputs)
        content = (folder / file).read_bytes()
        if index > 0:
            content = mutated(random.Random(f"{name} {index}"), content)
        (inputs / file).write_bytes(content)
        (place / "out").mkdir()
        before = state_of(inputs)
        try:
            result = subprocess.run([tool.SEGFUSE, *map(str, command(inputs)), "--quiet"], capture_output=True, cwd=place / "out",
                                    timeout=LIMIT, input=content if piped else b"")
        except subprocess.TimeoutExpired:
            return f"{name} {index}: hangs"
        said = result.stderr.decode(errors="replace")
        wrong = ""
        if result.returncode not in ((0,) if taken else (0, 2, 3)):
            wrong = f"exit code {result.returncode}"
        elif "Sanitizer" in said or "runtime error" in said:
            wrong = "a sanitizer's report"
        elif state_of(inputs) != before or sorted(p.name for p in place.iterdir()) != ["in", "out"]:
            wrong = "files beside --out changed"
        elif result.returncode != 0:
            last = [line for line in said.splitlines() if line.startswith("segfuse: ")]
            named = "standard input" if piped else str(inputs)
            if len(last) != 1:
                wrong = "not one sentence"
            elif named not in said and not (name == "model" and "the network's score of" in said):  # a weight is finite, but huge
                wrong = "the file is not named"
        if not wrong:
            shutil.rmtree(place)
        return f"{name} {index}: {wrong}: {said[-600:]}" if wrong else ""

    def test_each_format_is_in_a_fuzzer(self):
        sources = "".join(path.read_text() for path in sorted((tool.SOURCE / "tests/fuzz").glob("fuzz_*.cpp")))
        for row in formats():
            endings = re.findall("`([^`]+)`", row.split("|")[3])
            with self.subTest(format=row.split("|")[1].strip()):
                self.assertTrue(any(f'"x{ending}"' in sources for ending in endings), endings)

    def test_whole_they_are_taken(self):
        for name in self.readers:
            with self.subTest(reader=name):
                self.assertEqual(self.one(name, 0, taken=True), "")

    def test_each_is_a_sentence(self):
        each = max(1, COUNT // len(self.readers))
        inputs = [(name, i) for name in self.readers for i in range(1, each + 1)]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            wrong = [text for text in pool.map(lambda one: self.one(*one), inputs) if text]
        print(f"{len(inputs)} inputs of {len(self.readers)} readers")
        self.assertFalse(wrong, f"{len(wrong)} of {len(inputs)}\n" + "\n".join(wrong))


if __name__ == "__main__":
    unittest.main()
