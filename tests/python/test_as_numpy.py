"""Programs as users of NumPy write them mean what they mean there: the order of arguments, floats
in lists beside float64, arrays that are changed while the function is traced, exact logarithms."""

import numpy as np
import pytest

import segfuse
import segfuse.ops as sf

RNG = np.random.default_rng(5)
A, M, V = RNG.normal(size=(3, 4, 5)), RNG.normal(size=(4, 5)), RNG.normal(size=5)
B, WHOLE = M > 0, RNG.integers(-9, 10, (4, 5))
F32, F64 = np.float32, np.float64


def same(f, *arrays, rtol=1e-14):
    """Compiled, f gives what it gives with NumPy."""
    found, expected = segfuse.compile(f)(*arrays), f(*arrays)
    parts = zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, expected)), strict=True)
    for x, y in parts:
        assert np.asarray(x).dtype == np.asarray(y).dtype
        np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-15)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: np.sum(x, 0, np.float64),
        lambda x: np.mean(x, 0, np.float64),
        lambda x: np.prod(x, 1, np.float64, None, True),
        lambda x: np.max(x, 0, None, True),
        lambda x: np.var(x, 0, None, None, 1),
        lambda x: np.std(x, 1, None, None, 1, True),
        lambda x: np.nansum(x, 0, np.float64),
        lambda x: np.median(x, 0, None, False, True),
        lambda x: np.quantile(x, 0.3, 0, None, False, "lower", True),
        lambda x: np.histogram(x, 4, (-2, 2), True),
        lambda x: np.histogram(x, 4, (-2, 2), None, np.abs(x))[0],
        lambda x: np.isin(x > 0, [True], True, True),
        lambda x: np.any(x > 1, 0, None, True),
        lambda x: np.round(x, 1, None),
        lambda x: np.sum(a=x, axis=1),
        lambda x: np.take(x, [0, 1], 1, None, "raise"),
        lambda x: np.vander(x[0], 3),
        lambda x: np.add.reduce(x, axis=None),
        lambda x: np.add.reduce(x),
        lambda x: np.maximum.reduce(x, None),
        lambda x: np.logical_or.reduce(x > 9, axis=None),
        lambda x: np.add.reduce(x, 1, np.float64),
        lambda x: np.multiply.outer(2.0, x),
        lambda x: x.sum(axis=0, dtype=np.float64),
        lambda x: x.max(0, initial=0.5),
        lambda x: x.cumsum(1, np.float64),
    ],
)
def test_arguments_by_place_are_those_of_numpy(f):
    same(f, M)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.sum(0, np.float64),
        lambda x: sf.mean(x, 0, np.float64),
        lambda x: sf.argmax(x, 0, None),
        lambda x: sf.var(x, 0, None),
        lambda x: sf.quantile(x, 0.5, 0, None),
    ],
)
def test_what_stands_for_keepdims_is_a_bool(f):
    with pytest.raises(segfuse.UsageError, match=r"keepdims is .*, expected True or False"):
        segfuse.compile(f)(M)


def test_an_argument_that_is_missing_here_is_named():
    with pytest.raises(segfuse.UsageError, match=r"np.std .* found correction=1, .* leave it out"):
        segfuse.compile(lambda x: np.std(x, correction=1))(M)


def test_functions_of_submodules_are_not_those_of_numpy():
    same(lambda x: (np.linalg.trace(x), np.linalg.diagonal(x, offset=1), np.trace(x)), A)
    same(lambda x: (np.linalg.matmul(x, x.T), np.linalg.norm(x, axis=0)), M)
    with pytest.raises(segfuse.UsageError, match=r"np\.lib\.scimath\.sqrt does not take"):
        segfuse.compile(lambda x: np.emath.sqrt(x))(M)


def test_functions_of_pytorch_with_another_meaning_are_refused():
    torch = pytest.importorskip("torch")
    x = torch.tensor(V)
    for f in (
        torch.std,
        torch.median,
        lambda v: torch.max(v, 0),
        lambda v: torch.split(v, 2),
        lambda v: x.clone().mul_(v),
    ):
        with pytest.raises(segfuse.UsageError, match="does not take values of a program"):
            segfuse.compile(f)(x)
    f = segfuse.compile(lambda v: torch.exp(v) + x * torch.sum(v, 0, True))
    torch.testing.assert_close(f(x), torch.exp(x) + x * x.sum())


