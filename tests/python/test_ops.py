"""Every operation against NumPy, over element types. A new operation needs a reference here."""

import math
import re

import numpy as np
import pytest

import segfuse
import segfuse.ops as sf
from segfuse import _native

OPERATIONS = {row[0]: row for row in _native.operations()}
ELEMENTWISE = [name for name, row in OPERATIONS.items() if row[1] == "elementwise" and row[2]]
FLOATS, INTEGERS = ("float16", "float32", "float64"), ("int32", "int64")
DTYPES = {
    "float": FLOATS,
    "numeric": FLOATS + INTEGERS,
    "compare": (*FLOATS, *INTEGERS, "bool"),
    "test": FLOATS,
    "logical": ("bool",),
    "integer": INTEGERS,
}
TOLERANCE = {"float16": 2e-3, "float32": 3e-6, "float64": 1e-11}

REFERENCES = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "square": np.square,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "reciprocal": lambda a: 1 / a,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    "softplus": lambda a: np.logaddexp(a, 0),
    "erf": np.vectorize(math.erf),
    "relu": lambda a: np.maximum(a, 0),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "stop_gradient": np.copy,
    "is_nan": np.isnan,
    "is_finite": np.isfinite,
    "logical_not": np.logical_not,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": np.power,
    "fmod": np.fmod,
    "atan2": np.arctan2,
    "floor_div": lambda a, b: np.where(b == 0, 0, a // np.where(b == 0, 1, b)),
    "floor_mod": lambda a, b: np.where(b == 0, 0, a % np.where(b == 0, 1, b)),
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
    "shift_left": lambda a, b: np.where(b < 0, 0, a << np.maximum(b, 0)),
    "shift_right": lambda a, b: np.where(b < 0, np.where(a < 0, -1, 0), a >> np.maximum(b, 0)),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}


def draw(dtype, domain, shape, seed):
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in INTEGERS:
        return rng.integers(-3, 4, shape).astype(dtype)
    low, high = {"any": (-2, 2), "positive": (0.2, 3), "nonzero": (0.3, 2)}[domain]
    x = rng.uniform(low, high, shape)
    if domain == "nonzero":
        x *= rng.choice([-1, 1], shape)
    return x.astype(dtype)


def close(found, expected, dtype, scale=1.0):
    assert found.shape == np.shape(expected)
    if dtype in TOLERANCE and found.dtype != bool:
        assert found.dtype == np.dtype(dtype)
        bound = TOLERANCE[dtype] * scale
        np.testing.assert_allclose(found.astype("f8"), expected, rtol=bound, atol=bound)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_elementwise_operation_is_numpys(name):
    assert name in REFERENCES, f"{name} has no reference in NumPy"
    _, _, types, domain, _, operands, _, _ = OPERATIONS[name]
    function = segfuse.compile(lambda *args: getattr(sf, name)(*args))
    for dtype in DTYPES[types]:
        inputs = [
            draw(dtype, domain, shape, i) for i, shape in enumerate([(3, 5), (5,)][:operands])
        ]
        wide = [x.astype("f8") if dtype in FLOATS else x for x in inputs]
        close(function(*inputs), REFERENCES[name](*wide), dtype)


def test_every_function_says_what_it_does():
    for name in sf.__all__:
        assert getattr(sf, name).__doc__, name
    assert set(ELEMENTWISE) < set(sf.__all__)


def test_integers_become_floats_where_only_floats_will_do():
    x = np.array([1, 2, 3], "int32")
    assert segfuse.compile(sf.exp)(x).dtype == np.float32
    np.testing.assert_allclose(segfuse.compile(lambda x: x / 2)(x), [0.5, 1, 1.5])


X = np.random.default_rng(0).normal(size=(3, 4, 5)).astype("f4")
I3 = np.array([2, 0, 1, 2])
SEED = np.array([3, 4])


def windows(x, size, stride):
    return np.lib.stride_tricks.sliding_window_view(x, size, axis=1)[:, ::stride].swapaxes(2, 3)


