"""Small PyTorch programs with a planted fault each, and clean ones: for test_doctor_numerics.py.

A fault names the operation that has to be found first, and marks its line with `# fault`. Programs
run on PyTorch's default device, unless they say `only`. Thirty of the faults are counted:

    python tests/python/numeric_faults.py [--device cuda]
"""

import argparse
import importlib.util
import inspect
import math
import os
import sys
import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

FAULTS, CLEAN = [], []


def fault(operation, kind="NaN", phase="forward", only="", needs=""):
    """`only` a kind of device; `needs` a module."""

    def add(function):
        function.operation, function.kind, function.phase = operation, kind, phase
        function.only, function.needs = only, needs
        FAULTS.append(function)
        return function

    return add


def clean(function):
    CLEAN.append(function)
    return function


def device():
    return torch.get_default_device().type


def missing(program):
    """Why it cannot run here; empty: it can."""
    if program.only and device() != program.only:
        return f"it runs on {program.only} only"
    if program.needs and importlib.util.find_spec(program.needs) is None:
        return f"{program.needs} is not installed"
    return ""


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def net(middle):
    return nn.Sequential(nn.Linear(4, 8), Apply(middle), nn.Linear(8, 1))


def train(model, steps=2, optimizer=None, inputs=lambda: torch.randn(6, 4), loss_of=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(inputs()).square().mean() if loss_of is None else loss_of(model)
        loss.backward()
        optimizer.step()


def train_with(middle, **options):
    train(net(middle), **options)


# --- forward ---


@fault("log")
def log_of_negative_numbers():
    train_with(lambda x: torch.log(x))  # fault


@fault("log", "infinity")
def log_of_zero():
    train_with(lambda x: torch.log(x.relu()))  # fault


@fault("div")
def mean_over_an_empty_mask():
    def middle(x):
        mask = torch.zeros(x.shape[0], 1)
        return x + (x * mask).sum() / mask.sum()  # fault

    train_with(middle)


@fault("div", "infinity")
def division_by_zero():
    train_with(lambda x: x / torch.zeros(8))  # fault


@fault("exp", "infinity")
def exp_beyond_float32():
    train_with(lambda x: torch.exp(x * 1e4))  # fault


@fault("_to_copy", "infinity")
def input_beyond_half_under_autocast():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    with torch.autocast(device(), torch.float16):
        out = model(torch.full((2, 4), 6e4) * 30)  # fault: of the cast
    out.float().sum().backward()


@fault("addmm", "infinity")
def matmul_beyond_half_under_autocast():
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.fill_(300)
    with torch.autocast(device(), torch.float16):
        out = model(torch.full((2, 4), 300.0))  # fault
    out.float().sum().backward()


@fault("_to_copy", "infinity")
def cast_beyond_half():
    train_with(lambda x: (x * 1e6).half().float())  # fault


@fault("_softmax")
def softmax_of_a_masked_row():
    def middle(x):
        mask = torch.zeros(6, 8, dtype=torch.bool)
        mask[2] = True
        return torch.softmax(x.masked_fill(mask, -torch.inf), -1)  # fault

    train_with(middle)


@fault("sqrt")
def sqrt_of_negative_numbers():
    train_with(lambda x: torch.sqrt(x))  # fault


@fault("std")
def deviation_of_one_number():
    train_with(lambda x: x - x[:1].std(0))  # fault


@fault("pow")
def root_of_negative_numbers():
    train_with(lambda x: x**0.5)  # fault


@fault("mul")
def infinite_scores_times_a_mask():
    def middle(x):
        scores = x.masked_fill(x < 0, -torch.inf)
        return scores * (x >= 0)  # fault

    train_with(middle)


@fault("sub")
def distance_from_a_row_without_scores():
    def middle(x):
        scores = torch.full_like(x, -torch.inf)
        return (scores - scores.amax(-1, keepdim=True)).exp() + x  # fault

    train_with(middle)


@fault("nll_loss_forward")
def loss_of_ignored_labels_only():
    def loss_of(model):
        labels = torch.full((6,), -100)
        return F.cross_entropy(model(torch.randn(6, 4)), labels)  # fault

    train(nn.Linear(4, 3), loss_of=loss_of)


@fault("logit", "infinity")
def logit_of_one():
    train_with(lambda x: torch.logit(x.sigmoid() * 0 + 1))  # fault


@fault("native_layer_norm")
def layer_norm_without_epsilon():
    norm = nn.LayerNorm(8, eps=0.0)
    train_with(lambda x: norm(x * 0 + 1))  # fault


@fault("mul", "infinity")
def recurrence_that_grows():
    def middle(x):
        for _ in range(12):
            x = x * 1e5  # fault
        return x

    train_with(middle)


@fault("cumsum", "infinity")
def running_sum_beyond_float32():
    train_with(lambda x: torch.cumsum(x * 0 + 2e38, 1))  # fault


@fault("div_", "infinity")
def division_in_place():
    def middle(x):
        y = x.clone()
        y[:, 0].div_(0)  # fault
        return y

    train_with(middle)


@fault("rsqrt", "infinity")
def inverse_root_of_zero():
    train_with(lambda x: x * torch.rsqrt((x * 0).sum(-1, keepdim=True)))  # fault


@fault("_softmax")
def attention_to_padding_only():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def middle(x):
        x = x.view(2, 3, 8)
        padding = torch.tensor([[False] * 3, [True] * 3])
        return attention(x, x, x, key_padding_mask=padding)[0].reshape(6, 8)  # fault

    train_with(middle)


@fault("div")
def custom_function_forward():
    class Ratio(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return (x - x) / (x - x)  # fault

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    train_with(Ratio.apply)


@fault("native_group_norm")
def group_norm_without_epsilon():
    norm = nn.GroupNorm(2, 8, eps=0.0)
    train_with(lambda x: norm(x * 0 + 1))  # fault


@fault("div")
def division_by_the_norm_of_a_row_of_zeros():
    class UnitRows(nn.Module):
        def forward(self, x):
            return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # fault

    train_with(nn.Sequential(nn.ReLU(), Apply(lambda x: x * 0), UnitRows()))


@fault("input")
def embedding_with_weights_of_nan():
    table = np.ones((5, 4), np.float32)
    table[2] = np.nan
    table = torch.from_numpy(table).to(device())  # fault: there it comes to a GPU
    words = nn.Embedding.from_pretrained(table, freeze=False)
    train(words, loss_of=lambda m: m(torch.tensor([0, 2, 4])).sum())  # fault


@torch.library.custom_op("segfuse_test::reciprocal_root", mutates_args=())
def reciprocal_root(x: torch.Tensor) -> torch.Tensor:
    return 1 / x.sqrt()


@fault("segfuse_test.reciprocal_root", "infinity")
def operator_of_others():
    def middle(x):
        return x * reciprocal_root(x.detach() * 0)  # fault

    train_with(middle)


@fault("log", "infinity")
def model_that_is_compiled():  # its code has lines of its own
    model = net(lambda x: torch.log(x.relu()))
    train(torch.compile(model, backend="eager"))


TRITON = """
import triton
import triton.language as tl

@triton.jit
def invert(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 1 / tl.load(x + at, mask=at < count), mask=at < count)
"""


@fault("segfuse_test.invert", "infinity", only="cuda", needs="triton")
def kernel_of_triton():
    folder = tempfile.mkdtemp()  # Triton reads the text of a kernel
    with open(os.path.join(folder, "inverting.py"), "w") as file:
        file.write(TRITON)
    sys.path.insert(0, folder)
    from inverting import invert

    @torch.library.custom_op("segfuse_test::invert", mutates_args=())
    def operator(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        invert[(1,)](x, out, x.numel(), BLOCK=64)
        return out

    train_with(lambda x: x * operator((x * 0).detach()))  # fault


# --- backward only ---


@fault("div", "infinity", "backward")
def gradient_of_sqrt_at_zero():
    train_with(lambda x: x + torch.sqrt((x * 0).sum(-1, keepdim=True)))  # fault


@fault("div", "NaN", "backward")
def root_behind_where():
    def middle(x):
        x = x - x.detach()
        return torch.where(x > 0, torch.sqrt(x), 0.0)  # fault

    train_with(middle)


@fault("pow", "infinity", "backward")
def gradient_of_a_root_at_zero():
    train_with(lambda x: (x * 0).square().sum(-1, keepdim=True) ** 0.25 + x)  # fault


@fault("rsqrt", "infinity", "backward")
def gradient_of_acos_at_one():
    train_with(lambda x: torch.acos(torch.ones_like(x) + x * 0))  # fault


@fault("div", "NaN", "backward")
def gradient_of_hypot_at_zero():
    train_with(lambda x: x + torch.hypot(x * 0, x * 0))  # fault


@fault("div", "infinity", "backward")
def custom_function_backward():
    class Inverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient / 0  # fault

    train_with(Inverse.apply)


@fault("div", "infinity", "backward")
def gradient_in_a_checkpoint():
    def inner(x):
        return x + torch.sqrt((x * 0).sum(-1, keepdim=True))  # fault

    train_with(lambda x: checkpoint(inner, x, use_reentrant=False))


@fault("div", "infinity", "backward")
def gradient_without_an_optimizer():
    x = torch.zeros(3, requires_grad=True)
    torch.sqrt(x).sum().backward()  # fault


@fault("mul", "infinity", "backward")
def gradient_beyond_half_under_autocast():
    model = nn.Linear(4, 4)
    with torch.autocast(device(), torch.float16):
        out = model(torch.randn(2, 4))
        loss = (out.half() * 3e4).float().sum() * 10  # fault
    loss.backward()


# --- optimizers ---


def _unused_parameter(**options):
    model = net(torch.relu)
    for p in model.parameters():
        p.register_hook(torch.zeros_like)
    kind = options.pop("kind", torch.optim.Adam)
    train(model, optimizer=kind(model.parameters(), **options))


@fault("_fused_adam_", phase="optimizer")
def fused_adam_without_epsilon():
    _unused_parameter(fused=True, eps=0.0)


@fault("_fused_sgd_", "infinity", phase="optimizer")
def fused_rate_that_is_too_high():
    model = net(torch.relu)
    train(model, optimizer=torch.optim.SGD(model.parameters(), 3e38, fused=True), steps=1,
          inputs=lambda: torch.full((6, 4), 1e3))  # fmt: skip


@fault("addcdiv_", phase="optimizer")
def adam_without_epsilon():
    _unused_parameter(eps=0.0, foreach=False)


@fault("_foreach_addcdiv_", phase="optimizer")
def adam_of_lists_without_epsilon():
    _unused_parameter(eps=0.0, foreach=True)


@fault("add_", "infinity", phase="optimizer")
def rate_that_is_too_high():
    model = net(torch.relu)
    train(model, optimizer=torch.optim.SGD(model.parameters(), 3e38, foreach=False), steps=1,
          inputs=lambda: torch.full((6, 4), 1e3))  # fmt: skip


# --- where they end ---


@fault("input")
def nan_in_the_data():
    def inputs():
        data = np.ones((6, 4), np.float32)
        data[3, 1] = np.nan
        return torch.from_numpy(data).to(device())

    train(net(torch.relu), inputs=inputs)


@fault("div", "NaN")
def only_read_by_the_host():
    total, count = torch.zeros(()), torch.zeros(())
    print((total / count).item())  # fault


@fault("div", "infinity")
def model_that_is_not_trained():
    model = net(lambda x: x / x.new_zeros(()) * 0)  # fault
    with torch.no_grad():
        model(torch.randn(6, 4))


@fault("_to_copy", "lost in a cast", only="cpu")
def index_out_of_nan():
    data = torch.from_numpy(np.array([1.0, np.nan], np.float32))
    data.long()  # fault


@fault("add_", "unwritten memory", only="cpu")
def accumulator_that_was_not_set():
    total = torch.empty(4)
    total.numpy()[:] = np.nan  # as memory may be
    total.add_(torch.ones(4))  # fault
    print(total.sum().item())


# --- clean programs ---


@clean
def positions_in_buckets():
    """As in T5: the logarithm of 0 becomes an integer that where() does not choose."""
    distance = (torch.arange(12)[:, None] - torch.arange(12)).abs()
    far = 4 + (torch.log(distance.float() / 4) / math.log(8) * 4).to(torch.long)
    bucket = torch.where(distance < 4, distance, far.clamp(max=7))
    table = nn.Embedding(8, 2)
    train(table, inputs=lambda: bucket)


@clean
def perceptron():
    train_with(torch.relu)


@clean
def convolutions():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2))
    train(model, inputs=lambda: torch.randn(2, 1, 8, 8))


@clean
def transformer_with_padding():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    train(layer, loss_of=lambda m: m(torch.randn(2, 5, 8), src_key_padding_mask=padding).mean())


@clean
def causal_attention():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    train(layer, loss_of=lambda m: m(torch.randn(2, 5, 8), mask, is_causal=True).mean())


@clean
def recurrent():
    train(nn.LSTM(4, 8), loss_of=lambda m: m(torch.randn(5, 2, 4))[0].mean())


@clean
def embedding_and_bag():
    bag = nn.EmbeddingBag(10, 4, sparse=True)
    train(bag, inputs=lambda: torch.randint(10, (3, 4)))


@clean
def scaled_half_that_overflows():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler(device(), init_scale=2.0**40)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast(device(), torch.float16):
            loss = model(torch.randn(2, 4)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        print(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        scaler.step(optimizer)
        scaler.update()
    assert all(p.isfinite().all() for p in model.parameters())


@clean
def infinite_masks():
    def loss_of(model):
        scores = model(torch.randn(6, 4))
        allowed = torch.rand_like(scores) < 0.5
        allowed[:, 0] = True
        return -scores.masked_fill(~allowed, -torch.inf).log_softmax(-1)[:, 0].mean()

    train(nn.Linear(4, 3), loss_of=loss_of)


@clean
def put_aside_by_where():
    def middle(x):
        safe = torch.where(x > 0, x, 1.0)
        return torch.where(x > 0, safe.log(), 0.0) + torch.where(x < 0, 0.0, x.detach().log())

    def without_holes(x):
        return middle(x).nan_to_num(0.0)

    train_with(without_holes)


@clean
def holes_in_the_data():
    data = torch.from_numpy(np.array([[1.0, np.nan, 2.0, 0.5]] * 6, np.float32))
    train_with(torch.relu, inputs=lambda: torch.where(data.isnan(), 0.0, data))


@clean
def best_so_far():
    best = torch.tensor(torch.inf)
    for loss in (3.0, 2.0):
        best = torch.minimum(best, torch.tensor(loss))
    assert best.item() == 2.0


@clean
def log_sum_exp_of_nothing():
    x = torch.full((3,), -torch.inf)
    assert torch.logsumexp(x, 0).item() == -np.inf


@clean
def ctc():
    def loss_of(model):
        scores = model(torch.randn(7, 2, 4)).log_softmax(-1)
        return F.ctc_loss(scores, torch.tensor([[1, 2], [2, 1]]), (7, 7), (2, 2))

    train(nn.Linear(4, 3), loss_of=loss_of)


@clean
def gradient_penalty():
    def loss_of(model):
        x = torch.randn(3, 4, requires_grad=True)
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (gradient.square().sum(-1) - 1).square().mean()

    train(net(torch.tanh), loss_of=loss_of)


@clean
def transforms_of_functions():
    x = torch.randn(3, 4)
    torch.func.vmap(torch.func.grad(lambda row: row.tanh().sum()))(x)
    torch.func.jacrev(torch.sin)(x[0])


@clean
def checkpoints():
    train_with(lambda x: checkpoint(lambda y: y.tanh().exp(), x, use_reentrant=False))


@clean
def checkpoints_that_reenter():
    train_with(lambda x: checkpoint(lambda y: y.tanh().exp(), x, use_reentrant=True))


@clean
def memory_that_is_written_first():
    buffer = torch.empty(6, 8)

    def middle(x):
        torch.sigmoid(x, out=buffer) if not torch.is_grad_enabled() else buffer.copy_(x.detach())
        return x + buffer

    train_with(middle)


@clean
def spectra():
    train_with(lambda x: torch.fft.irfft(torch.fft.rfft(x), n=8))


@clean
def second_order_optimizer():
    model = net(torch.tanh)
    x = torch.randn(6, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


@clean
def averaged_weights():
    model = net(torch.relu)
    average = torch.optim.swa_utils.AveragedModel(model)
    train(model)
    average.update_parameters(model)
    average(torch.randn(2, 4))


@clean
def generation():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
    token = torch.zeros(2, dtype=torch.long)
    with torch.inference_mode():
        for _ in range(3):
            scores = model(token)
            kept = scores.topk(2).values[:, -1:]
            scores = scores.masked_fill(scores < kept, -torch.inf)
            token = torch.multinomial(scores.softmax(-1), 1)[:, 0]


@clean
def distributions():
    p = torch.distributions.Categorical(logits=torch.randn(3, 4))
    q = torch.distributions.Normal(torch.zeros(2), torch.ones(2))
    print(torch.distributions.kl_divergence(p, p).sum().item(), q.log_prob(q.sample()).sum().item())
    print(
        p.entropy().sum().item(), torch.special.xlogy(torch.zeros(2), torch.zeros(2)).sum().item()
    )


@clean
def loader_of_batches():
    rows = torch.utils.data.TensorDataset(torch.randn(8, 4))
    model = net(torch.relu)
    for (batch,) in torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True):
        train(model, steps=1, inputs=lambda: batch)


@clean
def dropout_and_half():
    model = net(nn.Dropout(0.5)).to(torch.bfloat16)
    train(model, inputs=lambda: torch.randn(6, 4, dtype=torch.bfloat16))


# --- thirty of the faults, counted ---

THIRTY = {
    "numbers": (
        log_of_zero, division_by_zero, exp_beyond_float32, infinite_scores_times_a_mask,
        softmax_of_a_masked_row, mean_over_an_empty_mask, sqrt_of_negative_numbers,
        distance_from_a_row_without_scores, running_sum_beyond_float32, recurrence_that_grows,
    ),
    "modules": (
        attention_to_padding_only, layer_norm_without_epsilon, group_norm_without_epsilon,
        division_by_the_norm_of_a_row_of_zeros, loss_of_ignored_labels_only,
        embedding_with_weights_of_nan, model_that_is_compiled,
    ),
    "backward only": (
        gradient_of_sqrt_at_zero, root_behind_where, gradient_of_acos_at_one,
        gradient_of_hypot_at_zero, gradient_of_a_root_at_zero, gradient_in_a_checkpoint,
    ),
    "autocast": (
        input_beyond_half_under_autocast, matmul_beyond_half_under_autocast,
        gradient_beyond_half_under_autocast,
    ),
    "fused optimizers": (fused_adam_without_epsilon, fused_rate_that_is_too_high),
    "operators of others": (operator_of_others, kernel_of_triton),
}  # fmt: skip


def lines_of(program):
    """Files and numbers of the lines with the fault."""
    lines, first = inspect.getsourcelines(program)
    marked = [first + i for i, line in enumerate(lines) if "# fault" in line]
    return {f"{os.path.abspath(__file__)}:{line}" for line in marked}


def what_is_wrong(program):
    """Watches the program, and tells what is wrong with the first finding; empty: nothing."""
    import segfuse.torch

    torch.manual_seed(0)
    with segfuse.torch.check_numerics(raises=False) as watch:
        program()
    if not watch.findings:
        return "nothing was found"
    first = watch.findings[0].as_json()
    wanted = {"operation": program.operation, "fault": program.kind, "phase": program.phase}
    wrong = [f"{k} {first[k]}, expected {v}" for k, v in wanted.items() if first[k] != v]
    lines = lines_of(program)
    if lines and lines.isdisjoint((first["line"], first["forward_line"])):
        wrong.append(f"line {first['line']}, expected one of {lines}")
    if not (first["cause"] and first["reached"]):
        wrong.append("no cause, or nothing that it reached")
    return "; ".join(wrong)


def count():
    """Prints a line for each of the thirty; how many were named first, and how many did not run."""
    named = skipped = 0
    for group, programs in THIRTY.items():
        for program in programs:
            if why := missing(program):
                skipped += 1
                print(f"skipped  {group}: {program.__name__}: {why}")
                continue
            wrong = what_is_wrong(program)
            named += not wrong
            print(f"{'missed' if wrong else 'named':8} {group}: {program.__name__}  {wrong}")
    total = sum(map(len, THIRTY.values()))
    print(f"{named} of {total} were named first, {skipped} could not run on this device")
    return named, skipped


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    with torch.device(parser.parse_args().device):
        named, skipped = count()
    return int(named + skipped < 28)


if __name__ == "__main__":
    sys.exit(main())
