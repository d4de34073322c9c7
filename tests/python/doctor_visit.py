"""The doctor's tools for PyTorch on a machine with GPUs, all at once: verdicts in a table.

    python tests/python/doctor_visit.py [--jobs 12] [--details FILE] [GROUP...]

Runs the programs of stream_programs.py, clean_programs.py and determinism_programs.py under the
commands, and most clean ones in processes of several. The exit code is 1 if a verdict is wrong.
"""

import argparse
import concurrent.futures
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT = 150  # seconds of a process
BY_COMMAND = (
    "layers_of_a_perceptron", "amp_with_a_scaler", "loader_of_data", "graph_of_a_training",
    "compiled_by_inductor", "data_parallel", "fully_sharded", "semi_markov_crf", "trained_gpt2",
    "trainer_of_lightning", "kernels_of_triton", "loader_on_a_stream_of_its_own",
)  # fmt: skip


@dataclass
class Row:
    group: str
    name: str
    verdict: str  # "right", "wrong" or "skipped"
    found: str = ""
    seconds: float = 0.0
    output: str = ""


# --- in a process of its own: several clean programs under a tool ---


def run_clean(tool, name):
    """What is wrong; empty: nothing."""
    import clean_programs

    import segfuse.torch
    from segfuse.torch._watch.determinism import Determinism

    if tool == "numerics":
        with segfuse.torch.check_numerics(raises=False) as watch:
            clean_programs.run(name)
        return watch.report() if watch.findings else ""
    if tool == "streams":
        with segfuse.torch.watch() as seen:
            clean_programs.run(name)
        return seen.report() if seen.races else ""
    trace = io.StringIO()
    for watch in (Determinism(trace, None), Determinism(None, iter(trace))):
        trace.seek(0)
        watch.start()
        try:
            clean_programs.run(name)
        finally:
            watch.stop()
    return "" if watch.finding is None else repr(watch.finding)


def several(tool, names):
    for name in names:
        print(json.dumps({"begins": name}), flush=True)
        begin = time.time()
        try:
            wrong = run_clean(tool, name)
        except BaseException:
            wrong = traceback.format_exc()
        line = {"name": name, "wrong": wrong, "seconds": time.time() - begin}
        print("\n" + json.dumps(line), flush=True)


# --- the table ---


