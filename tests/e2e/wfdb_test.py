"""Folders of WFDB records: one command trains, and what is wrong is one sentence."""

import json
import struct
import unittest

import small_corpus
import tool

RATE = 250
SECONDS = 8
NOTE, RHYTHM, BEGIN, END = 22, 28, 39, 40
CODES = {"N": 1, "V": 5, "p": 24, "t": 27}
QUICK = ("--set", "training.epochs=3", "--set", "model.width=8", "--quiet")


def annotations(points):
    """(tick, code, text) in the MIT format."""
    out, at = b"", 0
    for tick, code, text in points:
        step, at = tick - at, tick
        if step > 1023:
            out += struct.pack("<HHH", 59 << 10, step >> 16, step & 0xFFFF)
            step = 0
        out += struct.pack("<H", code << 10 | step)
        if text:
            out += struct.pack("<H", 63 << 10 | len(text)) + text.encode() + bytes(len(text) % 2)
    return out + b"\0\0"


def waves_of(number):
    """(onset, end, symbol) in ticks, from 1 s to a second before the end."""
    at, out = RATE, []
    while at < RATE * (SECONDS - 2):
        for symbol, length, pause in (("p", 22, 10 + number), ("N", 24, 20), ("t", 45, 40)):
            out.append((at, at + length, symbol))
            at += length + pause
    return out


def leads_of(waves):
    """Two leads in stored units: bumps that differ in height."""
    height = {"p": 40, "N": 300, "t": -90}
    leads = [[100] * (RATE * SECONDS), [50] * (RATE * SECONDS)]
    for onset, end, symbol in waves:
        for tick in range(onset, end):
            rise = min(tick - onset, end - 1 - tick) / (end - onset)
            leads[0][tick] += round(height[symbol] * rise)
            leads[1][tick] += round(height[symbol] * rise / 2)
    return leads


def write_signals(folder, name, leads):
    frames = list(zip(*leads, strict=True))
    (folder / f"{name}.dat").write_bytes(b"".join(struct.pack("<2h", *frame) for frame in frames))
    lines = [f"{name} 2 {RATE} {len(frames)}"]
    for lead, values in zip(("I", "II"), leads, strict=True):
        checksum = (sum(values) + 2**15) % 2**16 - 2**15
        lines.append(f"{name}.dat 16 200(100)/mV 12 0 {values[0]} {checksum} 0 {lead}")
    (folder / f"{name}.hea").write_text("\n".join(lines) + "\n# made for a test\n")