@pytest.mark.parametrize(
    "f",
    [
        lambda x, b: x + [0.1, 0.2, 0.3, 0.4, 0.7],
        lambda x, b: np.where(b, x, [0.1, 0.2, 0.3, 0.4, 0.7]),
        lambda x, b: np.where(b, 0.1, 0.3) * x,
        lambda x, b: np.where(b, 0.1, 0.3)[:, None, 1:2] * x[:, None, :1],
        lambda x, b: (b * 0.1 + 0.7) * x,
        lambda x, b: np.exp(-np.where(b, [0.1, 0.2, 0.3, 0.4, 0.7], 0.3)).reshape(5, 4).T @ x.T,
        lambda x, b: np.select([b, ~b], [0.1, 0.3]) - x,
        lambda x, b: np.interp(x, [-0.7, 0.1, 1.3], [0.1, 0.7, 0.3]),
        lambda x, b: np.polyval([0.1, 0.2, 0.3], x),
        lambda x, b: np.concatenate([x[0], [0.1, 0.3]]),
        lambda x, b: np.histogram(np.where(b, 0.1, x), [-9.0, 0.1, 0.3, 9.0])[0],
        lambda x, b: np.digitize(x * 0 + 0.1, [0.1, 0.3]),
        lambda x, b: np.convolve([0.1, 0.3], x[0]),
        lambda x, b: np.average(x, 1, [0.1, 0.2, 0.3, 0.4, 0.7]),
        lambda x, b: np.diff(x[0], prepend=[0.1], append=0.7),
        lambda x, b: np.bincount([0, 2, 2, 1, 0], x[0] * [0.1, 0.2, 0.3, 0.4, 0.7], 4),
        lambda x, b: np.mean(x, dtype=float) + np.zeros_like(x, float) + 0.1,
        lambda x, b: np.sum(x.astype(float), axis=0),
    ],
)
def test_numbers_of_python_have_all_digits_beside_float64(f):
    same(f, M, B)


def test_numbers_of_python_are_float32_by_themselves_and_beside_float32():
    f = segfuse.compile(lambda x, b: (np.where(b, 0.1, 0.3), x + [0.1, 0.2, 0.3, 0.4, 0.7]))
    for x in f(M.astype(F32), B):
        assert x.dtype == F32
    # A cast says which digits count.
    f = segfuse.compile(lambda x, b: np.where(b, 0.1, 0.3).astype("float32") * x)
    np.testing.assert_array_equal(f(M, B), np.where(B, F32(0.1), F32(0.3)).astype(F64) * M)


def test_weak_numbers_in_a_scan_and_under_a_gradient():
    def f(x, b):
        factor = np.where(b[0], 0.1, 0.3)
        return segfuse.scan(lambda c, y: (c * 0.9 + factor * y, c), x[0] * 0, x)[0].sum()

    def g(x):
        c = x[0] * 0
        for y in x:
            c = c * 0.9 + np.where(B[0], 0.1, 0.3) * y
        return c.sum()

    assert segfuse.compile(f)(M, B) == pytest.approx(g(M), rel=1e-14)
    slope = segfuse.grad(lambda x, b: (np.where(b, 0.1, 0.3) * x).sum())(M, B)
    np.testing.assert_array_equal(slope, np.where(B, 0.1, 0.3))


def _unit_vectors(x):
    unit, total = np.zeros(5), 0
    for i in range(5):
        unit[:] = 0
        unit[i] = 1
        total = total + (x * unit).sum() * (i + 1)
    unit[:] = np.nan
    return total


def _changed_twice(x):
    w = np.ones(5)
    first = x * w
    w *= 3
    second = x * w + first * w
    w[:] = 7
    return first, second


def test_an_array_that_the_function_changes_counts_as_it_was_at_each_use():
    for f in (_unit_vectors, _changed_twice):
        compiled = segfuse.compile(f)
        for _ in range(2):
            np.testing.assert_allclose(compiled(V), f(V), rtol=1e-14)
        np.testing.assert_allclose(segfuse.compile(lambda x, f=f: f(x))(V), f(V), rtol=1e-14)
    outside = np.ones(5)
    f = segfuse.compile(lambda x: x * outside)
    f(V)
    outside *= 2
    np.testing.assert_array_equal(f(V), 2 * V)


def test_a_tensor_that_the_function_changes_after_its_use_is_an_error():
    torch = pytest.importorskip("torch")

    def f(x):
        w = torch.ones(5)
        y = x * w
        w += 1
        return y

    with pytest.raises(segfuse.UsageError, match=r"changed a Tensor .* in place .* clone\(\)"):
        segfuse.compile(f)(torch.ones(5))


def test_dtypes_are_equal_to_those_of_libraries():
    seen = []

    def f(x):
        seen.append(x.dtype == F32 and x.dtype == np.dtype("f4") and F32 == x.dtype)
        seen.append(x.dtype != F64 and x.dtype in (np.float16, F32) and x.dtype == "f4")
        seen.append(x.dtype == "float32" and {x.dtype: 1}["float32"] == 1 and x.dtype is not None)
        seen.append(not (x.dtype == np.complex64 or x.dtype == 3 or x.dtype == "text"))
        with pytest.raises(segfuse.UsageError, match=r"compare with np.float32 or np.float64"):
            seen.append(x.dtype == float)
        return x

    segfuse.compile(f)(V.astype(F32))
    assert seen == [True] * 4


