"""segfuse.torch under DistributedDataParallel: the gradients of one process on the whole batch.

A gradient is a sum over the rows of a batch, and ranks that share the rows add the same numbers in
another order. So they are compared in units of the last place (`ULPS`) of the largest number of
each parameter's gradient, or of 1: what is added are differences of probabilities.
"""

import collections
import contextlib
import copy
import functools

import pytest
from ranks import on_ranks

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
st = pytest.importorskip("segfuse.torch")
dist = torch.distributed
if not dist.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

from torch.nn.parallel import DistributedDataParallel

import segfuse

CLASSES, LONGEST, FEATURES, FRAMES = 3, 4, 5, 12
ULPS = 64


class Tagger(torch.nn.Module):
    """An encoder with the layer behind it; `forward` is the loss."""

    def __init__(self, seed=0, width=8, **options):
        super().__init__()
        torch.manual_seed(seed)
        self.crf = st.SemiMarkovCRF(
            CLASSES, LONGEST, **{"durations": "negative_binomial"} | options
        )
        self.encoder = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, width),
            torch.nn.Tanh(),
            torch.nn.Linear(width, self.crf.num_scores),
        )
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter, std=0.5 if width < 100 else 0.01)

    def forward(self, features, gold, reduction="mean", lengths=None):
        return self.crf(self.encoder(features), gold, lengths, reduction)

    def decode(self, features):
        return self.crf.decode(self.encoder(features))


def batch_of(rank, rows, dtype=torch.float64, seed=1):
    """Features, and labels in runs that fit, of which the last rows end before the others."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, FRAMES, FEATURES, generator=generator, dtype=dtype)
    starts = torch.randint(1, LONGEST, (rows, FRAMES), generator=generator).cumsum(1)
    labels = torch.stack([torch.bucketize(torch.arange(FRAMES), row, right=True) for row in starts])
    labels = (labels + torch.arange(rows)[:, None]) % CLASSES
    labels[1::2, FRAMES - 3 :] = -100
    return features.to(rank.device), labels.to(rank.device)


def taggers(rank, dtype=torch.float64, model=Tagger, ddp=None, **options):
    """The model alone, and a copy of it under DDP."""
    alone = model(**options).to(rank.device, dtype)
    return alone, DistributedDataParallel(copy.deepcopy(alone), **(ddp or {}))


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same(found, expected, ulps=ULPS):
    """Equal to `ulps` units in the last place of the largest number of each tensor, or of 1."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        bound = ulps * torch.finfo(value.dtype).eps * max(value.abs().max().item(), 1.0)
        difference = (found[name] - value).abs().max()
        assert difference <= bound, f"{name}: {difference:.3g} apart, at most {bound:.3g}"


def assert_same_gradients(parallel, alone, ulps=ULPS):
    expected = gradients(alone)
    assert any(name.startswith("crf.") for name in expected)
    assert_same(gradients(parallel.module), expected, ulps)


def assert_equal_on_all_ranks(rank, tensors):
    """Equal bits."""
    for name, tensor in tensors.items():
        first = tensor.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, tensor), f"{name} differs from that of rank 0"


