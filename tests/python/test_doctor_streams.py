"""What `segfuse doctor streams -- COMMAND` makes of PyTorch's operations. The GPU is played: tensors
of the CPU lie at made-up addresses, which are handed out again as PyTorch's allocator does."""

import contextlib
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import segfuse
import segfuse.torch
from segfuse.torch._watch.streams import Recorder

MAIN, SIDE = 1, 2


class Played:
    """Streams that are numbers, and an allocator that gives a freed block to the next one of its
    size and stream."""

    device = "cpu"

    def __init__(self):
        self.current, self.blocks, self.free, self.next = MAIN, {}, {}, 0x10000
        self.recorder = Recorder(self)

    def start(self, recorder):
        pass

    def stop(self):
        self.recorder = None

    def stream(self):
        return self.current

    def stream_of(self, argument):
        return argument

    def is_capturing(self):
        return False

    def address_of(self, tensor):
        storage = tensor.untyped_storage()
        block = self.blocks.get(storage._cdata)
        if block is None:
            kind = (storage.nbytes(), self.current)
            free = self.free.setdefault(kind, [])
            if free:
                block = free.pop()
            else:
                block, self.next = self.next, self.next + max(storage.nbytes(), 512)
            self.blocks[storage._cdata] = block
            self.recorder.allocate(block)
            weakref.finalize(storage, self.release, storage._cdata, kind)
        return block, block + tensor.storage_offset() * tensor.element_size()

    def release(self, key, kind):
        block = self.blocks.pop(key)
        if self.recorder is not None:
            self.recorder.release(block)
            self.free[kind].append(block)

    @contextlib.contextmanager
    def on(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    def order(self, before, after, event=7):
        self.recorder.record(before, event)
        self.recorder.wait(after, event)


def run(program):
    gpu = Played()
    recorder = gpu.recorder
    recorder.start()
    try:
        program(gpu)
    finally:
        recorder.stop()
    return recorder.races()


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
        assert race["places"][name].startswith("test_doctor_streams.py:")
    assert "index" in race["places"]["used"]
    assert run(story(True)) == []


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
