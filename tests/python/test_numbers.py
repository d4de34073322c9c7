"""Numbers that other types or formulas would change: whole numbers, signed zeros, counts in 16 bits."""

import numpy as np
import pytest

import segfuse

BIG = 2**53 + 1


def same(f, *arrays):
    """Compiled, f gives what it gives with NumPy: values and types."""
    found, expected = np.asarray(segfuse.compile(f)(*arrays)), np.asarray(f(*arrays))
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "f",
    [
        np.sum,
        np.prod,
        np.cumsum,
        np.cumprod,
        lambda x: np.sum(x, axis=0),
        lambda x: np.trace(x),
        lambda x: np.sum(x, dtype=np.int32),
        lambda x: np.diagonal(x),
        lambda x: np.einsum("ij->i", x),
        lambda x: np.einsum("ii->i", x),
        lambda x: np.convolve(x[0], x[1]),
        lambda x: np.vecdot(x, x) if hasattr(np, "vecdot") else x,
    ],
)
def test_sums_of_int32_are_those_of_numpy(f):
    same(f, np.array([[2**31 - 1, 1], [2**30, 7]], np.int32))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: np.pad(x, 1, constant_values=BIG),
        lambda x: np.pad(x, 1, constant_values=-BIG),
        lambda x: np.full_like(x, BIG),
        lambda x: np.full_like(x, -(2**63)),
        lambda x: x + BIG,
    ],
)
def test_whole_numbers_beyond_float64_are_exact(f):
    same(f, np.array([0, -1, 2**62 + 1, -(2**63)]))


def test_zeros_of_both_signs_are_different_arguments():
    f = segfuse.compile(lambda x, k: x / k)
    x = np.ones(1, np.float32)
    with np.errstate(divide="ignore"):
        assert f(x, 0.0) == np.inf
        assert f(x, -0.0) == -np.inf
        assert f(x, 0.0) == np.inf
        assert f(x, 0) == np.inf
    assert np.isnan(f(x, float("nan"))) and np.isnan(f(x, float("nan")))


def test_means_of_16_bits_hold_sums_and_counts():
    mean = segfuse.compile(lambda x: x.mean())
    assert mean(np.ones(70000, np.float16)) == 1
    assert mean(np.full(1000, 100, np.float16)) == 100
    assert mean(np.arange(3001).astype(np.float16)) == np.arange(3001).astype(np.float16).mean()


def test_what_cannot_be_is_said_in_a_sentence():
    f = segfuse.compile(lambda x, k: x + k)
    with pytest.raises(segfuse.UsageError, match="outside the range of float64"):
        f(np.ones(2, np.float32), 10**400)
    with pytest.raises(segfuse.UsageError, match="axes of 1 and"):
        segfuse.compile(lambda x: np.einsum("aa->a", x))(np.ones((1, 3), np.float32))


def test_an_index_of_one_operand_alone_is_summed_without_rounding():
    """einsum sums it before the product; in 16 bits that sum would be rounded once more."""
    rng = np.random.default_rng(3)
    a = rng.standard_normal((400, 7)).astype(np.float16)
    b = rng.standard_normal((7, 300)).astype(np.float16)
    found = segfuse.compile(lambda a, b: np.einsum("ij,jk->k", a, b))(a, b)
    assert found.dtype == np.float16
    exact = np.einsum("ij,jk->k", a.astype(np.float64), b.astype(np.float64))
    assert np.all(np.abs(found - exact) <= 2.0**-11 * np.abs(exact) + 1e-4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_ldexp_is_numpys_for_all_exponents(dtype):
    limits = np.finfo(dtype)
    x = np.array([0.0, -0.0, 1.0, -1.7, limits.max, limits.tiny, 3 * limits.smallest_subnormal,
                  np.inf, np.nan], dtype)  # fmt: skip
    exponents = np.concatenate([np.arange(-2200, 2200, 7), [-(2**31), 2**31 - 1, 0, 1, -1]])
    exponents = exponents.astype(np.int32)
    with np.errstate(all="ignore"):
        expected = np.ldexp(x[:, None], exponents)
    found = segfuse.compile(np.ldexp)(x[:, None], exponents)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logaddexp2_of_numbers_far_apart_has_all_digits(dtype):
    b = np.arange(-120, 0).astype(dtype) + dtype(0.3)
    expected = np.log1p(np.exp2(b.astype(np.longdouble))) / np.log(np.longdouble(2))
    found = segfuse.compile(np.logaddexp2)(np.zeros_like(b), b)
    assert (abs(found - expected) <= 4 * np.spacing(expected.astype(dtype))).all()
