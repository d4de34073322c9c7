"""Attention as one operation: it is found, means what was written, and needs no T x T memory."""

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
    return "attention(" in segfuse.compile(function).emit("ir", *arrays)


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
        function = lambda q, k, v: by_hand(q, k, v, **more)  # noqa: E731
        assert is_found(function, q, k, v), more
        found = segfuse.compile(function)(q, k, v)
        assert found.dtype == q.dtype
        np.testing.assert_allclose(found, oracle(q, k, v, **more), atol=tolerance, rtol=tolerance)


def spellings():
    def numpy_softmax(s):
        e = np.exp(s - np.max(s, axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    def plain(q, k, v):
        return numpy_softmax(q @ np.swapaxes(k, -1, -2) / 2) @ v

    def einsum(q, k, v):
        s = np.einsum("bhqd,bhkd->bhqk", q * 0.5, k)
        return np.einsum("bhqk,bhkd->bhqd", numpy_softmax(s), v)

    def lower(q, k, v):
        s = 0.5 * (q @ k.mT)
        return sf.softmax(np.where(sf.tri(s.shape[-2], s.shape[-1], 0, "bool"), s, -np.inf)) @ v

    def upper(q, k, v):
        s = 0.5 * (q @ k.mT)
        rows, columns = s.shape[-2:]
        hidden = sf.arange(columns)[None, :] > sf.arange(rows)[:, None]
        return sf.softmax(np.where(hidden, -np.inf, s)) @ v

    def by_transposing(q, k, v):
        """(B, T, H, D), as most models have it."""
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
        return sf.softmax(q @ k.transpose(0, 1, 3, 2) * 0.5) @ v

    def jax_like(q, k, v):
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
        return sf.dot_product_attention(q, k, v, scale=0.5).transpose(0, 2, 1, 3)

    return {f.__name__: f for f in (plain, einsum, lower, upper, by_transposing, jax_like)}


@pytest.mark.parametrize("name", spellings())
def test_it_is_found_in_any_spelling(name):
    function = spellings()[name]
    q, k, v = qkv((2, 3), 17, 23, 4, 5)
    causal = 0 if name in ("lower", "upper") else None
    expected = oracle(q, k, v, scale=0.5, causal=causal)
    if name == "by_transposing":
        q, k, v = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v))
    program = segfuse.compile(function).emit("ir", q, k, v)
    assert "attention(" in program and "exp(" not in program
    assert ("ahead=[]" in program) == (causal is None)
    np.testing.assert_allclose(segfuse.compile(function)(q, k, v), expected, atol=2e-6)


def test_masked_rows_and_what_is_not_finite_are_what_the_products_make_of_them():
    q, k, v = qkv((1, 2), 130, 140, 8, 6, "f8")
    mask = np.ones((130, 140), bool)
    mask[[0, 77]] = False
    function = segfuse.compile(lambda q, k, v, m: by_hand(q, k, v, mask=m))
    found = function(q, k, v, mask)
    assert np.isnan(found[:, :, [0, 77]]).all() and np.isfinite(found[:, :, 1:77]).all()
    np.testing.assert_allclose(found, oracle(q, k, v, mask=mask), atol=1e-12)
    for which, value in [(0, np.nan), (1, np.inf), (2, -np.inf), (2, np.nan), (0, 1e300)]:
        arrays = [x.copy() for x in (q, k, v)]
        arrays[which][0, 1, 128, 2] = value
        for causal in (None, 0):
            found = segfuse.compile(lambda *a: by_hand(*a, causal=causal))(*arrays)
            expected = oracle(*arrays, causal=causal)
            np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
            np.testing.assert_allclose(found, expected, atol=1e-12)


def loss(q, k, v, **more):
    return (by_hand(q, k, v, **more) * sf.arange(q.shape[-2], dtype=q.dtype)[:, None]).sum()


@pytest.mark.parametrize("causal", [None, 0, 2])
def test_gradients_are_pytorchs(torch, causal):
    arrays = qkv((2, 2), 150, 170, 12, 9, "f8")
    mask = np.random.default_rng(4).random(170) < 0.8
    mask[0] = True
    gradients = segfuse.grad(lambda *a: loss(*a, mask=mask, causal=causal), argnums=(0, 1, 2))
    tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
    q, k, v = tensors
    seen = torch.tensor(mask).expand(150, 170)
    if causal is not None:
        seen = seen & torch.ones(150, 170, dtype=torch.bool).tril(causal)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    (out * torch.arange(150.0, dtype=torch.float64)[:, None]).sum().backward()
    for found, tensor in zip(gradients(*arrays), tensors, strict=True):
        np.testing.assert_allclose(found, tensor.grad.numpy(), rtol=1e-10, atol=1e-10)


