"""Constraints, tails, alternatives, samples, divergences and decoders, against the list of all
segmentations."""

import numpy as np
import pytest
from conftest import SCORES, log_sum_exp, random_model

import segfuse
from segfuse import Constraints


@pytest.fixture(params=["plain", "full", "by_duration", "tail"])
def any_model(request):
    full, by_duration = request.param != "plain", request.param == "by_duration"
    model = random_model(full=full, by_duration=by_duration)
    if request.param == "tail":
        model.duration = model.duration[:2]
        model.tail = np.array([-0.5, -1.0])
    return model


def distribution(model, row):
    found, scores = model.all(row)
    return found, np.exp(scores - log_sum_exp(scores))


def fulfils(segments, constraints, row):
    """By definition, for one segmentation of a row."""
    x = constraints
    before = None
    for s, d, c in segments:
        if x.allowed is not None and not np.all(x.allowed[row, s : s + d, c]):
            return False
        if x.transitions is not None and before is not None and not x.transitions[before, c]:
            return False
        if x.min_duration is not None and d < x.min_duration[c]:
            return False
        if x.max_duration is not None and d > x.max_duration[c]:
            return False
        if x.labels is not None and any(0 <= y != c for y in x.labels[row, s : s + d]):
            return False
        if x.boundaries is not None:
            known = x.boundaries[row, s : s + d]
            if known[0] == 0 or (known[1:] == 1).any():
                return False
        before = c
    return True


CONSTRAINTS = {
    "allowed": {"allowed": np.array([[[1, 1], [1, 0], [1, 1], [0, 1], [1, 1]]] * 3, bool)},
    "transitions": {"transitions": np.array([[0, 1], [1, 1]], bool)},
    "durations": {"min_duration": np.array([2, 1]), "max_duration": np.array([2, 2])},
    "labels": {"labels": np.array([[-1, 1, -1, 0, -1]] * 3)},
    "boundaries": {"boundaries": np.array([[-1, -1, 1, 0, -1]] * 3)},
    "several": {
        "labels": np.array([[-1, 1, -1, -1, -1]] * 3),
        "transitions": np.array([[1, 0], [1, 1]], np.uint8),
    },
}


@pytest.mark.parametrize("which", CONSTRAINTS)
def test_constraints(which):
    model = random_model()
    constraints = Constraints(**CONSTRAINTS[which])
    expected, best = [], []
    for row in range(3):
        found, scores = model.all(row)
        inside = [i for i, y in enumerate(found) if fulfils(y, constraints, row)]
        assert 0 < len(inside), "the test is about rows that have paths"
        assert len(inside) < len(found) or row == 1
        expected.append(log_sum_exp(scores[inside]))
        best.append(found[inside[int(scores[inside].argmax())]])
    inputs = model.inputs() | {"constraints": constraints}
    np.testing.assert_allclose(segfuse.log_partition(**inputs), expected, atol=1e-12)
    decoded = segfuse.viterbi(**inputs)
    assert list(decoded) == best
    loss = segfuse.partial_loss(**inputs)
    np.testing.assert_allclose(loss, model.log_partition() - expected, atol=1e-12)
    posteriors = segfuse.posteriors(**inputs)
    np.testing.assert_allclose(posteriors.log_partition, expected, atol=1e-12)
    np.testing.assert_allclose(posteriors.label[0].sum(1), 1.0, atol=1e-12)


def test_constraints_that_no_segmentation_fulfils():
    model = random_model(lengths=(5, 5))
    allowed = np.ones((2, 5, 2), bool)
    allowed[0, 2] = False
    inputs = model.inputs() | {"constraints": Constraints(allowed=allowed)}
    assert segfuse.log_partition(**inputs)[0] == -np.inf
    assert segfuse.partial_loss(**inputs)[0] == np.inf
    decoded = segfuse.viterbi(**inputs)
    assert decoded[0] == [] and decoded.score[0] == -np.inf
    assert decoded[1] != [] and np.isfinite(decoded.score[1])
    lists = segfuse.k_best(**inputs, n=2)
    assert len(lists[0]) == 0 and len(lists[1]) == 2


