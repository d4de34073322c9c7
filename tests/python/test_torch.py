"""segfuse.torch: autograd, torch.compile, autocast, and the module. Several processes:
test_torch_ddp.py and test_torch_fsdp.py."""

import copy
import itertools
import pickle

import numpy as np
import pytest
from conftest import SCORES, random_model

import segfuse

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
st = pytest.importorskip("segfuse.torch")

LABELS = torch.tensor([[0, 0, 1, 1, 1], [-100] * 5, [1, 0, 0, -100, -100]])
LENGTHS = torch.tensor([5, 0, 3])
NAMES = SCORES[3:]


def leaves(model, dtype=torch.float64):
    """The scores of a model as tensors that require gradients."""
    arrays = [getattr(model, name) for name in SCORES]
    return [None if a is None else torch.tensor(a, dtype=dtype).requires_grad_() for a in arrays]


def loss_of(scores, gold=LABELS, **options):
    emission, transition, duration, *others = scores
    named = dict(zip(NAMES, others, strict=True))
    return st.loss(emission, transition, duration, gold, **named, **options)


def log_partition_of(scores, **options):
    emission, transition, duration, *others = scores
    named = dict(zip(NAMES, others, strict=True))
    return st.log_partition(emission, transition, duration, **named, **options)


@pytest.mark.parametrize("by_duration", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_gradcheck_through_every_score(by_duration, reduction):
    scores = leaves(random_model(by_duration=by_duration))
    for gold in (LABELS, [[(0, 2, 1), (2, 1, 1), (3, 2, 0)], [], [(0, 3, 0)]]):
        function = lambda *s, g=gold: loss_of(s, g, lengths=LENGTHS, reduction=reduction)  # noqa: E731
        assert torch.autograd.gradcheck(function, scores)
    function = lambda *s: log_partition_of(s, lengths=LENGTHS, reduction=reduction)  # noqa: E731
    assert torch.autograd.gradcheck(function, scores)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_gradcheck_within_a_scope(reduction):
    scores = leaves(random_model())
    tail = torch.tensor([-0.5, -1.0], dtype=torch.float64, requires_grad=True)
    known = segfuse.Constraints(labels=[[-1, 1, -1, 0, -1]] * 3, transitions=[[True, True]] * 2)
    options = {"lengths": LENGTHS, "reduction": reduction}

    def partial(emission, transition, duration, *others, tail):
        named = dict(zip(NAMES, others, strict=True))
        return st.partial_loss(emission, transition, duration, known, **named, tail=tail, **options)

    functions = [
        lambda *s: partial(*s[:-1], tail=s[-1]),
        lambda *s: partial(*s[:-1], tail=None),
        lambda *s: loss_of(s[:-1], tail=s[-1], **options),
        lambda *s: log_partition_of(s[:-1], tail=s[-1], constraints=known, **options),
        lambda *s: log_partition_of(s[:-1], constraints=known, **options),
    ]
    for function in functions:
        assert torch.autograd.gradcheck(function, (*scores, tail))


@pytest.mark.parametrize("chosen", [c for n in (1, 2) for c in itertools.combinations(range(7), n)])
def test_only_the_gradients_that_are_asked_for(chosen):
    model = random_model()
    full = leaves(model)
    expected = torch.autograd.grad(loss_of(full, reduction="sum"), full)
    for reduction in ("sum", "none"):
        scores = [s.detach().requires_grad_(i in chosen) for i, s in enumerate(leaves(model))]
        loss_of(scores, reduction=reduction).sum().backward()
        for i, score in enumerate(scores):
            if i in chosen:
                torch.testing.assert_close(score.grad, expected[i])
            else:
                assert score.grad is None


def test_values_are_those_of_the_plain_functions():
    model = random_model()
    inputs = model.inputs()
    gold = LABELS.numpy()
    np.testing.assert_array_equal(
        loss_of(leaves(model), reduction="none").detach(), segfuse.loss(**inputs, labels=gold)
    )
    np.testing.assert_array_equal(
        log_partition_of(leaves(model), lengths=LENGTHS).detach(), segfuse.log_partition(**inputs)
    )
    with torch.no_grad():
        values = loss_of(leaves(model), reduction="none")
        for reduction in ("mean", "sum"):
            expected = getattr(values, reduction)()
            torch.testing.assert_close(loss_of(leaves(model), reduction=reduction), expected)


def test_weights_of_the_rows_reach_the_gradients():
    weights = torch.tensor([0.5, 3.0, -2.0], dtype=torch.float64)
    model = random_model()
    scores = leaves(model)
    (loss_of(scores, reduction="none") @ weights).backward()
    _, expected = segfuse.loss_and_gradients(
        **model.inputs(), labels=LABELS.numpy(), weights=weights.numpy()
    )
    for name, score in zip(SCORES, scores, strict=True):
        np.testing.assert_array_equal(score.grad, getattr(expected, name))


def test_dtypes():
    scores = leaves(random_model(), torch.float32)
    assert loss_of(scores).dtype == torch.float32
    assert log_partition_of(scores).dtype == torch.float64
    half = [s.detach().bfloat16().requires_grad_() for s in scores]
    value = loss_of(half)
    assert value.dtype == torch.float32
    value.backward()
    expected = [s.detach().float().requires_grad_() for s in half]
    loss_of(expected).backward()
    for a, b in zip(half, expected, strict=True):
        assert a.grad.dtype == torch.bfloat16
        torch.testing.assert_close(a.grad, b.grad.bfloat16())


def test_backward_twice():
    scores = leaves(random_model())
    value = loss_of(scores)
    value.backward(retain_graph=True)
    first = scores[0].grad.clone()
    value.backward()
    torch.testing.assert_close(scores[0].grad, 2 * first, rtol=0, atol=0)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_gradient_scaler_sees_overflow_as_nan(reduction):
    scores = leaves(random_model(), torch.float32)
    (loss_of(scores, reduction=reduction).sum() * torch.tensor(torch.inf)).backward()
    for score in scores:
        assert not score.grad.isfinite().all()


def test_an_infinite_loss_has_no_gradient():
    model = random_model(lengths=(5, 5), full=False)
    model.emission[1] = -np.inf
    scores = leaves(model)
    gold = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 1, 1, 1]])
    values = loss_of(scores, gold, reduction="none")
    assert values[1] == torch.inf
    values.sum().backward()
    assert scores[0].grad[1].eq(0).all() and scores[1].grad.isfinite().all()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compile_takes_the_operations_as_opaque(reduction):
    scores = leaves(random_model(), torch.float32)

    def step(*inputs):
        tripled = [3.0 * x for x in inputs]
        return loss_of(tripled, lengths=LENGTHS, reduction=reduction).sum()

    expected = torch.autograd.grad(step(*scores), scores)
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    value = compiled(*scores)
    torch.testing.assert_close(value, step(*scores))
    for a, b in zip(torch.autograd.grad(value, scores), expected, strict=True):
        torch.testing.assert_close(a, b)


