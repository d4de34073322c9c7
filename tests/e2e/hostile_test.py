"""Inputs that somebody made to do harm: each is taken, left aside, or refused in one sentence that names it; never for long, and
never with much memory."""

import os
import resource
import shutil
import struct
import subprocess
import threading
import unittest
import zlib

import small_corpus
import tool

SANITIZED = bool(os.environ.get("SEGFUSE_SANITIZE"))  # its memory is not that of a run
LIMIT = 60  # seconds
MEMORY = 3 << 30
FRUGAL = 300 << 20
ROWS = [(0, 4000, "a"), (4000, 8000, "b"), (8000, 16000, "a")]  # at 16 kHz
SECONDS = "start,end,label\n0,0.25,a\n0.25,0.5,b\n0.5,1,a\n"


def textgrid(intervals, count=None):
    rows = "".join(f'{a}\n{b}\n"{label}"\n' for a, b, label in intervals)
    return (f'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n1\n<exists>\n1\n"IntervalTier"\n"t"\n0\n1\n'
            f"{count or len(intervals)}\n{rows}")


WHOLE = textgrid([(a / 16000, b / 16000, label) for a, b, label in ROWS])


def entities(levels):
    """A billion laughs."""
    text = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e0 "ha">'
    for i in range(1, levels):
        text += f'<!ENTITY e{i} "' + f"&e{i - 1};" * 10 + '">'
    return text + "]>"


def eaf(value, head='<?xml version="1.0"?>'):
    return (f'{head}<ANNOTATION_DOCUMENT><TIME_ORDER><TIME_SLOT TIME_SLOT_ID="t1" TIME_VALUE="0"/><TIME_SLOT TIME_SLOT_ID="t2" '
            f'TIME_VALUE="1000"/></TIME_ORDER><TIER TIER_ID="t"><ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID="a1" '
            f'TIME_SLOT_REF1="t1" TIME_SLOT_REF2="t2"><ANNOTATION_VALUE>{value}</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION>'
            f"</ANNOTATION></TIER></ANNOTATION_DOCUMENT>")


def emu(start, length):
    return ('{"name":"x","annotates":"x.wav","sampleRate":16000,"levels":[{"name":"P","type":"SEGMENT","items":[{"id":1,"sampleStart":'
            f'{start},"sampleDur":{length},"labels":[{{"name":"P","value":"a"}}]}}]}}],"links":[]}}')


