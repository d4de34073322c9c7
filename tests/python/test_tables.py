"""segment_scores and transition_scores against a plain dynamic program, finite differences and
PyTorch's gradcheck."""

import dataclasses
import inspect

import numpy as np
import pytest
from numpy.random import default_rng

import segfuse
from segfuse import Constraints, SemiCRF, UsageError

SIZES = [  # B, T, K, C
    (3, 6, 3, 2),
    (2, 4, 7, 3),  # K beyond T
    (2, 1, 2, 2),
    (2, 0, 2, 2),
    (2, 25, 6, 9),
]


def random_tables(size, *, by_row=True, holes=False, seed=0):
    """Scores of a model with tables; what no segmentation reads is NaN."""
    rng = default_rng([seed, *size])
    batch, frames, longest, classes = size
    lengths = rng.integers(0, frames + 1, batch)
    lengths[0] = frames
    segments = rng.normal(size=(batch, frames, longest, classes))
    times = rng.normal(size=(*([batch] if by_row else []), frames, classes, classes))
    if holes:
        segments[rng.uniform(size=segments.shape) < 0.2] = -np.inf
        times[rng.uniform(size=times.shape) < 0.2] = -np.inf
    for b, length in enumerate(lengths):
        for t in range(frames):
            segments[b, t, max(0, length - t) :] = np.nan
            if by_row and (t == 0 or t >= length):
                times[b, t] = np.nan
    if not by_row and frames:
        times[0] = np.nan
    return {
        "emission": rng.normal(size=(batch, frames, classes)),
        "transition": rng.normal(size=(classes, classes)),
        "duration": rng.normal(size=(longest, classes)),
        "initial": rng.normal(size=classes),
        "final": rng.normal(size=classes),
        "start": rng.normal(size=(batch, frames, classes)),
        "end": rng.normal(size=(batch, frames, classes)),
        "lengths": lengths,
        "segment_scores": segments,
        "transition_scores": times,
    }


def plain(model, b, best=False):
    """The log-partition of row b, or its best score, by the definition."""
    e, d, table = model["emission"][b], model["duration"], model["segment_scores"][b]
    times = model["transition_scores"]
    times = times[b] if times.ndim == 4 else times
    length = model["lengths"][b]
    if length == 0:
        return 0.0
    with np.errstate(divide="ignore"):
        total = np.max if best else lambda x: np.logaddexp.reduce(np.asarray(x).ravel())
        value = np.full((length + 1, len(model["initial"])), -np.inf)
        for t in range(1, length + 1):
            for c in range(value.shape[1]):
                terms = []
                for s in range(max(0, t - len(d)), t):
                    inside = e[s:t, c].sum() + d[t - s - 1, c] + table[s, t - s - 1, c]
                    inside += model["start"][b, s, c] + model["end"][b, t - 1, c]
                    before = model["initial"][c]
                    if s > 0:
                        before = total(value[s] + model["transition"][:, c] + times[s, :, c])
                    terms.append(before + inside)
                value[t, c] = total(np.array(terms))
        return float(total(value[length] + model["final"]))


def gold_of(lengths, longest, classes, seed=0):
    rng = default_rng(seed)
    rows = []
    for length in lengths:
        row, t = [], 0
        while t < length:
            d = int(rng.integers(1, min(longest, length - t) + 1))
            row.append((t, d, int(rng.integers(classes))))
            t += d
        rows.append(row)
    return rows


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("by_row", [True, False])
@pytest.mark.parametrize("holes", [True, False])
def test_log_partition_and_best_score_are_those_of_the_plain_program(size, by_row, holes):
    model = random_tables(size, by_row=by_row, holes=holes)
    crf = SemiCRF(**model)
    rows = range(size[0])
    np.testing.assert_allclose(crf.log_partition(), [plain(model, b) for b in rows], atol=1e-10)
    best = crf.viterbi()
    np.testing.assert_allclose(best.score, [plain(model, b, best=True) for b in rows], atol=1e-10)
    _, gradients = crf.log_partition_and_gradients()
    for array in dataclasses.astuple(gradients):
        assert array is None or np.isfinite(array).all()
    single = {k: v.astype(np.float32) if k != "lengths" else v for k, v in model.items()}
    np.testing.assert_allclose(SemiCRF(**single).log_partition(), crf.log_partition(), rtol=1e-5)


