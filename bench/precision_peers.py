"""The training step of segfuse_bench_precision in PyTorch, with segfuse's CRF behind the encoder, and
products of float32 in torch.compile: eager, Inductor and segfuse.

    precision_peers.py step EAGER_OR_COMPILE      a row for each precision
    precision_peers.py products                   four MLP blocks, forward and backward, in TF32
"""

import json
import sys
import time
from contextlib import nullcontext

import torch
from torch import nn

from segfuse.torch import SemiMarkovCRF

ROWS, FRAMES, WIDTH, FEATURES, CLASSES, LONGEST = 32, 1000, 512, 80, 45, 40


class Attention(nn.Module):
    def __init__(self, heads=8):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (
            layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        y = self.out(y.transpose(1, 2).flatten(2))
        return x + nn.functional.dropout(y, 0.1)


class Convolution(nn.Module):
    def __init__(self, dilation):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 5, padding=2 * dilation, dilation=dilation)
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = torch.relu(self.conv(self.norm(x).transpose(1, 2)).transpose(1, 2))
        return x + self.mix(nn.functional.dropout(y, 0.1))


class Encoder(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.stem = nn.Conv1d(FEATURES, WIDTH, 3, padding=1)
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        y = self.blocks(self.stem(x.transpose(1, 2)).transpose(1, 2))
        return nn.functional.dropout(torch.relu(self.norm(y)), 0.1)


def ms_of(step, rounds=5, steps=4, warm_up=4, ready=torch.cuda.synchronize):
    for _ in range(warm_up):
        step()
    each = []
    for _ in range(rounds):
        ready()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        each.append(1e3 * (time.perf_counter() - begin) / steps)
    return sorted(each)[len(each) // 2]


def allow_tf32(allowed):
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def step_row(name, precision, how):
    torch.manual_seed(0)
    torch._dynamo.reset()
    allow_tf32(precision == "tf32")
    blocks = (
        [Attention() for _ in range(4)]
        if name == "attention"
        else [Convolution(d) for d in (1, 2, 4, 8)]
    )
    encoder = Encoder(blocks).cuda()
    crf = SemiMarkovCRF(CLASSES, LONGEST).cuda()
    head = nn.Linear(WIDTH, crf.num_scores).cuda()
    run = torch.compile(encoder) if how == "compile" else encoder
    parameters = [p for m in (encoder, crf, head) for p in m.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    x = torch.randn(ROWS, FRAMES, FEATURES, device="cuda")
    labels = torch.randint(CLASSES, (ROWS, FRAMES // 10), device="cuda").repeat_interleave(10, 1)
    cast = torch.autocast("cuda", torch.bfloat16) if precision == "bf16" else nullcontext()
    losses = []

    def step():
        optimizer.zero_grad()
        with cast:
            y = run(x)
        loss = crf(head(y.float()), labels).mean() / (FRAMES // 10)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1)
        optimizer.step()
        losses.append(loss.item())

    ms = ms_of(step)
    peak = torch.cuda.max_memory_allocated() / 1e9
    torch.cuda.reset_peak_memory_stats()
    return {"name": f"{name}, {precision}, {how}", "ms": ms, "peak_gb": peak, "loss": losses[-1]}


def products_row(how):
    torch.manual_seed(0)
    torch._dynamo.reset()
    allow_tf32(True)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = (
                nn.LayerNorm(1024),
                nn.Linear(1024, 4096),
                nn.Linear(4096, 1024),
            )

        def forward(self, x):
            return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    model = nn.Sequential(*(Block() for _ in range(4))).cuda()
    run = {
        "eager": lambda: model,
        "inductor": lambda: torch.compile(model),
        "segfuse": lambda: torch.compile(model, backend="segfuse"),
    }[how]()
    x = torch.randn(4096, 1024, device="cuda", requires_grad=True)

    def step():
        run(x).square().mean().backward()

    return {"name": f"products in TF32, {how}", "ms": ms_of(step, steps=10)}


if __name__ == "__main__":
    torch.set_num_threads(8)
    if sys.argv[1] == "products":
        for how in ("eager", "segfuse", "inductor"):
            print(json.dumps(products_row(how)), flush=True)
    else:
        for name in ("attention", "convolutions"):
            for precision in ("bf16", "tf32", "float32"):
                print(json.dumps(step_row(name, precision, sys.argv[2])), flush=True)
