"""Programs without a fault: the doctor's tools must have nothing to report about them.

    segfuse doctor streams -- python clean_programs.py amp_with_a_scaler

Each takes a few steps with random weights on the GPU, or on the CPU where there is none.
"""

import contextlib
import importlib.util
import io
import os
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROGRAMS = {}


def program(needs="", same_bits=True):
    """`needs` are modules, or "GPU"; `same_bits`: two runs give the same on any device."""

    def add(function):
        function.needs, function.same_bits = needs.split(), same_bits
        PROGRAMS[function.__name__] = function
        return function

    return add


def missing(function):
    """Why a program cannot run here; empty: it can."""
    for need in function.needs:
        if need == "GPU":
            if DEVICE != "cuda":
                return "there is no GPU"
        elif importlib.util.find_spec(need) is None:
            return f"{need} is not installed"
    return ""


def randn(*shape, **options):
    return torch.randn(*shape, device=DEVICE, **options)


def fit(model, batch, optimizer=None, steps=3, loss=None):
    """Trains for some steps; `batch` gives what the model gets."""
    model = model.to(DEVICE)
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(*batch())
        value = out.square().mean() if loss is None else loss(out)
        value.backward()
        optimizer.step()
    return value.item()


def perceptron(width=32):
    return nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, width))


# --- layers ---


@program()
def layers_of_a_perceptron():
    fit(perceptron(), lambda: [randn(16, 32)])


@program(same_bits=False)  # cuDNN and pooling
def convolutions():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 4),
    )  # fmt: skip
    labels = torch.tensor([0, 1, 2, 3], device=DEVICE)
    fit(model, lambda: [randn(4, 3, 16, 16)], loss=lambda out: F.cross_entropy(out, labels))


@program(same_bits=False)
def recurrent_with_clipping():
    model = nn.LSTM(8, 16, num_layers=2, batch_first=True, bidirectional=True).to(DEVICE)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    lengths = torch.tensor([7, 5, 2])
    for _ in range(3):
        packed = nn.utils.rnn.pack_padded_sequence(randn(3, 7, 8), lengths, batch_first=True)
        out, _ = nn.utils.rnn.pad_packed_sequence(model(packed)[0], batch_first=True)
        optimizer.zero_grad()
        out.square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@program(same_bits=False)  # attention that saves memory
def transformer_with_padding():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    padding = torch.zeros(4, 10, dtype=torch.bool, device=DEVICE)
    padding[1, 6:] = True
    mask = nn.Transformer.generate_square_subsequent_mask(10, device=DEVICE)

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            bias = torch.zeros_like(padding, dtype=x.dtype).masked_fill(padding, -torch.inf)
            return self.model(x, mask=mask, src_key_padding_mask=bias)

    fit(Masked(), lambda: [randn(4, 10, 32)])


@program(same_bits=False)
def attention_of_every_kind():
    q, k, v = (randn(2, 4, 16, 8, requires_grad=True) for _ in range(3))
    F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    bias = torch.zeros(16, 16, device=DEVICE).masked_fill(torch.eye(16, device=DEVICE) > 0, -1e4)
    F.scaled_dot_product_attention(q, k, v, attn_mask=bias).sum().backward()
    half = [t.detach().bfloat16() for t in (q, k, v)]
    F.scaled_dot_product_attention(*half, is_causal=True)


@program()
def flexible_attention():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def causal(b, h, q, k):
        return q >= k

    mask = create_block_mask(causal, None, None, 128, 128, device=DEVICE)
    q = randn(1, 2, 128, 16)
    flex_attention(q, q, q, block_mask=mask)


@program()
def embeddings_with_sparse_gradients():
    model = nn.EmbeddingBag(50, 8, mode="sum", sparse=True).to(DEVICE)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        words = torch.randint(50, (4, 6), device=DEVICE)
        model(words).square().sum().backward()
        optimizer.step()


@program(same_bits=False)
def mixture_of_experts():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(16, 4)
            self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

        def forward(self, x):
            weights, chosen = self.gate(x).softmax(-1).topk(2)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                rows, place = torch.where(chosen == number)
                out.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
            return out

    fit(Experts(), lambda: [randn(32, 16)])


