#!/usr/bin/env python3
"""The workloads of fusion_gpu.cpp in PyTorch (eager and compiled) and JAX, on the first CUDA device.

usage: fusion_gpu_peers.py [sweep | first | dispatch] [PART_OF_A_NAME]

Prints a JSON list of rows for bench/run: the median of seven series of calls that follow each other, and the part of
the package's own copy of 512 MiB in the same run, bytes as if every input were read once and every result written
once. Results are compared with those of the same operations one by one (not JAX's in the sweep, which would compile
each of them). A name ends with its package: "JAX" is a part.

  sweep     the workloads over matrices by the number of columns. After SEGFUSE_BENCH_SECONDS (200) PyTorch compiles
            no more, which is said.
  first     first calls alone: what is compiled may be found in the packages' caches, as their variables say
  dispatch  what a call on a few elements takes the host, instead of ms, timed one by one: the median, and in
            us_low and us_high what a tenth of the calls is below and above

What is not installed or finds no device is left out, and stderr says so.
"""

import json
import os
import signal
import sys
import time

MODES = ("sweep", "first", "dispatch")
MODE = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] in MODES else ""
PART = "".join(sys.argv[2 if MODE else 1 :][:1])
BEGIN = time.monotonic()
SECONDS = float(os.environ.get("SEGFUSE_BENCH_SECONDS", "200"))
ELEMENTS = int(os.environ.get("SEGFUSE_BENCH_ELEMENTS", str(1 << 26)))  # of a matrix in the sweep
MAIN = (32768, 4096)
COLUMNS = (1, 39, 127, 1000, 50257, 152064)
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import peer_programs  # JAX looks at the environment when it is imported


class Torch:
    ways = ("PyTorch eager", "PyTorch compiled")

    def __init__(self):
        import torch

        if not torch.cuda.is_available():
            raise ImportError("PyTorch finds no CUDA device")
        self.torch, self.version = torch, torch.__version__
        self.device = torch.cuda.get_device_name()
        self.dtypes = {"f32": torch.float32, "bf16": torch.bfloat16}
        source = torch.empty(1 << 29, dtype=torch.uint8, device="cuda").fill_(1)
        target = torch.empty_like(source)
        self.copy = lambda: target.copy_(source)

    def programs(self):
        torch, formulas = self.torch, peer_programs.torch_formulas(self.torch)

        def add_norm(x, y, scale, shift):
            z = x + y
            return z, formulas.layer_norm(z, scale, shift)

        def backward(x, g, scale):
            dx, dscale, dshift = formulas.gradients(x.float(), g.float(), scale.float())
            return dx.to(x.dtype), dscale, dshift

        return {
            "pointwise": lambda x, y: torch.tanh(x) * y + torch.maximum(x, y),
            "softmax": lambda x: torch.softmax(x, -1),
            "layer_norm": formulas.layer_norm,
            "rms_norm": formulas.wide(formulas.rms),
            "add_norm": add_norm,
            "layer_norm_backward": backward,
            "instance_norm": lambda x: torch.nn.functional.instance_norm(x),
            "column_sum": lambda x: x.float().sum(0),
            "transpose": lambda x: (x.t() * 0.5).contiguous(),
        }

    def layer(self, x, scale, shift):
        f = self.torch.nn.functional
        return x + f.gelu(f.layer_norm(x, x.shape[-1:], scale, shift))

    def arrays(self, shapes, dtype):
        return [self.torch.randn(s, device="cuda").to(self.dtypes[dtype]) for s in shapes]

    def prepared(self, function, way):
        if way != "PyTorch compiled":
            return function
        if MODE == "sweep" and time.monotonic() - BEGIN > SECONDS:
            return None
        self.torch._dynamo.reset()
        return self.torch.compile(function)

    def wait(self, results=None):
        self.torch.cuda.synchronize()

    def difference(self, a, b):
        a, b = a.float(), b.float()
        return ((a - b).abs() / b.abs().clamp(min=1)).max().item()