@pytest.mark.parametrize("by_row", [True, False])
def test_gradients_of_the_loss_are_finite_differences(by_row):
    size = (2, 7, 3, 2)
    model = random_tables(size, by_row=by_row, seed=1)
    gold = gold_of(model["lengths"], 3, 2)
    weights = np.array([0.7, -1.3])
    loss, gradients = SemiCRF(**model).loss_and_gradients(segments=gold, weights=weights)
    assert (loss >= 0).all()
    rng = default_rng(2)
    for name in (*[n for n in model if n != "lengths"],):
        found = getattr(gradients, name)
        assert found.shape == model[name].shape
        finite = np.isfinite(model[name])
        assert (found[~finite] == 0).all(), name
        flat = np.flatnonzero(finite)
        for i in rng.choice(flat, min(12, len(flat)), replace=False):
            values = []
            for side in (1e-5, -1e-5):
                moved = model[name].copy()
                moved.flat[i] += side
                crf = SemiCRF(**model | {name: moved})
                values.append(weights @ crf.loss(segments=gold))
            assert found.flat[i] == pytest.approx((values[0] - values[1]) / 2e-5, abs=1e-7), name


def test_a_table_of_emissions_and_durations_is_the_old_model():
    old = random_tables((2, 9, 4, 3), seed=3)
    old["segment_scores"] = old["transition_scores"] = None
    table = np.zeros((2, 9, 4, 3))
    for b, t, d in np.ndindex(2, 9, 4):
        if t + d < 9:
            content = old["emission"][b, t : t + d + 1].sum(0) + old["duration"][d]
            table[b, t, d] = content + old["start"][b, t] + old["end"][b, t + d]
    zeros = {name: np.zeros_like(old[name]) for name in ("emission", "duration", "transition")}
    times = np.broadcast_to(old["transition"], (9, 3, 3))
    new = old | zeros | {"start": None, "end": None}
    new |= {"segment_scores": table, "transition_scores": times}
    then, now = SemiCRF(**old), SemiCRF(**new)
    np.testing.assert_allclose(now.log_partition(), then.log_partition(), atol=1e-12)
    assert now.viterbi() == then.viterbi()
    _, a = then.log_partition_and_gradients()
    _, b = now.log_partition_and_gradients()
    for name in ("emission", "duration", "transition", "initial", "final"):
        np.testing.assert_allclose(getattr(b, name), getattr(a, name), atol=1e-12)
    np.testing.assert_allclose(b.transition_scores.sum(0), a.transition, atol=1e-12)
    np.testing.assert_allclose(now.entropy(), then.entropy(), atol=1e-10)


def test_every_function_takes_tables_or_says_that_it_does_not():
    model = random_tables((2, 5, 3, 2), seed=4)
    gold = gold_of(model["lengths"], 3, 2)
    more = {
        "constraints": Constraints(labels=np.full((2, 5), -1)),
        "segments": gold,
        "tolerance": 1,
        "n": 2,
        "seed": 0,
    }
    names = [n for n in dir(SemiCRF) if not n.startswith("_") and callable(getattr(SemiCRF, n))]
    for name in names:
        function = getattr(segfuse, name)
        parameters = inspect.signature(function).parameters
        if name in ("kl", "cross_entropy"):
            for table in ("segment_scores", "transition_scores"):
                crf = dataclasses.replace(
                    SemiCRF(**model),
                    **{t: None for t in ("segment_scores", "transition_scores") if t != table},
                )
                with pytest.raises(UsageError, match=f"{name} is for models without {table}"):
                    getattr(crf, name)(crf)
            continue
        needed = [p.name for p in parameters.values() if p.default is p.empty][3:]
        known = {k: v for k, v in more.items() if k in needed or k == "segments" in parameters}
        function(**model, **known)
        assert "segment_scores" in parameters and "transition_scores" in parameters