@program(same_bits=False)
def connectionist_temporal_classification():
    model = nn.Linear(8, 5)
    labels = torch.tensor([[1, 2, 3], [2, 2, 4]], device=DEVICE)
    frames, sizes = torch.tensor([12, 10]), torch.tensor([3, 3])
    fit(model, lambda: [randn(12, 2, 8)],
        loss=lambda out: F.ctc_loss(out.log_softmax(-1), labels, frames, sizes))  # fmt: skip


# --- optimizers and precision ---


@program()
def optimizers():
    for kind, options in (
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        (torch.optim.Adam, {"amsgrad": True}), (torch.optim.Adagrad, {}), (torch.optim.NAdam, {}),
        (torch.optim.RAdam, {}), (torch.optim.Adadelta, {}), (torch.optim.Rprop, {}),
        (torch.optim.Adam, {"foreach": True}), (torch.optim.AdamW, {"fused": True}),
        (torch.optim.SGD, {"lr": 0.1, "fused": True}),
    ):  # fmt: skip
        model = perceptron().to(DEVICE)
        fit(model, lambda: [randn(8, 32)], kind(model.parameters(), **options), steps=2)


@program()
def optimizer_with_a_closure():
    model = nn.Linear(4, 4).to(DEVICE)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x = randn(16, 4)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)


@program()
def amp_with_a_scaler():
    model = perceptron().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler(DEVICE)
    half = torch.float16 if DEVICE == "cuda" else torch.bfloat16
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, half):
            loss = model(randn(8, 32)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@program()
def bfloat16_with_averages():
    model = perceptron().to(DEVICE)
    averages = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=4)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            model(randn(8, 32)).float().square().mean().backward()
        optimizer.step()
        schedule.step()
        averages.update_parameters(model)


@program()
def accumulated_gradients():
    model = perceptron().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for _ in range(3):
            (model(randn(4, 32)).square().mean() / 3).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


@program()
def foreach_operations():
    tensors = [randn(4, 4) for _ in range(5)]
    torch._foreach_add_(tensors, 1.0)
    torch._foreach_mul_(tensors, tensors)
    norms = torch._foreach_norm(tensors)
    torch._foreach_div_(tensors, torch._foreach_add(norms, 1.0))
    torch.stack(norms).sum().item()


# --- autograd ---


@program()
def checkpoints():
    from torch.utils.checkpoint import checkpoint

    first, second = perceptron().to(DEVICE), perceptron().to(DEVICE)
    for reentrant in (False, True):
        x = randn(8, 32, requires_grad=True)
        y = checkpoint(first, x, use_reentrant=reentrant)
        checkpoint(second, y, use_reentrant=reentrant).sum().backward()


@program()
def penalty_of_gradients():
    critic = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(DEVICE)
    optimizer = torch.optim.Adam(critic.parameters())
    for _ in range(3):
        x = randn(8, 8, requires_grad=True)
        (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        optimizer.zero_grad()
        (slope.norm(dim=1) - 1).square().mean().backward()
        optimizer.step()


@program()
def function_of_ones_own():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, gradient):
            return 3 * ctx.saved_tensors[0] ** 2 * gradient

    x = randn(16, requires_grad=True)
    Cube.apply(x).sum().backward()


@program()
def transforms_of_functions():
    from torch.func import grad, jacrev, jvp, vmap

    weight = randn(4, 4)

    def value(x):
        return torch.tanh(weight @ x).sum()

    x = randn(6, 4)
    vmap(grad(value))(x)
    jacrev(lambda x: weight @ x)(x[0])
    jvp(value, (x[0],), (x[1],))


