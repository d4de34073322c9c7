#!/usr/bin/env python3
"""What compiled functions cost on a GPU from Python, beside PyTorch's eager operations and torch.compile.

usage: calls_gpu_peers.py

Prints a table. Dispatch is the host's time of a call on tiny tensors that nothing waits for; the other
rows are the device's time of a call when calls follow each other, the least of seven series.
"""
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


def host_us(call, number=2000):
    best = np.inf
    for _ in range(7):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(number):
            call()
        best = min(best, (time.perf_counter() - begin) / number)
        torch.cuda.synchronize()
    return 1e6 * best


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


def compare(name, ours, theirs, call_of, time_of, unit):
    """A row; call_of(function) is what is timed."""
    times = [time_of(call_of(ours)), time_of(call_of(theirs))]
    try:
        times.append(time_of(call_of(torch.compile(theirs))))
    except Exception as error:  # what torch.compile cannot do here is told, and left out
        print(f"torch.compile: {type(error).__name__}: {str(error).splitlines()[0]}")
    cells = " | ".join(f"{t:.4g}" for t in times)
    print(f"| {name} | {cells} | {unit} |", flush=True)


def main():
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, segfuse {segfuse.__version__}")
    print("| call | segfuse | PyTorch | torch.compile | |\n|---|---|---|---|---|")
    norm, both = segfuse.compile(layer_norm), segfuse.compile(layer)
    four, tiny = torch.full((4,), 0.5, device="cuda"), torch.randn(2, 4, device="cuda")
    point = segfuse.compile(lambda x, y: x * y + 1)
    compare(
        "x * y + 1 on 4 elements", point, lambda x, y: x * y + 1,
        lambda f: lambda: f(four, four), host_us, "us, host",
    )  # fmt: skip
    compare(
        "layer norm, GELU, sum on (2, 4)", both, torch_layer,
        lambda f: lambda: f(tiny, four, four), host_us, "us, host",
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
            print(f"largest error of {name}, {label}: {error:.2g}")
            compare(
                f"{name} on {label}", ours, theirs,
                lambda f: lambda: f(x, scale, shift), device_ms, "ms",
            )  # fmt: skip
        compare(
            f"layer norm, GELU, sum on {label}, forward and backward", both, torch_layer,
            lambda f: trained(f, x, scale, shift), device_ms, "ms",
        )  # fmt: skip


if __name__ == "__main__":
    main()
