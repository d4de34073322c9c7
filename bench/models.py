#!/usr/bin/env python3
"""Whole PyTorch models with random weights: eager PyTorch, Inductor and segfuse beside each other.

usage: models.py [--device cuda] [--size small|large] [--models bert,llama] [--dtype bfloat16]
                 [--backends eager,inductor,segfuse] [--repeats 20]

Prints a JSON list, one row for each model. Times are in ms, the median of REPEATS; the backends
take turns, so that what else the machine does falls on all of them. first_s is the first call with
its compilation. error is the largest difference of loss and gradients from those of eager float64,
each over the largest magnitude of its tensor; eager's own stands beside it. share is that of
PyTorch's operations that segfuse runs. peak_mib is what a step has at most of PyTorch's memory
beyond what lay there before. recompiled counts graphs that 20 further lengths of the input caused.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import statistics
import sys
import time
import warnings

import torch
import torch.nn.functional as F
from torch import nn

try:
    import transformers
except ImportError:
    transformers = None

SMALL = {"batch": 2, "length": 40, "width": 64, "layers": 2, "heads": 4, "words": 200}
LARGE = {"batch": 8, "length": 512, "width": 768, "layers": 6, "heads": 12, "words": 8192}


# --- models ---


class Block(nn.Module):
    """A block of GPT-2: norms first, attention by PyTorch's operation, a GELU between products."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.words, self.places = (
            nn.Embedding(s["words"], s["width"]),
            nn.Embedding(4096, s["width"]),
        )
        self.blocks = nn.ModuleList(Block(s["width"], s["heads"]) for _ in range(s["layers"]))
        self.norm, self.head = (
            nn.LayerNorm(s["width"]),
            nn.Linear(s["width"], s["words"], bias=False),
        )

    def forward(self, words):
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class GatedBlock(nn.Module):
    """A block of LitGPT's kind: RMS norm, rotary positions, SwiGLU."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 8 * width // 3, bias=False) for _ in range(2))
        self.down = nn.Linear(8 * width // 3, width, bias=False)

    def forward(self, x, cos, sin):
        b, t, c = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.turn(q, cos, sin), self.turn(k, cos, sin)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, c))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    @staticmethod
    def turn(x, cos, sin):
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), -1)
        return x * cos + turned * sin


class LitGpt(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.size = s["width"] // s["heads"]
        self.words = nn.Embedding(s["words"], s["width"])
        self.blocks = nn.ModuleList(GatedBlock(s["width"], s["heads"]) for _ in range(s["layers"]))
        self.norm = nn.RMSNorm(s["width"], eps=1e-5)
        self.head = nn.Linear(s["width"], s["words"], bias=False)

    def forward(self, words):
        x = self.words(words)
        places = torch.arange(words.shape[1], device=words.device, dtype=x.dtype)
        rates = 10000 ** (
            -torch.arange(0, self.size, 2, device=x.device, dtype=x.dtype) / self.size
        )
        angles = torch.outer(places, rates).repeat(1, 2)
        for block in self.blocks:
            x = block(x, angles.cos(), angles.sin())
        return self.head(self.norm(x))


def from_transformers(name, s):
    """A model of the package with random weights, without dropout."""
    common = {"hidden_size": s["width"], "num_hidden_layers": s["layers"],
              "num_attention_heads": s["heads"]}  # fmt: skip
    rows = {
        "llama": ("LlamaConfig", "LlamaForCausalLM",
                  {**common, "vocab_size": s["words"], "intermediate_size": 8 * s["width"] // 3,
                   "num_key_value_heads": s["heads"] // 2, "use_cache": False}),
        "bert": ("BertConfig", "BertForMaskedLM",
                 {**common, "vocab_size": s["words"], "intermediate_size": 4 * s["width"],
                  "max_position_embeddings": 1024, "hidden_dropout_prob": 0.0,
                  "attention_probs_dropout_prob": 0.0}),
        "wav2vec2": ("Wav2Vec2Config", "Wav2Vec2Model",
                     {**common, "intermediate_size": 4 * s["width"], "conv_dim": [s["width"]] * 7,
                      "hidden_dropout": 0.0, "attention_dropout": 0.0, "feat_proj_dropout": 0.0,
                      "activation_dropout": 0.0, "layerdrop": 0.0, "mask_time_prob": 0.0,
                      "num_conv_pos_embedding_groups": s["heads"]}),
        "whisper": ("WhisperConfig", "WhisperEncoder",
                    {"d_model": s["width"], "encoder_layers": s["layers"],
                     "encoder_attention_heads": s["heads"], "encoder_ffn_dim": 4 * s["width"],
                     "max_source_positions": s["length"], "dropout": 0.0}),
        "mamba": ("MambaConfig", "MambaForCausalLM",
                  {"hidden_size": s["width"], "num_hidden_layers": s["layers"],
                   "vocab_size": s["words"], "use_cache": False, "use_mambapy": False}),
        "convnext": ("ConvNextConfig", "ConvNextForImageClassification",
                     {"hidden_sizes": [s["width"] // 8 * k for k in (1, 2, 4, 8)],
                      "depths": [2, 2, s["layers"], 2], "num_labels": 100}),
        "vit": ("ViTConfig", "ViTForImageClassification",
                {**common, "intermediate_size": 4 * s["width"], "num_labels": 100,
                 "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
        "t5": ("T5Config", "T5EncoderModel",
               {"d_model": s["width"], "d_kv": s["width"] // s["heads"], "d_ff": 4 * s["width"],
                "num_layers": s["layers"], "num_heads": s["heads"], "vocab_size": s["words"],
                "dropout_rate": 0.0}),
    }  # fmt: skip
    configuration, model, keys = rows[name]
    module = (
        transformers.models.whisper.modeling_whisper if model == "WhisperEncoder" else transformers
    )
    return getattr(module, model)(getattr(transformers, configuration)(**keys))


WORDS = ("gpt", "litgpt", "llama", "bert", "mamba", "t5")
SOUND = ("wav2vec2",)
FRAMES = ("whisper",)
IMAGES = ("convnext", "vit")
MODELS = (*WORDS, *SOUND, *FRAMES, *IMAGES)


def make_model(name, s):
    torch.manual_seed(1)
    if name == "gpt":
        return Gpt(s)
    return LitGpt(s) if name == "litgpt" else from_transformers(name, s)


def make_input(name, s, length=None):
    torch.manual_seed(2)
    length = length or s["length"]
    if name in WORDS:
        return torch.randint(s["words"], (s["batch"], length))
    if name in SOUND:
        return torch.randn(s["batch"], 320 * length + 80)
    if name in FRAMES:
        return torch.randn(s["batch"], 80, 2 * s["length"])
    return torch.randn(s["batch"], 3, 224, 224)


def result_of(found):
    if isinstance(found, torch.Tensor):
        return found
    for key in ("logits", "last_hidden_state"):
        if getattr(found, key, None) is not None:
            return getattr(found, key)
    return found[0]


def loss_of(model, x):
    """Depends on all results, and its gradients are of one order of magnitude."""
    y = result_of(model(x))
    goal = torch.linspace(-1, 1, y.shape[-1], device=y.device, dtype=y.dtype)
    return (y.float() if y.dtype != torch.float64 else y).sub(goal).square().mean()


# --- measuring ---


class Compiled:
    """A model, the functions of it that are timed, and what they cost."""

    def __init__(self, backend, model, dtype):
        self.backend, self.model, self.dtype = backend, model, dtype
        self.training, self.inference = [], []
        called = functools.partial(loss_of, model)
        self.loss = called if backend == "eager" else torch.compile(called, backend=backend)
        self.forward = model if backend == "eager" else torch.compile(model, backend=backend)

    def autocast(self, x):
        low = self.dtype == torch.bfloat16
        return torch.autocast(x.device.type, torch.bfloat16, enabled=low)

    def train(self, x):
        self.model.zero_grad(set_to_none=True)
        self.model.train()
        with self.autocast(x):
            loss = self.loss(x)
        loss.backward()
        return loss

    def infer(self, x):
        self.model.eval()
        with torch.inference_mode(), self.autocast(x):
            return result_of(self.forward(x))


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def timed(function, x, device):
    wait(device)
    start = time.perf_counter()
    function(x)
    wait(device)
    return 1e3 * (time.perf_counter() - start)


def difference(got, want):
    got, want = got.detach().double(), want.detach().double()
    if not got.isfinite().all():
        return float("inf")
    return float((got - want).abs().max() / want.abs().max().clamp_min(1e-30))


def error_of(one, x, wide, wide_loss):
    """The largest errors of loss and gradients, and the parameter with the largest."""
    loss = one.train(x)
    found = [(difference(loss, wide_loss), "loss")]
    # A gradient that is zero but for rounding says nothing: it is judged by the largest of all.
    largest = max(float(p.grad.abs().max()) for p in wide.parameters() if p.grad is not None)
    for (name, p), q in zip(one.model.named_parameters(), wide.parameters(), strict=True):
        if q.grad is None:
            continue
        if p.grad is None:
            return float("inf"), name
        if float(q.grad.abs().max()) > 1e-6 * largest:
            found.append((difference(p.grad, q.grad), name))
    return max(found)


def peak_of(function, x, device):
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function(x)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def row_of(name, a):
    s = LARGE if a.size == "large" else SMALL
    dtype = getattr(torch, a.dtype)
    base = make_model(name, s).to(a.device)
    x = make_input(name, s).to(a.device)
    row = {"model": name, "device": a.device, "dtype": a.dtype, "size": a.size,
           "parameters": sum(p.numel() for p in base.parameters())}  # fmt: skip
    wide = copy.deepcopy(base).double()
    wide_loss = loss_of(wide.train(), x.double() if x.is_floating_point() else x)
    wide_loss.backward()
    runs = []
    for backend in a.backends.split(","):
        torch._dynamo.reset()
        one = Compiled(backend, copy.deepcopy(base), dtype)
        costs = row[backend] = {}
        try:
            costs["first_s"] = timed(one.train, x, a.device) / 1e3
            costs["error"], costs["worst"] = error_of(one, x, wide, wide_loss)
            costs["first_inference_s"] = timed(one.infer, x, a.device) / 1e3
            one.model.zero_grad(set_to_none=True)
            costs["peak_mib"] = peak_of(one.train, x, a.device)
        except Exception as failed:  # a model that one backend cannot run is a result
            costs["failed"] = f"{type(failed).__name__}: {str(failed).splitlines()[0][:300]}"
            continue
        runs.append(one)
    for _ in range(a.repeats):
        for one in runs:
            one.training.append(timed(one.train, x, a.device))
    for _ in range(a.repeats):
        for one in runs:
            one.inference.append(timed(one.infer, x, a.device))
    for one in runs:
        row[one.backend]["training_ms"] = statistics.median(one.training)
        row[one.backend]["inference_ms"] = statistics.median(one.inference)
    if a.explain:
        row["share"], row["left"] = share_of(base, x)
    if a.lengths and name in WORDS:
        row["recompiled"] = recompiled(base, name, s, a.device)
    return row


def share_of(model, x):
    import segfuse.torch

    torch._dynamo.reset()
    said = segfuse.torch.explain(functools.partial(loss_of, copy.deepcopy(model)), x)
    left = {}
    for one in said.left:
        left[one.operation] = left.get(one.operation, 0) + one.count
    return said.share, left


def recompiled(base, name, s, device):
    """How many graphs 20 lengths make after the first two."""
    torch._dynamo.reset()
    counts = torch._dynamo.utils.counters["stats"]
    model = copy.deepcopy(base)
    step = torch.compile(functools.partial(loss_of, model), backend="segfuse")
    for length in (s["length"] // 2, s["length"] // 2 + 3):
        step(make_input(name, s, length).to(device)).backward()
    before = counts["unique_graphs"]
    for n in range(20):
        step(make_input(name, s, s["length"] // 2 + 5 + n).to(device)).backward()
    return counts["unique_graphs"] - before


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", default="small", choices=("small", "large"))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--backends", default="eager,inductor,segfuse")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--explain", action="store_true", help="also the share of operations")
    parser.add_argument("--lengths", action="store_true", help="also 20 lengths of the input")
    a = parser.parse_args()
    warnings.filterwarnings("ignore")
    rows = []
    for name in a.models.split(","):
        if transformers is None and name not in ("gpt", "litgpt"):
            print(f"{name}: transformers is not installed", file=sys.stderr)
            continue
        rows.append(row_of(name, a))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
