"""PyTorch's CUDA memory from its own allocators and from segfuse's: one line of JSON for each part.

usage: torch_memory.py ALLOCATOR PART...
       torch_memory.py compare [ROUNDS]

ALLOCATOR: default, record (default, with record_stream), expandable, async or segfuse.
PART: story[:RUNS[:SECONDS]], pair, robson[:KIB], streams, transformer, convolutions.

compare: the trainings and the pair, with one process for each allocator. They take turns, so that
what slows the machine for a while slows all of them.
"""

import gc
import json
import os
import statistics
import subprocess
import sys
import time

ALLOCATORS = ("default", "record", "expandable", "async", "segfuse")


def compare(rounds=7):
    servers = {
        name: subprocess.Popen(
            [sys.executable, __file__, name, "serve"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )
        for name in ALLOCATORS
    }  # fmt: skip

    def ask(name, *words):
        print(*words, file=servers[name].stdin, flush=True)
        return json.loads(servers[name].stdout.readline())

    # The host limits the convolutions, and their times vary most.
    for part, steps, turns in (
        ("pair", 1, rounds), ("streams", 25, rounds), ("transformer", 30, rounds),
        ("convolutions", 40, 4 * rounds),
    ):  # fmt: skip
        names = [n for n in ALLOCATORS if part == "streams" or n != "record"]
        for name in names:
            ask(name, "begin", part)
        times = {name: [] for name in names}
        for turn in range(turns):
            for name in names[turn % len(names):] + names[: turn % len(names)]:  # fmt: skip
                times[name].append(ask(name, "go", steps))
        for name in names:
            seen = ask(name, "end")
            if part != "pair":
                ratios = [t / d for t, d in zip(times[name], times["default"], strict=True)]
                seen |= {"ms": statistics.median(times[name]), "least": min(times[name]),
                         "of default's": statistics.median(ratios), "times": times[name]}  # fmt: skip
            else:
                seen = {size: [min(of), statistics.median(of)] for size in times[name][0]
                        for of in [[t[size] for t in times[name]]]}  # fmt: skip
            print(json.dumps({"allocator": name, "part": part, **seen}), flush=True)
    for server in servers.values():
        server.stdin.close()
    return max(server.wait() for server in servers.values())


if sys.argv[1] == "compare":
    sys.exit(compare(*map(int, sys.argv[2:])))

CHOICE = sys.argv[1]
CONFIG = {"expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}
if CHOICE in CONFIG:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = CONFIG[CHOICE]

import torch
from torch import nn

from segfuse.torch import allocator

if CHOICE == "segfuse":
    allocator.enable()

MIB = 1 << 20


def reset():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    if CHOICE == "segfuse":
        allocator.reset_peaks()
    else:
        torch.cuda.reset_peak_memory_stats()


def memory():
    """Most that was held, and the largest sum of what was asked for where that is known; in MiB."""
    if CHOICE == "segfuse":
        return {"held": allocator.statistics()["peak_held"] / MIB}
    return {
        "held": torch.cuda.max_memory_reserved() / MIB,
        "allocated": torch.cuda.max_memory_allocated() / MIB,
    }


def story_once(count, recorded):
    side = torch.cuda.Stream()
    table = torch.arange(count, device="cuda", dtype=torch.float32)
    indices = torch.arange(count, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        slow = torch.ones(2048, 2048, device="cuda")
        for _ in range(20):
            slow = torch.mm(slow, slow) * 1e-4
        out = table[indices]
        if recorded:
            indices.record_stream(side)
    del indices
    poison = torch.zeros(count, device="cuda", dtype=torch.int64)
    torch.cuda.synchronize()
    wrong = (out != table).sum().item()
    del poison
    return wrong


def story(runs=20, seconds=60):
    count, done, wrong, bad = 1 << 20, 0, 0, 0
    begin = time.perf_counter()
    while done < runs and time.perf_counter() - begin < seconds:
        found = story_once(count, CHOICE == "record")
        done, wrong, bad = done + 1, wrong + found, bad + (found > 0)
    return {"runs": done, "bad runs": bad, "wrong": wrong, "of": done * count, **memory()}


def pair_of(shape, repeats=10000):
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(repeats):
            torch.empty(shape, device="cuda")
        best = min(best, (time.perf_counter() - begin) / repeats)
    return best * 1e6


def pair():
    """Microseconds of an allocation and its free from Python, the best of three."""
    sizes = {"1 KiB": 256, "256 KiB": 1 << 16, "8 MiB": 1 << 21}
    found = {name: pair_of(shape) for name, shape in sizes.items()}
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        kept = torch.ones(10, device="cuda")
    torch.cuda.synchronize()
    found["1 KiB, second stream idle"] = pair_of(256)
    with torch.cuda.stream(side):
        found["1 KiB, on the second stream"] = pair_of(256)
    del kept
    return found


def robson(kib=1024):
    """Blocks fill 512 MiB; again and again every second one is freed and twice the size wanted."""
    size, total, live, used, most = kib << 10, 512 * MIB, [], 0, 0
    for _ in range(7):
        while used + size <= total:
            live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            used += size
        torch.cuda.synchronize()
        most = max(most, used)
        live, size = live[::2], 2 * size
        used = sum(map(torch.numel, live))
    return {"smallest KiB": kib, "held over live": memory()["held"] * MIB / most}


class Training:
    """Steps of a training; the first ones are not measured."""

    def __init__(self, make):
        self.step, self.done = make(), 0
        self.run(8)
        self.before = counts()

    def run(self, count):
        """Milliseconds a step."""
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            self.loss = self.step(self.done)
            self.done += 1
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / count * 1e3

    def result(self):
        since = {name: count - self.before[name] for name, count in counts().items()}
        return {"steps": self.done, "loss": self.loss.item(), **memory(), **since}


def counts():
    """Of waits and growth, where that is known."""
    names = ("grown", "waits", "host_waits") if CHOICE == "segfuse" else ()
    return {name: allocator.statistics()[name] for name in names}


def streams():
    """Batches are copied and prepared on one stream while another one trains."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(2048, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 10)
    ).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    data = [torch.randn(8192, 2048).pin_memory() for _ in range(4)]
    target = torch.randint(0, 10, (8192,), device="cuda")
    prepare, main = torch.cuda.Stream(), torch.cuda.current_stream()

    def step(i):
        with torch.cuda.stream(prepare):
            batch = data[i % 4].to("cuda", non_blocking=True)
            batch = (batch - batch.mean(0)) / (batch.std(0) + 1e-5)
            if CHOICE == "record":
                batch.record_stream(main)
        main.wait_stream(prepare)
        loss = nn.functional.cross_entropy(net(batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def transformer():
    torch.manual_seed(0)
    net = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True), 4
    ).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    sizes = (128, 256, 192, 384, 64)
    inputs = [torch.randn(32, t, 512, device="cuda") for t in sizes]

    def step(i):
        x = inputs[i % len(inputs)]
        loss = (net(x) - x.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def convolutions():
    torch.manual_seed(0)
    layers, channels = [], 3
    for width in (64, 128, 256, 256):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
                   nn.MaxPool2d(2)]  # fmt: skip
        channels = width
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    sizes = (32, 64, 48, 96)
    inputs = [torch.randn(64, 3, s, s, device="cuda") for s in sizes]
    target = torch.randint(0, 10, (64,), device="cuda")

    def step(i):
        loss = nn.functional.cross_entropy(net(inputs[i % 4]), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


PARTS = {f.__name__: f for f in (story, pair, robson)}
TRAININGS = {f.__name__: f for f in (streams, transformer, convolutions)}


def train(name):
    training = Training(TRAININGS[name])
    return {"ms": training.run(30), **training.result()}


def serve():
    """Answers `begin PART`, `go STEPS` and `end`, each with a line of JSON."""
    run = result = None
    for line in sys.stdin:
        word, *of = line.split()
        answer = None
        if word == "begin":
            reset()
            training = None if of[0] == "pair" else Training(TRAININGS[of[0]])
            run, result = (lambda _: pair(), dict) if training is None else (
                training.run, training.result)  # fmt: skip
        elif word == "go":
            answer = run(int(of[0]))
        else:
            answer, run, result, training = result(), None, None, None
        print(json.dumps(answer), flush=True)


def main():
    if sys.argv[2:] == ["serve"]:
        serve()
        return
    for part in sys.argv[2:]:
        name, *numbers = part.split(":")
        reset()
        result = train(name) if name in TRAININGS else PARTS[name](*map(int, numbers))
        line = {"card": torch.cuda.get_device_name(), "allocator": CHOICE, "part": name, **result}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