class Visit:
    def __init__(self, jobs, limit, details):
        self._until = time.time() + limit
        self._details = details
        self._pool = concurrent.futures.ThreadPoolExecutor(jobs)
        self._recorder = threading.Event()
        self._futures = []
        import segfuse

        self.command = Path(segfuse.__file__).parent / "bin" / "segfuse"

    def add(self, function, *arguments):
        self._futures.append(self._pool.submit(self._do, function, arguments))

    def _do(self, function, arguments):
        if time.time() > self._until:
            what = " ".join(str(a) for a in arguments if isinstance(a, (str, list)))
            return [Row("out of time", f"{function.__name__} {what}", "skipped", "--limit")]
        rows = function(*arguments)
        if self._details:  # what is known if the visit is ended
            with open(self._details, "a") as file:
                file.writelines(f"{line_of(row)}\n" for row in rows)
        return rows

    def rows(self):
        rows = []
        for future in self._futures:
            rows += future.result()
        return rows

    def run(self, *command):
        begin = time.time()
        try:
            done = subprocess.run(
                [str(part) for part in command], capture_output=True, text=True, timeout=LIMIT,
                check=False, cwd=HERE, errors="replace",
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            return None, str(error.stdout or ""), str(error.stderr or "") + "\ntimeout", LIMIT
        return done.returncode, done.stdout, done.stderr, time.time() - begin

    def doctor(self, tool, script, *arguments, options=()):
        """Exit code, the report of the first process, output, seconds."""
        code, out, err, seconds = self.run(
            self.command, "doctor", tool, "--json", *options, "--", sys.executable, script,
            *arguments,
        )  # fmt: skip
        try:
            report = json.loads(out)["processes"][0]
        except (ValueError, LookupError):
            report = None
        return code, report, f"{out[-2000:]}\n{err[-6000:]}", seconds

    def recorder(self):
        code, out, err, seconds = self.run(
            sys.executable, "-c",
            "from segfuse.torch._watch.compiled import compiled_here; print(compiled_here()[1])",
        )  # fmt: skip
        self._recorder.set()
        right = code == 0 and not out.strip()
        verdict = "right" if right else "wrong"
        return [Row("numerics", "recorder compiled", verdict, out.strip(), seconds, err[-4000:])]

    def stream(self, name, kind, form):
        code, report, output, seconds = self.doctor("streams", "stream_programs.py", name, form)
        kinds = None if report is None else sorted({race["kind"] for race in report["races"]})
        right = (code, kinds) == ((1, [kind]) if form == "faulty" else (0, []))
        found = f"exit code {code}, {kinds}"
        return [Row("streams", f"{name} {form}", "right" if right else "wrong", found, seconds,
                    output + json.dumps(report, indent=1)[:3000])]  # fmt: skip

    def clean_by_command(self, tool, name):
        if tool == "numerics":
            self._recorder.wait()
        code, report, output, seconds = self.doctor(tool, "clean_programs.py", name)
        found = (report or {}).get("races") or (report or {}).get("findings") or []
        operations = (report or {}).get("operations", 0)
        right = code == 0 and report is not None and not found and operations > 0
        return [Row(f"clean, {tool} by command", name, "right" if right else "wrong",
                    f"exit code {code}, {operations} operations", seconds, output)]  # fmt: skip

    def clean(self, tool, names):
        if tool == "numerics":
            self._recorder.wait()
        rows, names = [], list(names)
        while names:
            code, out, err, seconds = self.run(sys.executable, __file__, "--tool", tool, *names)
            begun = None
            for line in out.splitlines():
                try:
                    told = json.loads(line)
                except ValueError:
                    continue
                if not isinstance(told, dict):
                    continue
                begun = told.get("begins", begun)
                if "wrong" in told:
                    names.remove(told["name"])
                    begun = None
                    rows.append(Row(f"clean, {tool}", told["name"],
                                    "wrong" if told["wrong"] else "right",
                                    told["wrong"].strip()[-300:], told["seconds"],
                                    told["wrong"][-6000:]))  # fmt: skip
            if names and (begun is None or begun not in names):
                begun = names[0]
            if begun is not None and names:
                names.remove(begun)
                rows.append(Row(f"clean, {tool}", begun, "wrong", f"the process ended: {code}",
                                seconds, err[-6000:]))  # fmt: skip
        return rows

    def determinism(self, name, program):
        options = ["--vary", program.vary] if program.vary else []
        code, report, output, seconds = self.doctor(
            "determinism", "determinism_programs.py", name, options=options
        )
        finding = (report or {}).get("finding")
        named = "same bits" if finding is None else str(finding.get("operation"))
        if report is None:
            right = False
        elif program.operation == "":
            right = code == 0 and finding is None
        elif finding is None:
            right = code == 0 and not program.certain
        else:
            right = code == 1 and named.startswith(program.operation)
        return [Row("determinism", name, "right" if right else "wrong",
                    f"exit code {code}, {named}", seconds, output)]  # fmt: skip

    def kernels(self):
        """Of the caches that the programs before have filled."""
        code, out, err, seconds = self.run(
            self.command, "doctor", "kernel", "--triton-cache", "--json"
        )
        try:
            report = json.loads(out)
        except ValueError:
            report = {"kernels": [], "notes": [out[-500:]]}
        count = len(report["kernels"])
        known = all(k["registers"] and k["occupancy"] for k in report["kernels"])
        right = code == 0 and count > 0 and known and not report["notes"]
        text = f"{count} kernels, {report['notes']}"
        shown = self.run(self.command, "doctor", "kernel", "--triton-cache")[1]
        return [Row("kernels", "caches of Triton and torch.compile",
                    "right" if right else "wrong", text, seconds, err + shown[:6000])]  # fmt: skip


def parts(names, size):
    return [names[i : i + size] for i in range(0, len(names), size)]


def visit(groups, jobs, limit, details):
    import clean_programs
    import determinism_programs
    import stream_programs

    here = Visit(jobs, limit, details)
    rows = []
    wanted = lambda group: not groups or group in groups  # noqa: E731
    if wanted("numerics"):
        here.add(here.recorder)
    if wanted("streams"):
        for name, program in stream_programs.PROGRAMS.items():
            if why := stream_programs.missing(program):
                rows.append(Row("streams", name, "skipped", why))
                continue
            for form in ("faulty", "clean"):
                here.add(here.stream, name, program.kind, form)
    if wanted("determinism"):
        for name, program in determinism_programs.PROGRAMS.items():
            if why := determinism_programs.missing(program):
                rows.append(Row("determinism", name, "skipped", why))
            else:
                here.add(here.determinism, name, program)
    names = []
    for name, program in clean_programs.PROGRAMS.items():
        if why := clean_programs.missing(program):
            rows.append(Row("clean", name, "skipped", why))
        else:
            names.append(name)
    for tool in ("streams", "numerics"):
        if wanted(tool):
            for name in BY_COMMAND:
                if name in names:
                    here.add(here.clean_by_command, tool, name)
    for tool in ("streams", "numerics", "determinism"):
        if wanted(tool):
            for part in parts([n for n in names if tool != "determinism"
                               or clean_programs.PROGRAMS[n].same_bits], 7):  # fmt: skip
                here.add(here.clean, tool, part)
    rows += here.rows()
    if wanted("kernels"):
        rows += here.kernels()
    return rows


def line_of(row):
    return f"{row.verdict:8} {row.seconds:6.1f} s  {row.group}: {row.name}  {row.found}"


def show(rows, details):
    lines = [line_of(row) for row in rows]
    if details:
        Path(details).write_text(
            "\n".join(lines) + "\n\n"
            + "\n\n".join(f"=== {r.group}: {r.name}\n{r.output}" for r in rows
                          if r.verdict == "wrong" or r.group == "kernels")
        )  # fmt: skip
    groups = dict.fromkeys(r.group for r in rows)
    for group in groups:
        of = [r for r in rows if r.group == group]
        count = {v: sum(r.verdict == v for r in of) for v in ("right", "wrong", "skipped")}
        print(f"{group:32} {count['right']:3} right {count['wrong']:3} wrong "
              f"{count['skipped']:3} skipped {max(r.seconds for r in of):6.1f} s at most")  # fmt: skip
    for row in rows:
        if row.verdict == "skipped":
            print(f"skipped: {row.group}: {row.name}: {row.found}")
    for row in rows:
        if row.verdict == "wrong":
            print(f"WRONG: {row.group}: {row.name}: {row.found[-200:]}\n{row.output[-500:]}")
    wrong = sum(row.verdict == "wrong" for row in rows)
    print(f"{sum(r.verdict == 'right' for r in rows)} passed, {wrong} failed, "
          f"{sum(r.verdict == 'skipped' for r in rows)} skipped")  # fmt: skip
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--limit", type=float, default=270, help="begin nothing after so many s")
    parser.add_argument("--details", help="write each verdict, and the output of wrong ones, there")
    parser.add_argument("--tool", help=argparse.SUPPRESS)
    parser.add_argument("groups", nargs="*", help="streams, numerics, determinism, kernels")
    given = parser.parse_args()
    if given.tool:
        return several(given.tool, given.groups)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TRITON_CACHE_DIR", f"{folder}/triton")
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{folder}/inductor")
        begin = time.time()
        rows = visit(given.groups, given.jobs, given.limit, given.details)
        code = show(rows, given.details)
        print(f"{time.time() - begin:.0f} s, {given.jobs} processes at a time")
    return code


if __name__ == "__main__":
    sys.exit(main())