def test_compile_with_changing_sizes():
    crf = st.SemiMarkovCRF(3, 4)
    compiled = torch.compile(crf, backend="aot_eager", dynamic=True, fullgraph=True)
    for batch, frames in ((2, 5), (3, 9), (4, 7)):
        emission = torch.randn(batch, frames, 3, requires_grad=True)
        labels = torch.arange(frames).remainder(3).expand(batch, -1)
        value = compiled(emission, labels)
        torch.testing.assert_close(value, crf(emission, labels))
        value.backward()
        assert emission.grad.isfinite().all()


def test_operations_pass_the_checks_of_torch():
    scores = leaves(random_model(full=False))
    scores += [None] * 3  # two tables and a tail
    gold = (LENGTHS, LABELS, *[None] * 10, -100, False, False)
    weights = torch.ones(3, dtype=torch.float64)
    detached = [None if s is None else s.detach() for s in scores]
    torch.library.opcheck(torch.ops.segfuse.rows, (*scores, *gold))
    torch.library.opcheck(torch.ops.segfuse.gradients, (weights, *detached, *gold, 7))
    torch.library.opcheck(torch.ops.segfuse.weighted, (weights, *scores, *gold, 7))


def test_autocast_raises_half_precision():
    crf = st.SemiMarkovCRF(2, 3)
    encoder = torch.nn.Linear(4, crf.num_scores)
    features = torch.randn(3, 5, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        emission = encoder(features)
        assert emission.dtype == torch.bfloat16
        value = crf(emission, LABELS)
        assert value.dtype == torch.float32
        assert crf.decode(emission) == crf.decode(emission.float())
        assert crf.posteriors(emission).label.dtype == torch.float32
    value.backward()
    assert encoder.weight.grad.abs().sum() > 0


# The module


@pytest.mark.parametrize("boundary_scores", [False, True])
@pytest.mark.parametrize("self_transitions", [False, True])
def test_module_against_the_functions(boundary_scores, self_transitions):
    torch.manual_seed(0)
    crf = st.SemiMarkovCRF(3, 4, boundary_scores=boundary_scores, self_transitions=self_transitions)
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter)
    emission = torch.randn(2, 8, crf.num_scores)
    lengths = torch.tensor([8, 5])
    transition = crf.transition.detach().clone()
    if not self_transitions:
        transition.fill_diagonal_(-torch.inf)
    parts = emission.split(3, dim=2)
    inputs = {
        "emission": parts[0],
        "transition": transition,
        "duration": crf.durations.theta.detach(),
        "initial": crf.initial.detach(),
        "final": crf.final.detach(),
        "start": parts[1] if boundary_scores else None,
        "end": parts[2] if boundary_scores else None,
        "lengths": lengths,
    }
    assert torch.equal(crf.log_partition(emission, lengths), segfuse.log_partition(**inputs))
    best = crf.decode(emission, lengths)
    assert best == segfuse.viterbi(**inputs)
    assert torch.equal(best.score, segfuse.viterbi(**inputs).score)
    posteriors = crf.posteriors(emission, lengths)
    assert torch.equal(posteriors.boundary, segfuse.posteriors(**inputs).boundary)
    rows = segfuse.loss(**inputs, segments=best).float()
    assert torch.equal(crf.loss(emission, best, lengths, "none"), rows)
    torch.testing.assert_close(crf(emission, best, lengths), rows.mean())
    torch.testing.assert_close(crf(emission, list(best), lengths, "sum"), rows.sum())


