"""Damaged inputs of every reader, through the commands that a user types: an exit code, a sentence that names the file.

SEGFUSE_MUTATIONS: how many inputs in all (default 120), which the readers share; the seeds are fixed.
"""

import concurrent.futures
import os
import random
import re
import shutil
import subprocess
import unittest

import models_test
import readers
import small_corpus
import tool
from wfdb_test import annotations, leads_of, waves_of, write_signals

COUNT = int(os.environ.get("SEGFUSE_MUTATIONS", "120"))
LIMIT = 60  # seconds: a hang
CORPUS = tool.SOURCE / "tests/fuzz/corpus"
QUICK = ("--set", "training.epochs=1", "--set", "model.width=8", "--quiet")
HUGE = [b"1e308", b"-1", b"99999999999999999999", b"nan", b"inf", b"4294967296", b"0", b"1e-320"]
PTX = """.version 7.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 x)
{
  .reg .f32 %f<3>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [x];
  cvta.to.global.u64 %rd2, %rd1;
  ld.global.f32 %f1, [%rd2];
  add.f32 %f2, %f1, 0f3F800000;
  st.global.f32 [%rd2], %f2;
  ret;
}
"""
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


def state_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_checksum(path):
    """So that what reads the file finds its damage."""
    path.write_bytes(path.read_bytes().replace(b'"crc32"', b'"crc-0"'))


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
        cls.recording_readers()
        cls.value_readers()
        cls.training_readers()
        cls.other_readers()

    @classmethod
    def add(cls, name, folder, file, command, piped=False, writes=False):
        """Reader `name`: `file` of the folder is damaged, and command(folder) is run. `piped`: it comes from standard input;
        `writes`: the command changes the folder."""
        cls.readers[name] = (folder, file, command, piped, writes)

    @classmethod
    def seeds(cls, name):
        folder = cls.directory / "seeds" / name
        folder.mkdir(parents=True)
        return folder

    @classmethod
    def decode(cls, file):
        return lambda folder: ["decode", cls.model, folder / file, "--out", folder.parent / "out"]

    @classmethod
    def init(cls, folder):
        return ["init", folder, "--out", folder.parent / "out/x.toml"]

    @classmethod
    def label_readers(cls):
        for row in readers.formats():
            if row.name == "wfdb":
                continue  # below
            folder = cls.seeds(f"labels-{row.name}")
            if row.read_only or row.name == "notmat":
                seed = "yarden.mat" if row.name == "yarden" else "x.not.mat"
                for stem in ("a", "b"):
                    shutil.copy(cls.audio, folder / f"{stem}.wav")
                    file = seed if row.name == "yarden" else f"{stem}.wav.not.mat"
                    shutil.copy(CORPUS / "formats" / seed, folder / file)
            else:
                for path in sorted((cls.data / "test").glob("*.wav"))[:3]:
                    shutil.copy(path, folder)
                tool.run("decode", cls.model, folder, "--out", folder, "--format", row.name, "--quiet", check=0)
                file = sorted(p.name for p in folder.iterdir() if p.suffix != ".wav" and not p.name.startswith("."))[0]
            cls.add(f"labels {row.name}", folder, file, cls.init)
        folder = cls.seeds("labels-tsv")
        for path in sorted((cls.data / "test").glob("*.wav"))[:3]:
            shutil.copy(path, folder)
            rows = small_corpus.rows_of(path.with_suffix(".phn"))
            (folder / path.stem).with_suffix(".tsv").write_text("start\tend\tlabel\n" + "".join(
                f"{a / small_corpus.RATE}\t{b / small_corpus.RATE}\t{c}\n" for a, b, c in rows))
        cls.add("labels .tsv", folder, sorted(folder.glob("*.tsv"))[0].name, cls.init)

    @classmethod
    def recording_readers(cls):
        folder = cls.seeds("wfdb")
        for n in range(3):
            waves = waves_of(n)
            write_signals(folder, f"r{n}", leads_of(waves))
            (folder / f"r{n}.atr").write_bytes(annotations([(a, 1, "") for a, _, _ in waves]))
        for file in ("r0.hea", "r0.dat", "r0.atr"):
            cls.add(f"wfdb {file[2:]}", folder, file, cls.init)
        folder = cls.seeds("audio")
        for path in (CORPUS / "audio").iterdir():
            shutil.copy(path, folder)
        shutil.copy(folder / "x.ogg", folder / "x.oga")
        shutil.copy(folder / "x.aiff", folder / "x.aif")
        shutil.copy(cls.audio, folder / "x.wav")
        for ending in (".sph", ".nist"):
            shutil.copy(CORPUS / "sphere/mono.sph", folder / f"x{ending}")
        (folder / "x.cbin").write_bytes(b"".join(i.to_bytes(2, "big") for i in range(4000)))
        (folder / "x.rec").write_text("ADFREQ =  1.6000000E+4\nChans =  1\nSamples =  4000\n")
        for ending in readers.audio_endings():
            if ending != ".hea":  # above
                cls.add(f"audio {ending}", folder, f"x{ending}", cls.decode(f"x{ending}"))
        cls.add("audio .rec", folder, "x.rec", cls.decode("x.cbin"))
        cls.add("stream", folder, "x.wav", lambda _: ["stream", cls.model], piped=True)

    @classmethod
    def value_readers(cls):
        seeds = {".npy": "a.npy", ".npz": "one.npz", ".csv": "x.csv", ".tsv": "x.tsv", ".fa": "x.fa", ".fasta": "x.fa", ".fna": "x.fa"}
        for ending in readers.value_endings():
            folder = cls.seeds(f"values{ending}")
            for stem in ("x", "y"):
                shutil.copy(CORPUS / "values" / seeds[ending], folder / (stem + ending))
                (folder / f"{stem}.phn").write_text("0 1 a\n1 2 b\n")
            cls.add(f"values {ending}", folder, "x" + ending, lambda f: cls.init(f) + ["--frame-rate", "50"])

    @classmethod
    def training_readers(cls):
        """What a training reads, and what it left behind."""
        names = sorted((cls.data / "test").glob("*.wav"))
        folder = cls.seeds("manifest")
        for path in names:
            shutil.copy(path, folder)
            shutil.copy(path.with_suffix(".phn"), folder)
        for ending, separator in ((".tsv", "\t"), (".csv", ",")):
            rows = [("id", "audio", "labels", "split"), *((p.stem, p.name, f"{p.stem}.phn", "test") for p in names)]
            (folder / f"m{ending}").write_text("".join(separator.join(row) + "\n" for row in rows))
            cls.add(f"manifest {ending}", folder, f"m{ending}", lambda f, file=f"m{ending}": ["eval", cls.model, "--data", f / file])
        folder = cls.seeds("toml")
        shutil.copy(cls.config, folder / "x.toml")
        cls.add("configuration", folder, "x.toml", lambda f: ["train", f / "x.toml", "--print-config"])
        folder = cls.seeds("model")
        shutil.copy(cls.model / "model.safetensors", folder / "x.safetensors")
        without_checksum(folder / "x.safetensors")
        cls.add("model", folder, "x.safetensors", lambda f: ["decode", f / "x.safetensors", cls.audio, "--out", f.parent / "out"])
        folder = cls.seeds("models")
        shutil.copytree(cls.model, folder / "tones")
        models_test.write_index(folder)
        cls.add("model index", folder, "index.toml", lambda f: ["decode", "tones", cls.audio, "--out", f.parent / "out"])
        folder = cls.seeds("compare")
        for file in ("metrics.json", "recordings.json"):
            shutil.copy(cls.model / file, folder)
        cls.add("recordings.json", folder, "recordings.json", lambda f: ["compare", f, cls.model])
        # Trainings of hardly any data: two recordings of a third of a second.
        few = cls.directory / "few"
        for split, path in zip(("train", "test"), names[:2], strict=True):
            (few / split).mkdir(parents=True)
            rate, samples = small_corpus.read_wav(path)
            small_corpus.write_wav(few / split / path.name, rate, samples[:5000])
            small_corpus.write_phn((few / split / path.name).with_suffix(".phn"), [(0, 2500, "a"), (2500, 5000, "b")])
        settings = ["--data", few, "--set", "model.width=4", "--set", "training.epochs=1"]

        def train(out, *more):
            return ["train", cls.config, *settings, "--out", out, *more]

        folder = cls.seeds("checkpoint")
        tool.run(*train(folder, "--quiet"), check=0)
        without_checksum(folder / "checkpoint.safetensors")
        cls.add("checkpoint", folder, "checkpoint.safetensors", lambda f: train(f, "--resume"), writes=True)
        folder = cls.seeds("folding")
        (folder / "fold.tsv").write_text("a\tx\nb\ty\n")
        (folder / "fold.toml").write_text('[fold]\na = "x"\nb = "y"\n')
        for ending in (".tsv", ".toml"):
            cls.add(f"folding map {ending}", folder, f"fold{ending}",
                    lambda f, ending=ending: train(f.parent / "out", "--set", f"data.fold={f}/fold{ending}"))

    @classmethod
    def other_readers(cls):
        folder = cls.seeds("order")
        shutil.copy(cls.audio, folder / "x.wav")
        rows = cls.audio.with_suffix(".phn").read_text().splitlines()
        (folder / "x.txt").write_text(" ".join(row.split()[2] for row in rows))
        cls.add("orders", folder, "x.txt", lambda f: ["align", cls.model, f / "x.wav", "--out", f.parent / "out"])
        folder = cls.seeds("memory")
        for path in (CORPUS / "memory").iterdir():
            shutil.copy(path, folder)
        for file in ("steps.json", "snapshot.pickle"):
            shutil.copy(tool.SOURCE / "tests/golden/memory" / file, folder)
        for file in ("rmm.csv", "torch.json", "trace.json", "steps.json", "snapshot.pickle"):
            cls.add(f"memory {file}", folder, file, lambda f, file=file: ["doctor", "memory", f / file])
        folder = cls.seeds("kernel")
        shutil.copy(CORPUS / "kernel/spills.cubin", folder)
        (folder / "text.ptx").write_text(PTX)
        for file in ("text.ptx", "spills.cubin"):
            cls.add(f"kernel {file.split('.')[1]}", folder, file, lambda f, file=file: ["doctor", "kernel", f / file])
        folder = cls.seeds("triton")
        entry = folder / "HASH"
        entry.mkdir()
        shutil.copy(CORPUS / "kernel/spills.cubin", entry / "x.cubin")
        shutil.copy(CORPUS / "kernel/launch.json", entry / "x.json")
        cls.add("kernel triton", folder, "HASH/x.json", lambda f: ["doctor", "kernel", f, "--triton-cache"])
        folder = cls.seeds("program")
        shutil.copy(CORPUS / "ir/linear.sf", folder / "x.sf")
        cls.add("program", folder, "x.sf", lambda f: ["compile", f / "x.sf"])
        (folder / "y.sf").write_text('fusion "y" {\n symbols N\n %0 = input "x" : f32[N]\n %1 = neg(%0)\n output %1 "y"\n}\n')
        (folder / "x.npy").write_bytes(tool.npy((3,), [1, 2, 3]))
        cls.add("program's array", folder, "x.npy", lambda f: ["run", f / "y.sf", "--input", f"x={f / 'x.npy'}", "--backend", "loops"])
        (folder / "z.sf").write_text((folder / "y.sf").read_text() + "#: x = 1 2 3\n")
        cls.add("program's values", folder, "z.sf", lambda f: ["run", f / "z.sf", "--size", "N=3", "--backend", "loops"])

    def one(self, name, index, taken=False):
        """What is wrong with how the command takes this input, whole as number 0; nothing, mostly."""
        folder, file, command, piped, writes = self.readers[name]
        place = self.directory / "runs" / re.sub(r"[^a-z.0-9]", "-", name) / str(index)
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
                                    timeout=LIMIT, input=content if piped else b"",
                                    env={**os.environ, "SEGFUSE_MODELS": str(inputs)})
        except subprocess.TimeoutExpired:
            return f"{name} {index}: hangs"
        said = result.stderr.decode(errors="replace")
        wrong = ""
        if result.returncode not in ((0,) if taken else (0, 2, 3)):
            wrong = f"exit code {result.returncode}"
        elif "Sanitizer" in said or "runtime error" in said:
            wrong = "a sanitizer's report"
        elif not writes and state_of(inputs) != before or sorted(p.name for p in place.iterdir()) != ["in", "out"]:
            wrong = "files beside --out changed"
        elif result.returncode != 0:
            last = [line for line in said.splitlines()
                    if line.startswith("segfuse: ") and not line.startswith(("segfuse: warning: ", "segfuse: resuming after "))]
            named = "standard input" if piped else str(inputs)
            if len(last) != 1:
                wrong = "not one sentence"
            elif named not in said:
                wrong = "the file is not named"
        if not wrong:
            shutil.rmtree(place)
        return f"{name} {index}: {wrong}: {said[-600:]}" if wrong else ""

    def test_they_are_those_of_the_table(self):
        self.assertEqual(sorted(self.readers), sorted(row.reader for row in readers.table() if not row.unmutated))

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