class Jax:
    ways = ("JAX",)

    def __init__(self):
        import jax
        import jax.numpy as jnp

        device = jax.devices()[0]
        if device.platform != "gpu" and "SEGFUSE_BENCH_ANY_DEVICE" not in os.environ:
            raise ImportError("JAX finds no CUDA device")
        self.jax, self.jnp, self.version, self.device = (
            jax,
            jnp,
            jax.__version__,
            device.device_kind,
        )
        self.dtypes = {"f32": jnp.float32, "bf16": jnp.bfloat16}
        source = jnp.ones(1 << 29, jnp.uint8)
        self.copy = lambda: jnp.copy(source)
        self.made = 0

    def programs(self):
        jax, jnp, formulas = self.jax, self.jnp, peer_programs.jax_formulas(self.jax, self.jnp)
        wide = formulas.wide

        def add_norm(x, y, scale, shift):
            z = x + y
            return z, formulas.layer_norm(z, scale, shift)

        def backward(x, g, scale):
            dx, dscale, dshift = formulas.gradients(*(a.astype(jnp.float32) for a in (x, g, scale)))
            return dx.astype(x.dtype), dscale, dshift

        return {
            "pointwise": lambda x, y: jnp.tanh(x) * y + jnp.maximum(x, y),
            "softmax": wide(lambda x: jax.nn.softmax(x, -1)),
            "layer_norm": wide(formulas.layer_norm),
            "rms_norm": wide(formulas.rms),
            "add_norm": wide(add_norm),
            "layer_norm_backward": backward,
            "instance_norm": wide(lambda x: formulas.norm(x, (2, 3))),
            "column_sum": lambda x: x.astype(jnp.float32).sum(0),
            "transpose": lambda x: x.T * 0.5,
        }

    def layer(self, x, scale, shift):
        formulas = peer_programs.jax_formulas(self.jax, self.jnp)
        return x + self.jax.nn.gelu(formulas.layer_norm(x, scale, shift), approximate=False)

    def arrays(self, shapes, dtype):
        self.made += 1
        keys = self.jax.random.split(self.jax.random.key(self.made), len(shapes))
        made = [
            self.jax.random.normal(k, s, self.jnp.float32).astype(self.dtypes[dtype])
            for k, s in zip(keys, shapes, strict=True)
        ]
        return self.jax.block_until_ready(made)

    def prepared(self, function, way):
        return self.jax.jit(function)

    def wait(self, results=None):
        self.jax.block_until_ready(results)

    def difference(self, a, b):
        a, b = a.astype(self.jnp.float32), b.astype(self.jnp.float32)
        return float((abs(a - b) / self.jnp.maximum(abs(b), 1)).max())


def shapes_of(name, matrix):
    row = (matrix[1],)
    vectors = {"layer_norm": 2, "rms_norm": 1, "add_norm": 2, "layer_norm_backward": 1}
    matrices = 2 if name in ("pointwise", "add_norm", "layer_norm_backward") else 1
    if name == "instance_norm":
        return [(64, 256, 56, 56)]
    return [matrix] * matrices + [row] * vectors.get(name, 0)


