"""Softmax, its logarithm and logsumexp: scores of any size, their gradients, and where gradients
end."""

import numpy as np
import pytest

import segfuse
import segfuse.ops as sf

ROWS = {
    "small": lambda r: r.normal(size=(5, 37)),
    "1e5": lambda r: 1e5 + 3 * r.normal(size=(5, 37)),
    "-1e9": lambda r: np.full((5, 37), -1e9),
    "some -1e9": lambda r: np.where(r.random((5, 37)) < 0.5, -1e9, r.normal(size=(5, 37))),
    "some -inf": lambda r: np.where(np.arange(37) % 3 == 0, -np.inf, r.normal(size=(5, 37))),
    "1e30": lambda r: 1e30 * (np.arange(37.0) % 2 + np.zeros((5, 1))),
    "one": lambda r: r.normal(size=(5, 1)) * 1e6,
}


def oracle(x):
    below = x - x.max(-1, keepdims=True)
    log = below - np.log(np.exp(below).sum(-1, keepdims=True))
    return np.exp(log), log


def rows_of(name, dtype=np.float32):
    x = ROWS[name](np.random.default_rng(7)).astype(dtype)
    return x, *oracle(x.astype(np.float64))


@pytest.mark.parametrize("name", ROWS)
def test_values_have_their_digits(name):
    x, weights, logs = rows_of(name)
    both = segfuse.compile(lambda x: (sf.softmax(x), sf.log_softmax(x)))(x)
    np.testing.assert_allclose(both[0], weights, rtol=3e-6, atol=1e-30)
    np.testing.assert_allclose(both[1], logs, rtol=3e-7, atol=1e-6)
    np.testing.assert_allclose(both[0].sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_other_axes(axis):
    x = (1e5 + np.random.default_rng(1).normal(size=(3, 4, 5))).astype(np.float32)
    expected = np.moveaxis(oracle(np.moveaxis(x.astype(np.float64), axis, -1))[0], -1, axis)
    found = segfuse.compile(lambda x: sf.softmax(x, axis))(x)
    np.testing.assert_allclose(found, expected, rtol=3e-6)


@pytest.mark.parametrize("name", ROWS)
def test_gradients_have_their_digits(name):
    """Of a sum with weights over softmax, log_softmax and logsumexp."""
    x, p, _ = rows_of(name)
    w = np.random.default_rng(3).normal(size=x.shape).astype(np.float32)
    seen = np.isfinite(x)

    def gradient(f):
        return segfuse.grad(f)(x, w)

    softmax = gradient(lambda x, w: (sf.softmax(x) * w).sum())
    np.testing.assert_allclose(softmax, p * (w - (p * w).sum(-1, keepdims=True)), atol=2e-6)
    of_log = gradient(lambda x, w: sf.where(sf.is_finite(x), sf.log_softmax(x) * w, 0).sum())
    kept = np.where(seen, w, 0).astype(np.float64)
    np.testing.assert_allclose(of_log, kept - p * kept.sum(-1, keepdims=True), atol=2e-5)
    of_sum = gradient(lambda x, w: (sf.logsumexp(x, -1) * w[:, 0]).sum())
    np.testing.assert_allclose(of_sum, p * w[:, :1].astype(np.float64), rtol=3e-6, atol=1e-7)


def test_rows_without_a_number():
    x = np.zeros((3, 4), np.float32)
    x[0] = -np.inf
    x[1, 2] = np.inf
    x[2, 1] = np.nan
    found = segfuse.compile(sf.softmax)(x)
    assert np.isnan(found).all()
    g = segfuse.grad(lambda x: sf.logsumexp(x, -1)[:1].sum())(x)
    assert (g[0] == 0).all()  # of a logsumexp of -inf


def test_sixteen_bits_are_rounded_once():
    x = (1000 + np.random.default_rng(5).normal(size=(4, 33))).astype(np.float16)
    expected = oracle(x.astype(np.float64))[0]
    found = segfuse.compile(sf.softmax)(x)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, rtol=6e-4)


def test_the_sum_of_many_equal_shares_of_sixteen_bits():
    x = np.full((1, 70000), 30000, np.float16)
    found = segfuse.grad(lambda x: sf.logsumexp(x, -1).sum())(x)
    np.testing.assert_allclose(found.astype(float), 1 / 70000, rtol=2e-2)


def test_second_derivatives():
    x = 1e4 + np.random.default_rng(2).normal(size=6)
    p = oracle(x)[0]
    f = lambda x: sf.log_softmax(x)[0]  # noqa: E731
    for i in range(6):
        row = segfuse.grad(lambda x, i=i: segfuse.grad(f)(x)[i])(x)
        np.testing.assert_allclose(row, p[i] * p - p[i] * (np.arange(6) == i), atol=1e-12)


def test_no_gradient_passes_a_stop():
    x = np.array([1.0, 2.0, 3.0])
    f = lambda x: (sf.stop_gradient(x * 2) * x).sum()  # noqa: E731
    assert segfuse.compile(f)(x) == 28
    np.testing.assert_array_equal(segfuse.grad(f)(x), 2 * x)
    whole = np.array([3, 4])
    np.testing.assert_array_equal(segfuse.compile(sf.stop_gradient)(whole), whole)


def test_torch_softmax_has_its_digits():
    torch = pytest.importorskip("torch")
    x, weights, logs = rows_of("-1e9")
    both = torch.compile(
        lambda x: (torch.softmax(x, -1), torch.log_softmax(x, -1)), backend="segfuse"
    )(torch.tensor(x))
    np.testing.assert_allclose(both[0], weights, rtol=3e-6)
    np.testing.assert_allclose(both[1], logs, rtol=3e-7)
