"""Tests whose body runs in several processes at once, the ranks of a PyTorch process group.

    @on_ranks(2, 3)
    def test_something(rank): ...

runs the body in 2 and then in 3 new processes (spawned, never forked) with `rank`, a `Rank`. What
one of them raises fails the test, with the ranks that failed. The processes of a number of ranks
stay for further tests, until one fails. They are joined by gloo on the CPU, and by NCCL where the
machine has a CUDA device for each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time
import traceback
from typing import Any

import pytest

HANG = 300.0  # seconds after which a test is given up; nothing here takes as long


@dataclasses.dataclass
class Rank:
    """What a body gets: who it is among how many, and where its tensors belong."""

    number: int
    world: int
    device: Any  # torch.device
    backend: str
    folder: pathlib.Path
    """A folder that all ranks share, empty when the body starts."""

    def deal(self, rows: int, start: int = 0) -> slice:
        """The rows of this rank: as even as may be, the first ranks have one more."""
        shares = [rows // self.world + (i < rows % self.world) for i in range(self.world)]
        first = start + sum(shares[: self.number])
        return slice(first, first + shares[self.number])


def on_ranks(*worlds: int):
    """Makes a test of a body, for each number of ranks. Further parameters of the body are those of
    the test; they are numbers, strings or None."""

    def decorate(body):
        @functools.wraps(body)
        def test(ranks, world, **parameters):
            ranks(world).run(inspect.getfile(body), body.__name__, parameters)

        kind = inspect.Parameter.KEYWORD_ONLY
        names = ["ranks", "world", *list(inspect.signature(body).parameters)[1:]]
        test.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])
        test.body = body
        return pytest.mark.parametrize("world", worlds)(test)

    return decorate


class Group:
    """The processes of one number of ranks."""

    def __init__(self, world: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self._tests = 0
        self._ranks = [
            subprocess.Popen(
                [sys.executable, __file__, str(rank), str(world), self._folder.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            for rank in range(world)
        ]

    @property
    def alive(self) -> bool:
        return all(rank.poll() is None for rank in self._ranks)

    def run(self, file: str, name: str, parameters: dict[str, Any]) -> None:
        """Runs a body on all ranks; fails the test of pytest that it is in if one of them does."""
        self._tests += 1
        folder = pathlib.Path(self._folder.name, f"test{self._tests}")
        folder.mkdir()
        order = {"file": file, "name": name, "parameters": parameters, "folder": str(folder)}
        for rank in self._ranks:
            rank.stdin.write(json.dumps(order).encode() + b"\n")
            rank.stdin.flush()
        replies = self._replies()
        bad = [reply for reply in replies if reply is None or reply["outcome"] != "passed"]
        if not bad:
            return
        if all(reply is not None and reply["outcome"] == "skipped" for reply in replies):
            pytest.skip(replies[0]["why"])
        self.close()
        told = [f"rank {i}: {self._why(reply)}" for i, reply in enumerate(replies)]
        pytest.fail("\n".join(told), pytrace=False)

    def _replies(self) -> list[dict[str, Any] | None]:
        """One for each rank; None from those that ended or hang. Once a rank has failed, the
        others get little time: they wait for it in vain."""
        replies: list[dict[str, Any] | None] = [None] * len(self._ranks)
        waiting = {rank.stdout: i for i, rank in enumerate(self._ranks)}
        end = time.monotonic() + HANG
        while waiting:
            left = end - time.monotonic()
            ready = select.select(list(waiting), [], [], max(left, 0.0))[0]
            if not ready:
                break
            for stream in ready:
                i = waiting.pop(stream)
                line = stream.readline()
                replies[i] = json.loads(line) if line else None
                if not line or replies[i]["outcome"] == "failed":
                    end = min(end, time.monotonic() + 20.0)
        return replies

    @staticmethod
    def _why(reply: dict[str, Any] | None) -> str:
        if reply is None:
            return "ended, or waits for ever"
        return reply["why"] or reply["outcome"]

    def close(self) -> None:
        for rank in self._ranks:
            with contextlib.suppress(BrokenPipeError):
                rank.stdin.close()
        for rank in self._ranks:
            try:
                rank.wait(timeout=10.0)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()
            rank.stdout.close()
        self._folder.cleanup()


class Groups:
    """The groups of a run of the tests by their number of ranks, made when they are needed."""

    def __init__(self) -> None:
        self._groups: dict[int, Group] = {}

    def __call__(self, world: int) -> Group:
        group = self._groups.get(world)
        if group is None or not group.alive:
            group = self._groups[world] = Group(world)
        return group

    def close(self) -> None:
        for group in self._groups.values():
            group.close()


# What a rank does


def _load(file: str) -> Any:
    """The module of a test, by its name, so that it is the one that is pickled."""
    name = pathlib.Path(file).stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def _serve(number: int, world: int, folder: str) -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what bodies print is no reply
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    on_cuda = torch.cuda.is_available() and torch.cuda.device_count() >= world
    device = torch.device("cuda", number) if on_cuda else torch.device("cpu")
    backend = "cpu:gloo,cuda:nccl" if on_cuda else "gloo"
    if on_cuda:
        torch.cuda.set_device(device)
    joined = False
    for line in sys.stdin:
        order = json.loads(line)
        if not joined:
            store = f"file://{folder}/store"
            dist.init_process_group(backend, init_method=store, rank=number, world_size=world)
            joined = True
        rank = Rank(number, world, device, backend, pathlib.Path(order["folder"]))
        reply = {"outcome": "passed", "why": ""}
        try:
            body = getattr(_load(order["file"]), order["name"]).body
            torch.manual_seed(0)
            body(rank, **order["parameters"])
            dist.barrier()  # a collective that is left over fails its own test
        except pytest.skip.Exception as skipped:
            reply = {"outcome": "skipped", "why": str(skipped)}
        except BaseException:
            reply = {"outcome": "failed", "why": traceback.format_exc()}
        print(json.dumps(reply), file=replies, flush=True)
        if reply["outcome"] == "failed":
            os._exit(1)  # the others notice that this rank has gone
    if joined:
        dist.destroy_process_group()
    replies.close()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