def recurrence(x):
    y = [np.ones_like(x[:, 0])]
    for t in range(1, x.shape[1]):
        y.append(x[:, t] * y[-1] + 1)
    return np.stack(y, 1)


OTHERS = {
    "where": (lambda x: sf.where(x > 0, x, 0), lambda x: np.where(x > 0, x, 0)),
    "cast": (lambda x: (x * 3).astype("int32"), lambda x: np.trunc(x * np.float32(3)).astype("i4")),
    "sum": (lambda x: x.sum((0, -1), keepdims=True), lambda x: x.sum((0, -1), keepdims=True)),
    "prod": (lambda x: x.prod(1), lambda x: x.prod(1)),
    "max": (lambda x: x.max(), lambda x: x.max()),
    "min": (lambda x: x.min(-1), lambda x: x.min(-1)),
    "argmax": (lambda x: x.argmax(1), lambda x: x.argmax(1)),
    "welford": (lambda x: x.var((1, 2), ddof=1), lambda x: x.var((1, 2), ddof=1)),
    "logsumexp": (lambda x: sf.logsumexp(x, -1), lambda x: np.log(np.exp(x).sum(-1))),
    "permute": (lambda x: x.transpose(2, 0, 1), lambda x: x.transpose(2, 0, 1)),
    "broadcast": (
        lambda x: sf.broadcast_to(x[:, :1], (2, *x.shape)),
        lambda x: np.broadcast_to(x[:, :1], (2, *x.shape)),
    ),
    "squeeze": (lambda x: x[:, 1:2].squeeze(1), lambda x: x[:, 1]),
    "reshape": (lambda x: x.reshape(-1, 10), lambda x: x.reshape(-1, 10)),
    "slice": (lambda x: x[1:, :-1, 2], lambda x: x[1:, :-1, 2]),
    "pad": (
        lambda x: sf.pad(x, ((0, 1), (2, 0), (1, 1)), constant_values=7),
        lambda x: np.pad(x, ((0, 1), (2, 0), (1, 1)), constant_values=7),
    ),
    "concat": (lambda x: sf.concatenate([x, x[:1]]), lambda x: np.concatenate([x, x[:1]])),
    "take": (lambda x: sf.take(x, I3, 1), lambda x: x.take(I3, 1)),
    "gather": (
        lambda x: sf.take_along_axis(x, sf.argmax(x, 1, True), 1),
        lambda x: x.max(1, keepdims=True),
    ),
    "scatter_add": (
        lambda x: sf.scatter_add(x, I3, 1, 3),
        lambda x: np.stack([x[:, 1], x[:, 2], x[:, 0] + x[:, 3]], 1),
    ),
    "unfold": (lambda x: sf.sliding_windows(x, 2, 1, stride=2), lambda x: windows(x, 2, 2)),
    "fold": (
        lambda x: segfuse.grad(lambda y: sf.sliding_windows(y, 3, 1).sum())(x),
        lambda x: np.broadcast_to(np.array([1, 2, 2, 1], "f4")[:, None], x.shape),
    ),
    "constant": (lambda x: x * 2.5, lambda x: x * np.float32(2.5)),
    "iota": (lambda x: sf.arange(x.shape[1]), lambda x: np.arange(4)),
    "extent": (lambda x: x * x.shape[1], lambda x: x * 4),
    "matmul": (lambda x: x @ x.mT, lambda x: x @ x.swapaxes(1, 2)),
    "cumsum": (lambda x: sf.cumsum(x, 1), lambda x: x.cumsum(1)),
    "cumprod": (lambda x: sf.cumprod(x, -1), lambda x: x.cumprod(-1)),
    "cummax": (lambda x: sf.cummax(x, 1), lambda x: np.maximum.accumulate(x, 1)),
    "cummin": (
        lambda x: sf.cummin(x, 1, reverse=True),
        lambda x: np.minimum.accumulate(x[:, ::-1], 1)[:, ::-1],
    ),
    "cumlogsumexp": (lambda x: sf.cumlogsumexp(x, 0), lambda x: np.log(np.exp(x).cumsum(0))),
    "linear_scan": (lambda x: sf.linear_scan(x, 1.0, 1), lambda x: recurrence(x)),
    "sort": (lambda x: sf.sort(x, 1), lambda x: np.sort(x, 1)),
}


