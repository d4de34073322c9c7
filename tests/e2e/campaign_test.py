"""Everything that the system can refuse is refused once: the N-th allocation, thread, write, sync, link, ...

Each run ends with exit code 0, or with one sentence and the exit code of its kind; what was there before is
there after, whole; nothing unfinished is left; and the same command then ends as if nothing had been. A power
loss is replayed from what a run wrote: at any moment, what had no sync since is gone. The same replay has to
complain when any one sync of a file, or all of the folder, are left out.

SEGFUSE_CAMPAIGN: how many calls of a kind fail for each command (default 12); "all": every one, of allocations
the first 200 and 800 others.
"""

import collections
import hashlib
import os
import pathlib
import random
import re
import shutil
import subprocess
import unittest

import tool

FAULTS = os.environ["SEGFUSE_FAULTS"]
CALLS = os.environ.get("SEGFUSE_CAMPAIGN", "12")
WITHOUT = os.environ.get("SEGFUSE_CAMPAIGN_WITHOUT", "").split(",")  # kinds that are left out
PROGRAM = tool.SOURCE / "examples/layer_norm.sf"

# Exit codes beside 0, by what fails: 3 what concerns files, 4 what concerns the machine. Without unnamed files there
# is another way to the same end.
CODES = {"alloc": {4}, "thread": {4}, "open": {4}, "unnamed": set(), "write": {4}, "fsync": {4}, "rename": {4},
         "link": {4}, "mmap": {3, 4}}

# What a folder's list says of a file, as b2sum writes it; and what a command says that could not write the list.
LISTED = re.compile(r"\\?[0-9a-f]{64}  [^/]+")
UNLISTED = "the next run cannot tell which files this one wrote"


def is_list(path):
    """Lines are only added to a list, so it holds those of all runs in that folder."""
    return pathlib.Path(path).name in (".segfuse-outputs", ".segfuse-corpus")


def is_lock(path):
    """Only its lock by the system keeps others out, so it may stay when a run ends in the middle of its work."""
    return pathlib.Path(path).name == ".segfuse-training"


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def contents(folder):
    return {str(p.relative_to(folder)): digest(p) for p in folder.rglob("*")
            if p.is_file() and not is_list(p) and not is_lock(p)}


def lists(folder):
    """The lines of each list, by its path."""
    return {str(p.relative_to(folder)): p.read_bytes().decode().splitlines(keepends=True)
            for p in folder.rglob("*") if is_list(p)}


def line_of(path):
    """How a list names a file as it is now."""
    return f"{hashlib.blake2b(path.read_bytes(), digest_size=32).hexdigest()}  {path.name}\n"