def test_gradients_within_a_scope_are_central_differences():
    model = random_model(lengths=(5, 3))
    model.duration, model.tail = model.duration[:2], np.array([-0.5, -1.0])
    weights = np.array([2.0, -0.5])
    constraints = Constraints(labels=np.array([[-1, 1, -1, 0, -1]] * 2))
    gold = [[(0, 4, 1), (4, 1, 0)], [(0, 3, 0)]]
    calls = [
        ("log_partition", {"constraints": constraints}),
        ("partial_loss", {"constraints": constraints}),
        ("loss", {"segments": gold}),
    ]
    for name, more in calls:
        function = getattr(segfuse, name)
        both = getattr(segfuse, f"{name}_and_gradients")
        values, gradients = both(**model.inputs(), **more, weights=weights)
        np.testing.assert_allclose(values, function(**model.inputs(), **more), atol=1e-14)
        for score in (*SCORES, "tail"):
            gradient = getattr(gradients, score)
            for index in np.ndindex(*gradient.shape):
                sides = []
                for step in (1e-5, -1e-5):
                    array = getattr(model, score).copy()
                    array[index] += step
                    sides.append(weights @ function(**model.inputs() | {score: array}, **more))
                expected = (sides[0] - sides[1]) / 2e-5
                assert gradient[index] == pytest.approx(expected, abs=1e-8), (name, score, index)


def test_tail():
    model = random_model()
    model.duration, model.tail = model.duration[:2], np.array([-0.5, -1.0])
    np.testing.assert_allclose(
        segfuse.log_partition(**model.inputs()), model.log_partition(), atol=1e-12
    )
    labels = np.array([[1, 1, 1, 1, 0], [0] * 5, [0, 0, 0, 9, 9]])
    gold = [[(0, 4, 1), (4, 1, 0)], [], [(0, 3, 0)]]
    expected = [
        value - model.score(row, y)
        for row, (value, y) in enumerate(zip(model.log_partition(), gold, strict=True))
    ]
    for given in ({"labels": labels}, {"segments": gold}):
        loss = segfuse.loss(**model.inputs(), **given)
        np.testing.assert_allclose(loss, expected, atol=1e-12)
    with pytest.raises(segfuse.DataError, match="batch 0 starts at 3 with 2 frames, expected a st"):
        segfuse.loss(**model.inputs(), segments=[[(0, 4, 1), (3, 2, 0)], [], []])
    with pytest.raises(segfuse.DataError, match="segments of batch 2 end at frame 2, the row at 3"):
        segfuse.loss(**model.inputs(), segments=[gold[0], [], [(0, 2, 1)]])
    with pytest.raises(segfuse.UsageError, match="segmentations of 1 rows, expected 3"):
        segfuse.loss(**model.inputs(), segments=gold[:1])


def test_k_best(any_model):
    lists = segfuse.k_best(**any_model.inputs(), n=6)
    assert len(lists) == 3
    for row in range(3):
        found, scores = any_model.all(row)
        np.testing.assert_allclose(lists[row].score, -np.sort(-scores)[:6], atol=1e-12)
        index = {tuple(y): i for i, y in enumerate(found)}
        listed = [index[tuple(y)] for y in lists[row]]
        assert len(set(listed)) == len(listed)
        np.testing.assert_allclose(scores[listed], lists[row].score, atol=1e-12)
    with pytest.raises(IndexError, match="row 3 of 3"):
        lists[3]
    assert [len(best) for best in lists] == [6, 1, 6]


def test_sample(any_model):
    n = 4000
    drawn = segfuse.sample(**any_model.inputs(), n=n, seed=11)
    for row in (0, 2):
        found, probability = distribution(any_model, row)
        index = {tuple(y): i for i, y in enumerate(found)}
        counts = np.zeros(len(found))
        for y, score in zip(drawn[row], drawn[row].score, strict=True):
            counts[index[tuple(y)]] += 1
            assert score == pytest.approx(any_model.score(row, y), abs=1e-12)
        often = probability * n > 5
        chi_square = ((counts - n * probability) ** 2 / (n * probability))[often].sum()
        degrees = often.sum()
        assert chi_square < degrees + 5 * np.sqrt(2 * degrees)
    again = segfuse.sample(**any_model.inputs(), n=5, seed=11)
    assert list(again[0]) == list(drawn[0])[:5]


