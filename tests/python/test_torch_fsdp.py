"""segfuse.torch under FSDP2 and beside tensors that are shared out over a device mesh."""

import copy

import pytest
from ranks import on_ranks

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
st = pytest.importorskip("segfuse.torch")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

import torch.distributed.checkpoint as dcp
from test_torch_ddp import (
    CLASSES,
    FRAMES,
    LONGEST,
    ULPS,
    Exchanges,
    Tagger,
    assert_same,
    batch_of,
    gradients,
    share_of_sum,
)
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import segfuse


def mesh_of(rank, shape=None):
    return init_device_mesh(rank.device.type, shape or (rank.world,))


def sharded(rank, model, parts=("encoder", "crf"), mesh=None, **options):
    """A copy of the model whose parameters lie in shares, those of the parts and of the rest."""
    model = copy.deepcopy(model)
    mesh = mesh or mesh_of(rank)
    for part in parts:
        fully_shard(getattr(model, part), mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def whole(tensors):
    return {name: tensor.full_tensor() for name, tensor in tensors.items()}


def assert_same_gradients(shared, alone, ulps=ULPS):
    expected = gradients(alone)
    assert any(name.startswith("crf.") for name in expected)
    assert_same(whole(gradients(shared)), expected, ulps)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("parts", ["", "crf", "encoder crf"])
@pytest.mark.parametrize("reshard", [False, True])
@on_ranks(2, 3)
def test_gradients(rank, dtype, parts, reshard):
    """With reshard_after_forward, what the backward pass of "none" reads is gathered again."""
    dtype = getattr(torch, dtype)
    alone = Tagger(boundary_scores=True).to(rank.device, dtype)
    shared = sharded(rank, alone, parts.split(), reshard_after_forward=reshard)
    features, labels = batch_of(rank, 6, dtype)
    own = rank.deal(6)
    for reduction in ("mean", "none"):
        alone.zero_grad()
        shared.zero_grad()
        alone(features, labels, reduction).mean().backward()
        shared(features[own], labels[own], reduction).mean().backward()
        assert_same_gradients(shared, alone)


@pytest.mark.parametrize("durations", ["table", "geometric", "poisson", "log_normal", "buckets"])
@on_ranks(2)
def test_durations_of_each_kind(rank, durations):
    """A family of one number a class leaves nothing to the second rank."""
    alone = Tagger(durations=durations, self_transitions=False).to(rank.device, torch.float64)
    shared = sharded(rank, alone)
    features, labels = batch_of(rank, 4)
    own = rank.deal(4)
    alone(features, labels).backward()
    shared(features[own], labels[own]).backward()
    assert_same_gradients(shared, alone)


@on_ranks(2, 3)
def test_steps_of_an_optimizer(rank):
    alone = Tagger().to(rank.device, torch.float64)
    shared = sharded(rank, alone)
    optimizers = [
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (alone, shared)
    ]
    for step in range(6):
        features, labels = batch_of(rank, 5 + step, seed=step)
        own = rank.deal(5 + step)
        losses = (
            alone(features, labels),
            share_of_sum(shared, rank, features[own], labels[own], 5 + step),
        )
        for model, optimizer, loss in zip((alone, shared), optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    found = whole(dict(shared.named_parameters()))
    assert_same(found, dict(alone.named_parameters()), 16 * ULPS)


@pytest.mark.parametrize("shape", ["replicas", "shards"])
@on_ranks(2)
def test_a_mesh_of_two_dimensions(rank, shape):
    """Replicas of what is shared out (HSDP)."""
    shape = (rank.world, 1) if shape == "replicas" else (1, rank.world)
    alone = Tagger().to(rank.device, torch.float64)
    mesh = init_device_mesh(rank.device.type, shape, mesh_dim_names=("replicas", "shards"))
    shared = sharded(rank, alone, mesh=mesh)
    features, labels = batch_of(rank, 4)
    own = rank.deal(4)
    alone(features, labels).backward()
    shared(features[own], labels[own]).backward()
    assert_same_gradients(shared, alone)


@on_ranks(2)
def test_accumulation_and_frozen_parameters(rank):
    alone = Tagger().to(rank.device, torch.float64)
    alone.encoder[0].requires_grad_(False)
    alone.crf.initial.requires_grad_(False)
    shared = sharded(rank, alone)
    features, labels = batch_of(rank, 8)
    alone(features, labels).backward()
    for half in (0, 4):
        shared.set_requires_gradient_sync(half > 0)
        own = rank.deal(4, half)
        (shared(features[own], labels[own]) / 2).backward()
    assert_same_gradients(shared, alone)


@pytest.mark.parametrize("policy_of_its_own", [False, True])
@on_ranks(2)
def test_mixed_precision(rank, policy_of_its_own):
    """Emissions reach the layer as bfloat16, and so do its parameters unless it has a policy of its
    own; it computes in float32."""
    alone = Tagger().to(rank.device)
    shared = copy.deepcopy(alone)
    if policy_of_its_own:
        fully_shard(shared.crf, mesh=mesh_of(rank))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(shared, mesh=mesh_of(rank), mp_policy=policy)
    seen = []
    shared.crf.register_forward_hook(lambda crf, *_: seen.append(crf.transition.dtype))
    with torch.no_grad():
        for name, parameter in alone.named_parameters():
            if not (policy_of_its_own and name.startswith("crf.")):
                parameter.copy_(parameter.bfloat16())
    features, labels = batch_of(rank, 4, torch.float32)
    own = rank.deal(4)
    with torch.autocast(rank.device.type, dtype=torch.bfloat16):
        expected = alone(features, labels)
    expected.backward()
    loss = shared(features[own], labels[own])
    assert loss.dtype == torch.float32
    assert seen == [torch.float32 if policy_of_its_own else torch.bfloat16]
    loss.backward()
    assert {g.dtype for g in gradients(shared).values()} == {torch.float32}
    in_float32 = 2.0**-5 / torch.finfo(torch.float32).eps
    assert_same_gradients(shared, alone, in_float32)


@on_ranks(2)
def test_the_layer_adds_no_exchange(rank):
    """One gathering and one sum for each part that FSDP was given, whatever the layer does."""
    crf = st.SemiMarkovCRF(CLASSES, LONGEST, durations="buckets").to(rank.device)
    fully_shard(crf, mesh=mesh_of(rank))
    _, labels = batch_of(rank, 4)
    emission = torch.randn(4, FRAMES, CLASSES, device=rank.device)
    with Exchanges() as exchanges:
        crf(emission, labels).backward()
    assert exchanges.calls == {"c10d._allgather_base_": 1, "c10d._reduce_scatter_base_": 1}


@pytest.mark.parametrize("parts", ["", "encoder crf"])
@on_ranks(2)
def test_methods_beside_forward(rank, parts):
    alone = Tagger(boundary_scores=True, self_transitions=False).to(rank.device)
    shared = sharded(rank, alone, parts.split(), reshard_after_forward=True)
    features, labels = batch_of(rank, 4, torch.float32)
    emission = alone.encoder(features).detach()
    shared(features, labels)
    methods = {
        "decode": lambda crf: crf.decode(emission),
        "loss": lambda crf: crf.loss(emission, labels),
        "log_partition": lambda crf: crf.log_partition(emission),
        "posteriors": lambda crf: crf.posteriors(emission).label,
        "distribution": lambda crf: crf.distribution(emission).viterbi(),
    }
    for call in methods.values():
        with pytest.raises(segfuse.UsageError, match=r"^transition is a DTensor.*register_fsdp_f"):
            call(shared.crf)
    if not parts:
        return
    for name in ("decode", "loss", "log_partition", "posteriors"):
        register_fsdp_forward_method(shared.crf, name)
        found, expected = (methods[name](crf) for crf in (shared.crf, alone.crf))
        assert found == expected if name == "decode" else torch.equal(found, expected)
    register_fsdp_forward_method(shared.crf, "distribution")
    model = shared.crf.distribution(emission)  # its scores are freed when the method ends
    for call in (model.viterbi, model.log_partition, lambda: model.loss(labels)):
        with pytest.raises(segfuse.UsageError, match=r"^initial has no memory; if FSDP"):
            call()
    shared.crf.unshard()
    assert model.viterbi() == alone.crf.decode(emission) == shared.crf.decode(emission)
    shared.crf.reshard()


@on_ranks(2)
def test_a_checkpoint(rank):
    """Model and optimizer are written in shares, and read by other shares and by one process."""
    alone = Tagger().to(rank.device, torch.float64)
    shared = sharded(rank, alone)
    features, labels = batch_of(rank, 8)
    own = rank.deal(8)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(features[own], labels[own]).backward()
        optimizer.step()

    def state_of(model, optimizer):
        model_state, optimizer_state = states.get_state_dict(model, optimizer)
        return {"model": model_state, "optimizer": optimizer_state}

    optimizer = torch.optim.AdamW(shared.parameters(), lr=0.1)
    step(shared, optimizer)
    dcp.save(state_of(shared, optimizer), checkpoint_id=rank.folder / "checkpoint")

    again = sharded(rank, Tagger(seed=5).to(rank.device, torch.float64), parts=())
    others = torch.optim.AdamW(again.parameters(), lr=0.1)
    state = state_of(again, others)
    dcp.load(state, checkpoint_id=rank.folder / "checkpoint")
    states.set_state_dict(
        again, others, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    for model, its_optimizer in ((shared, optimizer), (again, others)):
        step(model, its_optimizer)
    found, expected = (whole(dict(model.named_parameters())) for model in (again, shared))
    assert_same(found, expected, ULPS)

    options = states.StateDictOptions(full_state_dict=True, cpu_offload=True)
    full = states.get_model_state_dict(shared, options=options)
    if rank.number == 0:
        alone.load_state_dict(full)
        assert_same(dict(alone.named_parameters()), expected, ulps=0)
    else:
        assert full == {}
    options = states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    states.set_model_state_dict(again, full, options=options)
    assert_same(whole(dict(again.named_parameters())), expected, ulps=0)


@pytest.mark.parametrize("durations", sorted(st._durations.FAMILIES))
@on_ranks(2)
def test_made_on_the_meta_device(rank, durations):
    """As PyTorch's own layers: made without memory, shared out, filled by reset_parameters."""
    options = {"durations": durations, "tail": True, "self_transitions": False}
    with torch.device("meta"):
        shared = st.SemiMarkovCRF(CLASSES, LONGEST, **options)
    fully_shard(shared, mesh=mesh_of(rank))
    shared.to_empty(device=rank.device)
    for module in shared.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    alone = st.SemiMarkovCRF(CLASSES, LONGEST, **options).to(rank.device)
    assert_same(whole(shared.state_dict()), alone.state_dict(), ulps=0)
    if rank.device.type == "cpu":
        emission, labels = torch.randn(2, FRAMES, CLASSES), batch_of(rank, 2)[1]
        assert torch.equal(shared(emission, labels), alone(emission, labels))


@on_ranks(2)
def test_tensors_over_a_mesh_are_refused(rank):
    mesh = mesh_of(rank)
    emission = torch.randn(2, FRAMES, CLASSES, device=rank.device)
    transition = torch.zeros(CLASSES, CLASSES, device=rank.device)
    duration = torch.zeros(LONGEST, CLASSES, device=rank.device)
    labels = batch_of(rank, 2)[1]
    over = {
        "emission": distribute_tensor(emission, mesh, [Shard(0)]),
        "transition": distribute_tensor(transition, mesh, [Replicate()]),
        "labels": distribute_tensor(labels, mesh, [Replicate()]),
    }
    crf = st.SemiMarkovCRF(CLASSES, LONGEST).to(rank.device)
    calls = {
        "emission": [
            lambda: crf(over["emission"], labels),
            lambda: crf.decode(over["emission"]),
            lambda: st.log_partition(over["emission"], transition, duration),
            lambda: segfuse.log_partition(over["emission"], transition, duration),
            lambda: segfuse.viterbi(over["emission"], transition, duration),
        ],
        "transition": [
            lambda: st.loss(emission, over["transition"], duration, labels),
            lambda: segfuse.loss(emission, over["transition"], duration, labels=labels),
        ],
        "labels": [
            lambda: crf(emission, over["labels"]),
            lambda: st.loss(emission, transition, duration, over["labels"]),
            lambda: segfuse.loss(emission, transition, duration, labels=over["labels"]),
        ],
        "argument 0": [lambda: segfuse.compile(lambda x: x + x)(over["emission"])],
    }
    for name, these in calls.items():
        for call in these:
            with pytest.raises(segfuse.UsageError, match=rf"^{name} is a DTensor") as raised:
                call()
            assert "to_local()" in str(raised.value) and "\n" not in str(raised.value)


@on_ranks(2)
def test_behind_an_encoder_whose_layers_are_shared_out(rank):
    """Tensor parallelism: its last layer hands on the whole emissions, on every rank."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    alone = Tagger().to(rank.device, torch.float64)
    shared = copy.deepcopy(alone)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(shared.encoder, mesh_of(rank), plan)
    features, labels = batch_of(rank, 4)
    alone(features, labels).backward()
    shared(features, labels).backward()
    found = {
        name: g.full_tensor() if isinstance(g, DTensor) else g
        for name, g in gradients(shared).items()
    }
    assert_same(found, gradients(alone))


@on_ranks(2)
def test_rows_over_a_mesh(rank):
    """A batch that lies over a mesh: its rows of this rank go in, the sum of all comes out."""
    from torch.distributed.tensor import Partial

    mesh = mesh_of(rank)
    alone = st.SemiMarkovCRF(CLASSES, LONGEST).to(rank.device, torch.float64)
    shared = copy.deepcopy(alone)
    _, labels = batch_of(rank, 4)
    emission = torch.randn(4, FRAMES, CLASSES, dtype=torch.float64).to(rank.device)
    over = distribute_tensor(emission, mesh, [Shard(0)]).requires_grad_()
    value = shared(over.to_local(), labels[rank.deal(4)], reduction="sum")
    total = DTensor.from_local(value, mesh, [Partial()]).full_tensor()
    expected = emission.requires_grad_()
    whole_sum = alone(expected, labels, reduction="sum")
    torch.testing.assert_close(total, whole_sum)
    total.backward()
    whole_sum.backward()
    assert_same({"emission": over.grad.full_tensor()}, {"emission": expected.grad})


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@on_ranks(2)
def test_compiled(rank, backend):
    alone = Tagger().to(rank.device, torch.float64)
    shared = sharded(rank, alone)
    compiled = torch.compile(shared, backend=backend)
    for rows in (4, 6):
        features, labels = batch_of(rank, rows)
        own = rank.deal(rows)
        alone.zero_grad()
        shared.zero_grad()
        alone(features, labels).backward()
        compiled(features[own], labels[own]).backward()
        assert_same_gradients(shared, alone)