def npy(shape, data=b""):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def npz(content, size=None):
    """An archive of one array."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(content) + packer.flush()
    sizes = struct.pack("<III", zlib.crc32(content), len(packed), size or len(content))
    local = b"PK\x03\x04" + struct.pack("<HHHHH", 20, 0, 8, 0, 0) + sizes + struct.pack("<HH", 5, 0) + b"a.npy" + packed
    entry = b"PK\x01\x02" + struct.pack("<HHHHHH", 20, 20, 0, 8, 0, 0) + sizes + struct.pack("<HHHHHII", 5, 0, 0, 0, 0, 0, 0) + b"a.npy"
    return local + entry + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(entry), len(local), 0)


class HostileTest(tool.ToolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folders = 0
        cls.wav = cls.directory / "whole.wav"
        small_corpus.write_wav(cls.wav, 16000, [(i * i) % 977 * 20 for i in range(16000)])

    def folder(self, name="good"):
        """Three recordings with labels, the first of them called so."""
        HostileTest.folders += 1
        folder = self.directory / f"f{self.folders}"
        folder.mkdir()
        for stem in (name, "y", "z"):
            shutil.copy(self.wav, folder / f"{stem}.wav")
            (folder / f"{stem}.csv").write_text(SECONDS)
        return folder

    def run_it(self, *arguments):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        result = subprocess.run([tool.SEGFUSE, *map(str, arguments)], capture_output=True, timeout=LIMIT, cwd=self.directory,
                                preexec_fn=None if SANITIZED else limit)
        return result, result.stderr.decode(errors="replace")

    def init(self, folder, *more):
        return self.run_it("init", folder, "--out", self.directory / "x.toml", "--overwrite", *more)

    def refused(self, said, result, name, words=""):
        self.assertIn(result.returncode, (2, 3), said)
        lines = said.splitlines()
        self.assertEqual(len([line for line in lines if line.startswith("segfuse: ")]), 1, said)
        self.assertEqual(len(lines), 1, said)
        self.assertIn(name, said)
        self.assertIn(words, said)
        self.assertLess(len(said), 1500, said)
        self.assertNotIn("bad_alloc", said)
        self.assertNotIn("unexpected", said)

    def labels(self, file, content, words):
        """Labels of the first recording in a file of that ending: refused with these words, or taken where there are none."""
        folder = self.folder("x")
        (folder / "x.csv").unlink()
        (folder / f"x{file}").write_bytes(content if isinstance(content, bytes) else content.encode())
        more = ["--tier", "t"] if file == ".TextGrid" and words is None else []
        result, said = self.init(folder, *more)
        if words is None:
            self.assertEqual(result.returncode, 0, said)
        else:
            self.refused(said, result, f"{folder}/x{file}", words)

    def test_labels(self):
        deep_json = '{"name":"x","sampleRate":16000,"levels":' + "[" * 1_000_000
        for ending, content, words in (
                # Times that are none.
                (".csv", "start,end,label\n0,nan,a\n", "the end is \"nan\"; expected a number"),
                (".csv", "start,end,label\n0,inf,a\n", "expected a number"),
                (".csv", "start,end,label\n0,1e308,a\n", "times must lie between 0 and"),
                (".csv", "start,end,label\n-1,1,a\n", "times must lie between 0 and"),
                (".csv", "start,end,label\n0,0.6,a\n0.5,1,b\n", "before the one above it ends"),
                (".csv", "start,end,label\n0.5,0.5,a\n", "not after its start"),
                (".phn", f"0 {2**63 - 1} a\n", "times must lie between 0 and"),
                (".phn", f"{-2**63} 5 a\n", "times must lie between 0 and"),
                (".TextGrid", textgrid([("nan", 1, "a")]), "expected a number"),
                (".TextGrid", textgrid([(0, 1, "a")], count=2**62), "expected a whole number"),
                (".TextGrid", textgrid([(0, 1, "a")], count=10**9), "the file ends where"),
                (".TextGrid", textgrid([(0, 1, "a")], count=10**30), "expected a whole number"),
                (".ctm", "x 1 0 1e400 a\n", "expected a number"),
                ("_annot.json", emu(-5, 10), "expected"),
                ("_annot.json", emu(2**40, 2**40), "check that they belong together"),
                ("_annot.json", emu(2**60, 2**60), "expected"),
                # Nests and laughs.
                ("_annot.json", deep_json, "nests more than"),
                (".eaf", "<a>" * 500_000, "XML"),
                (".eaf", "<ANNOTATION_DOCUMENT>" * 100_000, "XML"),
                (".eaf", eaf("&e11;", entities(12)), None),
                (".xml", entities(12) + "<Sequences>&e11;</Sequences>", ""),
                # Encodings and ends of lines.
                (".csv", "\ufeff" + SECONDS.replace("\n", "\r\n"), None),
                (".csv", SECONDS.encode("utf-16"), None),
                (".phn", "\ufeff" + "".join(f"{a} {b} {c}\r\n" for a, b, c in ROWS), None),
                (".TextGrid", WHOLE.encode("utf-16"), None),
                (".TextGrid", ("\ufeff" + WHOLE).encode("utf-16-be"), None),
                (".TextGrid", ("\ufeff" + WHOLE.replace("\n", "\r\n")).encode("utf-8"), None),
                (".TextGrid", WHOLE.replace("\n", "\r"), None),
                (".csv", SECONDS.encode() + b"\xff\xfe", "is not UTF-8"),
                (".csv", SECONDS.replace("a", "a\0"), "NUL"),
                # Nothing, and much of nothing.
                (".csv", "", ""), (".TextGrid", "", ""), (".phn", "", ""), (".eaf", "", ""), ("_annot.json", "", ""),
                (".not.mat", "", ""), (".mat", "", ""), (".csv", "\n" * 1_000_000, ""), (".csv", '"' + "x" * 10_000_000, "never closed"),
                (".csv", "start,end,label\n" + ",".join("x" * 1_000_000) + "\n", "expected a number")):
            with self.subTest(ending=ending, content=str(content[:60])):
                self.labels(ending, content, words)

    def values(self, file, content, words):
        HostileTest.folders += 1
        folder = self.directory / f"f{self.folders}"
        folder.mkdir()
        for stem in ("x", "y", "z"):
            (folder / f"{stem}.npy").write_bytes(npy("(4, 1)", struct.pack("<4f", 1, 2, 3, 4)))
            (folder / f"{stem}.TextGrid").write_text(textgrid([(0, 0.5, "a"), (0.5, 1, "b")]))
        (folder / "x.npy").unlink()
        (folder / f"x{file}").write_bytes(content)
        result, said = self.init(folder, "--frame-rate", "4")
        self.refused(said, result, f"{folder}/x{file}", words)

    def test_values(self):
        bomb = npy("(268435456, 1)", bytes(1 << 30))  # 1 MB becomes 1 GiB
        for file, content, words in (
                (".npy", npy(f"({2**62}, {2**62})"), ""), (".npy", npy("(4611686018427387904, 4)"), ""),
                (".npy", npy(f"({10**30}, 1)"), "the shape is"), (".npy", npy("(-4, 1)"), "the shape is"), (".npy", npy("(0, 1)"), "no values"),
                (".npy", npy("(2, 1)", struct.pack("<2f", 1, float("nan"))), "is nan"),
                (".npy", npy("(2, 1)", struct.pack("<2f", 1, float("inf"))), "is inf"),
                (".npy", b"", ""), (".npz", b"", ""), (".npz", npz(npy("(4, 1)", bytes(16)), size=2**32 - 1), "damaged"),
                (".npy", npy(f"({2**62},)"), "the file was cut off"), (".npy", npy(f"(0, {2**62})"), "no values"),
                (".npz", npz(bomb, size=100), "damaged"), (".npz", npz(npy("(4, 1)", bytes(1 << 30))), "its header announces 144"),
                (".npz", npz(npy(f"({2**30}, 1)", bytes(1 << 20)), size=2**32 - 1), "damaged"),
                (".fa", b">a\n" + b"-" * 1000, "expected letters"), (".fa", b"", "")):
            with self.subTest(file=file, content=content[:120]):
                self.values(file, content, words)

    def audio(self, file, content, words):
        folder = self.folder("x")
        (folder / "x.wav").unlink()
        (folder / f"x{file}").write_bytes(content)
        result, said = self.init(folder)
        self.refused(said, result, f"{folder}/x{file}", words)

    def test_audio(self):
        def wav(channels=1, rate=16000, width=2, data=b"\0\0", announced=None):
            form = struct.pack("<HHIIHH", 1, channels, rate, rate * width & 0xFFFFFFFF, width, 8 * width & 0xFFFF)
            size = len(data) if announced is None else announced
            return b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", size) + data

        header = b"NIST_1A\n   1024\n"
        for file, content, words in (
                (".wav", b"", "is empty"), (".flac", b"", "is empty"), (".wav", wav(announced=2**31), "the file was cut off"),
                (".wav", wav(channels=0), "0 channels"), (".wav", wav(channels=65535, width=65535, data=bytes(70000)), ""),
                (".wav", wav(rate=0), "sample rate"), (".wav", wav(rate=2**32 - 1), ""), (".wav", wav(data=b""), "no samples"),
                (".sph", header + b"sample_count -i 9223372036854775807\nend_head\n".ljust(1008), ""),
                (".sph", header + b"x" * 100_000, ""), (".cbin", bytes(10), "no file x.rec"),
                (".hea", b"x 1000000000 100 4\n", ""), (".hea", b"x 1 1e300 4\nx.dat 16\n", ""),
                (".hea", b"x 1 100 9223372036854775807\nx.dat 16\n", ""), (".hea", b"x/2 1 100 4\nx 2\nx 2\n", ""),
                (".hea", b"x 1 100 4\n/etc/passwd 16\n", ""), (".hea", b"x 1 100 4\n../../x 16\n", ""), (".hea", b"", "")):
            with self.subTest(file=file, content=content[:60]):
                self.audio(file, content, words)

    def frugal(self, path, content, *arguments, words="", shown=None):
        """Refused with the name of the file and, whatever the file announces, with no more memory than FRUGAL."""
        path.write_bytes(content)
        said = self.directory / "said"
        with open(said, "wb") as errors:
            child = subprocess.Popen([tool.SEGFUSE, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=errors, cwd=self.directory)
            killer = threading.Timer(LIMIT, child.kill)
            killer.start()
            _, status, usage = os.wait4(child.pid, 0)
            killer.cancel()
            child.returncode = os.waitstatus_to_exitcode(status)
        self.refused(said.read_text(errors="replace"), child, str(shown or path), words)
        if not SANITIZED:
            self.assertLess(usage.ru_maxrss * 1024, FRUGAL)

    def test_announced_sound(self):
        """Hardly any samples, and a header that speaks of 2^36 of them."""
        data, config = self.corpus(train=6, test=1)
        model = self.directory / "model"
        tool.run("train", config, "--data", data, "--out", model, "--set", "training.epochs=1", "--quiet", check=0)
        corpus = tool.SOURCE / "tests/fuzz/corpus/audio"
        flac = bytearray((corpus / "x.flac").read_bytes())
        flac[21] |= 0x0F
        flac[22:26] = b"\xff" * 4
        mp3 = bytearray((corpus / "x.mp3").read_bytes())
        at = max(mp3.find(b"Xing"), mp3.find(b"Info"))
        mp3[at + 8:at + 12] = b"\x7f\xff\xff\xff"
        form = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16)
        rf64 = b"RF64\xff\xff\xff\xffWAVEds64" + struct.pack("<IQQQI", 28, 2**37 + 72, 2**37, 2**36, 0) + form + b"data\xff\xff\xff\xff" + bytes(100)
        sphere = (b"NIST_1A\n   1024\nsample_count -i 68719476736\nsample_rate -i 16000\nchannel_count -i 1\nsample_n_bytes -i 2\n"
                  b"sample_byte_format -s2 01\nsample_coding -s3 pcm\nend_head\n").ljust(1024) + bytes(100)
        for name, content in (("a.flac", flac), ("a.mp3", mp3), ("a.wav", rf64), ("a.rf64", rf64), ("a.sph", sphere)):
            with self.subTest(name=name):
                path = self.directory / name
                self.frugal(path, content, "decode", model, path, "--out", self.directory / "out", "--quiet", words="announces")

    def test_nests(self):
        """What goes deep, in every language of text that is read."""
        one, many = self.directory, 1_000_000
        objects, lists = b'{"a":' * many, b"[" * many
        for name, content, words in (
                ("lists.toml", b"a = " + lists, "nested"), ("closed.toml", b"a = " + lists + b"]" * many, "nested"),
                ("tables.toml", b"a = " + b"{a=" * many, "nested"), ("keys.toml", b"a." * many + b"a = 1\n", "a key of more than 64 parts"),
                ("quoted.toml", b'"a".' * many + b"a = 1\n", "a key of more than 64 parts"),
                ("heads.toml", b"[" + b"a." * many + b"a]\n", "a key of more than 64 parts")):
            with self.subTest(name=name):
                self.frugal(one / name, content, "train", one / name, "--data", one, "--out", one / "o", words=words)
                self.frugal(one / name, content, "train", tool.SOURCE / "examples/synth.toml", "--set", f"data.fold={one / name}",
                            "--data", self.folder(), "--out", one / "o", "--quiet", words=words)
        for content in (objects, lists):
            with self.subTest(content=content[:5]):
                self.frugal(one / "r.json", content, "doctor", "memory", one / "r.json", words="nests more than")
                self.frugal(one / "recordings.json", content, "compare", one, one, words="nests more than")
                self.frugal(one / "m.safetensors", struct.pack("<Q", len(content)) + content, "decode", one / "m.safetensors", self.wav,
                            "--out", one / "o", words="nests more than")
        program = b'fusion "x" {\n symbols N\n %%0 = input "x" : f32[%s]\n output %%0\n}\n'
        for size in (b"(" * many, b"floordiv(" * many, b"N*" * many + b"N", b"N+" * many, b"N, " * many):
            with self.subTest(size=size[:20]):
                self.frugal(one / "x.sf", program % size, "compile", one / "x.sf")
        self.frugal(one / "y.sf", program % b"N" + b"#: x = 1\n", "run", one / "y.sf", "--size", f"N={2**40}", words="expected 1099511627776")
        self.frugal(one / "y.sf", program % b"N" + f"#: x = {2**40}*1\n".encode(), "run", one / "y.sf", "--size", f"N={2**40}")

    def test_packed_labels(self):
        """A compressed variable of 1 GiB in 1 MB."""
        folder = self.folder("x")
        (folder / "x.csv").unlink()
        packed = zlib.compress(bytes(1 << 30), 9)
        head = (tool.SOURCE / "tests/fuzz/corpus/formats/packed.not.mat").read_bytes()[:128]
        self.frugal(folder / "x.wav.not.mat", head + struct.pack("<II", 15, len(packed)) + packed, "init", folder, "--out",
                    self.directory / "x.toml", "--overwrite", words="compressed variables of more than")

    def test_things_that_are_no_files(self):
        folder = self.folder()
        for name in ("d.wav", "e.TextGrid", "good.phn", "f.hea", "g.npy", "m.csv"):
            (folder / name).mkdir()
        (folder / "loop").symlink_to(".")
        (folder / ".#good.csv").symlink_to("somebody@here.1234:1")
        (folder / "zero.wav").symlink_to("/dev/zero")
        (folder / "zero.phn").symlink_to("/dev/zero")
        os.mkfifo(folder / "pipe.wav")
        os.mkfifo(folder / "pipe.csv")
        for one, other in (("a", "b"), ("b", "a")):
            (folder / one).symlink_to(other)
        result, said = self.init(folder)
        self.assertEqual(result.returncode, 0, said)
        self.assertIn("3 with labels", result.stdout.decode())
        # Links in a circle lead nowhere: as gone.csv.
        for name, other in (("gone.csv", "nothing"), ("self.wav", "self.wav"), ("good.TextGrid", "good.TextGrid")):
            link = folder / name
            link.symlink_to(other)
            result, said = self.init(folder)
            self.refused(said, result, str(link), "where there is no file")
            link.rename(self.directory / name)
        loop = self.directory / "self.wav"
        for path in (folder / "zero.phn", folder / "d.wav", loop, folder):
            for arguments in (["decode", path, self.wav, "--out", self.directory / "o"], ["doctor", "memory", path], ["compile", path],
                              ["train", self.directory / "x.toml", "--data", path, "--out", self.directory / "o"],
                              ["train", self.directory / "x.toml", "--set", f"data.fold={path}", "--out", self.directory / "o"],
                              ["doctor", "kernel", path]):
                if path == folder and "--data" in arguments:
                    continue  # a corpus
                with self.subTest(arguments=arguments):
                    result, said = self.run_it(*arguments, "--quiet")
                    self.refused(said, result, str(path))

    def test_names(self):
        """What a name holds stands in no second line, opens no formula and no tag, and is read back."""
        for name in ('a\nb', 'a"b', "a'b", "a,b", "a\tb", "a b", "=1+1", "a<b>&amp;", "a\x1b[31mb", "ü", "-x", "%s%n", "a;b$(id)`id`", "x" * 200):
            with self.subTest(name=name):
                folder = self.folder(name)
                result, said = self.init(folder)
                self.assertEqual(result.returncode, 0, said)
                (folder / f"{name}.csv").write_text("start,end,label\n0,x,a\n")
                result, said = self.init(folder)
                self.refused(said, result, "expected a number")
                self.assertNotIn("\x1b", said)
                (folder / f"{name}.csv").unlink()
                result, said = self.init(folder)
                self.assertEqual(result.returncode, 0, said)
                self.assertNotIn("\x1b", result.stdout.decode())
                self.assertNotIn("a\nb", result.stdout.decode())

    def test_files_that_memory_cannot_hold(self):
        """Of holes: hardly anything on the disk."""
        folder = self.folder("x")
        with open(folder / "x.csv", "wb") as file:
            file.truncate(1 << 40)
        result, said = self.init(folder)
        self.refused(said, result, f"{folder}/x.csv", "")

    @unittest.skipIf(os.geteuid() == 0, "root may read everything")
    def test_files_that_may_not_be_read(self):
        for name in ("good.csv", "good.wav"):
            folder = self.folder()
            os.chmod(folder / name, 0)
            result, said = self.init(folder)
            self.refused(said, result, f"{folder}/{name}", "ermission denied")


if __name__ == "__main__":
    unittest.main()
