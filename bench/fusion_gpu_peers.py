#!/usr/bin/env python3
"""The workloads of fusion_gpu.cpp in PyTorch, eager and compiled, on the first CUDA device.

usage: fusion_gpu_peers.py [PART_OF_A_NAME]

Prints a JSON list of rows for bench/run: the median of seven series of calls that follow each other, and the part of
PyTorch's own copy of 512 MiB in the same run, bytes as if every input were read once and every result written once.
Compiled results are compared with eager ones. Without PyTorch or a device the list is empty, and stderr says why.
"""
import json
import sys
import time

PART = sys.argv[1] if len(sys.argv) > 1 else ""
ROWS, COLUMNS = 32768, 4096


def programs(torch):
    f = torch.nn.functional

    def rms(x, scale):
        w = x.float()
        return (w * torch.rsqrt((w * w).mean(1, keepdim=True) + 1e-6) * scale.float()).to(x.dtype)

    def layer_norm(x, scale, shift):
        return f.layer_norm(x, (x.shape[1],), scale, shift)

    def add_norm(x, y, scale, shift):
        z = x + y
        return z, f.layer_norm(z, (x.shape[1],), scale, shift)

    def backward(x, g, scale):
        w, h = x.float(), g.float()
        mean, var = w.mean(1, keepdim=True), w.var(1, keepdim=True, correction=0)
        r = torch.rsqrt(var + 1e-5)
        n = (w - mean) * r
        hs = h * scale.float()
        dx = r * (hs - hs.mean(1, keepdim=True) - n * (hs * n).mean(1, keepdim=True))
        return dx.to(x.dtype), (h * n).sum(0), h.sum(0)

    def instance_norm(x):
        return f.instance_norm(x)

    matrix, row = (ROWS, COLUMNS), (COLUMNS,)
    return {
        "pointwise": (lambda x, y: torch.tanh(x) * y + torch.maximum(x, y), [matrix, matrix]),
        "softmax": (lambda x: torch.softmax(x, -1), [matrix]),
        "layer_norm": (layer_norm, [matrix, row, row]),
        "rms_norm": (rms, [matrix, row]),
        "add_norm": (add_norm, [matrix, matrix, row, row]),
        "layer_norm_backward": (backward, [matrix, matrix, row]),
        "instance_norm": (instance_norm, [(64, 256, 56, 56)]),
        "column_sum": (lambda x: x.float().sum(0), [matrix]),
        "transpose": (lambda x: (x.t() * 0.5).contiguous(), [matrix]),
    }


def median(torch, call, calls=20):
    times = []
    for series in range(8):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        if series > 0:
            times.append((time.perf_counter() - begin) / calls)
    return sorted(times)[len(times) // 2]


def bytes_of(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def main():
    try:
        import torch
    except ImportError as error:
        print(f"PyTorch is left out: {error}", file=sys.stderr)
        return []
    if not torch.cuda.is_available():
        print("PyTorch is left out: it finds no CUDA device", file=sys.stderr)
        return []
    source = torch.empty(1 << 29, dtype=torch.uint8, device="cuda").fill_(1)
    target = torch.empty_like(source)
    copy = 2 * source.numel() / median(torch, lambda: target.copy_(source))
    rows = []
    for dtype, suffix in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
        for name, (function, shapes) in programs(torch).items():
            label = f"{name}_{suffix}"
            if PART not in label:
                continue
            inputs = [torch.randn(s, device="cuda", dtype=torch.float32).to(dtype) for s in shapes]
            expected = function(*inputs)
            expected = expected if isinstance(expected, tuple) else (expected,)
            moved = bytes_of(inputs) + bytes_of(expected)
            for how in ("eager", "compiled"):
                torch._dynamo.reset()
                begin = time.perf_counter()
                call = function if how == "eager" else torch.compile(function)
                found = call(*inputs)
                torch.cuda.synchronize()
                first = time.perf_counter() - begin
                found = found if isinstance(found, tuple) else (found,)
                error = max(
                    ((a.float() - b.float()).abs() / b.float().abs().clamp(min=1)).max().item()
                    for a, b in zip(found, expected)
                )
                del found
                seconds = median(torch, lambda: call(*inputs))
                rows.append(
                    {
                        "name": f"{label}, PyTorch {how}",
                        "device": torch.cuda.get_device_name(),
                        "version": torch.__version__,
                        "threads": 1,
                        "ms": 1e3 * seconds,
                        "reference_ms": 1e3 * moved / copy,
                        "first_ms": 1e3 * first,
                        "gb_per_s": moved / seconds / 1e9,
                        "copy_gb_per_s": copy / 1e9,
                        "of_copy": moved / seconds / copy,
                        "error": error,
                    }
                )
            del inputs, expected
    return rows


if __name__ == "__main__":
    print(json.dumps(main(), indent=1))