@pytest.mark.parametrize(
    "f",
    [
        lambda b: ~np.tril(b),
        lambda b: ~np.triu(b, 1),
        lambda b: ~np.diag(b[0], 1),
        lambda b: np.diagonal(b, 1),
        lambda b: np.einsum("ii->i", b[:, :4]),
        lambda b: np.trace(b),
    ],
)
def test_triangles_and_diagonals_of_bool(f):
    same(f, B)


def test_diagonals_keep_signs_of_zero_and_need_not_read_the_whole():
    zero = np.diag(segfuse.compile(np.diag)(np.array([-0.0, 1.0])))
    assert np.signbit(zero[0])
    assert np.signbit(segfuse.compile(np.diagonal)(np.array([[-0.0, 1.0], [2.0, -0.0]]))).all()
    for offset in (0, 2, -1, 9, -9):
        same(lambda x, k=offset: (np.diagonal(x, k, 2, 0), np.trace(x, k, 1, 2)), A)


@pytest.mark.parametrize("f", [np.floor, np.ceil, np.trunc])
def test_whole_numbers_are_their_own_floor(f):
    same(f, np.array([2**53 + 1, -(2**62) - 1]))
    same(f, np.array([2**24 + 1, -5], np.int32))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_logarithms_of_powers_are_whole(dtype):
    with np.errstate(over="ignore"):
        tens, twos = (np.power(b, np.arange(-30.0, 31)).astype(dtype) for b in (10.0, 2.0))
    tens = tens[np.isfinite(tens) & (tens >= np.finfo(dtype).tiny)]
    twos = twos[np.isfinite(twos) & (twos > 0)]
    np.testing.assert_array_equal(segfuse.compile(np.log10)(tens), np.round(np.log10(tens)))
    np.testing.assert_array_equal(segfuse.compile(np.log2)(twos), np.log2(twos))
    slope = segfuse.grad(lambda x: np.log10(x).sum())(np.array([1.0, 1000.0, 7.0]))
    np.testing.assert_allclose(slope, 1 / (np.log(10) * np.array([1.0, 1000.0, 7.0])), rtol=1e-14)


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("x", [M, A, M[:1], M[:, :1], B, WHOLE, np.float32(M)])
def test_padding_with_own_elements(mode, x):
    for width in (1, (7, 3), ((1, 2), (0, 11)) if x.ndim == 2 else ((3, 1),) * 3):
        same(lambda v, w=width: np.pad(v, w, mode), x)


def test_padding_an_empty_axis_with_its_own_elements():
    same(lambda v: np.pad(v, ((0, 0), (1, 2)), "edge"), np.zeros((0, 3)))
    with pytest.raises(segfuse.UsageError, match=r"pad: axis 0 .* is empty"):
        segfuse.compile(lambda v: np.pad(v, 1, "edge"))(np.zeros((0, 3)))


def test_elements_beyond_the_ends():
    at = np.array([7, -9, 3, -1, 0])
    for mode in ("wrap", "clip"):
        same(lambda x, i, m=mode: (np.take(x, i, 1, mode=m), x.take(i, mode=m)), M, at)


def test_reshapes_with_the_first_axis_first():
    same(lambda x: (x.reshape(5, -1, order="F"), np.ravel(x, "F"), x.flatten("F")), A)


SECOND = [
    (lambda x: np.logaddexp(x, 0.0), 0.25),
    (lambda x: np.logaddexp2(x, 0.0), np.log(2) / 4),
    (lambda x: np.hypot(x, 1.0), 1.0),
    (lambda x: np.hypot(2.0, x), 0.5),
    (np.sinc, -(np.pi**2) / 3),
]


@pytest.mark.parametrize("f,expected", SECOND)
def test_second_derivatives_where_formulas_change(f, expected):
    slope = segfuse.grad(lambda x: f(x).sum())
    found = segfuse.grad(lambda x: slope(x).sum())(np.zeros(1))
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_gradients_of_powers_of_zero():
    x, y = np.array([0.0, 0.0, 0.0, 2.0, np.inf]), np.array([2.0, 0.5, 1.0, 0.0, -1.0])
    by_x, by_y = segfuse.grad(lambda x, y: np.power(x, y).sum(), (0, 1))(x, y)
    np.testing.assert_allclose(by_x, [0.0, np.inf, 1.0, 0.0, 0.0])
    np.testing.assert_allclose(by_y, [0.0, 0.0, 0.0, np.log(2.0), 0.0])
    assert segfuse.grad(lambda x, y: np.power(x, y).sum())(np.zeros(1), np.zeros(1)) == 0