FAMILIES = ("table", "geometric", "negative_binomial", "poisson", "log_normal", "buckets")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("longest", [1, 2, 12])
def test_duration_families(family, longest):
    crf = st.SemiMarkovCRF(3, longest, durations=family).double()
    torch.testing.assert_close(crf.durations().exp().sum(0), torch.ones(3).double())
    torch.nn.init.normal_(crf.durations.theta)
    for normalise in (True, False):
        crf.durations.normalise = normalise
        expected = segfuse.duration_scores(
            family, crf.durations.theta.detach(), longest, normalise=normalise
        )
        torch.testing.assert_close(crf.durations().detach(), expected)
    emission = torch.randn(2, 15, 3, dtype=torch.float64)
    labels = torch.arange(15).remainder(3).expand(2, -1)
    names, parameters = zip(*crf.named_parameters(), strict=True)

    def loss(*values):
        named = dict(zip(names, values, strict=True))
        return torch.func.functional_call(crf, named, (emission, labels))

    assert torch.autograd.gradcheck(loss, [p.detach().requires_grad_() for p in parameters])


def test_a_new_layer_is_a_uniform_chain():
    """With zero emissions all rows that end with a segment have probability mass close to 1/K."""
    crf = st.SemiMarkovCRF(4, 5, self_transitions=False)
    value = crf.log_partition(torch.zeros(1, 400, 4))
    assert value.item() == pytest.approx(np.log(1 / 3), abs=1e-3)  # a renewal each (K + 1) / 2


def test_own_durations_and_a_linear_chain():
    class Fixed(st.Durations):
        def forward(self):
            return torch.zeros(self.max_duration, self.num_classes)

    crf = st.SemiMarkovCRF(3, 1, durations=Fixed(3, 1))
    assert [name for name, _ in crf.named_parameters()] == ["transition", "initial", "final"]
    assert crf.decode(torch.randn(1, 6, 3)).num_segments == 6
    runs = crf(torch.zeros(1, 6, 3), torch.tensor([[0, 0, 0, 1, 1, 2]]))  # every frame a segment
    frames = crf(torch.zeros(1, 6, 3), [[(t, 1, c) for t, c in enumerate([0, 0, 0, 1, 1, 2])]])
    assert runs == frames