def cases(programs):
    """Label, workload, shapes, type and sizes of all that is to be measured, f32 first."""
    for dtype in ("f32", "bf16"):
        for name in programs:
            if MODE != "sweep":
                yield f"{name}_{dtype}", name, shapes_of(name, MAIN), dtype, {}
            elif name != "instance_norm":
                for columns in COLUMNS:
                    matrix = (ELEMENTS // columns, columns)
                    label = f"{name}_{dtype} {matrix[0]}x{columns}"
                    yield (
                        label,
                        name,
                        shapes_of(name, matrix),
                        dtype,
                        {"workload": f"{name}_{dtype}", "columns": columns},
                    )


def series(peer, call, calls):
    """Seconds of one call when calls follow each other."""
    times = []
    for number in range(8):
        peer.wait()
        begin = time.perf_counter()
        for _ in range(calls):
            results = call()
        peer.wait(results)
        if number > 0:
            times.append((time.perf_counter() - begin) / calls)
    return sorted(times)[len(times) // 2]


def median(peer, call):
    """Twenty calls in a series, fewer where they are slow."""
    once = series(peer, call, 1)
    return series(peer, call, max(1, min(20, int(0.02 / once))))


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


def bytes_of(arrays):
    return sum(a.nbytes for a in arrays)


def first_call(peer, function, way, inputs):
    """What is to be called, its results, and the milliseconds of the first call; nothing if it is left out."""
    begin = time.perf_counter()
    call = peer.prepared(function, way)
    if call is None:
        return None, None, None
    results = call(*inputs)
    peer.wait(results)
    return call, as_tuple(results), 1e3 * (time.perf_counter() - begin)


def row_of(peer, name, **values):
    return {"name": name, "device": peer.device, "version": peer.version, "threads": 1, **values}


def open_compiler(peer):
    """The first call of a process opens compilers; it gets a row of its own."""
    way = peer.ways[-1]
    first = first_call(peer, lambda x: x + x, way, peer.arrays([(4,)], "f32"))[2]
    return row_of(peer, f"a process, x + x on 4 elements, {way}", first_ms=first)


def measured(peer):
    ways = [w for w in peer.ways if any(PART in f"{c[0]}, {w}" for c in cases(peer.programs()))]
    if not ways:
        return
    yield open_compiler(peer)
    copy = (1 << 30) / series(peer, peer.copy, 20)
    for label, name, shapes, dtype, sizes in cases(peer.programs()):
        wanted = [way for way in ways if PART in f"{label}, {way}"]
        if not wanted:
            continue
        function, inputs = peer.programs()[name], peer.arrays(shapes, dtype)
        compared = MODE == "" or (MODE == "sweep" and not isinstance(peer, Jax))
        expected = as_tuple(function(*inputs)) if compared else ()
        for way in wanted:
            call, found, first = first_call(peer, function, way, inputs)
            if call is None:
                print(f"{label}, {way} is left out: {SECONDS:.0f} s are over", file=sys.stderr)
                continue
            if MODE == "first":
                yield row_of(peer, f"first call of {label}, {way}", first_ms=first)
                continue
            errors = [peer.difference(a, b) for a, b in zip(found, expected, strict=False)]
            known = {"error": max(errors)} if errors else {}
            moved = bytes_of(inputs) + bytes_of(found)
            del found
            seconds = median(peer, lambda: call(*inputs))
            yield row_of(
                peer, f"{label}, {way}", ms=1e3 * seconds, reference_ms=1e3 * moved / copy, first_ms=first,
                gb_per_s=moved / seconds / 1e9, copy_gb_per_s=copy / 1e9, of_copy=moved / seconds / copy,
                **known, **sizes,
            )  # fmt: skip


def dispatched(peer):
    four, tiny = (peer.arrays([shape], "f32")[0] for shape in ((4,), (2, 4)))
    programs = {
        "x * y + 1 on 4 elements": (lambda x, y: x * y + 1, (four, four)),
        "layer norm on (2, 4)": (peer.programs()["layer_norm"], (tiny, four, four)),
        "layer norm, GELU and sum on (2, 4)": (peer.layer, (tiny, four, four)),
    }
    for label, (function, inputs) in programs.items():
        for way in peer.ways:
            if PART not in f"{label}, {way}":
                continue
            call, results, _ = first_call(peer, function, way, inputs)
            times = []
            for batch in range(80):
                for _ in range(50):
                    begin = time.perf_counter()
                    results = call(*inputs)
                    if batch >= 20:
                        times.append(1e3 * (time.perf_counter() - begin))
                peer.wait(results)
            times.sort()
            middle = times[len(times) // 2]
            yield row_of(
                peer, f"{label}, {way}", ms=middle, us_low=1e3 * times[len(times) // 10],
                us_high=1e3 * times[len(times) * 9 // 10], reference_ms=middle, error=0.0,
            )  # fmt: skip


def main():
    rows = []

    def stop(number, frame):  # what there is so far is printed
        raise SystemExit(f"stopped by signal {number}")

    signal.signal(signal.SIGTERM, stop)
    try:
        for package, peer in (("PyTorch", Torch), ("JAX", Jax)):
            if any(p in PART for p in ("PyTorch", "JAX")) and package not in PART:
                continue
            try:
                for row in dispatched(peer()) if MODE == "dispatch" else measured(peer()):
                    rows.append(row)
            except (ImportError, RuntimeError) as error:
                print(f"{package} is left out: {error}", file=sys.stderr)
    finally:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
