"""The command line tool as a user meets it: results, help, and one clear sentence for every mistake."""

import json
import os
import pathlib
import shlex
import unittest

import tool


class CliTest(tool.ToolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data, cls.config = cls.corpus()
        cls.model = cls.directory / "run"
        cls.trained = tool.run("train", cls.config, "--data", cls.data, "--out", cls.model, "--json", check=0)

    def test_training_writes_what_it_says(self):
        metrics = json.loads((self.model / "metrics.json").read_text())
        self.assertEqual(json.loads(self.trained.stdout), metrics)
        for key in ("label_error_rate", "boundary_f1_20ms", "r_value_20ms", "frame_accuracy", "seconds"):
            self.assertIn(key, metrics)
        self.assertLess(metrics["label_error_rate"], 0.5)
        report = (self.model / "report.html").read_text()
        self.assertNotIn("http://", report.replace("http://www.w3.org/", ""))
        self.assertIn("<svg", (self.model / "sequence.svg").read_text())

    def test_the_kind_of_features_brings_its_defaults(self):
        file = self.directory / "kinds.toml"

        def lines(*settings, code=0):
            more = [word for one in settings for word in ("--set", f"features.{one}")]
            ran = tool.run("train", file, "--print-config", *more, check=code)
            return ran.stdout if code == 0 else ran.stderr

        file.write_text('[features]\nkind = "log_mel"\n')
        self.assertIn("n_mels = 40", lines())
        self.assertNotIn("snip_edges", lines())
        self.assertIn("'features.snip_edges' is for kind = \"kaldi_fbank\" only", lines("snip_edges=true", code=2))
        kaldi = lines("kind=kaldi_fbank")
        for line in ("n_mels = 80", "snip_edges = true", "fmin = 20", "preemphasis = 0.97"):
            self.assertIn(line, kaldi)
        self.assertIn("snip_edges = false", lines("kind=kaldi_fbank", "snip_edges=false"))
        whisper = lines("kind=whisper", "hop_ms=10")
        for line in ("n_mels = 80", "fmin = 0", "preemphasis = 0"):
            self.assertIn(line, whisper)
        self.assertIn("hop_ms is 20; expected 10 for whisper", lines("kind=whisper", "hop_ms=20", code=3))

    def test_eval_repeats_the_figures(self):
        trained = json.loads(self.trained.stdout)
        out = self.directory / "eval"
        again = json.loads(tool.run("eval", self.model, "--out", out, "--json", check=0).stdout)
        for key in ("label_error_rate", "boundary_f1_20ms", "frame_accuracy"):
            self.assertEqual(again[key], trained[key])
        self.assertTrue((out / "report.html").exists())

    def test_decode_writes_every_format(self):
        audio = sorted((self.data / "test").glob("*.wav"))
        for name, suffix in (("textgrid", "TextGrid"), ("csv", "csv"), ("phn", "phn"), ("lab", "lab"), ("audacity", "txt")):
            out = self.directory / f"labels-{name}"
            rows = json.loads(tool.run("decode", self.model, self.data / "test", "--out", out, "--format", name, "--json", check=0).stdout)
            self.assertEqual(len(rows), len(audio))
            for row in rows:
                self.assertGreater(row["segments"], 0)
                self.assertLess(row["log_probability"], 1e-9)
            self.assertEqual(sorted(p.name for p in out.iterdir() if p.name != ".segfuse-outputs"), [f"{p.stem}.{suffix}" for p in audio])
        table = (self.directory / "labels-csv" / f"{audio[0].stem}.csv").read_text().splitlines()
        self.assertEqual(table[0], "start,end,label,posterior,label_posterior,start_confidence")
        end = 0.0
        for line in table[1:]:
            start, stop, label, *numbers = line.split(",")
            self.assertEqual(float(start), end)
            end = float(stop)
            self.assertTrue(all(0 <= float(n) <= 1 + 1e-6 for n in numbers), line)

    def test_decode_writes_alternatives_and_posteriors(self):
        audio = sorted((self.data / "test").glob("*.wav"))[0]
        out = self.directory / "alternatives"
        def decode(*more):
            rows = tool.run("decode", self.model, audio, "--out", out, "--format", "csv", "--json", *more, check=0).stdout
            return json.loads(rows)[0]
        row = decode("--k-best", "5", "--samples", "3", "--seed", "7", "--posteriors")
        lists = json.loads((out / f"{audio.stem}.json").read_text())
        self.assertEqual((len(lists["best"]), len(lists["samples"])), (5, 3))
        scores = [best["log_probability"] for best in lists["best"]]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertAlmostEqual(scores[0], row["log_probability"], places=6)
        self.assertEqual(len(lists["best"][0]["segments"]), row["segments"])
        for one in lists["best"] + lists["samples"]:
            self.assertLessEqual(one["log_probability"], scores[0] + 1e-6)
            self.assertEqual(one["segments"][0][0], 0)
            for a, b in zip(one["segments"], one["segments"][1:]):
                self.assertEqual(a[1], b[0])
        frames = [line.split(",") for line in (out / f"{audio.stem}.frames.csv").read_text().splitlines()]
        self.assertEqual(frames[0][:2], ["time", "boundary"])
        self.assertEqual(float(frames[1][1]), 1)
        for frame in frames[1:]:
            self.assertAlmostEqual(sum(map(float, frame[2:])), 1, places=4)
        risk = decode("--min-risk")
        self.assertLessEqual(risk["log_probability"], row["log_probability"] + 1e-6)

    def test_a_decode_is_the_same_alone_and_in_company(self):
        audio = sorted((self.data / "test").glob("*.wav"))
        tool.run("decode", self.model, self.data / "test", "--out", self.directory / "together", "--format", "csv", check=0)
        tool.run("decode", self.model, audio[0], "--out", self.directory / "alone", "--format", "csv", check=0)
        name = f"{audio[0].stem}.csv"
        self.assertEqual((self.directory / "together" / name).read_text(), (self.directory / "alone" / name).read_text())

    def test_ranks_that_cannot_meet_are_told_so(self):
        out = self.directory / "ranks"
        def train(check, **variables):
            return tool.run("train", self.config, "--data", self.data, "--out", out, "--set", "training.epochs=1",
                            env=variables, check=check).stderr
        of_torchrun = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
        self.assertIn("set SEGFUSE_JOB_KEY to a secret", train(2, **of_torchrun))
        self.assertIn("RANK does not say which", train(2, WORLD_SIZE="2"))
        # No mpirun is behind it: the MPI, if there is one, sees one rank.
        if not os.environ.get("SEGFUSE_SANITIZE"):  # what an MPI leaves is not ours
            self.assertIn("OMPI_COMM_WORLD_SIZE", train(4, OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0"))
        self.assertFalse(out.exists())
        train(0, OMPI_COMM_WORLD_SIZE="1", OMPI_COMM_WORLD_RANK="0")

    def test_flags_for_the_numbers_of_a_training(self):
        import hashlib
        def train(name, *more, check=0):
            out = self.directory / name
            result = tool.run(*more[:1], "train", self.config, "--data", self.data, "--out", out,
                              "--set", "training.epochs=2", *more[1:], check=check)
            return out, result
        def digest(out):
            return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
        digests = {digest(train(name, flag)[0]) for name, flag in (
            ("off", "--check-numerics=off"), ("step", "--check-numerics=step"), ("op", "--check-numerics"))}
        self.assertEqual(len(digests), 1, "looking changed what was learnt")
        held, _ = train("held", "--quiet", "--crf-reg", "0.5")
        self.assertNotIn(digest(held), digests)
        pieces, _ = train("pieces", "--quiet", "--fixed-length", "20")
        self.assertNotIn(digest(pieces), digests)
        self.assertIn("crf_largest", (pieces / "report.html").read_text())
        _, result = train("wild", "--check-numerics", "--set", "training.learning_rate=1e9",
                          "--set", "training.clip=0", check=3)
        self.assertRegex(result.stderr, r"step \d+ \(epoch \d+, first recording '[^']+'\): \w+ gave ")

    def test_help_names_every_command(self):
        text = tool.run("--help", check=0).stdout
        for command in ("train", "eval", "decode", "compile", "synth", "info", "doctor"):
            self.assertIn(command, text)
            self.assertIn("xample", tool.run(command, "--help", check=0).stdout)

    def test_info_lists_what_is_missing(self):
        info = json.loads(tool.run("info", "--json", check=0).stdout)
        names = {c["name"]: c["available"] for c in info["capabilities"]}
        self.assertIn("CUDA", names)

    def test_doctor_explains_forks(self):
        import os
        page = self.directory / "fork.html"
        text = tool.run("doctor", "fork", os.getpid(), "--html", page).stdout
        self.assertIn("fork() now:", text)
        self.assertIn("<svg", page.read_text())
        result = tool.run("doctor", "fork", os.getpid(), "--json")
        report = json.loads(result.stdout)
        self.assertEqual(report["pid"], os.getpid())
        self.assertEqual(result.returncode, 1 if report["at_risk"] else 0)
        gone = tool.run("doctor", "fork", 2**30, check=2)
        self.assertIn("there is no process", gone.stderr)

    def test_doctor_watches_and_repairs_processes(self):
        import os
        import signal
        import subprocess
        import time
        child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(child.wait)
        self.addCleanup(child.stdin.close)
        self.addCleanup(child.stdout.close)
        refused = tool.run("doctor", "fork", child.pid, "--repair", "0x1000", check=2)
        self.assertIn("is not kept from children", refused.stderr)
        for ending in ("Ctrl-C", "the process"):
            watch = subprocess.Popen([tool.SEGFUSE, "doctor", "fork", str(child.pid), "--watch", "--interval", "0.05"],
                                     stdout=subprocess.PIPE, text=True)
            self.assertIn(f"process {child.pid} (cat)", watch.stdout.readline())
            if ending == "Ctrl-C":
                watch.send_signal(signal.SIGINT)
            else:
                os.kill(child.pid, signal.SIGKILL)
            text = watch.communicate()[0]
            self.assertEqual(watch.returncode, 0)
        self.assertIn(f"process {child.pid} ", text.splitlines()[-1])

    def test_a_repair_that_succeeds_exits_with_0(self):
        import subprocess
        import sys
        program = ("import ctypes\n"
                   "buffers = [ctypes.create_string_buffer(20000) for i in range(2)]\n"
                   "for buffer in buffers:\n"
                   "  page = (ctypes.addressof(buffer) + 8191) & -4096\n"
                   "  assert ctypes.CDLL(None).madvise(ctypes.c_void_p(page), 4096, 10) == 0\n"
                   "  print(hex(page), flush=True)\n"
                   "input()\n")
        child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 text=True)
        self.addCleanup(child.wait)
        self.addCleanup(child.stdin.close)
        self.addCleanup(child.stdout.close)
        first, second = child.stdout.readline().strip(), child.stdout.readline().strip()
        regions = json.loads(tool.run("doctor", "fork", child.pid, "--json").stdout)["regions"]
        risks = [region["begin"] for region in regions if region["risk"] != "benign"]
        if not {first, second} <= set(risks):
            self.skipTest("these blocks have pages of their own here")
        result = tool.run("doctor", "fork", child.pid, "--repair", first)
        if result.returncode == 4:
            self.skipTest("no repair here: " + result.stderr)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("given back to children", result.stdout)
        tool.run("doctor", "fork", child.pid, check=1)  # the second is a risk still

    def test_doctor_traces_commands(self):
        result = tool.run("doctor", "fork", "--trace", "--json", "--", "sh", "-c", "echo said; exit 7")
        self.assertEqual(result.returncode, 0)
        report = json.loads(result.stdout)
        self.assertEqual((report["outcome"], report["sites"]), ("exit status 7", []))
        self.assertIn("said", result.stderr)
        missing = tool.run("doctor", "fork", "--trace", "--", self.directory / "nothing", check=2)
        self.assertIn("cannot be started", missing.stderr)

    def test_doctor_explains_kernels(self):
        cubin = tool.SOURCE / "tests/fuzz/corpus/kernel/spills.cubin"
        report = json.loads(tool.run("doctor", "kernel", cubin, "--json", check=0).stdout)
        kernel = report["kernels"][0]
        self.assertEqual((kernel["name"], kernel["architecture"]), ("spills", "sm_80"))
        self.assertGreater(kernel["spill_store_bytes"], 0)
        tool.run("doctor", "kernel", cubin, "--fail-on=spills", check=1)
        self.assertIn("former -> now", tool.run("doctor", "kernel", cubin, "--against", cubin, check=0).stdout)
        self.assertIn("expected", tool.run("doctor", "kernel", self.config, check=3).stderr)
        text = self.directory / "norm.c"
        text.write_text(tool.run("compile", tool.SOURCE / "examples/layer_norm.sf", "--emit=kernels", check=0).stdout)
        result = tool.run("doctor", "kernel", text, "--json")
        if result.returncode == 4:
            self.skipTest(result.stderr)  # no clang here
        report = json.loads(result.stdout)
        self.assertIn("C, compiled by clang", report["source"])
        self.assertIn("row_norm", [kernel["name"] for kernel in report["kernels"]])

    def test_kernels_that_are_made_are_reported(self):
        program = tool.SOURCE / "examples/layer_norm.sf"
        text = tool.run("compile", program, "--report-kernels", "--size", "B=4", check=0)
        clang = "no kernels for cpu" not in text.stderr
        self.assertEqual(clang, "kernels of this run: C, compiled by clang" in text.stdout)
        self.assertNotIn("fusion", text.stdout)
        report = json.loads(tool.run("compile", program, "--report-kernels", "--emit=plan", "--json", check=0).stdout)
        self.assertIn("plan", report)
        if clang:
            self.assertIn("row_norm", [k["name"] for k in report["kernels"][0]["kernels"]])
        out = self.directory / "reported"
        trained = tool.run("--quiet", "train", self.config, "--data", self.data, "--out", out, "--report-kernels", "--json",
                           "--set", "training.epochs=1", check=0)
        metrics = json.loads(trained.stdout)
        self.assertIn("label_error_rate", metrics)
        if clang:
            self.assertGreater(len(metrics["kernels"][0]["kernels"]), 10)
        for kind in ("loops", "compiled"):
            text = tool.run("eval", out, "--report-kernels", f"--backend={kind}", check=0).stdout
            self.assertEqual("no kernels were made" in text, kind == "loops" or not clang)
        rows = json.loads(tool.run("decode", out, self.data / "test", "--out", out / "labels", "--report-kernels", "--json",
                                   check=0).stdout)
        self.assertEqual(len(rows["files"]), 4)

    def test_doctor_finds_the_first_wrong_number(self):
        program = self.directory / "mask.sf"
        program.write_text('fusion "m" {\n symbols B\n %0 = input "x" : f32[B, 2]\n %1 = input "mask" : f32[B, 2]\n'
                           ' %2 = neg(%0)\n %3 = mul(%2, %1)\n output %3\n}\n#: x = 1 inf 2 3\n#: mask = 1 0 1 1\n')
        least = self.directory / "least.sf"
        text = tool.run("doctor", "numerics", program, "--size", "B=2", "--write", least, check=1).stdout
        self.assertIn("NaN: mul gave nan at [0, 1]", text)
        report = json.loads(tool.run("doctor", "numerics", least, "--json", check=1).stdout)
        self.assertEqual([f["operation"] for f in report["findings"]], ["mul"])
        self.assertEqual(report["operations"], 1)
        tool.run("doctor", "numerics", tool.SOURCE / "examples/layer_norm.sf", "--size", "B=2", check=0)
        self.assertIn("expected one program", tool.run("doctor", "numerics", program, least, check=2).stderr)
        # On a GPU, or with a reason why not.
        there = tool.run("doctor", "numerics", least, "--device", "cuda")
        self.assertIn(there.returncode, (1, 4))
        self.assertIn("NaN: mul gave nan" if there.returncode == 1 else "segfuse: CUDA:", there.stdout + there.stderr)

    def test_doctor_looks_at_the_numbers_of_a_training(self):
        def examine(*more, check):
            return json.loads(tool.run("doctor", "numerics", self.config, "--data", self.data, "--frames", "24", "--json",
                                       *more, check=check).stdout)
        self.assertEqual(examine(check=0)["findings"], [])
        self.assertEqual(examine("--model", self.model, check=0)["findings"], [])
        broken = self.directory / "broken.safetensors"
        data = bytearray((self.model / "model.safetensors").read_bytes())
        size = int.from_bytes(data[:8], "little")
        begin = json.loads(data[8:8 + size])["parameter.block1.mix.weight"]["data_offsets"][0]
        data[8 + size + begin:8 + size + begin + 4] = b"\x00\x00\xc0\x7f"  # a quiet NaN
        broken.write_bytes(data.replace(b'"crc32"', b'"crc-0"'))  # with its checksum it would be refused as damaged
        first = examine("--model", broken, check=1)["findings"][0]
        self.assertEqual((first["fault"], first["operation"], first["element"]), ("NaN", "input", "[0, 0]"))
        self.assertIn("block1.mix.weight", first["statement"])

    def test_doctor_watches_streams_of_a_run(self):
        program = self.directory / "small.sf"
        program.write_text('fusion "m" {\n %0 = input "x" : f32[4]\n %1 = exp(%0)\n output %1\n}\n')
        command = ("segfuse", "doctor", "numerics", program, "--json")
        result = tool.run("doctor", "streams", "--json", "--", *command, check=0)
        report = json.loads(result.stdout)
        self.assertGreaterEqual(report["operations"], 1)
        self.assertEqual(report["races"], [])
        self.assertIn('"findings"', result.stderr)
        self.assertIn("no race: ", tool.run("doctor", "streams", "--", *command, check=0).stdout)
        nothing = tool.run("doctor", "streams", "--", "segfuse", "info", check=0)
        self.assertIn("nothing was enqueued on a stream", nothing.stdout)
        foreign = tool.run("doctor", "streams", "--", "true", check=4)
        self.assertIn("is not the command of segfuse's Python package", foreign.stderr)
        self.assertEqual(foreign.stderr.count("\n"), 1)
        tool.run("doctor", "streams", "--", "segfuse", "train", check=2)
        gpu = tool.run("doctor", "streams", "--", *command, "--device", "cuda")
        self.assertIn(gpu.returncode, (0, 4))
        self.assertIn("no race: " if gpu.returncode == 0 else "segfuse: CUDA:", gpu.stdout + gpu.stderr)

    def test_doctor_explains_memory(self):
        golden = tool.SOURCE / "tests/golden/memory"
        page = self.directory / "memory.html"
        text = tool.run("doctor", "memory", golden / "steps.json", "--html", page, "--replay", check=0).stdout
        for words in ("of at most 96.0 MiB", "hard:", "soft:", "stream:", "weights (4 buffers)", "peak 41.4 MiB",
                      "1 request failed", "on segfuse's heap"):
            self.assertIn(words, text)
        html = page.read_text()
        self.assertIn("<svg", html)
        self.assertNotIn("http", html)
        report = json.loads(tool.run("doctor", "memory", golden / "steps.json", "--json", check=0).stdout)
        self.assertEqual(report["mapped"], report["live"] + report["cached"] + report["free"])
        self.assertEqual(max(point["live"] for point in report["timeline"]), report["peak_live"])
        log = json.loads(tool.run("doctor", "memory", golden / "rmm.csv", "--json", check=0).stdout)
        self.assertEqual((log["live"], log["peak_live"]), (4096, 1048576 + 4096))

    def test_compile_writes_programs_in_c(self):
        program = tool.SOURCE / "examples/layer_norm.sf"
        out = self.directory / "layer_norm.c"
        files = json.loads(tool.run("compile", program, "--emit=c", "--out", out, "--json", check=0).stdout)["files"]
        self.assertEqual(files, [str(out), str(out.with_suffix(".h"))])
        header = out.with_suffix(".h").read_text()
        self.assertIn("int layer_norm(int64_t B, int64_t T, const float *x", header)
        self.assertEqual(header, tool.run("compile", program, "--emit=h", check=0).stdout)
        self.assertEqual(out.read_text(), tool.run("compile", program, "--emit=c", check=0).stdout)
        renamed = tool.run("compile", program, "--emit=c", "--name", "norm", check=0).stdout
        self.assertIn("int norm(int64_t B", renamed)

    def test_mistakes(self):
        """Rows of tests/error/cli.txt: exit code | arguments | words that the message must hold."""
        places = {"CONFIG": self.config, "DATA": self.data, "MODEL": self.model, "TMP": self.directory,
                  "ERROR": tool.SOURCE / "tests/error", "GOLDEN": tool.SOURCE / "tests/golden"}
        rows = (tool.SOURCE / "tests/error/cli.txt").read_text().splitlines()
        rows = [row for row in rows if row and not row.startswith("#")]
        self.assertGreater(len(rows), 10)
        for row in rows:
            code, arguments, words = (part.strip() for part in row.split("|"))
            for name, path in places.items():
                arguments = arguments.replace("{" + name + "}", str(path))
            with self.subTest(row=row):
                result = tool.run(*shlex.split(arguments), check=int(code))
                self.assertIn(words, result.stderr)
                # A slow machine shows how far a training is.
                said = [line for line in result.stderr.strip().splitlines()
                        if not line.startswith("training ")]
                self.assertEqual(len(said), 1, result.stderr)
                self.assertTrue(said[0].startswith("segfuse: "))

    def test_json_mistakes_are_json(self):
        result = tool.run("eval", self.directory / "nowhere", "--json", check=3)
        self.assertEqual(json.loads(result.stdout)["exit_code"], 3)


if __name__ == "__main__":
    unittest.main()
