"""Programs that use several streams, each with a missing order and with all that it needs.

    segfuse doctor streams -- python stream_programs.py double_buffering faulty

On a GPU they run as they are; test_doctor_streams.py plays one (played_gpu.py) for those that need
nothing else.
"""

import os
import sys
import tempfile

import torch

SIZE = 1 << 22  # allocations of 16 MiB have segments of their own: a freed one is handed out again

PROGRAMS = {}


def program(kind, needs="a GPU"):
    """`kind` is what the faulty form is reported as."""

    def add(function):
        function.kind, function.needs = kind, needs
        PROGRAMS[function.__name__] = function
        return function

    return add


def ones():
    return torch.ones(SIZE, device="cuda")


def both():
    return torch.cuda.current_stream(), torch.cuda.Stream()


@program("freed while in use")
def record_stream(right):
    main, side = both()
    x = ones()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        total = x.sum()
        if right:
            x.record_stream(side)
    del x
    return total, ones()


@program("freed while in use")
def prefetcher(right):
    main, loader = both()
    for _ in range(3):
        with torch.cuda.stream(loader):
            batch = ones()
        main.wait_stream(loader)
        loss = batch.square().mean()
        if right:
            batch.record_stream(main)
        del batch
    return loss


@program("event too early")
def event_before_the_work(right):
    main, side = both()
    x = ones()
    event = torch.cuda.Event()
    if not right:
        event.record()
    x.mul_(2)
    if right:
        event.record()
    side.wait_event(event)
    with torch.cuda.stream(side):
        x.sum()
    main.wait_stream(side)


@program("race")
def event_on_the_wrong_stream(right):
    main, side = both()
    other = torch.cuda.Stream()
    x = ones()
    event = torch.cuda.Event()
    event.record(main if right else other)
    side.wait_event(event)
    with torch.cuda.stream(side):
        x.sum()
    main.wait_stream(side)


@program("race")
def wait_on_the_host(right):
    main, side = both()
    x = ones()
    (main if right else side).synchronize()
    with torch.cuda.stream(side):
        x.sum()
    main.wait_stream(side)


@program("race")
def wait_on_the_host_for_an_event(right):
    main, side = both()
    x = ones()
    event = torch.cuda.Event()
    event.record()
    if right:
        event.synchronize()
    with torch.cuda.stream(side):
        x.sum()
    main.wait_stream(side)


@program("host")
def copies_from_pinned_memory(right):
    main = torch.cuda.current_stream()
    pinned = torch.zeros(SIZE, pin_memory=True)
    batch = ones()
    for i in range(3):
        pinned.fill_(i)  # the next batch
        batch.copy_(pinned, non_blocking=True)
        batch.sum()
        if right:
            main.synchronize()


@program("host")
def copies_to_pinned_memory(right):
    pinned = torch.zeros(SIZE, pin_memory=True)
    pinned.copy_(ones().mul_(2), non_blocking=True)
    if right:
        torch.cuda.current_stream().synchronize()
    pinned.add_(1)


@program("race")
def double_buffering(right):
    main, loader = both()
    buffers = [ones(), ones()]
    filled = [torch.cuda.Event(), torch.cuda.Event()]
    used = [torch.cuda.Event(), torch.cuda.Event()]
    loader.wait_stream(main)
    for i in range(6):
        half = i % 2
        if i >= 2 and right:
            loader.wait_event(used[half])
        with torch.cuda.stream(loader):
            buffers[half].fill_(i)
            filled[half].record()
        main.wait_event(filled[half])
        buffers[half].sum()
        used[half].record()
    main.wait_stream(loader)


@program("race")
def buckets_of_gradients(right):
    main, sums = both()
    weights = [torch.ones(64, 64, device="cuda", requires_grad=True) for _ in range(3)]
    x = torch.ones(8, 64, device="cuda")
    for weight in weights:
        x = x @ weight
    x.sum().backward()
    bucket = torch.cat([weight.grad.flatten() for weight in weights])
    sums.wait_stream(main)
    with torch.cuda.stream(sums):
        bucket.div_(2)  # where the sum over ranks would be
    if right:
        main.wait_stream(sums)
    for weight, part in zip(weights, bucket.split(64 * 64), strict=True):
        weight.grad.copy_(part.view(64, 64))
    main.wait_stream(sums)


