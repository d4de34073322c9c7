#!/usr/bin/env python3
"""The workloads of fusion.cpp in PyTorch (eager and compiled) and JAX, on the CPU.

usage: fusion_peers.py [THREADS [PART_OF_A_NAME]]

Prints a JSON list of rows for bench/run. Times are of the processor, over the number of threads, the shortest of
several; reference_ms is a copy of as many bytes by the same package. What is not installed is left out, and said.
"""

import json
import os
import sys
import time

THREADS = int(sys.argv[1]) if len(sys.argv) > 1 else 1
PART = sys.argv[2] if len(sys.argv) > 2 else ""
os.environ["OMP_NUM_THREADS"] = str(THREADS)
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=" + ("false" if THREADS == 1 else "true")
)

# After the number of threads is set.
import numpy as np

import peer_programs

ROWS, COLUMNS, IMAGE = 4096, 4096, 56 * 56


def best(call, repeats=7):
    call()
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        call()
        times.append(1e3 * (time.process_time() - begin) / THREADS)
    return min(times)


def torch_programs(torch):
    formulas = peer_programs.torch_formulas(torch)
    wide = formulas.wide
    return {
        "pointwise": ("mv", wide(lambda x, b: torch.nn.functional.silu(x + b))),
        "softmax": ("m", wide(lambda x: torch.softmax(x, -1))),
        "layer norm": ("mvv", wide(formulas.layer_norm)),
        "RMS norm": ("mv", wide(formulas.rms)),
        "add and norm": ("mmv", wide(lambda x, r, s: (x + r, formulas.rms(x + r, s)))),
        "layer norm backward": ("mvvm", wide(lambda x, s, t, g: formulas.gradients(x, g, s))),
        "column sum": ("m", wide(lambda x: x.sum(0))),
        "transpose and scale": ("m", wide(lambda x: (x.t() * 0.5).contiguous())),
        "instance norm": ("m", wide(formulas.layer_norm)),
    }


def jax_programs(jnp, jax):
    formulas = peer_programs.jax_formulas(jax, jnp)

    def wide(function):
        return jax.jit(formulas.wide(function))

    def backward(x, scale, shift, g):
        return jax.vjp(formulas.layer_norm, x, scale, shift)[1](g)

    return {
        "pointwise": ("mv", wide(lambda x, b: jax.nn.silu(x + b))),
        "softmax": ("m", wide(lambda x: jax.nn.softmax(x, -1))),
        "layer norm": ("mvv", wide(formulas.layer_norm)),
        "RMS norm": ("mv", wide(formulas.rms)),
        "add and norm": ("mmv", wide(lambda x, r, s: (x + r, formulas.rms(x + r, s)))),
        "layer norm backward": ("mvvm", wide(backward)),
        "column sum": ("m", wide(lambda x: x.sum(0))),
        "transpose and scale": ("m", wide(lambda x: x.T * 0.5)),
        "instance norm": ("m", wide(formulas.norm)),
    }


def arrays_for(kinds, columns, rng):
    shapes = {"m": (ROWS, columns), "v": (columns,)}
    return [rng.uniform(-2, 2, shapes[kind]).astype("f4") for kind in kinds]


def row(name, peer, ms, copy, first=None):
    made = {"name": name, "device": f"cpu, {peer}", "threads": THREADS, "ms": ms, "error": 0,
            "reference_ms": copy, "of_copy": copy / ms}  # fmt: skip
    return made if first is None else {**made, "first_ms": first}


def named(programs):
    for name, (kinds, program) in programs.items():
        columns = IMAGE if name == "instance norm" else COLUMNS
        for dtype in ("f32", "bf16"):
            full = f"{name} {dtype} {ROWS}x{columns}"
            if PART in full:
                yield full, kinds, columns, dtype, program


def first_of(call):
    begin = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - begin)


def torch_rows():
    import torch

    torch.set_num_threads(THREADS)
    rng = np.random.default_rng(1)
    for name, kinds, columns, dtype, program in named(torch_programs(torch)):
        arrays = [torch.from_numpy(a) for a in arrays_for(kinds, columns, rng)]
        if dtype == "bf16":
            arrays = [a.bfloat16() for a in arrays]
        with torch.no_grad():
            written = sum(r.nbytes for r in program(*arrays))
            half = torch.ones((written + sum(a.nbytes for a in arrays)) // 8)
            target = torch.ones_like(half)
            copy = best(lambda: target.copy_(half))
            yield row(name, "PyTorch eager", best(lambda: program(*arrays)), copy)
            torch._dynamo.reset()
            compiled = torch.compile(program)
            first = first_of(lambda: compiled(*arrays))
            yield row(name, "PyTorch compiled", best(lambda: compiled(*arrays)), copy, first)


def jax_rows():
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(1)
    for name, kinds, columns, dtype, program in named(jax_programs(jnp, jax)):
        arrays = [
            jnp.asarray(a, jnp.bfloat16 if dtype == "bf16" else jnp.float32)
            for a in arrays_for(kinds, columns, rng)
        ]
        first = first_of(lambda: jax.block_until_ready(program(*arrays)))
        written = sum(r.nbytes for r in program(*arrays))
        half = np.ones((written + sum(a.nbytes for a in arrays)) // 8, "f4")
        target = np.ones_like(half)
        copy = best(lambda: np.copyto(target, half))
        yield row(name, "JAX", best(lambda: jax.block_until_ready(program(*arrays))), copy, first)


def main():
    rows = []
    for name, peer in (("PyTorch", torch_rows), ("JAX", jax_rows)):
        try:
            rows += list(peer())
        except ImportError:
            print(f"fusion: {name} is not installed", file=sys.stderr)
    print(json.dumps(rows))


main()