def test_every_other_operation_has_a_case():
    by_hand = {"random_uniform", "semicrf_loss", "semicrf_loss_grad"}  # below
    by_hand.add("scan")  # test_scan.py: its function is segfuse.scan
    by_hand |= {"attention", "attention_grad"}  # test_attention.py: they are found
    rest = {name for name in OPERATIONS if name not in ELEMENTWISE}
    assert rest == set(OTHERS) | by_hand


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_operation_is_numpys(name):
    function, reference = OTHERS[name]
    compiled = segfuse.compile(function)
    assert f"= {name}" in compiled.text(X) or f"{name}(" in compiled.text(X), compiled.text(X)
    expected = reference(X)
    close(compiled(X), expected, str(np.asarray(expected).dtype), scale=10)


def test_random_numbers_depend_on_the_seed_alone():
    draw_two = segfuse.compile(
        lambda seed: (sf.random_uniform(seed, (1000,)), sf.random_uniform(seed, (1000,)))
    )
    a, b = draw_two(SEED)
    np.testing.assert_array_equal(a, draw_two(SEED)[0])
    assert ((a >= 0) & (a < 1)).all() and abs(a.mean() - 0.5) < 0.05
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.1
    kept = segfuse.compile(lambda x, seed: sf.dropout(x, seed, 0.25))(np.ones(4000, "f4"), SEED)
    assert abs(kept.mean() - 1) < 0.05 and set(np.unique(kept.round(4))) == {0, np.float32(1.3333)}


def test_the_loss_of_segments_is_that_of_the_functions():
    rng = np.random.default_rng(1)
    emission = rng.normal(size=(2, 6, 3)).astype("f4")
    transition, duration = (
        rng.normal(size=(3, 3)).astype("f4"),
        rng.normal(size=(4, 3)).astype("f4"),
    )
    labels = np.array([[0, 0, 1, 1, 2, 2], [1, 2, 2, 0, 0, 0]], "i4")
    starts = np.diff(labels, axis=1, prepend=-1) != 0

    @segfuse.value_and_grad
    def loss(emission, transition, duration, ends, lengths, labels, starts):
        operands = (emission, transition[None], duration, ends, ends, lengths, labels, starts)
        return sf.semicrf_loss(*operands).sum()

    zeros, lengths = np.zeros(3, "f4"), np.array([6, 6])
    value, gradient = loss(emission, transition, duration, zeros, lengths, labels, starts)
    expected, gradients = segfuse.loss_and_gradients(emission, transition, duration, labels=labels)
    np.testing.assert_allclose(value, expected.sum(), rtol=1e-5)
    np.testing.assert_allclose(gradient, gradients.emission, atol=1e-5)


# --- what is composed, and NumPy's own functions ---