def test_a_bias_that_learns_and_second_derivatives_are_written_out(torch):
    q, k, v = qkv((2,), 6, 7, 3, 4, "f8")
    bias = draw((6, 7), 5, "f8")
    found = segfuse.grad(lambda q, b: loss(q, k, v, bias=b), argnums=(0, 1))(q, bias)
    tensors = [torch.tensor(x, requires_grad=True) for x in (q, bias)]
    s = tensors[0] @ torch.tensor(k).mT / math.sqrt(3) + tensors[1]
    (
        torch.softmax(s, -1) @ torch.tensor(v) * torch.arange(6.0, dtype=torch.float64)[:, None]
    ).sum().backward()
    for mine, tensor in zip(found, tensors, strict=True):
        np.testing.assert_allclose(mine, tensor.grad.numpy(), atol=1e-12)
    # The gradient of a gradient, by differences of the gradient.
    first = segfuse.grad(lambda q: loss(q, k, v))
    second = segfuse.grad(lambda q: (segfuse.grad(lambda q: loss(q, k, v))(q) ** 2).sum())(q)
    step, at = 1e-6, (1, 2, 1)
    moved = [q.copy(), q.copy()]
    moved[0][at] += step
    moved[1][at] -= step
    up, down = ((np.asarray(first(x)) ** 2).sum() for x in moved)
    np.testing.assert_allclose(second[at], (up - down) / (2 * step), rtol=1e-6)


@pytest.mark.parametrize("softmax", ["sf", "exp"])
def test_a_row_that_is_hidden_behind_a_large_number_weighs_all_alike(softmax):
    """Found, and written out for a bias that learns: log(sum) of -1e9 has no digits for the sum."""
    q, k, v = qkv((), 3, 4, 5, 2)
    mask = np.array([[True] * 4, [False] * 4, [True, False, True, False]])
    bias = np.zeros((3, 4), "f4")
    expected = oracle(q, k, v, mask=mask, scale=1, fill=-1e9)

    def attend(q, k, v, bias):
        s = sf.where(mask, q @ k.mT + bias, -1e9)
        e = np.exp(s - np.max(s, axis=-1, keepdims=True))
        return (sf.softmax(s) if softmax == "sf" else e / e.sum(axis=-1, keepdims=True)) @ v

    def total(*arrays):
        out = attend(*arrays)
        return out.sum(), out

    found = [segfuse.compile(attend)(q, k, v, bias)]
    slopes = {}
    for which in (2, 3):
        both = segfuse.value_and_grad(total, argnums=which, has_aux=True)(q, k, v, bias)
        slopes[which] = both[1]
        found.append(both[0][0])
    np.testing.assert_allclose(found[0], expected, atol=2e-6)
    np.testing.assert_allclose(found[1:], [expected.sum()] * 2, atol=1e-5)
    uniform = np.full((3, 4), 0.25)
    weights = np.where(mask.any(-1, keepdims=True), 0, uniform)
    s = np.where(mask, q.astype("f8") @ k.T, -np.inf)[[0, 2]]
    weights[[0, 2]] = np.exp(s) / np.exp(s).sum(-1, keepdims=True)
    np.testing.assert_allclose(slopes[2], weights.sum(0)[:, None].repeat(2, 1), atol=2e-6)
    assert (slopes[3][1] == 0).all() and (slopes[3][0] != 0).all()


def test_factors_whose_product_is_out_of_range_stay_apart():
    v = np.eye(4, dtype="f4")
    q, k = np.full((2, 3), 1e-25, "f4"), np.arange(12, dtype="f4").reshape(4, 3) * 1e-15
    for factors in ((1e20, 1e20), (1e-30, 1e-30)):
        function = lambda q, k, v: sf.softmax(q @ k.mT * factors[0] * factors[1]) @ v  # noqa: E731
        assert not is_found(function, q, k, v)
        found = segfuse.compile(function)(q, k, v)
        expected = oracle(q, k, v, scale=factors[0] * factors[1])
        np.testing.assert_allclose(found, expected, atol=2e-6)
    assert is_found(lambda q, k, v: sf.softmax(q @ k.mT * 1e20 * 1e-20) @ v, q, k, v)


