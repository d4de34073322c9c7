"""Every function against the list of all segmentations."""

import numpy as np
import pytest
from conftest import SCORES, random_model

import segfuse


def probabilities(model, row):
    found, scores = model.all(row)
    return found, np.exp(scores - model.log_partition()[row])


def test_log_partition(model):
    value = segfuse.log_partition(**model.inputs())
    assert value.dtype == np.float64
    np.testing.assert_allclose(value, model.log_partition(), rtol=1e-13, atol=1e-13)


def test_probabilities_sum_to_one(model):
    found, _ = model.all(0)
    one_row = model.inputs(lambda array: array)
    value = segfuse.log_partition(**one_row)[0]
    total = sum(np.exp(model.score(0, segments) - value) for segments in found)
    assert total == pytest.approx(1.0, abs=1e-12)


def test_loss_and_score_of_segments(model):
    gold = [model.all(row)[0][-1] for row in range(len(model.lengths))]
    expected = np.array([model.score(row, segments) for row, segments in enumerate(gold)])
    score = segfuse.score(**model.inputs(), segments=gold)
    np.testing.assert_allclose(score, expected, rtol=1e-13, atol=1e-13)
    loss = segfuse.loss(**model.inputs(), segments=gold)
    np.testing.assert_allclose(loss, model.log_partition() - expected, rtol=1e-12, atol=1e-12)
    assert (loss >= 0).all()


def test_loss_of_labels_is_that_of_their_runs():
    model = random_model(lengths=(5, 3))
    labels = np.array([[0, 0, 1, 1, 1], [1, 0, 0, -100, -100]])
    segments = [[(0, 2, 0), (2, 3, 1)], [(0, 1, 1), (1, 2, 0)]]
    expected = segfuse.loss(**model.inputs(), segments=segments)
    np.testing.assert_array_equal(segfuse.loss(**model.inputs(), labels=labels), expected)
    # Without lengths, rows end at the first ignored label.
    inputs = model.inputs() | {"lengths": None}
    np.testing.assert_array_equal(segfuse.loss(**inputs, labels=labels), expected)
    other = np.where(labels == -100, 7, labels).astype(np.int32)
    np.testing.assert_array_equal(segfuse.loss(**inputs, labels=other, ignore=7), expected)


def test_long_runs_can_be_split():
    model = random_model(lengths=(5,))
    labels = np.array([[1, 1, 1, 1, 1]])
    split = segfuse.loss(**model.inputs(), labels=labels, long_runs="split")
    expected = segfuse.loss(**model.inputs(), segments=[[(0, 3, 1), (3, 2, 1)]])
    np.testing.assert_array_equal(split, expected)


def central_difference(function, model, name, index, step=1e-5):
    values = []
    for sign in (1.0, -1.0):
        array = getattr(model, name).copy()
        array[index] += sign * step
        values.append(function({**model.inputs(), name: array}))
    return (values[0] - values[1]) / (2.0 * step)


@pytest.mark.parametrize("weights", [None, [0.5, 2.0, -1.5]])
@pytest.mark.parametrize("what", ["log_partition", "loss"])
def test_gradients_are_central_differences(model, weights, what):
    gold = [model.all(row)[0][-2 if length else 0] for row, length in enumerate(model.lengths)]
    more = {"segments": gold} if what == "loss" else {}
    plain = getattr(segfuse, what)
    values, gradients = getattr(segfuse, f"{what}_and_gradients")(
        **model.inputs(), **more, weights=weights
    )
    np.testing.assert_array_equal(values, plain(**model.inputs(), **more))
    factors = np.ones(3) if weights is None else np.array(weights)

    def total(inputs):
        return float(factors @ plain(**inputs, **more))

    for name in SCORES:
        gradient = getattr(gradients, name)
        if getattr(model, name) is None:
            assert gradient is None
            continue
        assert gradient.shape == getattr(model, name).shape
        for index in np.ndindex(*gradient.shape):
            expected = central_difference(total, model, name, index)
            assert gradient[index] == pytest.approx(expected, abs=1e-8), (name, index)


