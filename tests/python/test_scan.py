"""segfuse.scan against loops over NumPy arrays, jax.lax.scan and PyTorch's recurrent layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import segfuse
import segfuse.ops as sf

rng = np.random.default_rng(3)


def drawn(*shape, dtype="f4"):
    return rng.uniform(-1, 1, shape).astype(dtype)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# --- against loops ---


def test_a_recurrence_is_its_loop_for_any_sizes():
    @segfuse.compile
    def run(h, xs, w):
        def step(h, x):
            h = sf.tanh(x + h @ w)
            return h, (h, h * x)

        return segfuse.scan(step, h, xs)

    for steps, rows, width in [(5, 2, 3), (1, 2, 3), (7, 4, 3), (3, 2, 6), (0, 2, 3)]:
        h, xs, w = drawn(rows, width), drawn(steps, rows, width), drawn(width, width)
        last, (states, products) = run(h, xs, w)
        assert states.shape == products.shape == xs.shape
        for t in range(steps):
            h = np.tanh(xs[t] + h @ w)
            np.testing.assert_allclose(states[t], h, rtol=2e-5, atol=1e-6)
            np.testing.assert_allclose(products[t], h * xs[t], rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(last, h, rtol=2e-5, atol=1e-6)
    assert run.cache_info().traces <= 2  # no steps may be a class of its own


@pytest.mark.parametrize("reverse", [False, True])
def test_trees_types_and_outputs_are_those_of_jax(reverse):
    def step(carry, x):
        count, (total, flags) = carry["n"], carry["rest"]
        seen = x["a"] > 0
        new = {"n": count + 1, "rest": (total * 0.5 + x["a"], flags | seen)}
        return new, [x["b"] * 2, None, count]

    init = {"n": np.int32(4), "rest": (drawn(3), np.zeros(3, bool))}
    xs = {"a": drawn(6, 3), "b": np.arange(6, dtype="i4")}
    carry, ys = segfuse.compile(lambda i, x: segfuse.scan(step, i, x, reverse=reverse))(init, xs)
    expected, stacked = jax.lax.scan(step, jax.tree.map(jnp.asarray, init), xs, reverse=reverse)
    assert ys[1] is None and stacked[1] is None
    for found, known in [
        (carry["n"], expected["n"]),
        (carry["rest"][0], expected["rest"][0]),
        (carry["rest"][1], expected["rest"][1]),
        (ys[0], stacked[0]),
        (ys[2], stacked[2]),
    ]:
        assert found.dtype == known.dtype and found.shape == known.shape
        np.testing.assert_allclose(found, known, rtol=1e-6)


def test_length_takes_the_place_of_xs():
    def double(x, _):
        return x * 2, x

    last, all_ = segfuse.compile(lambda x: segfuse.scan(double, x, length=4))(np.float32(3))
    assert last == 48
    np.testing.assert_array_equal(all_, [3, 6, 12, 24])


def test_no_carry_is_a_map():
    def step(carry, x):
        return carry, x.sum()

    none, sums = segfuse.compile(lambda x: segfuse.scan(step, (), x))(drawn(4, 3))
    assert none == () and sums.shape == (4,)


def test_a_scan_within_a_scan_uses_values_of_all_around():
    @segfuse.compile
    def run(xs, w):
        def row(total, x):
            def element(h, v):
                return h * w[0] + v * total, h

            last, before = segfuse.scan(element, total, x, reverse=True)
            return last, before

        return segfuse.scan(row, w[1], xs)

    xs, w = drawn(3, 4), drawn(2)
    last, before = run(xs, w)
    total = w[1]
    for t in range(3):
        h = total
        for i in reversed(range(4)):
            np.testing.assert_allclose(before[t, i], h, rtol=1e-5, atol=1e-7)
            h = h * w[0] + xs[t, i] * total
        total = h
    np.testing.assert_allclose(last, total, rtol=1e-5)


def test_sizes_and_arrays_from_outside_are_known_in_the_steps():
    table = drawn(5)

    @segfuse.compile
    def run(xs):
        rows, width = xs.shape[1:]

        def step(h, x):
            mean = x.reshape(rows * width).sum() / (rows * width)
            return h + mean + table.sum(), sf.arange(width) + 0

        return segfuse.scan(step, np.float32(0), xs)

    for shape in [(3, 2, 5), (4, 3, 2)]:
        xs = drawn(*shape)
        last, ranges = run(xs)
        expected = xs.mean((1, 2)).sum() + shape[0] * table.sum()
        np.testing.assert_allclose(last, expected, rtol=1e-4)
        np.testing.assert_array_equal(ranges, [np.arange(shape[2])] * shape[0])


# --- gradients ---


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_are_those_of_jax(reverse):
    def make(scan, tanh, sigmoid):
        def loss(h, xs, w, b):
            def step(carry, x):
                h, n = carry
                gate = sigmoid(h @ w + b)
                h = gate * h + (1 - gate) * tanh(x)
                return (h, n + 1), h * x

            (h, _), ys = scan(step, (h, np.int32(0)), xs, reverse=reverse)
            return (h * h).sum() + (ys * ys * ys).sum()

        return loss

    ours = make(segfuse.scan, sf.tanh, sf.sigmoid)
    theirs = make(jax.lax.scan, jnp.tanh, jax.nn.sigmoid)
    args = [drawn(2, 3), drawn(5, 2, 3), drawn(3, 3), drawn(3)]
    value, found = segfuse.value_and_grad(ours, argnums=(0, 1, 2, 3))(*args)
    known_value, known = jax.value_and_grad(theirs, argnums=(0, 1, 2, 3))(*args)
    np.testing.assert_allclose(value, known_value, rtol=1e-5)
    for a, b in zip(found, known, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


def test_second_derivatives_are_those_of_jax():
    def make(scan, sin):
        def norm(grad):
            def loss(w, xs):
                return scan(lambda h, x: (sin(h * w + x), h), w * 0 + 1, xs)[0].sum()

            return lambda w, xs: (grad(loss)(w, xs) ** 2).sum()

        return norm

    w, xs = drawn(3), drawn(4, 3)
    found = segfuse.grad(make(segfuse.scan, sf.sin)(segfuse.grad))(w, xs)
    known = jax.grad(make(jax.lax.scan, jnp.sin)(jax.grad))(w, xs)
    np.testing.assert_allclose(found, known, rtol=2e-4, atol=1e-5)


def test_pytorch_tensors_go_through_with_their_gradients():
    @segfuse.compile
    def run(h, xs, w):
        return segfuse.scan(lambda h, x: (sf.tanh(x + h @ w),) * 2, h, xs)[1]

    args = [torch.from_numpy(drawn(*s)).requires_grad_() for s in [(2, 3), (4, 2, 3), (3, 3)]]
    run(*args).square().sum().backward()
    found = [x.grad.clone() for x in args]
    for x in args:
        x.grad = None
    h, xs, w = args
    states = []
    for x in xs:
        h = torch.tanh(x + h @ w)
        states.append(h)
    torch.stack(states).square().sum().backward()
    for mine, x in zip(found, args, strict=True):
        torch.testing.assert_close(mine, x.grad, rtol=1e-4, atol=1e-5)


# --- PyTorch's recurrent layers from the same weights ---


def lstm(xs, w, u, b, reverse=False):
    """xs (T, B, I), w (4 H, I), u (4 H, H) and b (4 H), in the order of PyTorch's gates."""
    given = xs @ w.T + b
    states = u.shape[1]

    def step(carry, z):
        h, c = carry
        z = z + h @ u.T
        i, f, g, o = (z[:, n * states : (n + 1) * states] for n in range(4))
        c = sf.sigmoid(f) * c + sf.sigmoid(i) * sf.tanh(g)
        h = sf.sigmoid(o) * sf.tanh(c)
        return (h, c), h

    zeros = sf.zeros((xs.shape[1], states), like=xs)
    return segfuse.scan(step, (zeros, zeros), given, reverse=reverse)[1]