def test_wrong_tables_are_named():
    model = random_tables((2, 5, 3, 2), seed=5)

    def message(**changes):
        with pytest.raises((UsageError, segfuse.DataError)) as error:
            SemiCRF(**model | changes).log_partition()
        return str(error.value)

    table, times = model["segment_scores"], model["transition_scores"]
    assert "segment_scores has shape (2, 5, 2, 2), expected (B, T, K, C) = (2, 5, 3, 2)" in message(
        segment_scores=table[:, :, :2]
    )
    assert "segment_scores has shape (5, 3, 2), expected (B, T, K, C)" in message(
        segment_scores=table[0]
    )
    assert "transition_scores has shape (2, 2), expected (T, C, C) or (B, T, C, C)" in message(
        transition_scores=times[0, 0]
    )
    assert "transition_scores has shape (2, 4, 2, 2)" in message(transition_scores=times[:, :4])
    assert "segment_scores is float32, but emission is float64" in message(
        segment_scores=table.astype(np.float32)
    )
    for transition in (times, times[0]):
        assert "scores of transitions by time are transition_scores" in message(
            transition=transition, transition_scores=None
        )
    bad = table.copy()
    bad[0, 1, 2, 1] = np.nan
    assert "segment_scores at batch 0, time 1, duration 3, class 1 is nan" in message(
        segment_scores=bad
    )
    bad = times.copy()
    bad[0, 3, 1, 0] = np.inf
    assert "transition_scores at batch 0, time 3, from 1, to 0 is inf" in message(
        transition_scores=bad
    )


def test_jax_arrays_come_back_as_such():
    jax = pytest.importorskip("jax")
    model = random_tables((2, 5, 3, 2), seed=6)
    arrays = {k: jax.numpy.asarray(np.nan_to_num(v, neginf=-np.inf)) for k, v in model.items()}
    value, gradients = SemiCRF(**arrays).log_partition_and_gradients()
    assert isinstance(gradients.segment_scores, jax.Array)
    assert isinstance(gradients.transition_scores, jax.Array)
    np.testing.assert_allclose(value, SemiCRF(**model).log_partition(), rtol=1e-5)


# --- PyTorch ---


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def tensors_of(torch, model):
    return {name: None if x is None else torch.tensor(x) for name, x in model.items()}


@pytest.mark.parametrize("by_row", [True, False])
@pytest.mark.parametrize("tail", [False, True])
def test_gradcheck(torch, by_row, tail):
    import segfuse.torch as st

    model = random_tables((2, 5, 3, 2), by_row=by_row, seed=7)
    gold = gold_of(model["lengths"], 3, 2)
    tensors = tensors_of(torch, model)
    lengths = tensors.pop("lengths")
    if tail:
        tensors["tail"] = torch.tensor([-0.4, -1.0], dtype=torch.float64)
    finite = {name: torch.isfinite(x) for name, x in tensors.items()}
    leaves = [x.nan_to_num().requires_grad_() for x in tensors.values()]

    def filled(values):
        """Where nothing is read stands NaN, and no gradient."""
        return {
            name: torch.where(finite[name], x, torch.nan)
            for name, x in zip(tensors, values, strict=True)
        }

    for reduction in ("none", "sum"):

        def loss(*values, reduction=reduction):
            return st.SemiCRF(**filled(values), lengths=lengths).loss(
                segments=gold, reduction=reduction
            )

        def log_partition(*values, reduction=reduction):
            return st.log_partition(**filled(values), lengths=lengths, reduction=reduction)

        assert torch.autograd.gradcheck(loss, leaves)
        assert torch.autograd.gradcheck(log_partition, leaves)


