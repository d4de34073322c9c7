"""Trainings on several ranks, for end-to-end tests of the ways to start them."""

import hashlib
import os
import pathlib
import subprocess
import time

import tool

LIMIT = 600  # seconds; ends what hangs


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tensors(path):
    """Without the header, which holds the overrides that were typed."""
    data = path.read_bytes()
    return hashlib.sha256(data[8 + int.from_bytes(data[:8], "little"):]).hexdigest()


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid):
    """All processes below one, the deepest last."""
    parents = {}
    for process in pathlib.Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                parents[int(process.name)] = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass
    found = [pid]
    for parent in found:
        found += sorted(child for child, its_parent in parents.items() if its_parent == parent)
    return found[1:]


def listening_ports(pids):
    """TCP ports at which one of the processes listens."""
    sockets = set()
    for pid in pids:
        try:
            for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                try:
                    sockets.add(os.readlink(link))
                except OSError:
                    pass
        except OSError:
            pass
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pathlib.Path(table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                ports.add(int(words[1].rsplit(":", 1)[1], 16))
    return ports


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if "segfuse" in name}


def workers_of(process):
    """The processes of a job by rank."""
    found = {}
    for pid in children_of(process.pid):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = dict(item.split(b"=", 1) for item in file.read().split(b"\0") if b"=" in item)
            found[int(variables[b"RANK"])] = pid
        except (OSError, KeyError):
            pass
    return found


class RanksTestCase(tool.ToolTest):
    """A training on one rank whose files all others have to write."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data, cls.config = cls.corpus()
        cls.config.write_text(cls.config.read_text().replace("epochs = 6", "epochs = 12"))
        tool.run(*cls.arguments("one"), "--set", "training.shards=4", check=0)
        cls.files = ["model.safetensors", "checkpoint.safetensors"]
        cls.expected = [digest(cls.directory / "one" / name) for name in cls.files]
        cls.expected_tensors = [tensors(cls.directory / "one" / name) for name in cls.files]

    @classmethod
    def arguments(cls, out, *more):
        return ["train", str(cls.config), "--data", str(cls.data), "--out", str(cls.directory / out), "--threads", "1", *more]

    def start(self, *arguments, env=None, before=()):
        """`before`: the command that starts it."""
        return subprocess.Popen([*before, tool.SEGFUSE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, **(env or {})})

    @staticmethod
    def wait_for_training(process):
        for line in process.stderr:
            if line.startswith("epoch "):
                break

    def finish(self, process):
        out, errors = process.communicate(timeout=LIMIT)
        return process.returncode, out, errors

    def check_files(self, out):
        self.assertEqual([digest(self.directory / out / name) for name in self.files], self.expected)

    def check_tensors(self, out):
        self.assertEqual([tensors(self.directory / out / name) for name in self.files], self.expected_tensors)

    def check_gone(self, pids):
        for pid in pids:
            deadline = time.monotonic() + LIMIT
            while alive(pid):
                self.assertLess(time.monotonic(), deadline, f"process {pid} is left")
                time.sleep(0.05)