def test_weak_numbers_that_are_used_again_and_again_are_computed_once():
    def f(x):
        w = np.where(x > 0, 0.9, 0.8)
        for _ in range(40):
            w = w * 0.5 + w * 0.5
        return w * x

    same(f, V)


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 63, 64, 65, 1000, 1024])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_searches_among_few_and_many_elements(count, dtype):
    rng = np.random.default_rng(count)
    a = np.sort((rng.normal(size=count) * 10).astype(dtype))
    wanted = [(rng.normal(size=200) * 10).astype(dtype), a[:20], a[-3:]]
    if dtype != "i4":
        wanted.append(np.array([np.nan, np.inf, -np.inf, -0.0], dtype))
        a[-3:] = np.array([np.inf, np.nan, np.nan], dtype)[:count]
    v = np.concatenate(wanted)
    for side in ("left", "right"):
        same(lambda a, v, s=side: np.searchsorted(a, v, s), a, v)
    if count:
        shuffled = rng.permutation(np.concatenate([a, a[:5]]))
        same(lambda a, v: (np.isin(v, a), np.isin(v, a, invert=True)), shuffled, v)


@pytest.mark.parametrize("count", [2, 33, 34, 300])
def test_histograms_of_few_and_many_bins(count):
    rng = np.random.default_rng(count)
    edges = np.sort(rng.normal(size=count))
    x = np.concatenate([rng.normal(size=2000), edges, [np.inf, -np.inf, np.nan]])
    weights = rng.normal(size=x.size)
    same(lambda x, e: np.histogram(x, e), x, edges)
    same(lambda x, e, w: np.histogram(x, e, weights=w), x, edges, weights, rtol=1e-10)
    same(lambda x: np.histogram(x, count - 1, (-2.0, 2.0))[0], x)


@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_of_places_that_are_named_again_the_last_one_counts(count):
    rng = np.random.default_rng(count)
    x = np.where(rng.random((6, 7)) < 0.2, -0.0, rng.normal(size=(6, 7)))
    new = np.where(rng.random((6, count)) < 0.2, -0.0, rng.normal(size=(6, count)))
    columns, places = rng.integers(-7, 7, count), rng.integers(-7, 7, (6, count))
    first, second = x.copy(), x.copy()
    first[:, columns] = new
    np.put_along_axis(second, places, new, 1)
    f = segfuse.compile(lambda x, i, j, v: (x.at[:, i].set(v), sf.put_along_axis(x, j, v, 1)))
    for found, expected in zip(f(x, columns, places, new), (first, second), strict=True):
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def test_places_out_of_range_are_an_error():
    for at in (7, -8):
        for f in (
            lambda x, i: x.at[:, i].set(0.0),
            lambda x, i: sf.put_along_axis(x, i[None], 0.0, 1),
        ):
            with pytest.raises(segfuse.UsageError, match="out of range"):
                segfuse.compile(f)(np.zeros((6, 7)), np.array([at]))


@pytest.mark.parametrize(
    "f,words",
    [
        (lambda x: np.quantile(x, -0.1), r"quantile: found q outside \[0, 1\]"),
        (lambda x: np.percentile(x, [5, 101]), r"percentile: found q outside \[0, 100\]"),
        (lambda x: np.nanquantile(x, np.nan), r"nanquantile: found q outside"),
        (lambda x: np.histogram(x, 3, (2, 1)), r"histogram: found the range \(2.0, 1.0\)"),
        (lambda x: np.histogram(x, 3, (0, np.inf)), r"histogram: found the range"),
        (lambda x: np.choose((x > 0) * 2, [x, x * 2]), "out of range"),
        (lambda x: np.choose((x > 0) * -1, [x, x * 2]), "out of range"),
        (lambda x: np.ldexp(x, 2.5), "ldexp: found exponents of float32, expected integers"),
    ],
)
def test_arguments_that_numpy_refuses(f, words):
    with pytest.raises(segfuse.UsageError, match=words):
        segfuse.compile(f)(M)


def test_arguments_at_the_limits():
    inf = np.inf
    same(lambda x: np.histogram(x, 3, (0, 0)), M)
    for mode in ("wrap", "clip"):
        same(lambda x, i, m=mode: np.choose(i, [x, x * 2, x * 3], mode=m), M, WHOLE)
    same(lambda x: (np.choose(x > 0, [x, 2.0]), np.ldexp(x, 3), np.take(x, [], 0)), M)
    for heights in ([1.0, inf, 2.0], [inf, inf, 2.0], [-inf, 1.0, inf]):
        same(lambda x, h=heights: np.interp(x, [-0.5, 0.1, 0.9], h), np.append(V, [-0.5, 0.1, 0.9]))