class Exchanges(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts what goes to other ranks while it is entered: {operation: calls}."""

    def __init__(self):
        super().__init__()
        self.calls = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace in ("c10d", "_c10d_functional", "_dtensor"):
            self.calls[str(function.overloadpacket)] += 1
        return function(*args, **(kwargs or {}))


def share_of_sum(model, rank, features, gold, rows):
    """What a rank gives when ranks have different numbers of rows: DDP takes the mean over ranks,
    so the sum over its rows times the number of ranks makes the mean over all rows."""
    return model(features, gold, reduction="sum") * (rank.world / rows)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("boundary_scores", [False, True])
@on_ranks(2, 3)
def test_as_many_rows_on_each_rank(rank, dtype, boundary_scores):
    dtype = getattr(torch, dtype)
    alone, parallel = taggers(rank, dtype, boundary_scores=boundary_scores)
    features, labels = batch_of(rank, 6, dtype)
    own = rank.deal(6)
    for reduction in ("mean", "none"):
        alone.zero_grad()
        parallel.zero_grad()
        alone(features, labels, reduction).mean().backward()
        parallel(features[own], labels[own], reduction).mean().backward()
        assert_same_gradients(parallel, alone)
        assert_equal_on_all_ranks(rank, gradients(parallel.module))


@pytest.mark.parametrize("rows", [7, 2])
@on_ranks(2, 3)
def test_another_number_of_rows_on_each_rank(rank, rows):
    """Two rows on three ranks leave one without any."""
    alone, parallel = taggers(rank)
    features, labels = batch_of(rank, rows)
    own = rank.deal(rows)
    alone(features, labels).backward()
    share_of_sum(parallel, rank, features[own], labels[own], rows).backward()
    assert_same_gradients(parallel, alone)
    if rows % rank.world == 0:
        return
    parallel.zero_grad()
    parallel(features[own], labels[own]).backward()  # a row counts more on a rank with fewer
    with pytest.raises(AssertionError, match="apart"):
        assert_same_gradients(parallel, alone, ulps=1e6)


@on_ranks(2, 3)
def test_steps_of_an_optimizer(rank):
    alone, parallel = taggers(rank, tail=rank.device.type == "cpu")
    optimizers = [
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (alone, parallel)
    ]
    for step in range(6):
        features, labels = batch_of(rank, 5 + step, seed=step)
        own = rank.deal(5 + step)
        losses = (
            alone(features, labels),
            share_of_sum(parallel, rank, features[own], labels[own], 5 + step),
        )
        for optimizer, loss in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert_same(dict(parallel.module.named_parameters()), dict(alone.named_parameters()), 16 * ULPS)
    assert_equal_on_all_ranks(rank, dict(parallel.named_parameters()))
    assert parallel.module.decode(features) == alone.decode(features)


@pytest.mark.parametrize("divide_by_initial", [True, False])
@on_ranks(2, 3)
def test_a_rank_that_runs_out_of_batches(rank, divide_by_initial):
    """Rank r has r + 1 batches of two rows. In the steps without a rank it adds nothing, and DDP
    divides by all ranks or by those that are left."""
    alone, parallel = taggers(rank)
    batches = [batch_of(rank, 2 * rank.world, seed=step) for step in range(rank.world)]
    found = []
    with parallel.join(divide_by_initial_world_size=divide_by_initial):
        for features, labels in batches[: rank.number + 1]:
            own = rank.deal(len(features))
            parallel.zero_grad()
            parallel(features[own], labels[own]).backward()
            found.append({name: g.clone() for name, g in gradients(parallel.module).items()})
    for step, own_gradients in enumerate(found):
        features, labels = batches[step]
        left = rank.world - step  # the ranks before number `step` have no batch any more
        rows = slice(2 * step, None)
        divisor = 2 * (rank.world if divide_by_initial else left)
        alone.zero_grad()
        (alone(features[rows], labels[rows], "sum") / divisor).backward()
        assert_same(own_gradients, gradients(alone))


@pytest.mark.parametrize("options", ["plain", "views", "unused", "static"])
@on_ranks(2)
def test_accumulation_without_exchange(rank, options):
    ddp = {
        "plain": {},
        "views": {"gradient_as_bucket_view": True},
        "unused": {"find_unused_parameters": True},
        "static": {"static_graph": True},
    }[options]
    alone, parallel = taggers(rank, ddp=ddp)
    for seed in range(3):
        features, labels = batch_of(rank, 8, seed=seed)
        alone.zero_grad()
        parallel.zero_grad()
        alone(features, labels).backward()
        first, second = rank.deal(4), rank.deal(4, start=4)
        # A static graph is learnt in the first backward pass, which has to exchange (PyTorch's).
        learning = options == "static" and seed == 0
        with contextlib.nullcontext() if learning else parallel.no_sync():
            (parallel(features[first], labels[first]) / 2).backward()
        (parallel(features[second], labels[second]) / 2).backward()
        if not learning:  # otherwise the first gradients are exchanged twice
            assert_same_gradients(parallel, alone)


class WithSpare(Tagger):
    """Has a layer that no loss depends on."""

    def __init__(self, **options):
        super().__init__(**options)
        self.spare = torch.nn.Linear(2, 2)


@on_ranks(2)
def test_unused_parameters(rank):
    alone, parallel = taggers(rank, model=WithSpare, ddp={"find_unused_parameters": True})
    features, labels = batch_of(rank, 4)
    own = rank.deal(4)
    for _ in range(2):
        alone.zero_grad()
        parallel.zero_grad()
        alone(features, labels).backward()
        parallel(features[own], labels[own]).backward()
        assert_same_gradients(parallel, alone)


@pytest.mark.parametrize("frozen", ["crf", "encoder", "crf.transition"])
@pytest.mark.parametrize("static_graph", [False, True])
@on_ranks(2)
def test_frozen_parameters(rank, frozen, static_graph):
    def model():
        tagger = Tagger()
        for name, parameter in tagger.named_parameters():
            parameter.requires_grad_(not name.startswith(frozen))
        return tagger

    alone, parallel = taggers(rank, model=model, ddp={"static_graph": static_graph})
    features, labels = batch_of(rank, 4)
    own = rank.deal(4)
    for _ in range(2):
        alone.zero_grad()
        parallel.zero_grad()
        alone(features, labels).backward()
        parallel(features[own], labels[own]).backward()
        expected = gradients(alone)
        assert expected and not any(name.startswith(frozen) for name in expected)
        assert_same(gradients(parallel.module), expected)


class Checkpointed(Tagger):
    """Computes encoder and layer again in the backward pass."""

    def forward(self, features, gold, reduction="mean"):
        again = functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
        return again(self.crf, again(self.encoder, features), gold, None, reduction)


@pytest.mark.parametrize("static_graph", [False, True])
@on_ranks(2)
def test_checkpointed_activations(rank, static_graph):
    alone, parallel = taggers(rank, model=Checkpointed, ddp={"static_graph": static_graph})
    features, labels = batch_of(rank, 4)
    own = rank.deal(4)
    for reduction in ("mean", "mean") if static_graph else ("mean", "none"):
        alone.zero_grad()
        parallel.zero_grad()
        alone(features, labels, reduction).mean().backward()
        parallel(features[own], labels[own], reduction).mean().backward()
        assert_same_gradients(parallel, alone)


@on_ranks(2)
def test_autocast(rank):
    """The encoder's products are bfloat16, and so are its gradients: each rank rounds its own."""
    alone, parallel = taggers(rank, torch.float32)
    features, labels = batch_of(rank, 4, torch.float32)
    own = rank.deal(4)
    for model, rows in ((alone, slice(None)), (parallel, own)):
        with torch.autocast(rank.device.type, dtype=torch.bfloat16):
            loss = model(features[rows], labels[rows])
        assert loss.dtype == torch.float32
        loss.backward()
    in_float32 = 2.0**-5 / torch.finfo(torch.float32).eps
    assert_same_gradients(parallel, alone, in_float32)
    assert_equal_on_all_ranks(rank, gradients(parallel.module))


@on_ranks(2)
def test_gold_segments_and_durations_of_each_kind(rank):
    for durations in ("table", "geometric", "poisson", "log_normal", "buckets"):
        alone, parallel = taggers(rank, durations=durations)
        features, labels = batch_of(rank, 4)
        own = rank.deal(4)
        gold = segfuse.Segmentations.from_labels(
            labels[own].cpu(), max_duration=LONGEST, num_classes=CLASSES
        )
        alone(features, labels).backward()
        parallel(features[own], gold, lengths=labels[own].ne(-100).sum(1)).backward()
        assert_same_gradients(parallel, alone)


class Partial(Tagger):
    def forward(self, features, known):
        return self.crf.partial_loss(self.encoder(features), known)


@on_ranks(2)
def test_partial_labels(rank):
    if rank.device.type != "cpu":
        pytest.skip("constraints need the CPU")
    alone, parallel = taggers(rank, model=Partial)
    features, labels = batch_of(rank, 4)
    own = rank.deal(4)
    known = labels.masked_fill(torch.arange(FRAMES) % 3 > 0, -1).masked_fill(labels == -100, -1)
    alone(features, segfuse.Constraints(labels=known)).backward()
    parallel(features[own], segfuse.Constraints(labels=known[own])).backward()
    assert_same_gradients(parallel, alone)


@on_ranks(2)
def test_the_state_goes_to_one_process_and_back(rank):
    alone, parallel = taggers(rank)
    features, labels = batch_of(rank, 4)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=0.1)
    own = rank.deal(4)
    parallel(features[own], labels[own]).backward()
    optimizer.step()
    path = rank.folder / "model.pt"
    if rank.number == 0:
        torch.save(parallel.module.state_dict(), path)
    dist.barrier()
    alone.load_state_dict(torch.load(path, map_location=rank.device))
    assert_same(dict(alone.named_parameters()), dict(parallel.module.named_parameters()), ulps=0)
    other = Tagger(seed=3).to(rank.device, torch.float64)
    again = DistributedDataParallel(other)
    again.load_state_dict(parallel.state_dict())
    assert torch.equal(again(features, labels), parallel(features, labels))