class WfdbTest(tool.ToolTest):
    def records(self, name, annotators):
        """Twelve records; annotators(waves) gives the points of each annotator."""
        folder = self.directory / name
        folder.mkdir()
        for number in range(12):
            waves = waves_of(number)
            write_signals(folder, f"r{number}", leads_of(waves))
            for annotator, points in annotators(waves).items():
                (folder / f"r{number}.{annotator}").write_bytes(annotations(points))
        (folder / "RECORDS").write_text("r0\n")
        return folder

    def test_waves_of_a_lead_train_and_decode(self):
        def brackets(waves):
            points = []
            for onset, end, symbol in waves:
                points += [(onset, BEGIN, ""), ((onset + end) // 2, CODES[symbol], ""), (end, END, "")]
            return {"i": points, "ii": points}

        folder = self.records("waves", brackets)
        model = self.directory / "waves-model"
        result = tool.run("train", folder, "--out", model, *QUICK[:-1], "--json", check=0)
        for words in ('"ii": the first annotator that all recordings have; --tier chooses another',
                      "2; number 1 (from 0) is taken, which the tier is of", "ecg: 250 Hz", "4 labels",
                      "not annotated: they are left out"):
            self.assertIn(words, result.stderr)
        self.assertNotIn("resampled", result.stderr)
        self.assertLess(json.loads(result.stdout)["label_error_rate"], 0.7)
        out = self.directory / "decoded"
        tool.run("decode", model, folder / "r3.hea", "--out", out, "--format", "csv", check=0)
        self.assertIn("N", (out / "r3.csv").read_text())
        result = json.loads(tool.run("eval", model, "--data", folder, "--json", check=0).stdout)
        self.assertGreater(result["frame_accuracy"], 0.3)
        # Of more than 20,000 frames it is decoded in pieces; alternatives need all of it at once.
        long = self.directory / "long"
        long.mkdir()
        write_signals(long, "x", [lead * 40 for lead in leads_of(waves_of(1))])
        labels = []
        for name, more in (("pieces", ()), ("whole", ("--k-best", "1"))):
            tool.run("decode", model, long / "x.hea", "--out", self.directory / name, "--format", "csv", *more, check=0)
            labels.append((self.directory / name / "x.csv").read_bytes())
        self.assertEqual(*labels)
        self.assertGreater(labels[0].count(b"\n"), 100)
        header = (long / "x.hea").read_text().splitlines()
        header[2] = header[2].rsplit(" ", 3)[0] + " 1 0 II"
        (long / "x.hea").write_text("\n".join(header) + "\n")
        refused = tool.run("decode", model, long / "x.hea", "--out", self.directory / "changed-long", check=3).stderr
        self.assertIn("x.hea:3: the checksum of", refused)
        self.assertFalse((self.directory / "changed-long" / "x.TextGrid").exists())

    def test_beats_and_rhythms(self):
        def beats(waves):
            points = [(onset + 12, CODES["N"], "") for onset, _, symbol in waves if symbol == "N"]
            middle = len(points) // 2
            points[middle] = (points[middle][0], CODES["V"], "")
            return {"atr": sorted([(10, RHYTHM, "(N"), (900, RHYTHM, "(AFIB"), *points])}

        folder = self.records("beats", beats)
        card = tool.run("init", folder, "--out", self.directory / "beats.toml", check=0).stdout
        self.assertIn('"atr" (', card)
        self.assertIn('"atr.rhythm" (24 segments, 2 labels)', card)
        self.assertIn("2; all of them are taken, side by side", card)
        result = tool.run("train", folder, "--tier", "atr.rhythm", "--out", self.directory / "rhythm", *QUICK[:-1], check=0)
        self.assertIn("AFIB", result.stderr)
        (folder / "r7.atr").write_bytes((folder / "r7.atr").read_bytes()[:-3])
        result = tool.run("train", folder, "--out", self.directory / "none", *QUICK, check=3)
        self.assertIn("r7.atr: byte", result.stderr)
        self.assertIn("it was cut off", result.stderr)

    def test_records_without_the_annotator_are_left_out(self):
        def ends(waves):
            return {"atr": [(w[0], CODES["N"], "") for w in waves], "qrs": [(w[1], CODES["N"], "") for w in waves]}

        folder = self.records("some", ends)
        for number in (2, 3):
            (folder / f"r{number}.atr").unlink()
        result = tool.run("train", folder, "--tier", "atr", "--out", self.directory / "some-model", *QUICK[:-1], check=0)
        self.assertIn("10 with labels", result.stderr)
        self.assertIn("2 recordings without labels: r2.hea, r3.hea", result.stderr)
        card = tool.run("init", folder, "--out", self.directory / "some.toml", check=0).stdout
        self.assertIn('"qrs": the first annotator that all recordings have', card)

    def test_a_tier_of_other_programs_labels_is_left_out(self):
        folder = self.records("mixed", lambda waves: {"atr": [(w[0], CODES["N"], "") for w in waves]})
        for number in range(4):
            small_corpus.write_wav(folder / f"s{number}.wav", 8000, [100 * (i % 7) for i in range(16000)])
            small_corpus.write_phn(folder / f"s{number}.phn", [(0, 8000, "a"), (8000, 16000, "b")])
        toml = self.directory / "mixed.toml"

        def card(*more):
            return tool.run("init", folder, "--out", toml, "--overwrite", *more, check=0).stdout

        for tier, kept, gone in (("atr", 12, "4 recordings without labels: s0.wav"), ("phn", 4, "12 recordings without labels: r0.hea")):
            with self.subTest(tier=tier):
                said = card("--tier", tier)
                self.assertIn(f"{kept} with labels", said)
                self.assertEqual(said.count(gone), 1, said)
                self.assertNotIn("another tier", said)
                config = self.directory / "mixed-refused.toml"
                config.write_text(toml.read_text().replace('unpaired = "skip"', 'unpaired = "refuse"'))
                refused = tool.run("train", config, "--out", self.directory / "none", *QUICK, check=3)
                self.assertIn(f'the tier "{tier}" is not in it, and labels of other recordings have it', refused.stderr)
        # Beside TextGrids likewise, whose tiers have other names.
        for number in range(12):
            for path in folder.glob(f"r{number}.*"):
                path.unlink()
            small_corpus.write_wav(folder / f"t{number}.wav", 8000, [100 * (i % 7) for i in range(16000)])
            (folder / f"t{number}.TextGrid").write_text(
                'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n2\n<exists>\n1\n"IntervalTier"\n"words"\n0\n2\n2\n'
                '0\n1\n"x"\n1\n2\n"y"\n')
        (folder / "RECORDS").unlink()
        self.assertIn("12 recordings without labels: t0.wav", card("--tier", "phn"))
        self.assertIn("4 recordings without labels: s0.wav", card("--tier", "words"))

    def test_signals_that_were_changed_are_refused(self):
        folder = self.records("changed", lambda waves: {"atr": [(w[0], CODES["N"], "") for w in waves]})
        signals = bytearray((folder / "r4.dat").read_bytes())
        signals[1001] ^= 1
        (folder / "r4.dat").write_bytes(signals)
        result = tool.run("train", folder, "--out", self.directory / "none", *QUICK, check=3)
        self.assertIn("r4.hea:2: the checksum of", result.stderr)
        (folder / "r4.hea").unlink()
        result = tool.run("train", folder, "--out", self.directory / "eleven", *QUICK[:-1], check=0)
        self.assertIn("11 with labels", result.stderr)


if __name__ == "__main__":
    unittest.main()