@program()
def adversaries():
    makes = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)).to(DEVICE)
    judges = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(), nn.Linear(16, 1)).to(DEVICE)
    optimizers = [torch.optim.Adam(model.parameters()) for model in (makes, judges)]
    for _ in range(3):
        made = makes(randn(8, 4))
        real = F.softplus(-judges(randn(8, 8))).mean()
        optimizers[1].zero_grad()
        (real + F.softplus(judges(made.detach())).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        F.softplus(-judges(made)).mean().backward()
        optimizers[0].step()


@program()
def variational_autoencoder():
    from torch.distributions import Normal, kl_divergence

    encoder, decoder = nn.Linear(8, 4).to(DEVICE), nn.Linear(2, 8).to(DEVICE)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
    for _ in range(3):
        x = randn(8, 8)
        mean, scale = encoder(x).chunk(2, -1)
        posterior = Normal(mean, F.softplus(scale) + 1e-3)
        loss = (decoder(posterior.rsample()) - x).square().sum(-1)
        prior = Normal(torch.zeros_like(mean), torch.ones_like(mean))
        optimizer.zero_grad()
        (loss + kl_divergence(posterior, prior).sum(-1)).mean().backward()
        optimizer.step()


# --- operations ---


@program(same_bits=False)
def scatter_and_gather():
    x = randn(32, 4, requires_grad=True)
    index = torch.randint(8, (32,), device=DEVICE)
    sums = torch.zeros(8, 4, device=DEVICE).index_add(0, index, x)
    sums = sums.scatter_add(0, index[:, None].expand(32, 4), x)
    sums = sums.index_put((index,), x, accumulate=True)
    sums.gather(0, index[:, None].expand(32, 4)).sum().backward()
    torch.bincount(index).max().item()
    x.detach().sort(0)[0].cumsum(0).unique().numel()


@program(same_bits=False)
def messages_on_a_graph():
    source, target = torch.randint(12, (2, 40), device=DEVICE)
    degree = torch.bincount(target, minlength=12).clamp(min=1)[:, None]

    class Messages(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            for layer in (self.first, self.second):
                sums = torch.zeros_like(x).index_add(0, target, layer(x)[source])
                x = F.relu(sums / degree) + x
            return x

    fit(Messages(), lambda: [randn(12, 8)])


@program(same_bits=False)
def sparse_matrices():
    index = torch.tensor([[0, 1, 2, 3], [1, 2, 0, 3]], device=DEVICE)
    x = randn(4, 4, requires_grad=True)
    matrix = torch.sparse_coo_tensor(index, randn(4), (4, 4)).coalesce()
    torch.sparse.mm(matrix, x).sum().backward()
    matrix.to_sparse_csr() @ x.detach()
    matrix.to_dense().sum().item()


@program()
def fourier_transforms():
    x = randn(4, 64, requires_grad=True)
    spectrum = torch.fft.rfft(x)
    torch.fft.irfft(spectrum * spectrum.conj(), n=64).sum().backward()
    window = torch.hann_window(32, device=DEVICE)
    frames = torch.stft(x.detach(), 32, window=window, return_complex=True)
    torch.istft(frames, 32, window=window).abs().max().item()


@program()
def linear_algebra():
    a = randn(8, 8)
    spd = a @ a.mT + 8 * torch.eye(8, device=DEVICE)
    torch.linalg.cholesky(spd).diagonal().log().sum()
    torch.linalg.solve(spd, randn(8, 2))
    torch.linalg.qr(a)
    torch.linalg.svdvals(a).min().item()
    torch.linalg.eigh(spd)


@program()
def scripted_functions():
    @torch.jit.script
    def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            x = x * 0.5 + 1
        return x

    scaled(randn(8), 3).sum().item()
    torch.jit.trace(perceptron().eval().to(DEVICE), randn(2, 32))(randn(2, 32))


@program()
def control_flow_of_higher_order():
    from torch._higher_order_ops.associative_scan import associative_scan

    x = randn(8, 4)
    torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
    if hasattr(torch, "while_loop"):
        torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 0.5),
                         (torch.zeros((), dtype=torch.int64, device=DEVICE), x))  # fmt: skip
    with contextlib.suppress(Exception):  # some versions want it compiled
        associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")


@program()
def exported_model():
    model = perceptron().eval().to(DEVICE)
    exported = torch.export.export(model, (randn(2, 32),))
    exported.module()(randn(2, 32)).sum().item()


@program()
def compiled_as_a_whole():
    model = perceptron().to(DEVICE)
    fit(torch.compile(model, fullgraph=True, backend="eager"), lambda: [randn(16, 32)])


# --- data, graphs, compilers, ranks ---


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        return torch.full((32,), i / 24)


@program(same_bits=False)  # the bits of a worker's storage are no operand that can be compared
def loader_of_data():
    from torch.utils.data import DataLoader

    model = perceptron().to(DEVICE)
    for workers in (0, 2):
        loader = DataLoader(
            Numbers(), 8, num_workers=workers, pin_memory=DEVICE == "cuda",
            multiprocessing_context="fork" if workers else None,
        )  # fmt: skip
        for batch in loader:
            model(batch.to(DEVICE, non_blocking=True)).sum().item()


