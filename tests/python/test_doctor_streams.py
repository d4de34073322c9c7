"""What `segfuse doctor streams -- COMMAND` makes of PyTorch's operations, on a played GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from played_gpu import MAIN, SIDE, played_cuda, run
from stream_programs import PROGRAMS

import segfuse
import segfuse.torch


def story(recorded):
    def program(gpu):
        table = torch.arange(8.0)
        indices = torch.full((4,), 3)
        gpu.order(MAIN, SIDE)
        with gpu.on(SIDE):
            out = table[indices]  # used
            if recorded:
                gpu.recorder.trace.record_stream(gpu.address_of(indices)[0], SIDE)
        del indices
        poison = torch.full((4,), 9999)  # reused
        return out, poison

    return program


def test_the_story_of_record_stream():
    (race,) = run(story(False))
    assert race["kind"] == "freed while in use"
    for name in ("allocated", "used", "freed", "reused"):
        assert "test_doctor_streams.py:" in race["places"][name]
    assert "index" in race["places"]["used"]
    assert run(story(True)) == []


@pytest.mark.parametrize("first", [MAIN, SIDE])
def test_a_heap_that_orders_owners_needs_no_record_stream(first):
    """What is written on one stream and dropped is overwritten on the other one."""

    def program(gpu):
        blocks = set()
        for _ in range(3):
            for stream in (first, MAIN + SIDE - first):
                with gpu.on(stream):
                    blocks.add(gpu.address_of(torch.ones(4).mul_(2))[0])
        assert len(blocks) == 1

    assert run(story(False), heap=True) == []
    assert run(program, heap=True) == []


def test_a_race_within_an_owner_is_found_in_such_a_heap():
    def program(gpu):
        for _ in range(2):
            x = torch.ones(4)
            with gpu.on(SIDE):
                x.sum()
            del x

    races = run(program, heap=True)
    assert [race["kind"] for race in races] == ["race"] * len(races) and races


@pytest.mark.parametrize("waits", [False, True])
def test_views_share_their_memory(waits):
    def program(gpu):
        x = torch.ones(4, 4)
        gpu.order(MAIN, SIDE)
        x.t()[1:].mul_(2)
        if waits:
            gpu.order(MAIN, SIDE)
        with gpu.on(SIDE):
            x[:, 2].sum()

    assert len(run(program)) == (0 if waits else 1)


def test_halves_of_a_tensor_are_apart():
    def program(gpu):
        x = torch.ones(8)
        gpu.order(MAIN, SIDE)
        x[:4].add_(1)
        with gpu.on(SIDE):
            x[4:].add_(1)

    assert run(program) == []


@pytest.mark.parametrize("waits", [False, True])
def test_a_gradient_of_another_stream(waits):
    def program(gpu):
        weight = torch.ones(4, requires_grad=True)
        (weight * 2).sum().backward()
        if waits:
            gpu.order(MAIN, SIDE)
        with gpu.on(SIDE):
            weight.grad.div_(2)

    assert bool(run(program)) != waits


@pytest.mark.parametrize("waits", [False, True])
def test_a_custom_operator_by_its_schema(waits):
    @torch.library.custom_op(f"segfuse_test::scale{int(waits)}", mutates_args={"x"})
    def scale(x: torch.Tensor) -> None:
        x.numpy()[:] *= 2

    def program(gpu):
        x = torch.ones(4)
        gpu.order(MAIN, SIDE)
        scale(x)
        if waits:
            gpu.order(MAIN, SIDE)
        with gpu.on(SIDE):
            x.sum()

    assert bool(run(program)) != waits


# Variants of a missing order and of the same program with it.

PLAYED = [name for name, program in PROGRAMS.items() if program.needs == "a GPU"]


@pytest.mark.parametrize("name", PLAYED)
def test_a_missing_order_is_found(name, monkeypatch):
    with played_cuda(monkeypatch) as recorder:
        PROGRAMS[name](False)
    races = recorder.races()
    assert {race["kind"] for race in races} == {PROGRAMS[name].kind}, races
    for place in ("used", "first", "then", "reused", "host"):
        assert "stream_programs.py" in races[0]["places"].get(place, "stream_programs.py")


@pytest.mark.parametrize("name", PLAYED)
def test_an_order_that_is_there_gives_no_report(name, monkeypatch):
    with played_cuda(monkeypatch) as recorder:
        PROGRAMS[name](True)
    assert recorder.races() == []


def test_work_in_a_graph_is_not_looked_at(monkeypatch):
    def program(gpu):
        x = torch.ones(4)
        gpu.order(MAIN, SIDE)
        monkeypatch.setattr(gpu, "is_capturing", lambda: True)
        with gpu.on(SIDE):
            x.add_(1)
        monkeypatch.setattr(gpu, "is_capturing", lambda: False)
        x.sum()

    assert run(program) == []


def test_a_raw_launch_is_not_seen():
    def program(gpu):
        x = torch.ones(4)
        x.numpy()[:] = 3  # as a kernel of Triton's that nobody registered
        gpu.order(MAIN, SIDE)
        with gpu.on(SIDE):
            x.sum()

    assert run(program) == []


def test_a_program_without_a_gpu_is_told_so(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    (tmp_path / "train.py").write_text("import torch\ntorch.ones(3).sum()\nraise SystemExit(5)\n")
    command = Path(segfuse.__file__).parent / "bin" / "segfuse"
    done = subprocess.run(
        [command, "doctor", "streams", "--", sys.executable, "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 5
    assert "PyTorch sees no CUDA device here, so nothing was checked" in done.stdout


def test_watch_needs_a_gpu():
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(segfuse.DeviceError, match="no CUDA device here"):
        segfuse.torch.watch()
