"""PyTorch on a real GPU with the memory of segfuse. In a process of its own: nothing may have used
the GPU before."""

import gc
import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device here", allow_module_level=True)
if torch.cuda.is_initialized():
    pytest.skip("the GPU is in use already: run this file alone", allow_module_level=True)

from segfuse.torch import allocator

allocator.enable()

MIB = 1 << 20


@pytest.fixture(autouse=True)
def clean():
    yield
    gc.collect()
    torch.cuda.set_stream(torch.cuda.default_stream())
    allocator.enable(limit=None)
    allocator.trim()


def slow_work(side):
    slow = torch.ones(2048, 2048, device="cuda")
    for _ in range(20):
        slow = torch.mm(slow, slow) * 1e-4


def story(enter):
    """Wrong elements; `enter` makes a stream current for a block."""
    count = 1 << 20
    side = torch.cuda.Stream()
    table = torch.arange(count, device="cuda", dtype=torch.float32)
    indices = torch.arange(count, device="cuda")
    torch.cuda.synchronize()
    with enter(side):
        slow_work(side)
        out = table[indices]
    del indices
    poison = torch.zeros(count, device="cuda", dtype=torch.int64)
    torch.cuda.synchronize()
    wrong = int((out != table).sum())
    del poison
    return wrong


@pytest.mark.parametrize(
    "enter", [torch.cuda.stream, lambda stream: stream], ids=["context", "with"]
)
def test_the_story_of_record_stream_is_right_without_it(enter):
    if not hasattr(torch.cuda.Stream, "__enter__") and enter is not torch.cuda.stream:
        pytest.skip("streams of this PyTorch are no contexts")
    assert [story(enter) for _ in range(30)] == [0] * 30


def test_double_buffers_on_two_streams():
    copy, compute = torch.cuda.Stream(), torch.cuda.Stream()
    total = torch.zeros((), device="cuda", dtype=torch.float64)
    compute.wait_stream(torch.cuda.current_stream())
    pinned = [torch.full((1 << 20,), float(i), pin_memory=True) for i in range(8)]
    for step in range(64):
        with torch.cuda.stream(copy):
            batch = pinned[step % 8].to("cuda", non_blocking=True)
        compute.wait_stream(copy)
        with torch.cuda.stream(compute):
            total += (batch * 2).double().sum()
        del batch
    torch.cuda.synchronize()
    assert total.item() == 64 / 8 * sum(2.0 * i * (1 << 20) for i in range(8))


def test_a_backward_pass_on_another_stream():
    torch.manual_seed(0)
    weight = torch.randn(512, 512, device="cuda", requires_grad=True)
    x = torch.randn(512, 512, device="cuda")
    expected = None
    for _ in range(20):
        weight.grad = None
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            hidden = (x @ weight).relu()
        torch.cuda.current_stream().wait_stream(side)
        loss = (hidden @ hidden).sum()
        del hidden
        loss.backward()
        grad = weight.grad.clone()
        if expected is None:
            expected = grad
        assert torch.equal(grad, expected)


def test_memory_of_one_stream_comes_back_at_once():
    first = torch.empty(1000, device="cuda")
    address = first.data_ptr()
    del first
    assert torch.empty(1000, device="cuda").data_ptr() == address


def test_record_stream_is_accepted():
    side = torch.cuda.Stream()
    x = torch.ones(1 << 20, device="cuda")
    x.record_stream(side)
    with torch.cuda.stream(side):
        slow_work(side)
        y = x + 1
    del x
    torch.zeros(1 << 20, device="cuda")
    side.synchronize()
    assert torch.all(y == 2)


def test_statistics_and_trim():
    before = allocator.statistics()["live"]
    x = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    seen = allocator.statistics()
    assert seen["live"] == before + 64 * MIB and seen["held"] >= seen["live"] >= seen["requested"]
    assert seen["peak_held"] >= seen["held"] and seen["blocks"] > 0
    del x
    allocator.trim()
    assert allocator.statistics()["held"] < seen["held"]
    x = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    held = allocator.statistics()["held"]
    del x
    torch.cuda.empty_cache()
    assert allocator.statistics()["held"] < held
    allocator.reset_peaks()
    assert allocator.statistics()["peak_held"] == allocator.statistics()["held"]


def test_a_limit_holds():
    held = allocator.statistics()["held"]
    allocator.enable(limit=held + 128 * MIB)
    x = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory. out of device memory"):
        torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    assert allocator.statistics()["held"] <= held + 128 * MIB
    del x
    torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")


def test_a_program_that_runs_out_of_memory_tries_less():
    held = allocator.statistics()["held"]
    allocator.enable(limit=held + 96 * MIB)
    size = 512 * MIB
    while True:
        try:
            x = torch.empty(size, dtype=torch.uint8, device="cuda")
            break
        except torch.OutOfMemoryError:
            size //= 2
    assert x.numel() >= 32 * MIB


def test_a_backward_pass_that_runs_out_of_memory_says_so():
    x = torch.ones(8 * MIB, device="cuda", requires_grad=True)
    loss = x.exp().sum()
    allocator.trim()
    allocator.enable(limit=allocator.statistics()["held"])
    with pytest.raises(torch.OutOfMemoryError):
        loss.backward()
    allocator.enable(limit=None)


def test_a_fraction_of_memory_is_a_limit():
    torch.cuda.set_per_process_memory_fraction(0.01)
    total = torch.cuda.get_device_properties(0).total_memory
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory. out of device memory"):
        torch.empty(total // 50, dtype=torch.uint8, device="cuda")


def captured():
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(3, device="cuda")


def begun():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda.CUDAGraph().capture_begin()


def begun_in_a_thread():
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, torch.cuda.graph_pool_handle())


def made_of_a_module():
    net = torch.nn.Linear(8, 8).cuda()
    torch.cuda.make_graphed_callables(net, (torch.ones(4, 8, device="cuda"),))


@pytest.mark.parametrize(
    "begin", [captured, begun, begun_in_a_thread, made_of_a_module, torch.cuda.MemPool]
)
def test_graphs_and_pools_are_refused(begin):
    stream = torch.cuda.current_stream()
    with pytest.raises(RuntimeError, match="a CUDA graph or a MemPool asks for a pool"):
        begin()
    # Nothing has begun: the program goes on as before.
    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.randn(3, device="cuda").isfinite().all()


def test_a_snapshot_can_be_read(tmp_path):
    allocator.keep_history(1000)
    x = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    file = tmp_path / "memory.json"
    record = allocator.snapshot(file)
    allocator.keep_history(0)
    assert record == json.loads(file.read_text())
    run = subprocess.run([sys.executable, "-m", "segfuse", "doctor", "memory", str(file)],
                         capture_output=True, text=True)  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "tensor" in run.stdout
    del x
