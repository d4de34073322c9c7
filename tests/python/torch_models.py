"""Models as others write them, for the tests of the backend of `torch.compile`."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 16), nn.SiLU(),
            nn.Linear(16, 5),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2)
        self.norm, self.head = nn.GroupNorm(2, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.one(x))), 2)
        x = F.leaky_relu(self.two(x), 0.1)
        return self.head(x.mean((2, 3)))


class ResNetBlock(nn.Module):
    def __init__(self, channels=6):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + x).mean((2, 3))


class LstmCell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(6, 10), nn.Linear(10, 3)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], 10)
        c = torch.zeros_like(h)
        for t in range(4):
            h, c = self.cell(x[:, t], (h, c))
        return self.head(h)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class LlamaBlock(nn.Module):
    """RMSNorm, rotary positions, causal attention, SwiGLU."""

    def __init__(self, width=24, heads=3, hidden=40, fused=False):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm1 = nn.Parameter(torch.rand(width) + 0.5)
        self.norm2 = nn.Parameter(torch.rand(width) + 0.5)
        self.qkv, self.out = nn.Linear(width, 3 * width, False), nn.Linear(width, width, False)
        self.gate, self.up = nn.Linear(width, hidden, False), nn.Linear(width, hidden, False)
        self.down = nn.Linear(hidden, width, False)

    @staticmethod
    def norm(x, weight):
        y = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight

    def attention(self, x):
        rows, frames, width = x.shape
        size = width // self.heads
        q, k, v = self.qkv(x).view(rows, frames, 3, self.heads, size).permute(2, 0, 3, 1, 4)
        rates = 1.0 / 10000 ** (torch.arange(0, size, 2, device=x.device).to(x.dtype) / size)
        angles = torch.outer(torch.arange(frames, device=x.device).to(x.dtype), rates)
        angles = torch.cat((angles, angles), -1)
        q, k = (rotate(a, angles.cos(), angles.sin()) for a in (q, k))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(size)
            mask = torch.ones(frames, frames, dtype=torch.bool, device=x.device).triu(1)
            y = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(rows, frames, width))

    def forward(self, x):
        x = x + self.attention(self.norm(x, self.norm1))
        y = self.norm(x, self.norm2)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Classifier(nn.Module):
    """Embedding and cross entropy; the result is the loss."""

    def __init__(self, words=17, classes=5):
        super().__init__()
        self.embedding = nn.Embedding(words, 8, padding_idx=0)
        self.head = nn.Linear(8, classes)

    def forward(self, words, targets):
        logits = self.head(self.embedding(words))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100,
                               label_smoothing=0.1)  # fmt: skip


def encoder_layer(**how):
    return nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, **how)


def make(name, seed=0):
    """A model and the inputs that go with it."""
    torch.manual_seed(seed)
    return {
        "mlp": lambda: (Mlp(), (torch.randn(7, 12),)),
        "conv": lambda: (ConvNet(), (torch.randn(2, 3, 10, 12),)),
        "resnet": lambda: (ResNetBlock(), (torch.randn(3, 6, 5, 7),)),
        "encoder": lambda: (encoder_layer(), (torch.randn(2, 9, 16),)),
        "encoder_first": lambda: (
            encoder_layer(norm_first=True, activation="gelu"), (torch.randn(2, 9, 16),),
        ),
        "lstm_cell": lambda: (LstmCell(), (torch.randn(3, 4, 6),)),
        "llama": lambda: (LlamaBlock(), (torch.randn(2, 11, 24),)),
        "llama_fused": lambda: (LlamaBlock(fused=True), (torch.randn(2, 11, 24),)),
        "classifier": lambda: (
            Classifier(),
            (torch.randint(0, 17, (3, 6)), torch.tensor([[1, 2, 3, 4, 0, -100]] * 3)),
        ),
    }[name]()  # fmt: skip


NAMES = (
    "mlp", "conv", "resnet", "encoder", "encoder_first", "lstm_cell", "llama", "llama_fused",
    "classifier",
)  # fmt: skip
