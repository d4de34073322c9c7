"""Finite scores as large as masks forbid as -inf does, and cost the other scores no digits."""

import numpy as np
import pytest

import segfuse.crf as crf

T, K, C = 9, 4, 3


def model(where, value, boundaries, tail):
    """A row where no segment ends at these boundaries, or where none begins there."""
    rng = np.random.default_rng(3)
    scores = [rng.normal(size=shape) for shape in ((1, T, C), (C, C), (K, C))]
    more = {}
    if where == "end":
        more["end"] = rng.normal(size=(1, T, C))
        more["end"][0, [t - 1 for t in boundaries]] = value
    elif where == "start":
        more["start"] = rng.normal(size=(1, T, C))
        more["start"][0, boundaries] = value
    elif where == "transition":
        more["transition_scores"] = rng.normal(size=(T, C, C))
        more["transition_scores"][boundaries] = value
    elif where == "table of starts":
        more["segment_scores"] = rng.normal(size=(1, T, K, C))
        more["segment_scores"][0, boundaries] = value
    else:
        more["segment_scores"] = rng.normal(size=(1, T, K, C))
        for t in boundaries:
            for d in range(1, min(K, t) + 1):
                more["segment_scores"][0, t - d, d - 1] = value
    if tail:
        more["tail"] = np.full(C, -1.5)
    return crf.SemiCRF(*scores, **more)


@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("boundaries", [[2], [5], [T - 1], [3, 4, 5], [1, 2, 4, 6, 7, 8]])
@pytest.mark.parametrize("where", ["end", "start", "transition", "table", "table of starts"])
def test_masks_forbid(where, boundaries, tail):
    if tail and where == "table":
        pytest.skip("a tail goes on where no table says anything")
    truth = model(where, -np.inf, boundaries, tail)
    expected = truth.posteriors()
    for value in (-1e5, -1e9, -1e15, -1e30, -1e300):
        masked = model(where, value, boundaries, tail)
        np.testing.assert_allclose(
            masked.log_partition(), truth.log_partition(), rtol=0, atol=1e-9, err_msg=f"{value}"
        )
        found = masked.posteriors()
        np.testing.assert_allclose(found.label, expected.label, rtol=0, atol=1e-9)
        np.testing.assert_allclose(found.boundary, expected.boundary, rtol=0, atol=1e-9)
        for mine, best in zip(masked.k_best(3), truth.k_best(3), strict=True):
            assert str(mine) == str(best)


def test_a_mask_that_every_path_meets_stays():
    """What is left of such a row is as it was: the posteriors after the mask."""
    rng = np.random.default_rng(4)
    emission, transition, duration = (rng.normal(size=s) for s in ((1, T, C), (C, C), (K, C)))
    emission[0, 3] += -1e6
    plain = emission.copy()
    plain[0, 3] += 1e6
    found = crf.SemiCRF(emission, transition, duration)
    expected = crf.SemiCRF(plain, transition, duration)
    np.testing.assert_allclose(found.log_partition() + 1e6, expected.log_partition(), atol=1e-8)
    np.testing.assert_allclose(found.posteriors().label, expected.posteriors().label, atol=1e-8)
