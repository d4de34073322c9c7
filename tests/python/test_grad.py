"""Gradients against central differences in float64, and against PyTorch and JAX."""

import numpy as np
import pytest

import segfuse
import segfuse.ops as sf
from segfuse import _native

DIFFERENTIABLE = [
    row[0]
    for row in _native.operations()
    if row[1] == "elementwise" and row[2] in ("float", "numeric") and row[0] != "stop_gradient"
]
DOMAINS = {row[0]: (row[3], row[5]) for row in _native.operations()}


def differences(function, x, step=1e-6):
    gradient = np.empty_like(x)
    for i in np.ndindex(x.shape):
        ahead, behind = x.copy(), x.copy()
        ahead[i] += step
        behind[i] -= step
        gradient[i] = (float(function(ahead)) - float(function(behind))) / (2 * step)
    return gradient


def check(function, *args, argnum=0):
    compiled = segfuse.compile(function)
    found = segfuse.grad(function, argnum)(*args)

    def of_one(x):
        return compiled(*args[:argnum], x, *args[argnum + 1 :])

    np.testing.assert_allclose(found, differences(of_one, args[argnum]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_elementwise(name):
    domain, operands = DOMAINS[name]
    rng = np.random.default_rng(5)
    low, high = (0.4, 2) if domain != "any" else (-2, 2)
    args = [rng.uniform(low, high, (2, 3)) + 0.05 * i for i in range(operands)]
    weights = rng.normal(size=(2, 3))
    for argnum in range(operands):
        check(lambda *xs: (getattr(sf, name)(*xs) * weights).sum(), *args, argnum=argnum)


X = np.random.default_rng(1).normal(size=(3, 4))
FUNCTIONS = {
    "reductions": lambda x: (x.sum(0) * x.max(0) + x.min(0) * x.mean(0) + x.prod(0)).sum(),
    "norms": lambda x: (sf.layer_norm(x) * sf.rms_norm(x) * X).sum(),
    "softmax": lambda x: (sf.softmax(x) * X + sf.log_softmax(x, 0) * X + sf.logsumexp(x, 1, True)).sum(),
    "shapes": lambda x: (x.T.reshape(2, 6)[:, ::2] * sf.pad(x[:2, 1:3], 0).sum()).sum(),
    "windows": lambda x: (sf.sliding_windows(x, 2, 1) ** 2).sum(),
    "products": lambda x: (x @ x.T @ x).sum() + x[0] @ x[1],
    "take": lambda x: (sf.take(x, np.array([1, 1, 3]), 1) ** 2 + x[::-1, :3]).sum(),
    "parts": lambda x: sf.concatenate([x * 2, x**2], 1).var() + sf.stack([x, x]).std(),
    "choice": lambda x: sf.where(x > 0, x**3, sf.clip(x, -0.5, 2)).sum(),
    "activations": lambda x: (sf.gelu(x) + sf.gelu(x, True) + sf.silu(x)).sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    check(FUNCTIONS[name], X)


def test_higher_derivatives():
    f = sf.exp
    for _ in range(3):
        f = segfuse.grad(lambda x, f=f: f(2 * x))
    np.testing.assert_allclose(f(0.1), (2 * 4 * 8) * np.exp(0.8), rtol=1e-5)
    hessian_diagonal = segfuse.grad(lambda x: segfuse.grad(lambda y: (y**4).sum())(x).sum())
    np.testing.assert_allclose(hessian_diagonal(X), 12 * X**2, rtol=1e-9)


def test_a_size_that_is_found_to_be_one_later():
    def loss(x, y):
        rest = x[1:]  # two rows
        last = rest[1:]  # one row, as the product tells
        return sf.sum(rest * rest) + sf.sum(last * y)

    x, y = np.arange(6.0).reshape(3, 2), np.arange(8.0).reshape(4, 2)
    got = segfuse.grad(loss, argnums=(0, 1))(x, y)
    np.testing.assert_array_equal(got[0], [[0, 0], [4, 6], [8 + 12, 10 + 16]])
    np.testing.assert_array_equal(got[1], np.broadcast_to(x[2], (4, 2)))


def test_what_is_outside_is_a_constant():
    inner = segfuse.compile(lambda x: segfuse.grad(lambda y: (y * x).sum())(x))
    np.testing.assert_allclose(inner(X), X)  # not 2 x
    both = segfuse.grad(lambda a, b: (a * b).sum())
    np.testing.assert_allclose(both(X, X), X)


def test_trees_argnums_and_what_comes_beside():
    parameters = {"w": np.ones((4, 2)), "b": [np.zeros(2)]}

    def loss(parameters, x, scale):
        y = x @ parameters["w"] + parameters["b"][0]
        return (y**2).mean() * scale, {"y": y}

    (value, aux), gradient = segfuse.value_and_grad(loss, has_aux=True)(parameters, X, 2.0)
    y = X @ parameters["w"]
    np.testing.assert_allclose(value, 2 * (y**2).mean())
    np.testing.assert_allclose(aux["y"], y)
    np.testing.assert_allclose(gradient["w"], 4 * X.T @ y / y.size)
    np.testing.assert_allclose(gradient["b"][0], 4 * y.sum(0) / y.size)
    by_both, _ = segfuse.grad(loss, (0, 1), has_aux=True)(parameters, X, 2.0)
    assert len(by_both) == 2 and by_both[1].shape == X.shape


def test_refusals():
    def error_of(function, *args):
        with pytest.raises(segfuse.UsageError) as error:
            segfuse.grad(function)(*args)
        return str(error.value)

    assert "expected a scalar" in error_of(lambda x: x * 2, X)
    assert "expected floats" in error_of(lambda x: x.sum(), np.arange(3))
    assert "np.float32(number)" in error_of(lambda x, y: (x * y).sum(), 2, X)
    with pytest.raises(segfuse.UsageError, match="got 1 arguments, expected one at 1"):
        segfuse.grad(lambda x: x.sum(), 1)(X)


def test_pytorch(torch):
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    w = torch.randn(5, dtype=torch.float64)
    f = torch.nn.functional
    (f.gelu(f.layer_norm(x, (5,), w)) ** 2).sum().backward()
    ours = segfuse.grad(lambda x, w: (sf.gelu(sf.layer_norm(x, w)) ** 2).sum())(x.detach(), w)
    assert isinstance(ours, torch.Tensor)
    torch.testing.assert_close(ours, x.grad)


def test_jax(jax):
    jnp = jax.numpy
    x = jnp.linspace(-2, 2, 12).reshape(3, 4)
    first = segfuse.grad(lambda x: (sf.softmax(x, 0)[0] * sf.tanh(x)).sum())(x)
    expected = jax.grad(lambda x: (jax.nn.softmax(x, 0)[0] * jnp.tanh(x)).sum())(x)
    np.testing.assert_allclose(first, expected, atol=1e-6)


def slopes(function, x):
    return segfuse.grad(lambda x: function(x).sum())(np.array(x, "f8"))


def test_slopes_where_two_formulas_meet():
    """Where a formula for one place (a zero, an infinity) replaces the general one."""
    x = [-8, -1, -0.0, 0.0, 1, np.inf, -np.inf, np.nan]
    third = 1 / 3
    np.testing.assert_allclose(
        slopes(sf.cbrt, x), [third / 4, third, np.inf, np.inf, third, 0, 0, np.nan], rtol=1e-12
    )
    np.testing.assert_array_equal(slopes(sf.rsqrt, [-0.0, 0.0, 4]), [-np.inf, -np.inf, -1 / 16])
    np.testing.assert_array_equal(slopes(lambda x: sf.modf(x)[0], [-2.5, -2, -0.0, 0.0, 3]), 1)
    found = np.asarray(segfuse.compile(lambda x: sf.modf(x)[0])(np.array(x)))
    np.testing.assert_array_equal(found, np.modf(x)[0])
    np.testing.assert_array_equal(np.signbit(found[:-1]), np.signbit(np.modf(x)[0][:-1]))


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (sf.median, [0, 0.5, 0.5, 0]),
        (sf.nanmedian, [0, 0.5, 0.5, 0]),
        (lambda x: sf.quantile(x, 0.4), [0, 0.8, 0.2, 0]),
        (lambda x: sf.percentile(x, 60), [0, 0.2, 0.8, 0]),
        (lambda x: sf.quantile(x, 0.5, method="midpoint"), [0, 0.5, 0.5, 0]),
    ],
)
def test_quantiles_of_equal_elements(function, wanted):
    """Equal neighbours share the gradient as others do."""
    np.testing.assert_allclose(slopes(function, [-1, 2, 2, 3]), wanted, atol=1e-12)
    np.testing.assert_allclose(slopes(function, [-1, 2, 2.5, 3]), wanted, atol=1e-12)
    infinite = np.array([-1, np.inf, np.inf, np.inf])
    assert segfuse.compile(function)(infinite) == np.inf


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_derivatives_at_the_ends_of_a_domain_are_infinite(dtype):
    def at(f, *points):
        return segfuse.grad(lambda x: f(x).sum())(np.array(points, dtype)).tolist()

    assert at(sf.arcsin, 1, -1, 0) == [np.inf, np.inf, 1]
    assert at(sf.arccos, 1, -1, 0) == [-np.inf, -np.inf, -1]
    assert at(sf.arccosh, 1) == at(sf.arctanh, 1) == at(sf.sqrt, 0) == at(sf.log, 0) == [np.inf]


def test_hypot_of_equal_sides():
    """Neither side is the greater one: each still has its own slope, 1 / sqrt(2)."""
    a, b = np.array([3.0, -3.0, 3.0, -3.0, 1.0]), np.array([3.0, 3.0, -3.0, -3.0, 2.0])
    found = segfuse.grad(lambda a, b: sf.hypot(a, b).sum(), argnums=(0, 1))(a, b)
    np.testing.assert_allclose(found, [a / np.hypot(a, b), b / np.hypot(a, b)], rtol=1e-15)