class CampaignTest(tool.ToolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.directory = cls.directory.resolve()  # as the log has it
        cls.data, cls.config = cls.corpus(train=4, test=2, labels=3)
        cls.config.write_text(cls.config.read_text().replace("epochs = 6", "epochs = 2"))
        cls.cache = cls.directory / "cache"
        cls.before = cls.directory / "before"  # a run that was stopped after one of its epochs
        cls.model = cls.directory / "model"
        cls.run_tool("train", cls.config, "--data", cls.data, "--out", cls.model, check=0)
        checkpoint = "checkpoint.safetensors"
        cls.before.mkdir()
        with subprocess.Popen([tool.SEGFUSE, *map(str, cls.train_command(cls.before))], env=cls.environment(),
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while not (cls.before / checkpoint).exists() and process.poll() is None:
                pass
            process.kill()
        for path in list(cls.before.iterdir()):
            if path.name != checkpoint:
                path.unlink()

    @classmethod
    def environment(cls, **more):
        return {"SEGFUSE_CACHE_DIR": str(cls.cache), "XDG_CACHE_HOME": str(cls.directory), **os.environ, **more}

    @classmethod
    def run_tool(cls, *arguments, check=None, **more):
        return tool.run(*arguments, check=check, env=cls.environment(**more), timeout=300)

    @classmethod
    def train_command(cls, out):
        return ["train", cls.config, "--data", cls.data, "--out", out, "--resume", "--quiet", "--threads", "2"]

    def commands(self):
        """Name, what is in the folder before, and the command that works in a folder."""
        return [
            ("train", self.before, self.train_command),
            ("eval", None, lambda out: ["eval", self.model, "--data", self.data, "--out", out, "--quiet"]),
            ("decode", None, lambda out: ["decode", self.model, self.data / "test", "--out", out, "--quiet"]),
            ("compile", None, lambda out: ["compile", PROGRAM, "--emit=c", "--out", out / "program.c"]),
        ]

    def prepared(self, before):
        out = self.directory / "work"
        shutil.rmtree(out, ignore_errors=True)
        if before:
            shutil.copytree(before, out)
        else:
            out.mkdir()
        return out

    def calls_of(self, name, before, command):
        """How often a run makes each kind of call, and what it leaves."""
        out = self.prepared(before)
        counts = self.directory / "counts"
        self.run_tool(*command(out), check=0, LD_PRELOAD=FAULTS, SEGFUSE_FAULT_COUNTS=str(counts))
        made = {kind: int(number) for kind, number in (line.split() for line in counts.read_text().splitlines())}
        whole = {path: {line.split(maxsplit=1)[1].rstrip("\n") for line in lines} for path, lines in lists(out).items()}
        self.assertTrue(whole, f"{name} wrote no list")
        self.check_lists(out, whole)
        return made, contents(out), whole

    def check_lists(self, out, listed):
        """Every line is whole, and each output that is there stands in the list; `listed`: the names that a list
        has after an undisturbed run, None to look at the lines only."""
        found = lists(out)
        for path, lines in found.items():
            for line in lines:
                self.assertTrue(line.endswith("\n") and LISTED.fullmatch(line[:-1]), f"{path} has {line!r}")
        for path, names in (listed or {}).items():
            for file in (out / path).parent.iterdir():
                if file.name in names:
                    self.assertIn(line_of(file), found.get(path, []), f"{file.name} does not stand in {path}")

    def chosen(self, name, kind, count):
        most = 1000 if CALLS == "all" else int(CALLS)
        if count <= most:
            return range(1, count + 1)
        rng = random.Random(f"{name} {kind}")
        first = range(1, 1 + most // 5)
        return sorted({*first, 1, count, *(rng.randint(1, count) for _ in range(most - len(first) - 2))})

    def test_whatever_is_refused(self):
        runs = refused = 0
        for name, before, command in self.commands():
            counts, whole, listed = self.calls_of(name, before, command)
            for kind in ("link", "unnamed", "write", "fsync", "open"):
                self.assertGreater(counts[kind], 0, f"{name} makes no call of the kind {kind}")
            former = contents(before) if before else {}
            for kind, count in counts.items():
                if kind in WITHOUT:
                    continue
                for number in self.chosen(name, kind, count):
                    for fault in (f"{kind}:{number}{form}" for form in ("", "+")):
                        with self.subTest(command=name, fault=fault):
                            runs += 1
                            refused += self.check_one(command, before, fault, former, whole, listed)
        print(f"{runs} runs, {refused} of them ended with a sentence")
        self.assertGreater(refused, 20)

    def test_a_refused_allocation_is_no_fault_of_the_configuration(self):
        """Each one that reading it makes: the tool complains of memory, or of what is wrong in the file."""
        def run(name, **more):
            return self.run_tool("train", self.directory / name, "--data", self.data, "--out", self.directory / "none",
                                 "--set", "model.dropout=0.25", LD_PRELOAD=FAULTS, **more)
        def allocations(name):
            counts = self.directory / "counts"
            self.assertEqual(run(name, SEGFUSE_FAULT_COUNTS=str(counts)).returncode, 3)
            return int(counts.read_text().split()[1])
        (self.directory / "odd.toml").write_text(self.config.read_text() + "widht = 0.5\n")
        refused = 0
        for number in range(allocations("missing.toml"), allocations("odd.toml") + 1):
            for form in ("", "+"):
                with self.subTest(allocation=f"{number}{form}"):
                    result = run("odd.toml", SEGFUSE_FAULT=f"alloc:{number}{form}")
                    refused += result.returncode == 4
                    if result.returncode != 4:
                        self.assertEqual(result.returncode, 3, result.stderr)
                        self.assertIn("unknown key 'widht' in [training]", result.stderr)
        self.assertGreater(refused, 50)

    def check_one(self, command, before, fault, former, whole, listed):
        out = self.prepared(before)
        result = self.run_tool(*command(out), LD_PRELOAD=FAULTS, SEGFUSE_FAULT=fault)
        self.assertIn(result.returncode, {0} | CODES[fault.partition(":")[0]], result.stderr)
        left = contents(out)
        for path, value in left.items():
            self.assertIn(value, {former.get(path), whole.get(path)} if self.same_every_time(path) else {value},
                          f"{path} is neither what it was nor what it should be")
            self.assertFalse(pathlib.Path(path).name.startswith("."), f"{path} is left")
        self.assertLessEqual(former.keys(), left.keys(), "something was lost")
        self.check_lists(out, None if UNLISTED in result.stderr else listed)
        if result.returncode == 0:
            self.assertEqual(left.keys(), whole.keys())
            return 0
        sentences = [line for line in result.stderr.splitlines() if line.startswith("segfuse: ")]
        self.assertTrue(sentences, result.stderr)
        self.assertNotIn("unexpected", result.stderr)
        self.run_tool(*command(out), check=0)
        again = contents(out)
        self.assertEqual(again.keys(), whole.keys())
        self.assertFalse([path.name for path in out.rglob("*") if is_lock(path)])
        self.check_lists(out, listed)
        for path, value in whole.items():
            if self.same_every_time(path):
                self.assertEqual(again[path], value, f"{path} after the same command again")
        return 1

    @staticmethod
    def same_every_time(path):
        """Reports hold times."""
        return pathlib.Path(path).suffix not in (".html", ".json") and "checkpoint" not in path

    def logged(self, before, command, **more):
        """What a run changes, and what it leaves."""
        out = self.prepared(before)
        log = self.directory / "log"
        self.run_tool(*command(out), check=0, LD_PRELOAD=FAULTS, SEGFUSE_FAULT_LOG=str(log), **more)
        return out, log.read_text().splitlines()

    def replay(self, name, before, out, lines, directories_at_once):
        """Fails when a loss of power after any of the lines leaves what it must not."""
        disk = Disk(before, out, directories_at_once)
        disk.listed = {str((out / path).parent / line.split(maxsplit=1)[1].rstrip("\n"))
                       for path, listed in lists(out).items() for line in listed}
        self.assertTrue(disk.listed, f"{name} wrote no list")
        for line in lines:
            disk.apply(line)
            self.check_disk(name, disk, line)
        if name == "compile":
            return disk  # a text that can be made again
        expected = {str(p): p.read_bytes() for p in out.rglob("*") if p.is_file() and not is_list(p)}
        left = {path: content for path, content in disk.after_power_loss().items()
                if not is_list(path) and not is_lock(path)}
        self.assertEqual({p: len(b) for p, b in left.items()}, {p: len(b) for p, b in expected.items()}, name)
        self.assertEqual(left, expected)
        return disk

    def test_power_goes_at_any_moment(self):
        for name, before, command in self.commands():
            # With unnamed files, and on a system that has none.
            for fault in ("", "unnamed:1+"):
                out, lines = self.logged(before, command, SEGFUSE_FAULT=fault)
                ways = {line.split(" ")[0] for line in lines}
                self.assertEqual("unnamed" in ways, fault == "", "unnamed files")
                for directories_at_once in (False, True):
                    with self.subTest(command=name, fault=fault, directories_at_once=directories_at_once):
                        disk = self.replay(name, before, out, lines, directories_at_once)
                        for path in contents(out).keys() - (contents(before).keys() if before else set()):
                            self.assertTrue(disk.versions[str(out / path)], f"the log does not tell of {path}")

    def test_every_sync_is_needed(self):
        """Without a file's sync there are names of files that are not whole, without a list's one that the list does
        not know; without the folder's, names are lost."""
        for name, before, command in self.commands():
            if name == "compile":
                continue
            for fault in ("", "unnamed:1+"):
                out, lines = self.logged(before, command, SEGFUSE_FAULT=fault)
                disk, syncs = Disk(before, out, True), {}
                for number, line in enumerate(lines):
                    if line.startswith("sync ") and (opened := disk.open[line.split(" ")[1]]):
                        syncs[number] = opened
                    disk.apply(line)
                lists_of_outputs = [file for path, file in disk.names.items() if is_list(path)]
                self.assertTrue(lists_of_outputs, name)
                files = [{number} for number, opened in syncs.items()
                         if opened in disk.written or opened in lists_of_outputs]
                folder = {number for number, opened in syncs.items() if isinstance(opened, str)}
                self.assertTrue(files and folder, name)
                for left_out, at_once in [*((numbers, True) for numbers in files), (folder, False)]:
                    rest = [line for number, line in enumerate(lines) if number not in left_out]
                    with self.subTest(command=name, fault=fault, left_out=left_out):
                        with self.assertRaises(AssertionError):
                            self.replay(name, before, out, rest, at_once)

    def check_disk(self, name, disk, line):
        """Under a final name there is something whole, never something older than before, and its folder's list
        knows it: the next run may replace it."""
        if name == "compile":
            return
        left = disk.after_power_loss()
        for path, content in left.items():
            if pathlib.Path(path).name.startswith("."):
                continue
            versions = disk.versions[path]
            self.assertIn(content, versions, f"{name}: {path} is not whole after '{line[:80]}'")
            self.assertGreaterEqual(versions.index(content), disk.seen[path], f"{name}: {path} went back")
            disk.seen[path] = versions.index(content)
            if disk.seen[path] >= disk.given[path] and path in disk.listed:
                listed = left.get(os.path.join(os.path.dirname(path), ".segfuse-outputs"), b"")
                wanted = f"{hashlib.blake2b(content, digest_size=32).hexdigest()}  {os.path.basename(path)}\n"
                self.assertIn(wanted.encode(), listed, f"{name}: {path} is in no list after '{line[:80]}'")


class File:
    def __init__(self, content=b""):
        self.data, self.synced = bytearray(content), bytes(content)


class Disk:
    """What a log of changes leaves when the power goes: data up to its last sync; names up to the last sync of
    their folder, or at once (systems may do either)."""

    def __init__(self, before, root, directories_at_once):
        self.root, self.at_once = str(root), directories_at_once
        self.names, self.kept_names = {}, {}  # files by their paths
        self.written = []  # files that got a name
        self.open = {}  # by descriptor: a File, the path of a folder, or None for what does not matter
        self.versions, self.seen = collections.defaultdict(list), collections.defaultdict(int)
        self.given = collections.Counter()  # how many of the versions were there before
        self.listed = set()  # what has to stand in a list from its first moment on
        for path in sorted(before.iterdir()) if before else []:
            name = str(root / path.name)
            self.names[name] = self.kept_names[name] = File(path.read_bytes())
            self.versions[name].append(path.read_bytes())
            self.given[name] += 1

    def after_power_loss(self):
        names = self.names if self.at_once else self.kept_names
        return {path: file.synced for path, file in names.items()}

    def inside(self, path):
        return (path + "/").startswith(self.root + "/")

    def named(self, path, file):
        if file is None or not self.inside(path):
            return
        self.names[path] = file
        self.written.append(file)
        self.versions[path].append(bytes(file.data))

    def apply(self, line):
        what, _, rest = line.partition(" ")
        descriptor, _, value = rest.partition(" ")
        if what == "open":
            self.open[descriptor] = self.names.setdefault(value, File()) if self.inside(value) else None
        elif what == "unnamed":
            self.open[descriptor] = File()
        elif what == "folder":
            self.open[descriptor] = value if self.inside(value) else None
        elif what == "close":
            self.open.pop(descriptor, None)
        elif what == "rename":
            former, path = rest.split("\t")
            self.named(path, self.names.pop(former, None))
        elif what == "link":
            former, path = rest.split("\t")
            self.named(path, self.open[former] if former.isdigit() else self.names.get(former))
        elif what == "unlink":
            self.names.pop(rest, None)
        elif opened := self.open.get(descriptor):
            self.change(opened, what, value)

    def change(self, opened, what, value):
        """What a call does to an open file or folder."""
        if isinstance(opened, str):
            elsewhere = {p: file for p, file in self.kept_names.items() if os.path.dirname(p) != opened}
            self.kept_names = elsewhere | {p: f for p, f in self.names.items() if os.path.dirname(p) == opened}
        elif what == "write":
            at, content = value.split(" ")
            start, content = int(at), bytes.fromhex(content)
            opened.data.extend(bytes(max(0, start - len(opened.data))))
            opened.data[start:start + len(content)] = content
        elif what == "truncate":
            del opened.data[int(value):]
        elif what == "sync":
            opened.synced = bytes(opened.data)


if __name__ == "__main__":
    unittest.main()