def test_the_layer_adds_tables_to_its_own_scores(torch):
    import segfuse.torch as st

    torch.manual_seed(0)
    layer = st.SemiMarkovCRF(3, 4).double()
    emission = torch.randn(2, 8, 3, dtype=torch.float64)
    labels = torch.tensor([[0, 0, 1, 1, 2, 2, 2, 0], [1, 1, 1, 0, 0, 2, -100, -100]])
    lengths = torch.tensor([8, 6])
    segments = torch.randn(2, 8, 4, 3, dtype=torch.float64, requires_grad=True)
    times = torch.randn(8, 3, 3, dtype=torch.float64, requires_grad=True)
    tables = {"segment_scores": segments, "transition_scores": times}
    loss = layer(emission, labels, lengths, **tables)
    loss.backward()
    same = segfuse.loss(
        **{k: None if v is None else v.detach() for k, v in layer.scores(emission).items()},
        **{k: v.detach() for k, v in tables.items()},
        labels=labels,
        lengths=lengths,
    )
    assert loss.item() == pytest.approx(same.mean().item())
    assert layer.transition.grad.abs().sum() > 0
    inner = times.grad[1:8].sum(0)
    torch.testing.assert_close(inner, layer.transition.grad)
    assert (times.grad[0] == 0).all() and (segments.grad[1, 6:] == 0).all()
    best = layer.decode(emission, lengths, **tables)
    bonus = torch.zeros_like(segments)
    bonus[0, 2, 1, 2] = 100.0
    assert (2, 2, 2) in layer.decode(emission, lengths, segment_scores=bonus)[0]
    assert best.score.shape == (2,)
    assert layer.posteriors(emission, lengths, **tables).label.shape == emission.shape
    assert layer.log_partition(emission, lengths, **tables).requires_grad
    half = {"segment_scores": segments.detach().half(), "transition_scores": times.detach().half()}
    assert torch.isfinite(layer.float()(emission.half(), labels, lengths, **half))


def test_what_tables_do_not_have_is_said(torch):
    import segfuse.torch as st

    model = random_tables((2, 5, 3, 2), seed=8)
    tensors = tensors_of(torch, model)
    table = tensors.pop("segment_scores").nan_to_num().requires_grad_()
    tensors["transition_scores"] = None

    def value(x):
        return st.log_partition(**tensors, segment_scores=x, reduction="sum")

    sentence = "first derivatives in reverse mode only"
    (first,) = torch.autograd.grad(value(table), table, create_graph=True)
    with pytest.raises(UsageError, match=sentence):
        torch.autograd.grad(first.square().sum(), table)
    with pytest.raises(UsageError, match=sentence):
        torch.func.jvp(value, (table.detach(),), (torch.ones_like(table),))
    gradient = torch.func.grad(value)(table.detach())
    torch.testing.assert_close(gradient, first.detach())


def test_vmap_over_tables_goes_over_the_examples(torch):
    import segfuse.torch as st

    model = random_tables((2, 5, 3, 2), by_row=False, seed=9)
    tensors = tensors_of(torch, model)
    table = tensors.pop("segment_scores").nan_to_num()
    times = tensors.pop("transition_scores").nan_to_num()
    tables, all_times = torch.stack([table, 2 * table]), torch.stack([times, -times])

    def value(x, y):
        return st.log_partition(**tensors, segment_scores=x, transition_scores=y)

    for over in ((0, None), (None, 0), (0, 0)):
        arguments = [
            x if dim is None else y
            for dim, x, y in zip(over, (table, times), (tables, all_times), strict=True)
        ]
        mapped = torch.vmap(value, in_dims=over)(*arguments)
        for i in range(2):
            pair = [x if d is None else x[i] for d, x in zip(over, arguments, strict=True)]
            torch.testing.assert_close(mapped[i], value(*pair))
    # Without transitions by time the examples are rows of one batch.
    alone = torch.vmap(lambda x: value(x, None))(tables)
    torch.testing.assert_close(alone[1], value(tables[1], None))
    gradients = torch.vmap(torch.func.grad(lambda x: value(x, None).sum()))(tables)
    torch.testing.assert_close(gradients[0], torch.func.grad(lambda x: value(x, None).sum())(table))


def test_the_compiler_of_pytorch_keeps_tables_as_an_operation(torch):
    import segfuse.torch as st

    model = random_tables((2, 5, 3, 2), seed=10)
    tensors = tensors_of(torch, model)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def value(table):
        return st.log_partition(**tensors | {"segment_scores": table}, reduction="sum")

    table = tensors["segment_scores"].clone().requires_grad_()
    value(table).backward()
    _, gradients = SemiCRF(**model).log_partition_and_gradients()
    np.testing.assert_array_equal(table.grad, gradients.segment_scores)