def test_cross_entropy_and_kl():
    p, q = random_model(1), random_model(2, full=False)
    q.lengths = p.lengths
    models = [{name: getattr(m, name) for name in SCORES} for m in (p, q)]
    cross = segfuse.cross_entropy(*models, lengths=p.lengths)
    divergence = segfuse.kl(*models, lengths=p.lengths)
    for row in range(3):
        found, probability = distribution(p, row)
        others = np.array([q.score(row, y) for y in found])
        expected = -(probability * (others - q.log_partition()[row])).sum()
        assert cross[row] == pytest.approx(expected, abs=1e-12)
        entropy = -(probability * np.log(probability)).sum()
        assert divergence[row] == pytest.approx(expected - entropy, abs=1e-12)
    with pytest.raises(segfuse.UsageError, match=r"q has \['lengths'\], expected some of"):
        segfuse.kl(models[0], models[1] | {"lengths": [5, 0, 3]})
    single = {n: None if x is None else x.astype(np.float32) for n, x in models[1].items()}
    with pytest.raises(segfuse.UsageError, match="p is float64 and q is float32"):
        segfuse.kl(models[0], single, lengths=p.lengths)


def test_boundaries_and_durations(any_model):
    near = segfuse.boundary_within(**any_model.inputs(), tolerance=1)
    counts = segfuse.expected_durations(**any_model.inputs())
    expected_near = np.zeros((3, 5))
    expected_counts = np.zeros(any_model.duration.shape)
    for row in range(3):
        for y, q in zip(*distribution(any_model, row), strict=True):
            starts = {s for s, _, _ in y}
            for t in range(any_model.lengths[row]):
                expected_near[row, t] += q * bool(starts & {t - 1, t, t + 1})
            for _, d, c in y:
                expected_counts[min(d, len(expected_counts)) - 1, c] += q
    np.testing.assert_allclose(near, expected_near, atol=1e-12)
    np.testing.assert_allclose(counts, expected_counts, atol=1e-12)


def expected_f1(model, row, z, tolerance):
    starts = {s for s, _, _ in z}
    found = segments = 0.0
    for y, q in zip(*distribution(model, row), strict=True):
        found += q * sum(any(abs(s - t) <= tolerance for t in starts) for s, _, _ in y)
        segments += q * len(y)
    return 2 * found / (len(z) + segments)


def test_decoders_of_least_risk(any_model):
    labels = segfuse.max_marginal(**any_model.inputs(), ignore=-7)
    marginals = segfuse.posteriors(**any_model.inputs()).label
    inside = np.arange(5) < np.array(any_model.lengths)[:, None]
    np.testing.assert_array_equal(labels, np.where(inside, marginals.argmax(2), -7))
    assert labels.dtype == np.int32
    for tolerance in (0, 1):
        best, f1 = segfuse.minimum_risk(**any_model.inputs(), tolerance=tolerance)
        for row in (0, 2):
            options = {
                tuple(s for s, _, _ in y): expected_f1(any_model, row, y, tolerance)
                for y in any_model.all(row)[0]
            }
            assert f1[row] == pytest.approx(max(options.values()), abs=1e-12)
            assert expected_f1(any_model, row, best[row], tolerance) == pytest.approx(f1[row])
        assert best[1] == [] and f1[1] == 1.0


@pytest.mark.parametrize(
    "family",
    [
        "table",
        "geometric",
        "negative_binomial",
        "poisson",
        "log_normal",
        "buckets",
    ],
)
@pytest.mark.parametrize("normalise", [True, False])
def test_duration_scores_and_their_gradient(family, normalise):
    rng = np.random.default_rng(0)
    parameters = rng.normal(size=(segfuse.duration_parameters(family, 9, buckets=3), 2))
    options = {"buckets": 3, "normalise": normalise}
    scores = segfuse.duration_scores(family, parameters, 9, **options)
    assert scores.shape == (9, 2)
    if normalise:
        np.testing.assert_allclose(np.exp(scores).sum(0), 1.0)
    by_scores = rng.normal(size=(9, 2))
    gradient = segfuse.duration_gradient(family, parameters, by_scores, **options)
    for index in np.ndindex(*parameters.shape):
        sides = []
        for step in (1e-6, -1e-6):
            moved = parameters.copy()
            moved[index] += step
            moved = segfuse.duration_scores(family, moved, 9, **options)
            sides.append((by_scores * moved).sum())
        assert gradient[index] == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=1e-7)


