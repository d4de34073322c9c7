#!/usr/bin/env python3
"""Attention of segfuse.compile, PyTorch (eager and compiled) and JAX, on the CPU, beside each other.

usage: attention_peers.py [THREADS [PART_OF_A_NAME]]

Prints a JSON list of rows for bench/run. Times are of the processor, over the number of threads, the shortest of
several; the packages take turns, so that what else the machine does falls on all of them. reference_ms is PyTorch's
eager scaled_dot_product_attention, written_ms the same formula as products and a softmax in PyTorch.
"""

import json
import os
import sys
import time

THREADS = int(sys.argv[1]) if len(sys.argv) > 1 else 1
PART = sys.argv[2] if len(sys.argv) > 2 else ""
os.environ["OMP_NUM_THREADS"] = os.environ["SEGFUSE_THREADS"] = str(THREADS)
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=" + ("false" if THREADS == 1 else "true")
)

# After the number of threads is set.
import numpy as np
import torch

import segfuse
import segfuse.ops as sf

try:
    import jax
except ImportError:
    jax = None

# Batch, heads, length, width of a head. The last three were chosen after the kernels were written.
SIZES = [
    (2, 8, 512, 64), (1, 4, 4096, 64), (8, 4, 128, 32), (1, 1, 1000, 80), (4, 6, 197, 48), (1, 2, 3001, 128),
]  # fmt: skip
REPEATS = 5


def written(q, k, v, causal):
    s = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return s.softmax(-1) @ v


def ours(q, k, v, causal):
    s = (q @ k.mT) * q.shape[-1] ** -0.5
    if causal:
        rows = sf.arange(s.shape[-2])
        s = sf.where(rows[None, :] <= rows[:, None], s, -np.inf)
    return sf.softmax(s) @ v


def in_torch(function, causal):
    def forward(arrays, g):
        with torch.no_grad():
            return function(*arrays, causal)

    def both(arrays, g):
        leaves = [a.detach().requires_grad_() for a in arrays]
        return torch.autograd.grad(function(*leaves, causal), leaves, g)

    return forward, both


def calls_of(causal, compiled):
    """By package: forward, and forward with the gradients of q, k and v."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    eager = lambda q, k, v, causal: sdpa(q, k, v, is_causal=causal)  # noqa: E731
    forward = segfuse.compile(lambda q, k, v: ours(q, k, v, causal))
    gradients = segfuse.grad(
        lambda q, k, v, g: (ours(q, k, v, causal) * g).sum(), argnums=(0, 1, 2)
    )
    calls = {
        "segfuse": (lambda a, g: forward(*a), lambda a, g: gradients(*a, g)),
        "PyTorch eager": in_torch(eager, causal),
        "PyTorch written": in_torch(written, causal),
    }
    if compiled:  # the same kernel within, and a minute of compiling
        calls["PyTorch compiled"] = in_torch(torch.compile(eager), causal)
    if jax:
        attend = lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=causal)  # noqa: E731
        forward_jax = jax.jit(attend)
        both_jax = jax.jit(
            jax.grad(lambda q, k, v, g: (attend(q, k, v) * g).sum(), argnums=(0, 1, 2))
        )
        wait = jax.block_until_ready
        calls["JAX"] = (lambda a, g: wait(forward_jax(*a)), lambda a, g: wait(both_jax(*a, g)))
    return calls


def rows():
    for sizes in SIZES:
        for causal in (False, True):
            for part in (0, 1):
                name = f"attention {'x'.join(map(str, sizes))}" + (", causal" if causal else "")
                name += ", gradients" if part else ""
                if PART in name:
                    yield from timed(name, sizes, causal, part)


def timed(name, sizes, causal, part):
    torch.manual_seed(1)
    arrays = [torch.randn(sizes) for _ in range(3)]
    g = torch.randn(sizes)
    calls = {package: both[part] for package, both in calls_of(causal, sizes in SIZES[:2]).items()}
    best = dict.fromkeys(calls, float("inf"))
    for turn in range(REPEATS + 1):
        for package, call in calls.items():
            given, upstream = arrays, g
            if package == "JAX":  # (B, T, H, D)
                given, upstream = (
                    [jax.numpy.asarray(a.transpose(1, 2).numpy()) for a in arrays],
                    jax.numpy.asarray(g.transpose(1, 2).numpy()),
                )
            begin = time.process_time()
            call(given, upstream)
            if turn:  # the first compiles
                best[package] = min(best[package], 1e3 * (time.process_time() - begin) / THREADS)
    for package, ms in best.items():
        print(f"{name} {package}: {ms:.2f} ms", file=sys.stderr)
        yield {
            "name": name, "device": f"cpu, {package}", "threads": THREADS, "ms": ms, "error": 0,
            "reference_ms": best["PyTorch eager"], "written_ms": best["PyTorch written"],
        }  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    print(json.dumps(list(rows()), indent=1))