@program("GPU")
def loader_on_a_stream_of_its_own():
    copies, main = torch.cuda.Stream(), torch.cuda.current_stream()
    model = perceptron().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    host = [torch.full((8, 32), float(i)).pin_memory() for i in range(4)]
    for pinned in host:
        with torch.cuda.stream(copies):
            batch = pinned.to("cuda", non_blocking=True)
        main.wait_stream(copies)
        batch.record_stream(main)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


@program("GPU")
def results_on_the_host():
    copies, main = torch.cuda.Stream(), torch.cuda.current_stream()
    host = torch.empty(1024, pin_memory=True)
    for i in range(3):
        x = torch.full((1024,), float(i), device="cuda")
        copies.wait_stream(main)
        with torch.cuda.stream(copies):
            host.copy_(x, non_blocking=True)
            x.record_stream(copies)
            done = torch.cuda.Event()
            done.record()
        del x
        done.synchronize()
        host.sum()


@program("GPU")
def backward_on_two_streams():
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    weight, x = randn(64, 64, requires_grad=True), randn(8, 64)
    for _ in range(3):
        side.wait_stream(main)
        with torch.cuda.stream(side):
            half = x[:4] @ weight
        other = x[4:] @ weight
        main.wait_stream(side)
        half.record_stream(main)
        (half.sum() + other.sum()).backward()
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.1)
        weight.grad = None


@program("GPU")
def graph_of_a_training():
    model = nn.Linear(32, 32).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    x = randn(8, 32)

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        x.copy_(randn(8, 32))
        graph.replay()
    model.weight.sum().item()


@program("GPU")
def graphed_callables():
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU()).to(DEVICE)
    head = nn.Linear(32, 4).to(DEVICE)
    graphed = torch.cuda.make_graphed_callables(model, (randn(8, 32, requires_grad=True),))
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        head(graphed(randn(8, 32, requires_grad=True))).square().mean().backward()
        optimizer.step()


@program("triton")
def compiled_by_inductor():
    model = perceptron().to(DEVICE)
    fit(torch.compile(model), lambda: [randn(16, 32)])


@program("triton GPU")
def kernels_of_triton():
    from stream_programs import kernel_of_triton

    double = kernel_of_triton()
    x, out = randn(4096), torch.empty(4096, device=DEVICE)
    side = torch.cuda.Stream()
    double[(4,)](x, out, 4096, BLOCK=1024)
    side.wait_stream(torch.cuda.current_stream())
    again = torch.empty_like(out)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        double[(4,)](out, again, 4096, BLOCK=1024)
    double[(4,)](out, x, 4096, BLOCK=1024)  # both read `out`
    torch.cuda.current_stream().wait_stream(side)
    (x + again).sum().item()


@contextlib.contextmanager
def one_rank():
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        options = {}
        if DEVICE == "cuda":
            options["device_id"] = torch.device("cuda", 0)
        dist.init_process_group(
            "nccl" if DEVICE == "cuda" else "gloo", init_method=f"file://{folder}/ranks",
            rank=0, world_size=1, **options,
        )  # fmt: skip
        try:
            yield
        finally:
            dist.destroy_process_group()


@program()
def data_parallel():
    with one_rank():
        model = nn.parallel.DistributedDataParallel(perceptron().to(DEVICE))
        fit(model, lambda: [randn(8, 32)])


@program()
def fully_sharded():
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        from torch.distributed._composable.fsdp import fully_shard
    with one_rank():
        mesh = init_device_mesh(DEVICE, (1,))
        model = perceptron().to(DEVICE)
        for layer in (model[0], model[3], model):
            fully_shard(layer, mesh=mesh)
        fit(model, lambda: [randn(8, 32)])


@program()
def collectives():
    import torch.distributed as dist

    with one_rank():
        x, parts = randn(8), [torch.empty(8, device=DEVICE)]
        work = dist.all_reduce(x, async_op=True)
        y = randn(8) * 2
        work.wait()
        dist.all_gather(parts, x + y)
        dist.broadcast(parts[0], 0)
        dist.all_gather_into_tensor(torch.empty(8, device=DEVICE), x)
        parts[0].sum().item()


@program()
def profiled():
    from torch.profiler import profile, schedule

    model = perceptron().to(DEVICE)
    with profile(schedule=schedule(wait=1, warmup=1, active=1)) as seen:
        for _ in range(3):
            fit(model, lambda: [randn(8, 32)], steps=1)
            seen.step()


