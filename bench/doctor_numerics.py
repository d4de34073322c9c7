"""What `segfuse doctor numerics` costs a training step of a transformer: one line of JSON a mode.

usage: doctor_numerics.py [--device cuda|cpu] [--modes alone,bounds] [--profile] [WIDTH/BATCH ...]

Modes: alone, all (every result is read), bounds (results that are proven finite are not read). The
modes take turns, and each time is the median of its rounds. `waits_ms` is how long the host waits
for the magnitudes at the end of a step: near 0 the host is what takes long. With --profile a step
of each mode has the sums of its kernels.
"""

import argparse
import contextlib
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

import segfuse.torch
from segfuse.torch._watch import compiled, numerics

LAYERS, POSITIONS, WORDS = 6, 512, 4096
MODES = ("alone", "all", "bounds")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(width // 64, 1)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.positions = nn.Parameter(torch.zeros(POSITIONS, width))
        self.blocks = nn.Sequential(*[Block(width) for _ in range(LAYERS)])
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, words):
        x = self.words(words) + self.positions[: words.shape[1]]
        return self.scores(self.norm(self.blocks(x)))


class Training:
    def __init__(self, device, width, batch, length):
        torch.manual_seed(0)
        self.device = device
        self.model = Transformer(width).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        self.words = torch.randint(WORDS, (batch, length), device=device)

    def step(self):
        self.optimizer.zero_grad()
        with torch.autocast(self.device, torch.bfloat16):
            scores = self.model(self.words)
            loss = F.cross_entropy(scores.flatten(0, 1), self.words.flatten())
        loss.backward()
        self.optimizer.step()


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


@contextlib.contextmanager
def watched(mode, device):
    """Gives a function that tells the recorder's counts, and the seconds it has waited."""
    if mode == "alone":
        yield lambda: ((0, 0, 0, 0), 0.0)
        return
    read_less = compiled.EVERYWHERE if device == "cpu" else compiled.DEVICES
    compiled.BOUNDS = read_less if mode == "bounds" else compiled.UNBOUNDED
    recorder, note = compiled.compiled_here()
    if recorder is None:
        raise SystemExit(note)
    waited = [0.0]

    class Timed:
        def __getattr__(self, name):
            return getattr(recorder, name)

        def finish(self):
            before = time.perf_counter()
            recorder.finish()
            waited[0] += time.perf_counter() - before

    with segfuse.torch.check_numerics(raises=False) as watch:
        watch._watch.looks._recorder = Timed()
        yield lambda: (recorder.counts(), waited[0])
    if watch.findings:
        raise SystemExit(watch.report())


def kernels(training):
    """Milliseconds of a step by kernel, the longest first."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        training.step()
        synchronize(training.device)
    sums = {e.key: e.device_time_total / 1e3 for e in profile.key_averages()}
    longest = sorted(sums.items(), key=lambda item: -item[1])
    return {
        "kernels_ms": round(sum(sums.values()), 3),
        "launches": sum(e.count for e in profile.key_averages()),
        "magnitudes_ms": round(sum(v for k, v in sums.items() if "magnitudes" in k), 3),
        "magnitudes_launches": sum(
            e.count for e in profile.key_averages() if "magnitudes" in e.key
        ),
        "longest": {k[:60]: round(v, 3) for k, v in longest[:8]},
    }


def measure(device, width, batch, options):
    training = Training(device, width, batch, options.length)
    for _ in range(3):
        training.step()
    modes = options.modes.split(",")
    rows = {mode: {"width": width, "batch": batch, "mode": mode, "ms": []} for mode in modes}
    for turn in range(options.rounds):
        for mode in modes:
            row = rows[mode]
            with watched(mode, device) as told:
                for _ in range(3):
                    training.step()
                synchronize(device)
                if device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                (proven, pending, read, read_bytes), waits = told()
                before = time.perf_counter()
                for _ in range(options.steps):
                    training.step()
                enqueued = time.perf_counter()
                synchronize(device)
                after = time.perf_counter()
                counts, waited = told()
                row["ms"].append((after - before) * 1e3 / options.steps)
                row["enqueue_ms"] = round((enqueued - before) * 1e3 / options.steps, 3)
                row["waits_ms"] = round((waited - waits) * 1e3 / options.steps, 3)
                row["proven"] = (counts[0] - proven) / options.steps
                row["pending"] = (counts[1] - pending) / options.steps
                row["read"] = (counts[2] - read) / options.steps
                row["read_gb"] = round((counts[3] - read_bytes) / options.steps / 1e9, 4)
                if device == "cuda":
                    row["mib"] = torch.cuda.max_memory_allocated() >> 20
                if options.profile and turn == 0 and device == "cuda":
                    row |= kernels(training)
    alone = statistics.median(rows["alone"]["ms"])
    for row in rows.values():
        times = row["ms"]
        row["ms"] = round(statistics.median(times), 3)
        row["ms_least_most"] = [round(min(times), 3), round(max(times), 3)]
        row["ratio"] = round(row["ms"] / alone, 3)
        print(json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--length", type=int, default=POSITIONS)
    parser.add_argument("sizes", nargs="*", default=["512/8", "1024/32", "2048/32"])
    options = parser.parse_args()
    numerics.wants_compiled = lambda: True
    if options.device == "cuda":
        print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__}))
    for size in options.sizes:
        width, batch = map(int, size.split("/"))
        measure(options.device, width, batch, options)


if __name__ == "__main__":
    main()