COMPOSED = {
    "clip": (lambda x: x.clip(-0.5, 1), lambda x: x.clip(-0.5, 1)),
    "power": (lambda x: x**3 + x**-2 + abs(x) ** 0.5 + 2**x, lambda x: x**3 + x**-2.0 + abs(x) ** 0.5 + 2**x),
    "floor_divide": (lambda x: x // 0.3, lambda x: x // np.float32(0.3)),
    "remainder": (lambda x: x % 0.75, lambda x: x % np.float32(0.75)),
    "mean": (lambda x: x.mean(1), lambda x: x.mean(1)),
    "std": (lambda x: x.std(), lambda x: x.std()),
    "any": (lambda x: (x > 1).any(0), lambda x: (x > 1).any(0)),
    "all": (lambda x: (x > -1).all(), lambda x: (x > -1).all()),
    "argmin": (lambda x: x.argmin(), lambda x: x.argmin()),
    "count": (lambda x: (x > 0).sum(-1), lambda x: (x > 0).sum(-1)),
    "stack": (lambda x: sf.stack([x, x + 1], -1), lambda x: np.stack([x, x + 1], -1)),
    "split": (lambda x: sf.split(x, 2, 1)[1], lambda x: np.split(x, 2, 1)[1]),
    "flip": (lambda x: sf.flip(x, (0, 2)), lambda x: np.flip(x, (0, 2))),
    "moveaxis": (lambda x: sf.moveaxis(x, 0, -1), lambda x: np.moveaxis(x, 0, -1)),
    "one_hot": (lambda x: sf.one_hot(x.argmax(1), 4), lambda x: np.eye(4, dtype="f4")[x.argmax(1)]),
    "log2": (lambda x: sf.log2(abs(x)) + sf.log10(abs(x)), lambda x: np.log2(abs(x)) + np.log10(abs(x))),
    "tan": (lambda x: sf.tan(x / 2) + sf.exp2(x), lambda x: np.tan(x / 2) + np.exp2(x)),
    "softmax": (lambda x: sf.softmax(x, 1), lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
    "silu": (sf.silu, lambda x: x / (1 + np.exp(-x))),
    "like": (lambda x: sf.zeros_like(x) + sf.ones((4, 1), like=x), np.ones_like),
    "full": (lambda x: sf.full((x.shape[0], 2), 3.0), lambda x: np.full((3, 2), 3, "f4")),
    "outside": (lambda x: x + np.arange(5, dtype="f4"), lambda x: x + np.arange(5, dtype="f4")),
    "lists": (lambda x: x * [1, 2, 3, 4, 5], lambda x: x * np.arange(1, 6, dtype="f4")),
    "ufuncs": (lambda x: np.tanh(x) + np.maximum(x, 0) - np.float32(1), lambda x: np.tanh(x) + np.maximum(x, 0) - 1),
    "functions": (lambda x: np.sum(np.where(x > 0, x, 0), axis=1), lambda x: np.where(x > 0, x, 0).sum(1)),
    "more_functions": (lambda x: np.pad(np.concatenate([x, x]), 1), lambda x: np.pad(np.concatenate([x, x]), 1)),
    "numpy_left": (lambda x: np.ones(5, "f4") - x, lambda x: 1 - x),
    "vectors": (lambda x: x[0, 0] @ x[1].T @ x[2], lambda x: x[0, 0] @ x[1].T @ x[2]),
    "batches": (lambda x: x[:, None] @ x.mT, lambda x: x[:, None] @ x.swapaxes(1, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPOSED)
def test_composed(name):
    function, reference = COMPOSED[name]
    expected = np.asarray(reference(X))
    close(segfuse.compile(function)(X), expected, str(expected.dtype), scale=20)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_remainder_and_floor_divide_are_numpys(dtype):
    special = [0, -0.0, 1, -1, 0.1, 3, -3, 7.5, 1e4, 13.268514, 1.895502, np.inf, -np.inf, np.nan]
    if dtype != "float16":
        special += [1e20, -1e20, 1e-30]
    rng = np.random.default_rng(5)
    drawn = rng.normal(size=2000) * np.exp(rng.uniform(-6, 6, 2000))
    a, b = np.meshgrid(special, special)
    a = np.concatenate([a.ravel(), drawn[:1000]]).astype(dtype)
    b = np.concatenate([b.ravel(), drawn[1000:]]).astype(dtype)
    for ours, theirs in (
        (lambda x, y: x % y, np.remainder),
        (lambda x, y: x // y, np.floor_divide),
    ):
        with np.errstate(all="ignore"):
            expected = theirs(a, b)
        found = segfuse.compile(ours)(a, b)
        np.testing.assert_array_equal(found, expected)
        zeros = expected == 0
        np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(expected[zeros]))
    gradient = segfuse.grad(lambda x: (x % 3.0).sum())(np.array([1.5, -2.5, 6.0], dtype))
    np.testing.assert_array_equal(gradient, np.ones(3, dtype))


@pytest.mark.parametrize(("dtype", "end", "ulps"), [("float32", 148, 1), ("float64", 1070, 2)])
def test_exp2_is_as_exact_as_exp(dtype, end, ulps):
    x = np.linspace(-end, end * 127 / 148, 40_001).astype(dtype)
    found = segfuse.compile(sf.exp2)(x)
    exact = np.exp2(x.astype(np.longdouble))
    assert np.max(np.abs(found - exact) / np.spacing(exact.astype(dtype))) <= ulps
    assert segfuse.compile(sf.exp2)(np.arange(5)).tolist() == [1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    "key",
    [
        0, -1, np.s_[1:], np.s_[:, 1:3], np.s_[..., -2:], np.s_[::2], np.s_[:, 1::2], np.s_[None, 0],
        np.s_[..., None], np.s_[-2:100, :-100], np.s_[:, ::-1], np.s_[:, :, ::-2], np.s_[2:1],
        np.s_[1, 2, 3], np.s_[:, I3], np.s_[1, I3], np.s_[I3, 1:], np.s_[:, 1:100:3],
        np.s_[I3, I3], np.s_[:, I3, I3[::-1]], np.s_[I3, :, I3], np.s_[I3, None, I3 - 3],
        np.s_[I3[:, None], I3[:2]], np.s_[1, I3, I3], np.s_[I3, I3, 1:, None], np.s_[I3, 1, I3],
        np.s_[:, I3, ..., I3[::-1]], np.s_[None, 1, I3, ..., I3],
        [], [[], []], np.s_[:, []], np.s_[[], []],
    ],
    ids=str,
)  # fmt: skip
def test_indexing_is_numpys(key):
    np.testing.assert_array_equal(segfuse.compile(lambda x: x[key])(X), X[key])


@pytest.mark.parametrize("step", [-1, -2, -3])
def test_slices_that_go_backward_have_bounds(step):
    bounds = [None, *range(-6, 7)]
    keys = [slice(a, b, step) for a in bounds for b in bounds]
    x = np.arange(4.0)
    found = segfuse.compile(lambda x: tuple(x[key] for key in keys))(x)
    for key, part in zip(keys, found, strict=True):
        np.testing.assert_array_equal(part, x[key], str(key))
    both = segfuse.compile(lambda x: x[3:0:-2, ..., np.int64(-1) : 1 : -1])
    for n in (5, 2, 4):  # sizes of later calls
        y = np.arange(float(n * 3 * n)).reshape(n, 3, n)
        np.testing.assert_array_equal(both(y), y[3:0:-2, ..., -1:1:-1])
    np.testing.assert_array_equal(
        segfuse.grad(lambda x: (x[2::-1] * np.arange(3.0)).sum())(x), [2.0, 1, 0, 0]
    )


def test_the_magnitude_of_minus_zero_has_no_sign():
    for kind in (np.float16, np.float32, np.float64):
        x = np.array([-0.0, 0.0, -1.0, np.nan, -np.inf] * 20, kind)
        found = segfuse.compile(lambda x: (abs(x), 1 / abs(x)))(x)
        np.testing.assert_array_equal(found[0], np.abs(x))
        assert not np.signbit(found[0][[0, 1, 2, 4]]).any()
        with np.errstate(divide="ignore"):
            np.testing.assert_array_equal(found[1], 1 / np.abs(x))


def test_whole_numbers_are_finite():
    for x in (np.array([0, -5, 2**40]), np.array([True, False])):
        for name in ("isnan", "isfinite", "isinf"):
            found = segfuse.compile(getattr(sf, name))(x)
            np.testing.assert_array_equal(found, getattr(np, name)(x))


def test_an_array_beyond_memory_says_its_size():
    with pytest.raises(MemoryError, match="an array of 800000000000000000 bytes"):
        segfuse.compile(lambda x: sf.broadcast_to(x[0], (10**9, 10**8)))(np.ones(1))


def test_axes_of_tensordot_that_are_not_there():
    with pytest.raises(segfuse.UsageError, match="axes=1, expected 0 to 0"):
        segfuse.compile(lambda x: sf.tensordot(x, x, 1))(np.float64(2))


def test_indices_that_are_refused():
    for key, words in [
        (np.s_[1, :, I3], "side by side"),
        (np.s_[..., ...], "two Ellipsis"),
        (np.s_[0, 0, 0, 0], "which has 3 axes"),
        (5, "index 5 is out of range for axis 0 of shape (3, 4, 5)"),
        (np.s_[:, -5], "out of range"),
        ("a", "found 'a'"),
        (np.s_[::0], "step 0"),
        (np.s_[1.5:], "in a slice"),
    ]:
        with pytest.raises(segfuse.UsageError, match=re.escape(words)):
            segfuse.compile(lambda x, key=key: x[key])(X)
    with pytest.raises(segfuse.UsageError, match="a shape cannot depend on the content"):
        segfuse.compile(lambda x: x[x > 0])(X)


def test_two_indices_out_of_range_are_refused():
    pick = segfuse.compile(lambda x, i, j: x[i, j])
    i, j = np.array([0, 1]), np.array([1, 4])
    with pytest.raises(segfuse.Error, match="out of range"):
        pick(X, i, j)
    np.testing.assert_array_equal(pick(X, i, j - 4), X[i, j - 4])
    with pytest.raises(segfuse.Error, match="out of range"):
        pick(X, i, j - 6)


def test_indices_below_zero_count_from_the_end():
    at = np.array([[0, -1], [-3, 2]])
    given = {
        "a constant": segfuse.compile(lambda x: (x[at], x[:, at], sf.take(x, at, axis=-1))),
        "an argument": lambda x: segfuse.compile(
            lambda x, i: (x[i], x[:, i], sf.take(x, i, axis=-1))
        )(x, at.astype("i4")),
    }
    for name, function in given.items():
        for got, want in zip(function(X), (X[at], X[:, at], X[..., at]), strict=True):
            np.testing.assert_array_equal(got, want, err_msg=name)
    order = np.argsort(X, -1) - X.shape[-1]
    along = segfuse.compile(lambda x, i: sf.take_along_axis(x, i, -1))(X, order)
    np.testing.assert_array_equal(along, np.sort(X, -1))
    gradient = segfuse.grad(lambda x: x[at[0]].sum())(X)
    np.testing.assert_array_equal(gradient[:, 0, 0], [1, 0, 1])
    for wrong in (3, -4):
        with pytest.raises(segfuse.Error, match=f"index {wrong} is out of range; the axis has 3"):
            segfuse.compile(lambda x, i: x[i])(X, np.array([0, wrong]))


def test_a_size_by_formula_meets_a_window():
    """Both are 1 (or 2) in the call: the gradient knows the size as a number."""
    for rows in (1, 2):

        def loss(v, rows=rows):
            a = v.reshape(-1, 3)
            return ((a - sf.sliding_windows(a, rows, axis=0)) ** 2).sum()

        v = np.arange(3.0 * rows) ** 2
        got = segfuse.grad(loss)(v)
        a = v.reshape(rows, 3)
        windows = np.lib.stride_tricks.sliding_window_view(a, rows, 0).transpose(0, 2, 1)
        np.testing.assert_array_equal(windows.sum(0), a)
        np.testing.assert_allclose(got, np.zeros_like(v), err_msg=str(rows))


def test_other_elements_are_set_at_a_key():
    for key, new in [
        (np.s_[1], 5.0), (np.s_[:, 1:3], 2.0), (np.s_[0, -2:, 1], X[0, :2, 3]), (np.s_[..., 2], X[..., 0]),
        (np.s_[I3], X[:1] * 0 + 7), (np.s_[:, I3], np.arange(60, dtype="f4").reshape(3, 4, 5)),
        (np.s_[2:1], 1.0),
    ]:  # fmt: skip
        changed, added = X.copy(), X.copy()
        changed[key] = new
        np.add.at(added, key, new)
        np.testing.assert_array_equal(segfuse.compile(lambda x: x.at[key].set(new))(X), changed)
        found = segfuse.compile(lambda x: x.at[key].add(new))(X)
        np.testing.assert_allclose(found, added, rtol=1e-6)
    masked = segfuse.compile(lambda x: x.at[x > 0].multiply(2.0))(X)
    np.testing.assert_array_equal(masked, np.where(X > 0, X * 2, X))
    gradient = segfuse.grad(lambda x: (x.at[:, 1].set(0.0) * x).sum())(X)
    np.testing.assert_allclose(gradient[:, 1], 0)
    with pytest.raises(segfuse.Error, match="index 3 is out of range; the axis has 3 elements"):
        segfuse.compile(lambda x, i: x.at[i].set(0.0))(X, np.array([3]))


def test_large_integers_are_exact():
    x = np.array([1, -1])
    large = 0x5555555555555555
    np.testing.assert_array_equal(segfuse.compile(lambda x: x & large)(x), x & large)
    with pytest.raises(segfuse.UsageError, match="int64 holds"):
        segfuse.compile(lambda x: x + (1 << 63))(x)


def test_functions_that_numpy_lacks():
    x = np.array([[3.0, np.nan, 1.0, 3.0], [2.0, -1.0, 5.0, 4.0]], "f4")
    values, places = segfuse.compile(lambda x: sf.topk(x, 2))(x)
    np.testing.assert_array_equal(values, [[np.nan, 3], [5, 4]])
    np.testing.assert_array_equal(places, [[1, 0], [2, 3]])
    down = segfuse.compile(lambda x: sf.argsort(x, descending=True))(x)
    np.testing.assert_array_equal(down, [[1, 0, 3, 2], [2, 3, 0, 1]])
    decay = segfuse.compile(lambda x: sf.linear_scan(0.5, x, reverse=True))(x[1:])
    np.testing.assert_allclose(decay, [[2.0 - 0.5 + 1.25 + 0.5, -1 + 2.5 + 1, 7, 4]])
    with pytest.raises(segfuse.UsageError, match="unique does not take values"):
        segfuse.compile(np.unique)(x)
    draws = segfuse.compile(lambda s: sf.random_normal(s, (20000,)))(SEED)
    assert abs(draws.mean()) < 0.03 and abs(draws.std() - 1) < 0.03
    logits = np.log(np.array([0.2, 0.5, 0.3], "f4"))
    drawn = segfuse.compile(lambda s, p: sf.random_categorical(s, sf.broadcast_to(p, (20000, 3))))(
        SEED, logits
    )
    np.testing.assert_allclose(np.bincount(drawn) / 20000, [0.2, 0.5, 0.3], atol=0.02)


def test_norms_are_pytorchs(torch):
    f = torch.nn.functional
    x = torch.randn(4, 6, 5, dtype=torch.float64)
    scale, shift = torch.randn(6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    row = torch.randn(5, dtype=torch.float64)
    pairs = [
        (sf.layer_norm, (x, row, row), lambda x, a, b: f.layer_norm(x, (5,), a, b)),
        (sf.rms_norm, (x, row), lambda x, a: f.rms_norm(x, (5,), a, 1e-6)),
        (sf.instance_norm, (x, scale, shift), lambda x, a, b: f.instance_norm(x, weight=a, bias=b)),
        (
            lambda x, a, b: sf.batch_norm(x, a, b)[0],
            (x, scale, shift),
            lambda x, a, b: f.batch_norm(x, None, None, a, b, True),
        ),
        (
            lambda x, a, b: sf.batch_norm_inference(x, a, b**2, a, b),
            (x, scale, shift),
            lambda x, a, b: f.batch_norm(x, a, b**2, a, b, False),
        ),
        (sf.gelu, (x,), f.gelu),
        (lambda x: sf.gelu(x, True), (x,), lambda x: f.gelu(x, approximate="tanh")),
        (sf.silu, (x,), f.silu),
        (sf.softmax, (x,), lambda x: f.softmax(x, -1)),
        (lambda x: sf.log_softmax(x, 1), (x,), lambda x: f.log_softmax(x, 1)),
    ]
    for ours, args, theirs in pairs:
        torch.testing.assert_close(
            segfuse.compile(ours)(*args), theirs(*args), rtol=1e-9, atol=1e-9
        )


def test_norms_of_16_bit_values_are_rounded_once(torch):
    f = torch.nn.functional
    x, row = torch.randn(4, 6, 512).bfloat16(), torch.randn(512).bfloat16()
    channel = torch.rand(6).bfloat16() + 0.5
    pairs = [
        (sf.layer_norm, (x, row, row), lambda x, a, b: f.layer_norm(x, (512,), a, b)),
        (sf.rms_norm, (x, row), lambda x, a: f.rms_norm(x, (512,), a, 1e-6)),
        (
            sf.instance_norm,
            (x, channel, channel),
            lambda x, a, b: f.instance_norm(x, weight=a, bias=b),
        ),
        (
            lambda x, a: sf.batch_norm(x, a, a)[0],
            (x, channel),
            lambda x, a: f.batch_norm(x, None, None, a, a, True),
        ),
        (
            lambda x, a: sf.batch_norm_inference(x, a, a, a, 2),
            (x, channel),
            lambda x, a: f.batch_norm(x, a, a, a, torch.full_like(a, 2), False),
        ),
        (sf.softmax, (x,), lambda x: f.softmax(x, -1)),
        (sf.gelu, (x,), f.gelu),
        (sf.silu, (x,), f.silu),
    ]
    for ours, args, theirs in pairs:
        found = segfuse.compile(ours)(*args)
        assert found.dtype == torch.bfloat16
        exact = theirs(*(a.double() for a in args))
        torch.testing.assert_close(found.double(), exact, rtol=1.01 * 2**-8, atol=1e-5)
    # What is given in f32 makes the result f32, and numbers do not.
    assert segfuse.compile(sf.layer_norm)(x, row.float()).dtype == torch.float32
    assert segfuse.compile(lambda x: sf.layer_norm(x, 2, 0.5))(x).dtype == torch.bfloat16


JAX_NN = (
    "celu", "elu", "glu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "leaky_relu",
    "log_sigmoid", "logmeanexp", "mish", "relu6", "selu", "soft_sign", "sparse_plus", "sparse_sigmoid",
    "squareplus", "standardize", "swish",
)  # fmt: skip


def test_attention_is_jaxs(jax):
    rng = np.random.default_rng(2)
    q = rng.normal(size=(2, 5, 4, 8)).astype("f4")
    k, v = (rng.normal(size=(2, 7, 2, 8)).astype("f4") for _ in range(2))
    bias = rng.normal(size=(2, 4, 5, 7)).astype("f4")
    mask = rng.random((2, 1, 5, 7)) < 0.7
    for more in ({}, {"is_causal": True}, {"scale": 0.3}, {"bias": bias}, {"mask": mask}):
        found = segfuse.compile(lambda q, k, v: sf.dot_product_attention(q, k, v, **more))(q, k, v)
        expected = jax.nn.dot_product_attention(q, k, v, **more)
        np.testing.assert_allclose(found, expected, atol=3e-6)


def test_activations_are_jaxs(jax):
    x = jax.numpy.linspace(-3, 3, 50)
    for ours, theirs in [
        (sf.softmax, jax.nn.softmax),
        (sf.gelu, lambda x: jax.nn.gelu(x, approximate=False)),
        (sf.silu, jax.nn.silu),
        (sf.relu, jax.nn.relu),
        (sf.softplus, jax.nn.softplus),
        *((getattr(sf, name), getattr(jax.nn, name)) for name in JAX_NN),
    ]:
        found = segfuse.compile(ours)(x)
        assert isinstance(found, jax.Array)
        np.testing.assert_allclose(found, theirs(x), atol=2e-6)


def test_batch_norm_gives_mean_and_variance_of_each_channel():
    x = np.random.default_rng(0).normal(2, 3, size=(4, 3, 5)).astype(np.float32)
    y, mean, variance = segfuse.compile(sf.batch_norm)(x)
    np.testing.assert_allclose(mean, x.mean((0, 2)), rtol=1e-5)
    np.testing.assert_allclose(variance, x.var((0, 2)), rtol=1e-5)
    np.testing.assert_allclose(y.mean((0, 2)), 0, atol=1e-6)