def test_posteriors(model):
    p = segfuse.posteriors(**model.inputs())
    for row in range(len(model.lengths)):
        expected = {
            name: np.zeros_like(getattr(p, name)[row])
            for name in ("label", "start", "end", "boundary", "duration")
        }
        for segments, q in zip(*probabilities(model, row), strict=True):
            for s, d, c in segments:
                expected["label"][s : s + d, c] += q
                expected["start"][s, c] += q
                expected["end"][s + d - 1, c] += q
                expected["boundary"][s] += q
                expected["duration"][d - 1, c] += q
        for name, values in expected.items():
            np.testing.assert_allclose(getattr(p, name)[row], values, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(p.log_partition, model.log_partition(), atol=1e-12)


def test_entropy(model):
    expected = []
    for row in range(len(model.lengths)):
        q = probabilities(model, row)[1]
        expected.append(-(q * np.log(q)).sum())
    np.testing.assert_allclose(segfuse.entropy(**model.inputs()), expected, atol=1e-12)
    np.testing.assert_array_equal(
        segfuse.entropy(**model.inputs()), segfuse.posteriors(**model.inputs()).entropy
    )


def test_segment_posteriors(model):
    asked = [[(0, 1, 0), (1, 3, 1), (2, 3, 0)], [], [(0, 3, 1)]]
    expected = []
    for row, segments in enumerate(asked):
        found, q = probabilities(model, row)
        expected += [sum(q[i] for i, y in enumerate(found) if s in y) for s in segments]
    value = segfuse.segment_posteriors(**model.inputs(), segments=asked)
    np.testing.assert_allclose(value, expected, atol=1e-12)


def test_viterbi(model):
    best = segfuse.viterbi(**model.inputs())
    for row in range(len(model.lengths)):
        found, scores = model.all(row)
        assert best[row] == found[int(scores.argmax())]
        assert best.score[row] == pytest.approx(scores.max(), abs=1e-12)
    assert best.frames == 5


def test_a_row_without_a_path():
    model = random_model(lengths=(2, 2), full=False)
    model.emission[0, 1] = -np.inf
    assert segfuse.log_partition(**model.inputs())[0] == -np.inf
    best = segfuse.viterbi(**model.inputs())
    assert best[0] == [] and best.score[0] == -np.inf
    values, gradients = segfuse.loss_and_gradients(
        **model.inputs(), segments=[[(0, 2, 0)], [(0, 2, 1)]]
    )
    assert values[0] == np.inf and np.isfinite(values[1])
    assert all(np.isfinite(g).all() for g in (gradients.emission, gradients.transition))
    assert (gradients.emission[0] == 0).all()


def test_padding_does_not_matter():
    model = random_model()
    clean = segfuse.loss_and_gradients(
        **model.inputs(), segments=[[(0, 3, 1), (3, 2, 0)], [], [(0, 3, 1)]]
    )
    for name in ("emission", "start", "end"):
        getattr(model, name)[2, 3:] = np.nan
        getattr(model, name)[1] = 1e30
    dirty = segfuse.loss_and_gradients(
        **model.inputs(), segments=[[(0, 3, 1), (3, 2, 0)], [], [(0, 3, 1)]]
    )
    np.testing.assert_array_equal(clean[0], dirty[0])
    for name in SCORES:
        np.testing.assert_array_equal(getattr(clean[1], name), getattr(dirty[1], name))


def test_sample_prior_is_reproducible_and_follows_the_scores():
    duration = np.log(np.array([[0.25, 1e-300], [0.5, 1.0], [0.25, 1e-300]]))
    transition = np.array([[-np.inf, 0.0], [0.0, -np.inf]])
    drawn = segfuse.sample_prior(transition, duration, rows=50, min_frames=40, seed=3)
    again = segfuse.sample_prior(transition, duration, rows=50, min_frames=40, seed=3)
    assert drawn == again
    assert drawn != segfuse.sample_prior(transition, duration, rows=50, min_frames=40, seed=4)
    assert len(drawn) == 50
    ends = [row[-1][0] + row[-1][1] for row in drawn]
    assert min(ends) >= 40
    for row in drawn:
        assert all(a[2] != b[2] for a, b in zip(row, row[1:], strict=False))
    of_label_0 = drawn.duration[drawn.label == 0]
    counts = np.bincount(of_label_0, minlength=4)[1:] / len(of_label_0)
    np.testing.assert_allclose(counts, [0.25, 0.5, 0.25], atol=0.06)
    assert (drawn.duration[drawn.label == 1] == 2).all()
