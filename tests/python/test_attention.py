"""Attention as one operation: it is found, means what was written, and needs no T x T memory."""

import itertools
import math

import numpy as np
import pytest

import segfuse
import segfuse.ops as sf


def oracle(q, k, v, bias=None, mask=None, scale=None, causal=None, fill=-np.inf):
    """softmax(scale * q k^T + bias, masked) v in float64; n <= m + causal is seen."""
    q, k, v = (np.asarray(x, "f8") for x in (q, k, v))
    with np.errstate(all="ignore"):
        s = q @ np.swapaxes(k, -1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
        s = s if bias is None else s + bias
        seen = np.ones(s.shape[-2:], bool)
        if causal is not None:
            seen = np.tri(*s.shape[-2:], causal, dtype=bool)
        seen = np.broadcast_to(seen if mask is None else seen & mask, s.shape)
        s = np.where(seen, s, fill)
        most = s.max(-1, keepdims=True, initial=-np.inf)
        p = np.exp(s - np.where(np.isfinite(most), most, 0))
        total = p.sum(-1, keepdims=True)
        p = np.where(np.isfinite(most) | np.isnan(most), p / total, np.nan)
        return p @ v


def by_hand(q, k, v, bias=None, mask=None, scale=None, causal=None):
    """The same on values."""
    s = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if bias is not None:
        s = s + bias
    if causal is not None:
        rows, columns = s.shape[-2:]
        s = sf.where(sf.arange(columns) <= sf.arange(rows)[:, None] + causal, s, -np.inf)
    if mask is not None:
        s = sf.where(mask, s, -np.inf)
    return sf.softmax(s) @ v


def is_found(function, *arrays):
    return "attention(" in segfuse.compile(function).text(*arrays)


def draw(shape, seed=0, dtype="f4"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def qkv(lead, rows, columns, inner, outer, dtype="f4"):
    return (
        draw((*lead, rows, inner), 1, dtype),
        draw((*lead, columns, inner), 2, dtype),
        draw((*lead, columns, outer), 3, dtype),
    )


SIZES = [
    ((), 1, 1, 1, 1), ((), 1, 257, 33, 5), ((2,), 97, 129, 33, 17), ((1, 3), 257, 1, 8, 64),
    ((2, 2), 300, 260, 16, 70), ((3,), 5, 7, 64, 64), ((2, 1, 2), 96, 128, 4, 4),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("sizes", SIZES)
def test_it_is_the_formula(sizes, dtype):
    q, k, v = qkv(*sizes, dtype)
    tolerance = 2e-6 if dtype == "f4" else 1e-13
    mask = np.random.default_rng(4).random(k.shape[-2]) < 0.8
    mask[0] = True
    for more in ({}, {"causal": 0}, {"causal": 3, "scale": 0.5}, {"mask": mask},
                 {"causal": 0, "mask": mask, "bias": draw((q.shape[-2], k.shape[-2]), 5, dtype)}):  # fmt: skip
        function = lambda q, k, v: by_hand(q, k, v, **more)  # noqa: B023, E731
        assert is_found(function, q, k, v), more
        found = segfuse.compile(function)(q, k, v)
        assert found.dtype == q.dtype
        np.testing.assert_allclose(found, oracle(q, k, v, **more), atol=tolerance, rtol=tolerance)