def test_duration_buckets():
    starts = segfuse.duration_buckets(16, buckets=4)
    assert starts[0] == 1 and (np.diff(starts) > 0).all() and len(starts) == 4


def test_torch_and_jax_arrays_come_back(torch, jax):
    model = random_model()
    for convert, kind in ((torch.from_numpy, torch.Tensor), (jax.numpy.asarray, jax.Array)):
        inputs = model.inputs(convert)
        constraints = Constraints(
            allowed=convert(np.ones((3, 5, 2), bool)), labels=convert(np.full((3, 5), -1))
        )
        lists = segfuse.k_best(**inputs, n=2, constraints=constraints)
        assert isinstance(lists[0].start, kind) and isinstance(lists[0].score, kind)
        found = [
            segfuse.boundary_within(**inputs, tolerance=1),
            segfuse.max_marginal(**inputs),
            segfuse.partial_loss(**inputs, constraints=constraints),
            segfuse.minimum_risk(**inputs, tolerance=1)[1],
        ]
        assert all(isinstance(array, kind) for array in found)
        np.testing.assert_allclose(found[2], 0.0, atol=1e-6)


TAIL = random_model(lengths=(5, 4))
BAD = [
    ({"constraints": {}}, "constraints is of type dict, expected Constraints"),
    (
        {"constraints": Constraints(allowed=np.ones((2, 5, 3)) > 0)},
        "axis 2 of allowed .* has 3 elements, expected 2",
    ),
    ({"constraints": Constraints(allowed=np.ones((2, 5, 2)))}, "allowed holds float64 numbers"),
    (
        {"constraints": Constraints(allowed=np.full((2, 5, 2), 300))},
        "allowed holds numbers from 300",
    ),
    ({"constraints": Constraints(labels=[[2] * 5] * 2)}, "known label 2 is not below 2"),
    ({"constraints": Constraints(boundaries=[[2] * 5] * 2)}, "known boundary 2 is not -1, 0 or 1"),
    ({"constraints": Constraints(boundaries=[[1] * 5])}, "boundar.* has 1 elements, expected 2"),
    ({"constraints": Constraints(transitions=[[1, 1]])}, "has 1 elements, expected 2"),
    ({"constraints": Constraints(min_duration=[1, 2, 3])}, "has 3 elements, expected 2"),
    ({"constraints": Constraints(labels=[0, 1])}, r"labels has shape \(2,\), expected \(B, T\)"),
    ({"tail": [0.0]}, "tail.* has 1 elements, expected 2"),
    ({"tail": [0.0, np.nan]}, r"tail\[1\] is nan"),
    ({"tail": ["a", "b"]}, "tail holds <U1 numbers, expected float64"),
]


@pytest.mark.parametrize(("more", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_scopes(more, message):
    with pytest.raises(ValueError, match=message):
        segfuse.log_partition(**TAIL.inputs(), **more)
    with pytest.raises(ValueError, match=message):
        segfuse.k_best(**TAIL.inputs(), n=1, **more)


def test_bad_numbers():
    with pytest.raises(segfuse.UsageError, match="found 0 best segmentations"):
        segfuse.k_best(**TAIL.inputs(), n=0)
    with pytest.raises(segfuse.UsageError, match="-1"):
        segfuse.boundary_within(**TAIL.inputs(), tolerance=-1)
    with pytest.raises(segfuse.UsageError, match="-1"):
        segfuse.minimum_risk(**TAIL.inputs(), tolerance=-1)
    with pytest.raises(segfuse.UsageError, match="family is 'gamma', expected one of table"):
        segfuse.duration_scores("gamma", np.zeros((1, 2)), 4)
    with pytest.raises(segfuse.UsageError, match=r"two axes, not the shape \(2,\)"):
        segfuse.duration_scores("poisson", np.zeros(2), 4)
    with pytest.raises(ValueError, match="expected"):
        segfuse.duration_scores("poisson", np.zeros((3, 2)), 4)
    with pytest.raises(segfuse.DataError, match="nan"):
        segfuse.duration_scores("poisson", np.full((1, 2), np.nan), 4)