@program("race")
def gradient_on_another_stream(right):
    main, side = both()
    weight = torch.ones(64, 64, device="cuda", requires_grad=True)
    (weight * 2).sum().backward()
    if right:
        side.wait_stream(main)
    with torch.cuda.stream(side):
        weight.grad.div_(2)
    main.wait_stream(side)


@program("race")
def replay_of_a_graph(right):
    main, side = both()
    x, out = ones(), ones()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        out.copy_(x * 2)  # once before it is captured
    main.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_(x * 2)
    for i in range(2):
        x.fill_(i)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            graph.replay()
        if right:
            main.wait_stream(side)
        out.sum()
        main.wait_stream(side)


@program("freed while in use")
def view_of_a_freed_tensor(right):
    main, side = both()
    x = ones()
    part = x[8:]
    del x
    side.wait_stream(main)
    with torch.cuda.stream(side):
        total = part.sum()
    if right:
        main.wait_stream(side)
    del part
    return total, ones()


@program("freed while in use")
def resized_while_in_use(right):
    main, side = both()
    x = ones()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        total = x.sum()
    if right:
        main.wait_stream(side)
    x.resize_(4 * SIZE)
    return total, ones()


@torch.library.custom_op("segfuse_test::add_one", mutates_args={"out"})
def add_one(x: torch.Tensor, out: torch.Tensor) -> None:
    torch.add(x, 1, out=out)


@program("race")
def custom_operator(right):
    main, side = both()
    x, out = ones(), ones()
    add_one(x, out)
    if right:
        side.wait_stream(main)
    with torch.cuda.stream(side):
        out.sum()
    main.wait_stream(side)


# What cannot be played.

LAUNCHES = """
import triton
import triton.language as tl

@triton.jit
def double(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < count) * 2, mask=at < count)
"""


def kernel_of_triton():
    """It has to lie in a file of its own, as Triton reads its text."""
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "launches.py"), "w") as file:
        file.write(LAUNCHES)
    sys.path.insert(0, folder)
    from launches import double

    return double


@program("race", "Triton")
def launch_of_triton(right):
    double = kernel_of_triton()
    main, side = both()
    x, out = ones(), ones()
    double[(SIZE // 1024,)](x, out, SIZE, BLOCK=1024)
    if right:
        side.wait_stream(main)
    with torch.cuda.stream(side):
        out.sum()
    main.wait_stream(side)


@program("race", "Triton")
def operator_of_triton(right):
    double = kernel_of_triton()

    @torch.library.custom_op("segfuse_test::double", mutates_args=())
    def operator(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        double[(SIZE // 1024,)](x, out, SIZE, BLOCK=1024)
        return out

    main, side = both()
    out = operator(ones())
    if right:
        side.wait_stream(main)
    with torch.cuda.stream(side):
        out.sum()
    main.wait_stream(side)


@program("race", "NCCL")
def collective_without_a_wait(right):
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "nccl", init_method=f"file://{folder}/ranks", rank=0, world_size=1,
            device_id=torch.device("cuda", torch.cuda.current_device()),
        )  # fmt: skip
        bucket = ones()
        work = dist.all_reduce(bucket, async_op=True)
        if right:
            work.wait()
        bucket.sum()
        work.wait()
        torch.cuda.synchronize()
        dist.destroy_process_group()


@program("race", "two GPUs")
def two_devices(right):
    x = ones()
    x.mul_(2)
    y = x.to("cuda:1", non_blocking=True)
    x.add_(1)
    with torch.cuda.device(1):
        main, side = both()
        y.mul_(2)
        if right:
            side.wait_stream(main)
        with torch.cuda.stream(side):
            y.sum()
        main.wait_stream(side)


def missing(function):
    """Why a program cannot run here; empty: it can."""
    if not torch.cuda.is_available():
        return "there is no GPU"
    if function.needs == "two GPUs" and torch.cuda.device_count() < 2:
        return "there is one GPU"
    if function.needs == "NCCL" and not torch.distributed.is_nccl_available():
        return "PyTorch has no NCCL"
    if function.needs == "Triton":
        try:
            import triton  # noqa: F401
        except ImportError:
            return "Triton is not installed"
    return ""


if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]({"faulty": False, "clean": True}[sys.argv[2]])
    torch.cuda.synchronize()