def test_a_bidirectional_lstm_is_that_of_pytorch():
    torch.manual_seed(1)
    layer = torch.nn.LSTM(3, 4, bidirectional=True)
    xs = torch.randn(6, 2, 3)
    names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]

    @segfuse.compile
    def both(xs, forward, backward):
        parts = [
            lstm(xs, w, u, a + b, reverse=n == 1)
            for n, (w, u, a, b) in enumerate([forward, backward])
        ]
        return sf.concatenate(parts, -1)

    def weights(suffix):
        return [getattr(layer, name + suffix) for name in names]

    expected = layer(xs)[0]
    found = both(xs, weights(""), weights("_reverse"))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    weigh = torch.randn_like(expected)
    (expected * weigh).sum().backward()
    known = {name: p.grad.clone() for name, p in layer.named_parameters()}
    layer.zero_grad()
    (both(xs, weights(""), weights("_reverse")) * weigh).sum().backward()
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.grad, known[name], rtol=1e-4, atol=1e-5)


# --- refusals ---


@pytest.mark.parametrize(
    "function, message",
    [
        (
            lambda x: segfuse.scan(lambda h, v: (h.sum(), v), x[0], x),
            r"leaf 0 of the carry comes as float32\(4,\) but the function returns it as float32\(\)",
        ),
        (
            lambda x: segfuse.scan(lambda h, v: (h + 0.5, v), 0, x),
            r"comes as int64\(\) but the function returns it as float32\(\)",
        ),
        (
            lambda x: segfuse.scan(lambda h, v: h, x[0], x),
            r"the function returned .*, expected \(carry, y\)",
        ),
        (
            lambda x: segfuse.scan(lambda h, v: ((h, h), v), x[0], x),
            "another structure than init",
        ),
        (
            lambda x: segfuse.scan(lambda h, v: (h, h), x[0], (x, x[:2])),
            r"array 1 of xs has the shape \(2, 4\), expected 3 steps",
        ),
        (lambda x: segfuse.scan(lambda h, v: (h, h), x[0]), "found neither xs nor length"),
        (lambda x: segfuse.scan(lambda h, v: (h, h), x, length=-1), "length is -1"),
        (lambda x: segfuse.scan(lambda h, v: (h, h), x, length="a"), "expected a size"),
        (lambda x: segfuse.scan(lambda h, v: (h, h), x[0], x.sum()), "expected at least one axis"),
        (
            lambda x: segfuse.scan(
                lambda h, v: (h, sf.random_uniform(sf.astype(v[:2], "int64"), (3,))), x[0], x
            ),
            "the body draws random numbers",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(function, message):
    with pytest.raises(segfuse.UsageError, match=message) as error:
        segfuse.compile(function)(drawn(3, 4))
    assert "\n" not in str(error.value)


def test_a_value_of_the_steps_means_nothing_outside():
    kept = []

    def step(h, x):
        kept.append(x)
        return h, x

    def run(x):
        segfuse.scan(step, x[0], x)
        return x + kept[0]

    with pytest.raises(segfuse.UsageError, match="means nothing outside"):
        segfuse.compile(run)(drawn(3, 4))
    with pytest.raises(segfuse.UsageError, match="segfuse.compile"):
        segfuse.scan(lambda h, x: (h, x), drawn(2), drawn(3, 2))


def test_programs_have_it_by_name_too():
    f = segfuse.Fusion("loop")
    x = f.input("x", "float32", ("T", "N"))
    last, all_ = segfuse.scan(lambda h, v: (h + v, h), f.full(("N",), 0.0), x)
    f.output(last)
    f.output(all_)
    xs = drawn(4, 3)
    for program in [f.build(), segfuse.Fusion.from_text(f.text())]:
        total, before = program(xs)
        np.testing.assert_allclose(total, xs.sum(0), rtol=1e-5)
        np.testing.assert_allclose(before[1:], xs.cumsum(0)[:-1], rtol=1e-5)
    with pytest.raises(segfuse.UsageError, match="call segfuse.scan"):
        f.apply("scan", x, carries=1, sequences=0, length=[3], reverse=0, body=None)
