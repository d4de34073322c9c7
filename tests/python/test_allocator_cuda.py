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


def begun_in_a_thread():
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, torch.cuda.graph_pool_handle())


def reduced_overhead():
    torch.compile(lambda x: x * 2 + 1, mode="reduce-overhead")(torch.ones(8, device="cuda"))


@pytest.mark.parametrize("begin", [begun_in_a_thread, torch.cuda.MemPool, reduced_overhead])
def test_pools_that_are_not_of_graphs_are_refused(begin):
    stream = torch.cuda.current_stream()
    with pytest.raises(RuntimeError, match="asks for memory of its own"):
        begin()
    # Nothing has begun: the program goes on as before.
    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.randn(3, device="cuda").isfinite().all()


def overwrite_what_is_free():
    """Graphs must not lose their memory to these."""
    kept = [torch.full((n,), float("nan"), device="cuda") for n in (10, 1000, 1 << 16, 1 << 20) * 8]
    torch.cuda.synchronize()
    del kept


def chain(x, side=None):
    """Temporaries of many sizes, some of them on another stream."""
    y = x
    for i in range(1, 9):
        if side is not None and i % 2 == 0:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = torch.cat([y, y]) * 0.5 if i < 4 else y * 2
            torch.cuda.current_stream().wait_stream(side)
        else:
            y = (torch.cat([y, y[: 100 * i]]) * 3 - 2 * torch.cat([y, y[: 100 * i]])).tanh() * i
    return y


@pytest.mark.parametrize("forked", [False, True])
def test_a_graph_keeps_its_memory(forked):
    x = torch.linspace(-1, 1, 1 << 18, device="cuda")
    side = torch.cuda.Stream() if forked else None
    expected = [chain(x * k, side) for k in range(4)]
    graph = torch.cuda.CUDAGraph()
    fed = x.clone()
    with torch.cuda.graph(graph):
        result = chain(fed, side)
    for k in [0, 1, 2, 3] * 3:
        overwrite_what_is_free()
        fed.copy_(x * k)
        graph.replay()
        overwrite_what_is_free()
        assert torch.equal(result, expected[k])


def training(net, optimizer, data, graphed):
    torch.manual_seed(1)
    losses = []
    fed = data[0].clone()

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = net(fed).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    if graphed:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
    for batch in data:
        fed.copy_(batch)
        if graphed:
            graph.replay()
            overwrite_what_is_free()
        else:
            loss = step()
        losses.append(loss.item())
    return losses


def test_a_captured_training_has_the_losses_of_one_that_is_not():
    data = [torch.randn(64, 256, device="cuda") for _ in range(10)]
    runs = []
    for graphed in (False, True, True):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Dropout(0.0),
                                  torch.nn.Linear(512, 256)).cuda()  # fmt: skip
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, capturable=True)
        runs.append(training(net, optimizer, data, graphed))
    assert runs[0] == runs[1] == runs[2]


def test_graphed_callables_train():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    net.cuda()
    x = torch.randn(16, 32, device="cuda")
    net(x).square().sum().backward()
    expected = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    graphed = torch.cuda.make_graphed_callables(net, (torch.randn_like(x),))
    for _ in range(3):
        overwrite_what_is_free()
        net.zero_grad()
        graphed(x).square().sum().backward()
        assert all(torch.equal(p.grad, e) for p, e in zip(net.parameters(), expected, strict=True))


def test_memory_of_graphs_comes_back():
    def held():
        gc.collect()
        allocator.trim()
        return allocator.statistics()["held"]

    def capture():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
            y = x + 1
        graph.replay()
        return graph, y

    capture()
    before = held()
    for _ in range(30):
        graph, y = capture()
        assert held() >= before + 64 * MIB and bool((y == 2).all())
        del graph, y
    assert held() <= before + 2 * MIB
    graphs = [capture() for _ in range(10)]
    assert all(bool((y == 2).all()) for _, y in graphs)
    assert held() >= before + 640 * MIB
    del graphs
    assert held() <= before + 2 * MIB


def test_a_shared_pool_holds_the_memory_of_its_largest_graph():
    pool = torch.cuda.graph_pool_handle()
    graphs = []
    before = allocator.statistics()["held"]
    for _ in range(4):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            x = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
            y = (x + 1)[:1].clone()
            del x
        graphs.append((graph, y))
    assert allocator.statistics()["held"] <= before + 160 * MIB
    for graph, y in graphs:
        graph.replay()
        assert y.item() == 2


def test_other_threads_go_on_during_a_capture():
    import threading

    stop, wrong = threading.Event(), []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            while not stop.is_set():
                x = torch.full((1 << 18,), 3.0, device="cuda")
                if (x * 2).sum().item() != 6 * (1 << 18):
                    wrong.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                y = torch.ones(1 << 20, device="cuda").cumsum(0)
            graph.replay()
            assert y[-1].item() == 1 << 20
    finally:
        stop.set()
        thread.join()
    assert not wrong


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


def test_a_capture_that_fails_leaves_the_memory_as_it_was():
    # The last test: PyTorch's random numbers do not recover from this.
    kept = torch.ones(1000, device="cuda")
    for _ in range(3):
        with pytest.raises(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
            x = torch.ones(1 << 20, device="cuda")
            x.sum().item()
        torch.cuda.synchronize()
        live = allocator.statistics()["live"]
        y = torch.empty(1 << 20, device="cuda")
        assert allocator.statistics()["live"] == live + 4 * MIB
        del y
        assert allocator.statistics()["live"] == live, "frees are put off"
    assert bool((kept == 1).all())