def test_only_what_positions_decide_for_sure_is_a_band():
    q, k, v = qkv((), 6, 6, 3, 4)

    def band(n):
        return sf.arange(n)[None, :] <= sf.arange(n)[:, None]

    def halves(n):
        return np.where(band(n), 0.5, 0.0).astype("int32") != 0

    def tiny(n):
        return sf.astype(np.where(band(n), 1e-60, 0.0), "float32") != 0

    def wraps(n):
        places = sf.arange(n, dtype="int32")
        return places[None, :] <= places[:, None] + 2147483647

    nothing, first = np.zeros((6, 6), bool), np.arange(6)[:, None].repeat(6, 1) == 0
    seen = {halves: nothing, tiny: nothing, wraps: first}
    for mask, expected in seen.items():
        found = segfuse.compile(
            lambda q, k, v: sf.softmax(sf.where(mask(q.shape[0]), q @ k.mT, -1e4)) @ v
        )(q, k, v)
        np.testing.assert_allclose(
            found, oracle(q, k, v, mask=expected, scale=1, fill=-1e4), atol=2e-6
        )


def test_weights_that_are_asked_for_stay(torch):
    q, k, v = qkv((2,), 6, 7, 3, 4)

    def both(q, k, v):
        p = sf.softmax(q @ k.mT)
        return p @ v, p

    assert not is_found(both, q, k, v)
    out, p = segfuse.compile(both)(q, k, v)
    np.testing.assert_allclose(p @ v, out, atol=1e-6)


def test_one_trace_runs_all_lengths_and_the_bits_do_not_depend_on_the_batch():
    function = segfuse.compile(lambda q, k, v: by_hand(q, k, v, causal=0))
    for rows in (1, 5, 128, 300):
        q, k, v = qkv((3,), rows, rows, 16, 16)
        whole = function(q, k, v)
        np.testing.assert_allclose(whole, oracle(q, k, v, causal=0), atol=2e-6)
        np.testing.assert_array_equal(function(q[1:2], k[1:2], v[1:2])[0], whole[1])


@pytest.mark.parametrize("rows", [0, 1, 5, 9])
def test_the_last_rows_of_a_longer_sequence_see_what_is_before_them(rows):
    """As when one row at a time is decoded: with one row, its places are an array of NumPy."""
    q, k, v = qkv((), rows, 7, 3, 4)

    def attend(q, k, v):
        rows, columns = q.shape[0], k.shape[0]
        seen = sf.arange(columns) <= sf.arange(rows)[:, None] + (columns - rows)
        return sf.softmax(sf.where(seen, q @ k.mT, -np.inf)) @ v

    expected = oracle(q, k, v, scale=1, causal=7 - rows)  # of more rows the first see nothing
    np.testing.assert_allclose(segfuse.compile(attend)(q, k, v), expected, atol=2e-6)
    np.testing.assert_allclose(
        segfuse.compile(lambda q, k, v: attend(q, k, v) + (2 - sf.arange(1) + (k.shape[0] - 1)))(
            q, k, v
        ),
        expected + 8,
        atol=2e-6,
    )


@pytest.mark.parametrize("heads", [2, 4])
def test_a_torch_call_with_its_options_is_what_is_compiled_by_hand(torch, heads):
    """scaled_dot_product_attention's options, each as a function of arrays."""
    f = torch.nn.functional.scaled_dot_product_attention
    q = torch.randn(2, 4, 33, 8)
    k, v = torch.randn(2, heads, 40, 8), torch.randn(2, heads, 40, 8)
    lower = torch.rand(33, 40) < 0.7
    lower[:, 0] = True
    bias = torch.randn(4, 33, 40)

    def ours(q, k, v, **more):
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
        return sf.dot_product_attention(q, k, v, **more).transpose(0, 2, 1, 3)

    for theirs, mine in [
        ({}, {}), ({"is_causal": True}, {"is_causal": True}), ({"scale": 0.2}, {"scale": 0.2}),
        ({"attn_mask": lower}, {"mask": lower.numpy()}), ({"attn_mask": bias}, {"bias": bias.numpy()}),
    ]:  # fmt: skip
        compiled = segfuse.compile(lambda q, k, v: ours(q, k, v, **mine))
        assert "attention(" in compiled.emit("ir", q, k, v)
        expected = f(q, k, v, enable_gqa=heads != 4, **theirs)
        torch.testing.assert_close(compiled(q, k, v), expected, atol=2e-6, rtol=2e-6)


def test_gpus_and_programs_in_c_get_products_and_a_softmax():
    arrays = qkv((2,), 9, 9, 3, 2)
    forward = segfuse.compile(lambda q, k, v: by_hand(q, k, v, causal=0))
    gradients = segfuse.grad(lambda q, k, v: loss(q, k, v, causal=0), argnums=(0, 1, 2))
    for function in (forward, gradients):
        for kind in ("c", "cuda"):
            text = function.emit(kind, *arrays)
            assert "attention" not in text and "exp" in text
