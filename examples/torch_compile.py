"""A model of plain PyTorch through segfuse: torch.compile(model, backend="segfuse").

    pip install . torch && python examples/torch_compile.py

Trains a small transformer block for a few steps beside eager PyTorch, with sequences of many
lengths and no second compilation, and prints what ran where.
"""

import argparse
import copy
import time

import torch
from torch import nn

import segfuse.torch


class Block(nn.Module):
    """Causal attention and a gated layer, each behind a norm."""

    def __init__(self, width=64, heads=4):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = nn.Linear(width, 3 * width)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down, self.heads = nn.Linear(2 * width, width), heads

    def forward(self, x):
        rows, frames, width = x.shape
        parts = self.attention(self.norms[0](x)).view(rows, frames, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + y.transpose(1, 2).reshape(rows, frames, width)
        y = self.norms[1](x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def train(step, model, lengths):
    """The losses, and the milliseconds of the steps after the first two."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, times = [], []
    for frames in lengths:
        x = torch.randn(4, frames, 64, generator=generator)
        begin = time.perf_counter()
        means = x.cumsum(1) / torch.arange(1, frames + 1)[:, None]
        optimizer.zero_grad()
        loss = (step(x) - means).square().mean()
        loss.backward()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - begin))
        losses.append(loss.item())
    return losses, times[2:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    model = Block()
    twin = copy.deepcopy(model)
    print(segfuse.torch.explain(model, torch.randn(4, 33, 64)))

    lengths = [30 + 7 * (i % 10) for i in range(steps)]
    compiled = torch.compile(model, backend="segfuse", dynamic=True)
    losses, times = train(compiled, model, lengths)
    expected, eager_times = train(twin, twin, lengths)
    error = max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))
    print(f"losses: {losses[0]:.4f} -> {losses[-1]:.4f}, largest difference {error:.2g}")
    assert error < 1e-3
    middle = len(times) // 2
    print(f"a step: {sorted(times)[middle]:.3g} ms, eager {sorted(eager_times)[middle]:.3g} ms")


if __name__ == "__main__":
    main()