def test_a_tail_takes_long_runs():
    torch.manual_seed(0)
    crf = st.SemiMarkovCRF(2, 3, tail=True, self_transitions=False)
    labels = torch.tensor([[0] * 7 + [1] * 3, [1] * 8 + [-100] * 2])
    emission = torch.nn.functional.one_hot(labels.clamp(min=0), 2).float().requires_grad_()
    lengths = torch.tensor([10, 8])
    loss = crf(emission, labels)
    assert loss >= 0
    loss.backward()
    assert crf.tail_logit.grad.ne(0).all()
    assert list(crf.decode(4 * emission, lengths)) == [[(0, 7, 0), (7, 3, 1)], [(0, 8, 1)]]
    posteriors = crf.posteriors(emission, lengths)
    torch.testing.assert_close(posteriors.label[0].sum(1), torch.ones(10))


def test_partial_labels_train_the_layer():
    crf = st.SemiMarkovCRF(2, 3)
    emission = torch.zeros(1, 6, 2, requires_grad=True)
    known = segfuse.Constraints(labels=torch.tensor([[0, -1, -1, -1, -1, 1]]))
    loss = crf.partial_loss(emission, known)
    difference = crf.log_partition(emission) - crf.log_partition(emission, constraints=known)
    torch.testing.assert_close(loss.double(), difference[0])
    loss.backward()
    assert emission.grad[0, 0, 0] < 0 and emission.grad[0, 5, 1] < 0
    decoded = crf.decode(emission, constraints=known).to_labels()
    assert decoded[0, 0] == 0 and decoded[0, 5] == 1
    posteriors = crf.posteriors(emission, constraints=known)
    torch.testing.assert_close(posteriors.label[0, [0, 5], [0, 1]], torch.ones(2))


def test_state_copies_and_dtypes():
    crf = st.SemiMarkovCRF(3, 4, dtype=torch.float64)
    assert {p.dtype for p in crf.parameters()} == {torch.float64}
    other = copy.deepcopy(crf)
    torch.nn.init.normal_(crf.transition)
    other.load_state_dict(crf.state_dict())
    assert torch.equal(other.transition, crf.transition)
    assert "num_classes=3, max_duration=4" in repr(crf)


@pytest.mark.parametrize("durations", ["table", "negative_binomial", "buckets"])
def test_a_layer_goes_through_files_and_copies(durations, tmp_path):
    crf = st.SemiMarkovCRF(2, 3, durations=durations, tail=True)
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter)
    emission = torch.randn(3, 5, 2)
    expected = crf(emission, LABELS)
    torch.save(crf, tmp_path / "layer.pt")
    torch.save(crf.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt")
    meta = st.SemiMarkovCRF(2, 3, durations=durations, tail=True, device="meta")
    meta.load_state_dict(state, assign=True)
    others = (
        pickle.loads(pickle.dumps(crf)),
        copy.deepcopy(crf),
        torch.load(tmp_path / "layer.pt", weights_only=False),
        meta,
    )
    for other in others:
        assert torch.equal(other(emission, LABELS), expected)
    called = torch.func.functional_call(st.SemiMarkovCRF(2, 3, durations=durations, tail=True),
                                        state, (emission, LABELS))  # fmt: skip
    assert torch.equal(called, expected)
    best = crf.decode(emission, LENGTHS)
    for again in (pickle.loads(pickle.dumps(best)), copy.deepcopy(best)):
        assert again == best and torch.equal(again.score, best.score)


@pytest.mark.parametrize("durations", sorted(st._durations.FAMILIES))
def test_reset_parameters(durations):
    """Gives the values of a new layer, with all digits of its type."""
    options = {"durations": durations, "tail": True, "self_transitions": False}
    crf = st.SemiMarkovCRF(3, 5, dtype=torch.float64, **options)
    assert crf.initial[0].item() == -np.log(3) and crf.transition[0, 0].item() == -np.log(2)
    new = {name: value.clone() for name, value in crf.state_dict().items()}
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter)
    for module in crf.modules():
        module.reset_parameters()
    assert all(torch.equal(value, new[name]) for name, value in crf.state_dict().items())