@on_ranks(2)
def test_the_layer_itself_exchanges_nothing(rank):
    """All ranks make other calls, so that one that waited for the others would hang, too."""
    model = Tagger(durations="buckets").to(rank.device, torch.float64)
    features, labels = batch_of(rank, 4)
    with Exchanges() as exchanges:
        for reduction in ("mean", "sum", "none")[: rank.number + 2]:
            model(features, labels, reduction).sum().backward()
        for _ in range(rank.number):
            model.crf.log_partition(model.encoder(features)).sum().backward()
        model.decode(features)
        model.crf.posteriors(model.encoder(features).detach())
    assert not exchanges.calls, exchanges.calls
    parallel = DistributedDataParallel(model)
    for _ in range(2):  # DDP agrees on its buckets in the second step
        parallel(features, labels).backward()
    with Exchanges() as exchanges:
        for _ in range(3):
            parallel(features, labels).backward()
    assert exchanges.calls == {"c10d.allreduce_": 3}, exchanges.calls  # and no buffers to broadcast


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@on_ranks(2)
def test_compiled(rank, backend):
    """The encoder is wide enough for DDP to cut the graph into one for each bucket."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    alone, parallel = taggers(rank, width=1 << 16, ddp={"bucket_cap_mb": 1})
    compiled = torch.compile(parallel, backend=count)
    for rows in (4, 6):
        features, labels = batch_of(rank, rows)
        own = rank.deal(rows)
        for reduction in ("mean", "none"):
            alone.zero_grad()
            parallel.zero_grad()
            alone(features, labels, reduction).mean().backward()
            compiled(features[own], labels[own], reduction).mean().backward()
            assert_same_gradients(parallel, alone)
    assert len(graphs) >= 4, graphs


class Rows(torch.utils.data.Dataset):
    """Its workers call the engine, too."""

    def __init__(self, features, labels):
        self.features, self.labels = features, labels

    def __len__(self):
        return len(self.features)

    def __getitem__(self, row):
        labels = self.labels[row : row + 1]
        runs = segfuse.Segmentations.from_labels(labels, max_duration=LONGEST, num_classes=CLASSES)
        value = segfuse.log_partition(
            torch.zeros(1, 2, CLASSES), torch.zeros(CLASSES, CLASSES), torch.zeros(LONGEST, CLASSES)
        )
        assert value.isfinite().all()
        return self.features[row], runs.to_labels(FRAMES)[0]


@pytest.mark.parametrize("start", ["fork", "spawn"])
@on_ranks(2)
def test_beside_workers_of_a_data_loader(rank, start):
    """A forked worker is a child of a process whose engine has threads, and runs beside it."""
    if start == "fork" and rank.device.type != "cpu":
        pytest.skip("CUDA has no forked workers")
    alone, parallel = taggers(rank)
    features, labels = batch_of(rank, 8)
    sampler = torch.utils.data.DistributedSampler(range(8), rank.world, rank.number, shuffle=False)
    threads = segfuse.get_threads()
    segfuse.set_threads(2)
    with contextlib.ExitStack() as stack:
        stack.callback(segfuse.set_threads, threads)
        parallel(features, labels).backward()  # the engine has its threads before the fork
        data = Rows(features.cpu(), labels.cpu())
        loader = torch.utils.data.DataLoader(
            data, batch_size=2, sampler=sampler, num_workers=2, multiprocessing_context=start
        )
        for step, (own, gold) in enumerate(loader):
            rows = slice(2 * rank.world * step, 2 * rank.world * (step + 1))
            alone.zero_grad()
            parallel.zero_grad()
            alone(features[rows], labels[rows]).backward()
            parallel(own.to(rank.device), gold.to(rank.device)).backward()
            assert_same_gradients(parallel, alone)
        assert step == 1
