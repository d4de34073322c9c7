"""A residual layer (layer norm, GELU, sum) as one compiled program, beside NumPy and PyTorch.

    pip install . && python examples/fused_layer.py

Writes the function once, compares values and gradients, and says how long each takes.
"""

import argparse
import math
import time

import numpy as np

import segfuse
import segfuse.ops as sf


def layer(x, scale, shift):
    """x + gelu(layer_norm(x)), x (B, T, C)."""
    return x + sf.gelu(sf.layer_norm(x, scale, shift))


def in_numpy(x, scale, shift):
    erf = np.vectorize(math.erf, otypes=[x.dtype])
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    y = (x - mean) / np.sqrt(var + 1e-5) * scale + shift
    return x + y * (1 + erf(y / math.sqrt(2))) / 2


def milliseconds(function, *args):
    function(*args)
    times = []
    while len(times) < 5 or (sum(times) < 0.5 and len(times) < 100):
        begin = time.perf_counter()
        function(*args)
        times.append(time.perf_counter() - begin)
    return 1e3 * sorted(times)[len(times) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=1000)
    frames = parser.parse_args().frames
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, frames, 256)).astype("float32")
    scale, shift = (rng.normal(size=256).astype("float32") for _ in range(2))

    compiled = segfuse.compile(layer)
    y = compiled(x, scale, shift)
    error = float(abs(y[:, :10] - in_numpy(x[:, :10], scale, shift)).max())
    print(f"values: largest difference from NumPy {error:.2g}")
    assert error < 1e-4
    compiled(x[:, : frames // 2], scale, shift)  # another size, the same trace
    print(f"traces: {compiled.cache_info().traces}")

    gradient = segfuse.grad(lambda *args: (layer(*args) ** 2).mean(), argnums=(0, 1))
    by_x, by_scale = gradient(x, scale, shift)
    print(f"gradients: {by_x.shape} and {by_scale.shape}")
    print(f"segfuse: {milliseconds(compiled, x, scale, shift):.3g} ms")

    try:
        import torch
    except ImportError:
        return
    tensors = [torch.from_numpy(a) for a in (x, scale, shift)]

    def in_torch(x, scale, shift):
        f = torch.nn.functional
        return x + f.gelu(f.layer_norm(x, (256,), scale, shift))

    leaf = tensors[0].clone().requires_grad_()
    (in_torch(leaf, *tensors[1:]) ** 2).mean().backward()
    error = float(abs(leaf.grad.numpy() - by_x).max() / abs(by_x).max())
    print(f"gradients: largest difference from PyTorch {error:.2g}")
    assert error < 1e-3
    print(
        f"PyTorch: {milliseconds(in_torch, *tensors):.3g} ms on {torch.get_num_threads()} threads"
    )


if __name__ == "__main__":
    main()
