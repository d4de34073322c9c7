"""Programs whose two runs differ, and what has to be named first; and such that do not differ.

    segfuse doctor determinism -- python determinism_programs.py index_add

On a GPU they use atomics; what needs none runs everywhere.
"""

import os
import sys

import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROGRAMS = {}


def program(operation, needs="", vary="", certain=True):
    """`operation`: what the name of the first difference begins with; "" are the same bits.
    `certain`: it differs each time; else the same bits are right as well."""

    def add(function):
        function.operation, function.needs, function.vary = operation, needs, vary
        function.certain = certain
        PROGRAMS[function.__name__] = function
        return function

    return add


def many():
    """Numbers and the few places that they are added to."""
    torch.manual_seed(0)
    count = 1 << 20
    return torch.randn(count, device=DEVICE), torch.randint(4, (count,), device=DEVICE)


@program("index_add", "GPU")
def index_add():
    x, places = many()
    for _ in range(5):
        torch.zeros(4, device=DEVICE).index_add_(0, places, x)


@program("scatter_add", "GPU")
def scatter_add():
    x, places = many()
    for _ in range(5):
        torch.zeros(4, device=DEVICE).scatter_add_(0, places, x)


@program("scatter_reduce", "GPU")
def scatter_reduce():
    x, places = many()
    for _ in range(5):
        torch.zeros(4, device=DEVICE).scatter_reduce_(0, places, x, "sum")


@program("convolution", "GPU", certain=False)  # or its backward pass
def choices_of_cudnn():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    model = nn.Sequential(nn.Conv2d(16, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3)).to(DEVICE)
    for _ in range(3):
        model(torch.randn(32, 16, 64, 64, device=DEVICE)).square().mean().backward()


@program("uniform_")
def parameters_without_a_seed():
    nn.Linear(8, 8)(torch.ones(2, 8))


@program(("bernoulli", "native_dropout"))
def dropout_without_a_seed():
    nn.Dropout(0.5)(torch.ones(256, 8, device=DEVICE)).sum()


@program("full", vary="hash")
def order_of_a_set():
    torch.manual_seed(0)
    for letter in set("segmental"):
        torch.full((4,), float(ord(letter)), device=DEVICE).sum()


@program("sum", vary="threads")
def threads():
    torch.manual_seed(0)
    torch.randn(1 << 20).sum()


def train(model, batch, steps=20):
    torch.manual_seed(0)
    model = model().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@program("")
def training_of_a_perceptron():
    train(lambda: nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 32)),
          lambda: torch.randn(16, 32, device=DEVICE))  # fmt: skip


@program("")
def training_of_a_transformer():
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    layer = lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)  # noqa: E731
    train(lambda: nn.Sequential(layer(), layer()), lambda: torch.randn(4, 10, 32, device=DEVICE))


@program("")
def training_with_convolutions():
    torch.backends.cudnn.deterministic = True
    train(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()),
          lambda: torch.randn(4, 3, 8, 8, device=DEVICE))  # fmt: skip


def missing(function):
    return "there is no GPU" if function.needs == "GPU" and DEVICE != "cuda" else ""


if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