def test_no_rows():
    """A batch without rows has loss 0 and gradients 0: a rank may have no part of a batch."""
    crf = st.SemiMarkovCRF(2, 3)
    emission = torch.zeros(0, 5, 2, requires_grad=True)
    for reduction in ("mean", "sum"):
        value = crf(emission, LABELS[:0], reduction=reduction)
        value.backward()
        assert value == 0
        with torch.no_grad():
            assert crf(emission, LABELS[:0], reduction=reduction) == 0
    assert crf.transition.grad.eq(0).all() and emission.grad.shape == (0, 5, 2)
    assert len(crf.decode(emission)) == 0


def test_training_recovers_durations():
    """Sampled from a model whose two labels last 3 and 6 frames, give or take one."""
    duration = np.full((9, 2), -np.inf)
    duration[1:4, 0] = duration[4:7, 1] = np.log([0.25, 0.5, 0.25])
    transition = np.log(np.array([[1e-9, 1.0], [1.0, 1e-9]]))
    drawn = segfuse.sample_prior(transition, duration, rows=40, min_frames=40, seed=5)
    labels = torch.from_numpy(drawn.to_labels())
    torch.manual_seed(0)
    noise = torch.randn(*labels.shape, 2)
    emission = torch.nn.functional.one_hot(labels.clamp(min=0), 2) + 1.5 * noise
    crf = st.SemiMarkovCRF(2, 9, self_transitions=False)
    optimizer = torch.optim.Adam(crf.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        value = crf(emission, labels)
        value.backward()
        optimizer.step()
    assert crf.durations().argmax(0).tolist() == [2, 5]
    lengths = labels.ne(-100).sum(1)
    decoded = crf.decode(emission, lengths).to_labels()
    per_frame = emission.argmax(2)
    inside = labels.ne(-100)
    accuracy, plain = (x[inside].eq(labels[inside]).float().mean() for x in (decoded, per_frame))
    assert accuracy > plain + 0.1


def jagged():
    return torch.nested.nested_tensor([torch.zeros(5, 2), torch.zeros(3, 2)], layout=torch.jagged)


def test_labels_may_be_numpys():
    crf = st.SemiMarkovCRF(2, 3)
    emission = torch.randn(3, 5, 2)
    assert crf(emission, LABELS.numpy()) == crf(emission, LABELS)


BAD_CALLS = [
    (lambda: st.SemiMarkovCRF(0, 3), "num_classes is 0, expected an integer of at least 1"),
    (lambda: st.SemiMarkovCRF(3, 2.5), "max_duration is 2.5, expected an integer"),
    (lambda: st.TableDurations(0, 4), "num_classes is 0, expected an integer of at least 1"),
    (lambda: st.SemiMarkovCRF(3, 3, durations=None), "durations is a NoneType, expected a module"),
    (
        lambda: st.SemiMarkovCRF(2, 3, durations=st.TableDurations(2, 4))(
            torch.zeros(3, 5, 2), LABELS
        ),
        r"durations gives scores of shape \(4, 2\), expected \(K, C\) = \(3, 2\)",
    ),
    (lambda: st.SemiMarkovCRF(2, 3)(torch.zeros(3, 5, 2), LABELS, "mean"), "lengths is a str, exp"),
    (
        lambda: st.SemiMarkovCRF(2, 3)(torch.zeros(3, 5, 2), None),
        "gold is a NoneType, expected lab",
    ),
    (lambda: st.SemiMarkovCRF(2, 3)(torch.zeros(3, 5, 2), 3), "gold is a int, expected labels"),
    (
        lambda: st.SemiMarkovCRF(2, 3)(torch.zeros(3, 5, 2), LABELS.tolist()),
        "a segment of batch 0 is a int, expected three numbers",
    ),
    (
        lambda: st.SemiMarkovCRF(2, 3)(torch.zeros(3, 5, 2).to_sparse(), LABELS),
        "emission has the layout torch.sparse_coo, expected a dense tensor",
    ),
    (
        lambda: st.SemiMarkovCRF(2, 3)(torch.zeros(3, 5, 2), LABELS.to_sparse()),
        "labels has the layout torch.sparse_coo, expected a dense tensor",
    ),
    (
        lambda: segfuse.viterbi(torch.zeros(3, 5, 2), torch.zeros(2, 2).to_sparse(), LABELS),
        "transition has the layout torch.sparse_coo",
    ),
    (
        lambda: segfuse.compile(lambda x: x + x)(torch.zeros(2).to_sparse()),
        "argument 0 has the layout torch.sparse_coo",
    ),
    (
        lambda: st.SemiMarkovCRF(2, 3).to("meta").decode(torch.zeros(3, 5, 2, device="meta")),
        "emission lies on the meta device, which holds no numbers",
    ),
    (
        lambda: torch.vmap(lambda x: st.SemiMarkovCRF(2, 3).decode(x).score)(
            torch.zeros(2, 3, 5, 2)
        ),
        "emission is a value inside a transform of torch.func",
    ),
    (lambda: st.SemiMarkovCRF(3, 3, durations="gamma"), "durations is 'gamma', expected one of ta"),
    (lambda: st.SemiMarkovCRF(3, 3, long_runs="cut"), "long_runs is 'cut', expected"),
    (lambda: st.SemiMarkovCRF(3, 3, long_runs="split", self_transitions=False), "which self_trans"),
    (lambda: st.SemiMarkovCRF(3, 3)(torch.zeros(2, 5, 4), LABELS), r"expected \(B, T, 3\)"),
    (lambda: st.SemiMarkovCRF(3, 3, boundary_scores=True)(torch.zeros(2, 5, 3), LABELS), "T, 9"),
    (
        lambda: st.SemiMarkovCRF(2, 3)(torch.zeros(3, 5, 2), LABELS, None, "max"),
        "is 'max', expected",
    ),
    (lambda: st.SemiMarkovCRF(2, 3)(torch.zeros(3, 5, 2), LABELS + 1), r"label 2 is not in \[0, 2"),
    (lambda: st.SemiMarkovCRF(2, 3)(torch.zeros(3, 5, 2), LABELS[:2]), "labels has shape"),
    (lambda: st.SemiMarkovCRF(2, 2)(torch.zeros(3, 5, 2), LABELS), "label 1 runs for 3 frames"),
    (
        lambda: st.SemiMarkovCRF(2, 3)(torch.zeros(3, 5, 2).double(), LABELS),
        "transition is float32",
    ),
    (
        lambda: st.SemiMarkovCRF(2, 3)(np.zeros((3, 5, 2), np.float32), LABELS),
        "emission is a ndarray, expec",
    ),
    (
        lambda: st.SemiMarkovCRF(2, 3).decode(np.zeros((3, 5, 2))),
        "expected a torch.Tensor; pass torch.as_t",
    ),
    (
        lambda: st.log_partition(torch.zeros(3, 5, 2), np.zeros((2, 2)), torch.zeros(3, 2)),
        "transition is a nd",
    ),
    (
        lambda: st.SemiMarkovCRF(2, 3)(jagged(), LABELS),
        "emission is a nested tensor, expected a padded",
    ),
    (
        lambda: st.SemiMarkovCRF(2, 3).decode(jagged()),
        "emission is a nested tensor, expected a padded",
    ),
    (
        lambda: segfuse.log_partition(jagged(), torch.zeros(2, 2), torch.zeros(3, 2)),
        "emission is a nested",
    ),
    (lambda: torch.jit.script(st.SemiMarkovCRF(2, 3)), "SemiMarkovCRF cannot be scripted"),
    (lambda: torch.jit.script(torch.nn.Sequential(st.SemiMarkovCRF(2, 3))), "cannot be scripted"),
    (
        lambda: st.SemiMarkovCRF(2, 3).partial_loss(torch.zeros(3, 5, 2), {}),
        "type dict, expected C",
    ),
    (
        lambda: st.SemiMarkovCRF(2, 3)(torch.full((3, 5, 2), torch.nan), LABELS),
        "time 0, class 0 is",
    ),
]


@pytest.mark.parametrize(("call", "message"), BAD_CALLS, ids=[message for _, message in BAD_CALLS])
def test_bad_calls(call, message):
    with pytest.raises(ValueError, match=message):
        call()
