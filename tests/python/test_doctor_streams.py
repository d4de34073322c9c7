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
        block = self.blocks.pop(key, None)
        if block is None:
            return  # it lies elsewhere
        if self.recorder is not None:
            self.recorder.release(block)
            self.free[kind].append(block)

    def moved(self, tensor, bytes):
        """The tensor, of so many bytes before, lies elsewhere now."""
        key = tensor.untyped_storage()._cdata
        self.release(key, (bytes, self.current))
        self.address_of(tensor)

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


# Variants of a missing order and of the same program with it.

VARIANTS = {}


def variant(kind):
    def add(function):
        VARIANTS[function.__name__] = (function, kind)
        return function

    return add


@variant("event too early")
def event_before_the_work(gpu, right):
    x = torch.ones(4)
    if not right:
        gpu.recorder.record(MAIN, 7)
    x.mul_(2)
    if right:
        gpu.recorder.record(MAIN, 7)
    gpu.recorder.wait(SIDE, 7)
    with gpu.on(SIDE):
        x.sum()


@variant("race")
def event_on_the_wrong_stream(gpu, right):
    x = torch.ones(4)
    gpu.order(MAIN if right else 3, SIDE)
    with gpu.on(SIDE):
        x.sum()


@variant("race")
def wait_on_the_host(gpu, right):
    x = torch.ones(4)
    gpu.recorder.trace.synchronize_stream(MAIN if right else SIDE)
    with gpu.on(SIDE):
        x.sum()


@variant("race")
def wait_on_the_host_for_an_event(gpu, right):
    x = torch.ones(4)
    gpu.recorder.record(MAIN, 7)
    if right:
        gpu.recorder.trace.synchronize_event(7)
    with gpu.on(SIDE):
        x.sum()


@variant("host")
def copies_from_pinned_memory(gpu, right):
    pinned, batch = torch.ones(4), torch.zeros(4)
    batch.copy_(pinned, non_blocking=True)
    if right:
        gpu.recorder.trace.synchronize_stream(MAIN)
    gpu.recorder.trace.host_use("train.py:9 in load", (*gpu.address_of(pinned), 16, True))


@variant("race")
def double_buffering(gpu, right):
    buffers = [torch.zeros(4), torch.zeros(4)]
    gpu.order(MAIN, SIDE)
    for i in range(4):
        if i >= 2 and right:
            gpu.recorder.wait(SIDE, 20 + i % 2)
        with gpu.on(SIDE):
            buffers[i % 2].fill_(i)
        gpu.order(SIDE, MAIN, 10 + i % 2)
        buffers[i % 2].sum()
        gpu.recorder.record(MAIN, 20 + i % 2)


@variant("race")
def buckets_of_gradients(gpu, right):
    gradients = [torch.ones(4), torch.ones(2)]
    bucket = torch.zeros(6)
    torch.cat(gradients, out=bucket)
    gpu.order(MAIN, SIDE)
    with gpu.on(SIDE):
        bucket.div_(2)  # the sum over ranks
    if right:
        gpu.order(SIDE, MAIN, 8)
    torch._foreach_copy_(gradients, list(bucket.split([4, 2])))


@variant("freed while in use")
def view_of_a_freed_tensor(gpu, right):
    x = torch.ones(4, 4)
    row = x[2]
    del x
    gpu.order(MAIN, SIDE)
    with gpu.on(SIDE):
        row.sum()
    if right:
        gpu.order(SIDE, MAIN, 8)
    del row
    return torch.zeros(4, 4)


@variant("freed while in use")
def resized_while_in_use(gpu, right):
    x = torch.ones(4)
    gpu.order(MAIN, SIDE)
    with gpu.on(SIDE):
        x.sum()
    if right:
        gpu.order(SIDE, MAIN, 8)
    x.resize_(64)
    gpu.moved(x, 16)
    return torch.zeros(4)


@variant("race")
def registered_kernel(gpu, right):
    x, out = torch.ones(4), torch.zeros(4)
    kernel(x, out)
    if right:
        gpu.order(MAIN, SIDE)
    with gpu.on(SIDE):
        out.sum()


@variant("race")
def another_device(gpu, right):
    of_first, of_second = 11, 21
    with gpu.on(of_first):
        x = torch.ones(4)
    if right:
        gpu.order(of_first, of_second)
    with gpu.on(of_second):
        x.clone()


@torch.library.custom_op("segfuse_test::kernel", mutates_args={"out"})
def kernel(x: torch.Tensor, out: torch.Tensor) -> None:
    out.numpy()[:] = x.numpy() + 1


@pytest.mark.parametrize("name", VARIANTS)
def test_a_missing_order_is_found(name):
    program, kind = VARIANTS[name]
    races = run(lambda gpu: program(gpu, False))
    assert {race["kind"] for race in races} == {kind}, races


@pytest.mark.parametrize("name", VARIANTS)
def test_an_order_that_is_there_gives_no_report(name):
    program, _ = VARIANTS[name]
    assert run(lambda gpu: program(gpu, True)) == []


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