# --- our own examples, and other libraries ---


@program("segfuse")
def semi_markov_crf():
    from segfuse.torch import SemiMarkovCRF

    crf = SemiMarkovCRF(3, 8).to(DEVICE)
    encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, crf.num_scores)).to(DEVICE)
    labels = (torch.arange(40, device=DEVICE) // 5 % 3).expand(4, 40)
    optimizer = torch.optim.Adam([*encoder.parameters(), *crf.parameters()], lr=0.02)
    for _ in range(3):
        optimizer.zero_grad()
        crf(encoder(F.one_hot(labels, 8) + randn(4, 40, 8)), labels).backward()
        optimizer.step()
    crf.decode(encoder(randn(2, 40, 8)).detach())


def example(name, *arguments):
    """A file of examples/ as a program of its own."""
    path = Path(__file__).parents[2] / "examples" / name
    before, sys.argv = sys.argv, [str(path), *arguments]
    try:
        spec = importlib.util.spec_from_file_location(path.stem + "_example", path)
        module = importlib.util.module_from_spec(spec)
        with contextlib.redirect_stdout(io.StringIO()):
            spec.loader.exec_module(module)
            module.main()
    finally:
        sys.argv = before


@program("segfuse")
def example_of_our_layer():
    example("torch_crf.py", "--steps", "3")


@program("segfuse", same_bits=False)  # it measures times
def example_of_our_compiler():
    example("torch_compile.py", "--steps", "4")


def words(rows=2, length=12):
    return torch.randint(100, (rows, length), device=DEVICE)


@program("transformers", same_bits=False)
def trained_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=100, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    model, ids = GPT2LMHeadModel(config).to(DEVICE), words()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimizer.step()


@program("transformers", same_bits=False)
def llama_that_generates():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().to(DEVICE)
    ids = words()
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    with torch.no_grad():
        model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0)


@program("transformers", same_bits=False)
def trained_bert():
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, num_labels=3,
    )  # fmt: skip
    model = BertForSequenceClassification(config).to(DEVICE)
    ids, labels = words(), torch.tensor([0, 2], device=DEVICE)
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(ids, attention_mask=mask, labels=labels).loss.backward()
        optimizer.step()


@program("transformers", same_bits=False)
def trained_t5():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    model, ids = T5ForConditionalGeneration(config).to(DEVICE), words()
    model(input_ids=ids, labels=ids).loss.backward()


@program("transformers", same_bits=False)
def trained_vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        image_size=32, patch_size=8,
    )  # fmt: skip
    model = ViTForImageClassification(config).to(DEVICE)
    fit(model, lambda: [randn(2, 3, 32, 32)], steps=2, loss=lambda out: out.logits.square().mean())


@program("transformers", same_bits=False)
def trained_deberta():
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    config = DebertaV2Config(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, relative_attention=True, pos_att_type=["p2c", "c2p"],
        position_buckets=8, num_labels=2,
    )  # fmt: skip
    model = DebertaV2ForSequenceClassification(config).to(DEVICE)
    model(words(), labels=torch.tensor([0, 1], device=DEVICE)).loss.backward()


@program("transformers", same_bits=False)
def trained_mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4,
    )  # fmt: skip
    model, ids = MixtralForCausalLM(config).to(DEVICE), words()
    model(ids, labels=ids).loss.backward()


@program("lightning", same_bits=False)
def trainer_of_lightning():
    os.environ.setdefault("PL_DISABLE_FORK", "1")
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = perceptron()

        def training_step(self, batch, _):
            return self.model(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    data = torch.utils.data.DataLoader(Numbers(), 8, pin_memory=DEVICE == "cuda")
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="gpu" if DEVICE == "cuda" else "cpu", devices=1, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            gradient_clip_val=1.0, default_root_dir=folder,
        )  # fmt: skip
        trainer.fit(Module(), data)


@program("torchvision", same_bits=False)
def resnet_of_torchvision():
    import torchvision

    model = torchvision.models.resnet18(weights=None, num_classes=4)
    fit(model, lambda: [randn(4, 3, 32, 32)], steps=2)


def run(name):
    torch.manual_seed(0)
    PROGRAMS[name]()
    if DEVICE == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    run(sys.argv[1])
