#!/usr/bin/env python3
"""What compiled functions cost on a GPU from Python, beside PyTorch's eager operations and torch.compile.

usage: calls_gpu_peers.py

Prints a JSON list of rows for bench/run, reference_ms being PyTorch's eager operations. "host" is the host's time of a
call on tiny tensors that nothing waits for; the others are the device's time of a call when calls follow each other,
the least of seven series.
"""

import json
import sys
import time

import numpy as np
import torch

import segfuse
import segfuse.ops as sf

functional = torch.nn.functional


def layer_norm(x, scale, shift):
    return sf.layer_norm(x, scale, shift)


def torch_layer_norm(x, scale, shift):
    return functional.layer_norm(x, x.shape[-1:], scale, shift)


def layer(x, scale, shift):
    return x + sf.gelu(sf.layer_norm(x, scale, shift))


def torch_layer(x, scale, shift):
    return x + functional.gelu(functional.layer_norm(x, x.shape[-1:], scale, shift))


def host_ms(call, number=2000):
    best = np.inf
    for _ in range(7):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(number):
            call()
        best = min(best, (time.perf_counter() - begin) / number)
        torch.cuda.synchronize()
    return 1e3 * best


def device_ms(call, number=20):
    call()
    best = np.inf
    for _ in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(number):
            call()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / number)
    return best


def trained(function, x, scale, shift):
    """Forward and backward, by PyTorch's autograd."""
    leaves = [t.detach().requires_grad_() for t in (x, scale, shift)]
    seed = torch.randn_like(x)

    def call():
        return torch.autograd.grad(function(*leaves), leaves, seed)

    return call


def compare(rows, name, ours, theirs, call_of, time_of, error=0.0):
    """A row; call_of(function) is what is timed."""
    made = {"name": name, "device": torch.cuda.get_device_name(), "version": torch.__version__, "threads": 1,
            "ms": time_of(call_of(ours)), "reference_ms": time_of(call_of(theirs)), "error": error}  # fmt: skip
    try:
        made["compiled_ms"] = time_of(call_of(torch.compile(theirs)))
    except Exception as failure:  # what torch.compile cannot do here is reported, and left out
        print(
            f"torch.compile: {type(failure).__name__}: {str(failure).splitlines()[0]}",
            file=sys.stderr,
        )
    rows.append(made)


def main():
    rows = []
    norm, both = segfuse.compile(layer_norm), segfuse.compile(layer)
    four, tiny = torch.full((4,), 0.5, device="cuda"), torch.randn(2, 4, device="cuda")
    point = segfuse.compile(lambda x, y: x * y + 1)
    compare(
        rows, "Python: x * y + 1 on 4 elements, host", point, lambda x, y: x * y + 1,
        lambda f: lambda: f(four, four), host_ms,
    )  # fmt: skip
    compare(
        rows, "Python: layer norm, GELU, sum on (2, 4), host", both, torch_layer,
        lambda f: lambda: f(tiny, four, four), host_ms,
    )  # fmt: skip
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(32768, 4096, device="cuda").to(dtype)
        scale, shift = (torch.randn(4096, device="cuda").to(dtype) for _ in range(2))
        wide = [t.double() for t in (x[:64], scale, shift)]
        label = f"32768 x 4096, {str(dtype)[6:]}"
        for name, ours, theirs in (
            ("layer norm", norm, torch_layer_norm), ("layer norm, GELU, sum", both, torch_layer)
        ):  # fmt: skip
            error = (ours(x[:64], scale, shift).double() - theirs(*wide)).abs().max().item()
            compare(
                rows, f"Python: {name} on {label}", ours, theirs,
                lambda f: lambda: f(x, scale, shift), device_ms, error,
            )  # fmt: skip
        compare(
            rows, f"Python: layer norm, GELU, sum on {label}, forward and backward", both, torch_layer,
            lambda f: trained(f, x, scale, shift), device_ms,
        )  # fmt: skip
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
