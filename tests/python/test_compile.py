"""Compiled functions: traces and their cache, sizes, trees, libraries, refusals, threads."""

import collections
import copy
import math
import os
import pickle
import re
import threading
import warnings

import numpy as np
import pytest

import segfuse
import segfuse.ops as sf

X = np.arange(12, dtype="f4").reshape(3, 4)


def like(*shape, dtype="f4"):
    return np.arange(math.prod(shape), dtype=dtype).reshape(shape)


# --- the cache ---


def test_new_sizes_run_the_same_trace():
    seen = []

    @segfuse.compile
    def double(x, y):
        seen.append(x.shape)
        return x * 2 + y

    for rows, columns in [(3, 4), (5, 4), (2, 7), (3, 4), (0, 3)]:
        x = like(rows, columns)
        np.testing.assert_array_equal(double(x, x[:1]), x * 2 + x[:1]) if rows else double(x, x)
    assert len(seen) == 1 + 1  # (0, 3) with itself has no size 1
    assert double.cache_info() == (5, 4, 2)
    assert repr(seen[0]) == "(x0_0, x0_1)"


def test_types_ranks_and_ones_are_traced_apart():
    square = segfuse.compile(lambda x: x * x)
    for x in [X, X.astype("f8"), X[0], X[:1], X[:, :1], X[:2], X[:3, :1]]:
        np.testing.assert_array_equal(square(x), x * x)
    assert square.cache_info().traces == 5


def test_static_arguments_are_part_of_the_key():
    @segfuse.compile
    def scale(x, factor, *, mode="up"):
        return x * factor if mode == "up" else x / factor

    np.testing.assert_array_equal(scale(X, 2), X * 2)
    np.testing.assert_array_equal(scale(X, 2.0, mode="down"), X / 2)
    np.testing.assert_array_equal(scale(X, factor=3), X * 3)
    np.testing.assert_array_equal(scale(X, 2), X * 2)
    assert scale.cache_info().traces == 3
    np.testing.assert_array_equal(scale(X, np.float32(4)), X * 4)
    np.testing.assert_array_equal(scale(X, np.float32(5)), X * 5)
    assert scale.cache_info().traces == 4
    scale.cache_clear()
    scale(X, 2)
    assert scale.cache_info().traces == 5


def test_one_and_true_are_different():
    kinds = segfuse.compile(lambda x, n: x * (2 if n is True else 3))
    assert kinds(X, True)[0, 1] == 2
    assert kinds(X, 1)[0, 1] == 3


# --- sizes that are looked at ---


def test_a_size_used_as_a_number_is_fixed():
    @segfuse.compile
    def total(x):
        y = x[0]
        for i in range(1, x.shape[0]):
            y = y + x[i]
        return y / math.sqrt(x.shape[1])

    for rows, traces in [(3, 1), (3, 1), (4, 2), (3, 2)]:
        x = like(rows, 4)
        np.testing.assert_allclose(total(x), x.sum(0) / 2)
        assert total.cache_info().traces == traces
    np.testing.assert_allclose(total(like(3, 9)), like(3, 9).sum(0) / 3)
    assert total.cache_info().traces == 3
    assert total.guards(like(3, 4)) == ["-x0_0 < 0", "x0_0 - 3 == 0", "x0_1 - 4 == 0"]
    assert segfuse.compile(lambda x: x[:, : x.shape[1]] if x.shape[0] >= 0 else x).guards(X) == []


def test_a_comparison_asks_for_its_outcome_only():
    @segfuse.compile
    def head(x):
        return x[:4] * (10 if x.shape[0] > 6 else 1)

    for rows, traces in [(5, 1), (6, 1), (7, 2), (100, 2), (3, 3), (2, 3), (4, 3), (6, 3)]:
        x = like(rows)
        np.testing.assert_array_equal(head(x), x[:4] * (10 if rows > 6 else 1))
        assert head.cache_info().traces == traces, rows


def test_sizes_are_calculated_with():
    @segfuse.compile
    def f(x):
        rows, columns = x.shape
        flat = x.reshape(rows * columns)
        assert flat.shape == (x.size,)
        pairs = sf.pad(flat, (0, 1)).reshape(-1)[: (rows * columns) // 2 * 2].reshape(-1, 2)
        half = pairs.shape[0]
        return pairs.sum(1) + half + sf.arange(half) + (2 * rows - columns) % 3

    for rows, columns in [(3, 4), (5, 3), (2, 9)]:
        x = like(rows, columns)
        pairs = x.reshape(-1)[: rows * columns // 2 * 2].reshape(-1, 2)
        half = len(pairs)
        expected = pairs.sum(1) + half + np.arange(half) + (2 * rows - columns) % 3
        np.testing.assert_allclose(f(x), expected)
    assert f.cache_info().traces == 1


def test_a_size_that_becomes_one_is_stretched():
    @segfuse.compile
    def tail(x, y):
        return x[2:] + y

    for rows in (5, 3, 7, 3):
        np.testing.assert_array_equal(
            tail(like(rows), like(rows - 2)), like(rows)[2:] + like(rows - 2)
        )
        if rows == 3:
            np.testing.assert_array_equal(tail(like(3), like(4)), 2 + like(4))


def test_a_formula_that_is_one_is_stretched():
    def everything(x, y):
        half = x[: x.shape[0] // 2]  # of 3 rows one
        return (
            half * y,
            sf.where(half > 0, y, half),
            sf.broadcast_to(half, (y.shape[0], x.shape[1])),
            sf.flip(x[3:], axis=0),  # of no rows
        )

    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(3, 4)), rng.normal(size=(6, 4))
    compiled = segfuse.compile(everything)
    half = x[:1]
    wanted = half * y, np.where(half > 0, y, half), np.broadcast_to(half, y.shape), x[:0]
    for got, want in zip(compiled(x, y), wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    assert compiled(rng.normal(size=(4, 4)), y[:2])[0].shape == (2, 4)


def test_sizes_decide_as_numbers_do():
    @segfuse.compile
    def f(x, y):
        assert x.shape[0] == x.shape[0] and x.shape[0] != 1 and len(x) == int(x.shape[0])
        return x if x.shape == y.shape else x.sum()

    assert f(like(3), like(3)).shape == (3,)
    assert f(like(3), like(4)).shape == ()
    assert f(like(5), like(5)).shape == (5,)
    assert segfuse.compile(lambda x: x.shape[0] * 1)(like(7)) == 7
    half = segfuse.compile(lambda x: x * (x.shape[0] * 0.5 - 1.0) / (2.0 - x.shape[0]))
    np.testing.assert_allclose(half(like(4)), like(4) / -2)


BELOW_ZERO = {  # m is NumPy or segfuse.ops; n is the size of x, from 3 to 17
    "end": lambda m, x, n: x[: n - 8],
    "start": lambda m, x, n: x[n // 2 - 6 :],
    "always": lambda m, x, n: x[-(n // 2) :],
    "both": lambda m, x, n: x[n - 9 : n - 5],
    "backward": lambda m, x, n: x[n - 7 : 2 - n : -1],
    "steps": lambda m, x, n: x[n - 9 :: 2],
    "element": lambda m, x, n: x[n // 2 - 3],
    "factor": lambda m, x, n: x * (n - 9) + (5 - n),
    "exponent": lambda m, x, n: x ** (n - 9),
    "where": lambda m, x, n: m.where(x > 2, x, n - 9),
    "clip": lambda m, x, n: m.clip(x, n - 9, 3),
    "tril": lambda m, x, n: m.tril(x[:, None] * x, n // 2 - 4),
    "arange": lambda m, x, n: m.arange(5 - n, 5) * x,
    "roll": lambda m, x, n: m.roll(x, 4 - n),
}


@pytest.mark.parametrize("name", BELOW_ZERO)
def test_a_calculated_size_below_zero(name):
    """It means what the number does that it is in the call."""
    f = BELOW_ZERO[name]
    compiled = segfuse.compile(lambda x: (f(sf, x, x.shape[0]), x.shape[0] - 9))
    for n in (12, 5, 9, 8, 17, 7, 3):
        x = np.random.default_rng(n).normal(size=n) + 2
        found, number = compiled(x)
        np.testing.assert_allclose(found, f(np, x, n), rtol=1e-12, err_msg=str(n))
        assert number == n - 9


# --- trees ---

Pair = collections.namedtuple("Pair", "first second")


def test_trees_go_in_and_come_out():
    @segfuse.compile
    def f(tree, *rest, **named):
        return {
            "a": tree["x"] + tree["y"][0],
            "b": [Pair(rest[0] * 2, None), (named["z"], "word", 3)],
        }

    tree = {"y": (X, "unused"), "x": X}
    for _ in range(2):
        result = f(tree, X, z=X + 1)
        np.testing.assert_array_equal(result["a"], 2 * X)
        pair, rest = result["b"]
        assert isinstance(pair, Pair) and pair.second is None and rest[1:] == ("word", 3)
        np.testing.assert_array_equal(pair.first, 2 * X)
        np.testing.assert_array_equal(rest[0], X + 1)
    reordered = f({"x": X, "y": (X, "unused")}, X, z=X)
    assert list(reordered) == ["a", "b"] and f.cache_info().traces == 1
    assert 'input "x0_y_0"' in f.text(tree, X, z=X)


def test_dicts_of_the_standard_library_stay_what_they_are():
    @segfuse.compile
    def f(tree):
        made = collections.OrderedDict([("z", tree["x"] * 2), ("a", tree["x"] + 1)])
        return {"z": tree, "b": made, "missing": tree["missing"]}

    tree = collections.defaultdict(lambda: 3, {"x": X})
    result = f(tree)
    assert list(result) == ["z", "b", "missing"] and result["missing"] == 3
    assert list(result["b"]) == ["z", "a"] and type(result["b"]) is collections.OrderedDict
    np.testing.assert_array_equal(result["b"]["a"], X + 1)
    assert type(result["z"]) is collections.defaultdict and result["z"]["other"] == 3
    np.testing.assert_array_equal(result["z"]["x"], X)

    first = segfuse.compile(lambda tree: next(iter(tree.values())) * 2)
    for keys in (("a", "b"), ("b", "a")):
        ordered = collections.OrderedDict((key, X + (key == "b")) for key in keys)
        np.testing.assert_array_equal(first(ordered), 2 * ordered[keys[0]])


def test_gradients_of_results_in_the_order_of_a_dict():
    torch = pytest.importorskip("torch")
    f = segfuse.compile(lambda x: {"z": x**2, "a": [x**3]})
    x = torch.tensor([2.0], requires_grad=True)
    result = f(x)
    (5 * result["z"] + 7 * result["a"][0]).sum().backward()
    assert x.grad.item() == 5 * 4 + 7 * 12


def test_results_may_be_arguments_again_or_twice():
    x, y, z = segfuse.compile(lambda x: (x, x, [x + 1]))(X)
    np.testing.assert_array_equal(x, X)
    x[0] = 100
    assert X[0, 0] == 0 and y[0, 0] == 0 and z[0][0, 0] == 1


def test_methods_and_compiled_functions_inside():
    class Layer:
        def __init__(self, weight):
            self.weight = weight

        @segfuse.compile
        def __call__(self, x):
            return activation(x @ self.weight)

    activation = segfuse.compile(sf.tanh)
    layer = Layer(like(4, 2) / 10)
    np.testing.assert_allclose(layer(X), np.tanh(X @ layer.weight), rtol=1e-5)
    layer.weight[:] = 0  # the array is read at each call
    np.testing.assert_array_equal(layer(X), 0)


# --- libraries and memory ---


def test_strides_read_only_and_scalars():
    f = segfuse.compile(lambda x, y: x + y)
    frozen = X.copy()
    frozen.flags.writeable = False
    for x in [X.T, X[:, ::2], X[::-1], frozen, np.broadcast_to(X[0], (3, 4)), X[1:1]]:
        np.testing.assert_array_equal(f(x, np.float32(1)), x + 1)
    unaligned = np.zeros(17, "u1")[1:].view("f4")
    np.testing.assert_array_equal(f(unaligned, unaligned), 0)


def test_contiguous_arrays_are_not_copied():
    f = segfuse.Fusion("in place")
    x = f.input("x", "f4", ("N",))
    y = x * 2
    f.output(y, "y")
    f.alias(y, x)
    program = f.build()
    array = like(5)
    (out,) = program(x=array)
    np.testing.assert_array_equal(
        array, [0, 2, 4, 6, 8]
    )  # the caller's memory was read and written
    np.testing.assert_array_equal(out, array)
    assert not np.shares_memory(out, array)
    for wrong, words in [
        (like(10)[::2], "contiguous"),
        (np.broadcast_to(np.float32(1), 4), "written"),
    ]:
        with pytest.raises(segfuse.UsageError, match=words):
            program(wrong)


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64", "bool"]
)
def test_pytorch_goes_through(torch, dtype):
    x = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    y = segfuse.compile(lambda x: sf.where(x > 1, x, x))(x.T)
    assert isinstance(y, torch.Tensor) and y.dtype == x.dtype and torch.equal(y, x.T)
    mixed = segfuse.compile(lambda a, b: (a + b, b))(x, np.ones(3, "i4"))
    assert all(isinstance(part, torch.Tensor) for part in mixed)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32", "bool"])
def test_jax_goes_through(jax, dtype):
    x = jax.numpy.arange(6).reshape(2, 3).astype(dtype)
    y = segfuse.compile(lambda x: x[:, ::-1].T)(x)
    assert isinstance(y, jax.Array) and y.dtype == x.dtype
    np.testing.assert_array_equal(y, x[:, ::-1].T)
    bits = segfuse.compile(lambda x: x[0])(np.asarray(x))
    assert isinstance(bits, np.ndarray) and bits.dtype == x.dtype


def test_tensors_are_read_and_written_where_they_are(torch):
    f = segfuse.Fusion("step")
    w = f.input("w", torch.float32, ("N", 2))
    smaller = w - 1
    f.output(smaller)
    f.alias(smaller, w)
    tensor = torch.zeros(3, 2)
    (out,) = f.build()(tensor)
    assert torch.equal(tensor, -torch.ones(3, 2)) and torch.equal(out, tensor)


def test_arrays_of_any_library_with_dlpack_go_in():
    class Foreign:
        def __init__(self, array):
            self.array, self.dtype, self.shape = array, array.dtype, array.shape

        def __dlpack__(self, **how):
            return self.array.__dlpack__(**how)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    y = segfuse.compile(lambda x: x + 1)(Foreign(X))
    assert isinstance(y, np.ndarray)
    np.testing.assert_array_equal(y, X + 1)


# --- refusals ---


def message(function, *args):
    with pytest.raises(segfuse.UsageError) as error:
        segfuse.compile(function)(*args)
    return str(error.value)


def test_what_needs_content_is_refused_in_one_sentence():
    for function, words in [
        (lambda x: x if x.sum() > 0 else -x, "a Python condition needs the content of"),
        (lambda x: float(x.sum()), "float() needs the content"),
        (lambda x: [1, 2, 3][x.argmax()], "use sf.take(array, indices)"),
        (lambda x: np.asarray(x), "a NumPy array needs the content"),
        (lambda x: x.tolist(), "return the value from the compiled function"),
        (lambda x: x.__setitem__(0, 1), "cannot be changed in place"),
        (lambda x: np.nextafter(x, x), "np.nextafter does not take values of a program"),
        (lambda x: np.add.at(x, [0], 1), "np.add.at does not take values"),
        (lambda x: np.linalg.inv(x), "np.linalg.inv does not take values"),
        (lambda x: np.sum(x, out=np.zeros(())), "np.sum on values of a program"),
        (lambda x: x + "word", None),
        (lambda x: x + like(3), "add: the shapes (3, 4), (3,) do not broadcast"),
        (lambda x: x @ x, "matmul: the inner sizes of (3, 4) and (3, 4) differ"),
        (lambda x: x.reshape(5, -1), "12 elements of shape (3, 4) are not a multiple"),
        (lambda x: x.reshape(5), "found 12 elements of shape (3, 4), expected 5 for (5,)"),
        (lambda x: sf.concatenate([x, x.T]), "the shapes (3, 4) and (4, 3) differ in axis 1"),
        (lambda x: sf.split(x, 2), "not a multiple of 2"),
        (lambda x: x.sum(2), "sum: axis 2 does not exist"),
        (lambda x: x.astype("complex64"), "found the dtype 'complex64'"),
        (lambda x: sf.exp(x, x), "exp: 2 operands were given, expected 1"),
        (lambda x: sf.exp(1.0), "expected a value of a program"),
        (lambda x: x & x, "bitwise_and: found float32, expected integers or bool"),
        (lambda x: np.pad(x, 1, mode="mean"), "found the mode 'mean'"),
        (lambda x: sf.pad(x, ((1,),)), "expected (before, after)"),
        (lambda x: sf.batch_norm(x[0]), "(B, C, ...)"),
        (lambda x: sf.concatenate([]), "found no arrays"),
    ]:
        if words is None:
            with pytest.raises(TypeError):
                segfuse.compile(function)(X)
        else:
            assert words in message(function, X), words


def test_arguments_that_are_refused():
    assert "found no array among the arguments" in message(lambda x: x, 3)
    assert "hashable" in message(lambda x, y: x, X, {1, 2})
    assert "argument 1['k'] is a set" in message(lambda x, y: x, X, {"k": {1}})
    assert "argument 0 is a ndarray of dtype complex64" in message(lambda x: x, X.astype("c8"))
    with pytest.raises(segfuse.UsageError, match="expected a function"):
        segfuse.compile(3)
    with pytest.raises(segfuse.UsageError, match="'nonsense' cannot be emitted"):
        segfuse.compile(sf.exp).emit("nonsense", X)
    assert "1 group" in segfuse.compile(sf.exp).emit("segments", X)


def test_a_call_whose_sizes_do_not_fit_its_trace_is_refused():
    f = segfuse.compile(lambda x, y: x + y)
    f(like(3), like(3))
    with pytest.raises(segfuse.UsageError):
        f(like(3), like(4))


def test_values_do_not_leave_their_call():
    kept = []
    segfuse.compile(lambda x: kept.append(x) or x)(X)
    assert "a value means nothing outside the call" in message(lambda x: x + kept[0], X)


def test_tensors_with_gradients_are_arguments(torch):
    x = torch.ones(4, requires_grad=True)
    assert "pass it as an argument, or detach it" in message(lambda y: x * y, X)
    assert segfuse.compile(lambda x: x)(x).requires_grad
    with torch.no_grad():
        assert not segfuse.compile(lambda x: x)(x).requires_grad
    assert "PyTorch's lgamma does not take" in message(lambda y: torch.lgamma(y), X)
    np.testing.assert_array_equal(segfuse.compile(lambda y: torch.ones(4) + y)(X), X + 1)


def test_arrays_on_other_devices_are_refused(torch):
    with pytest.raises(segfuse.UsageError, match=r"argument 0 lies on meta; .* pass x.cpu\(\)"):
        segfuse.compile(lambda x: x)(torch.empty(3, device="meta"))


def test_many_traces_are_told():
    f = segfuse.compile(lambda x, n: x * n)
    with pytest.warns(RuntimeWarning, match="was traced 100 times"):
        for n in range(101):
            f(X, n)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(X, 200)


def test_a_failed_trace_leaves_the_function_usable():
    fail = [True]

    @segfuse.compile
    def f(x):
        if fail[0]:
            raise KeyError("mine")
        return x + 1

    with pytest.raises(KeyError, match="mine"):
        f(X)
    fail[0] = False
    np.testing.assert_array_equal(f(X), X + 1)


def test_numbers_can_be_checked():
    f = segfuse.compile(lambda x: sf.log(x), check_numerics=True)
    f(X + 1)
    with pytest.raises(segfuse.DataError, match="log gave"):
        f(-X - 1)


# --- threads ---


def test_threads_share_a_function():
    traces = []

    @segfuse.compile
    def f(x):
        traces.append(1)
        return sf.softmax(x @ x.T)

    expected = {n: np.asarray(f(like(n, 3) / 50)) for n in (2, 5, 9)}
    f.cache_clear()
    traces.clear()
    wrong = []

    def work(seed):
        for i in range(30):
            n = (2, 5, 9)[(i + seed) % 3]
            if not np.array_equal(f(like(n, 3) / 50), expected[n]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(traces) == 1


def test_the_number_of_threads_is_that_of_the_process():
    f = segfuse.compile(lambda x: sf.softmax(x @ x.T))
    x = like(200, 100) / 1e4
    expected = f(x)
    segfuse.set_threads(1)
    try:
        np.testing.assert_array_equal(f(x), expected)
    finally:
        segfuse.set_threads(0)


def test_a_forked_child_has_its_own_threads():
    f = segfuse.compile(lambda x: sf.softmax(x @ x.T), threads=2)
    x = like(300, 200) / 1e4
    expected = f(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about fork in a process with threads
        child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(f(x), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


# --- something larger ---


def test_attention_runs_any_batch_and_length_from_one_trace(torch):
    heads, width = 4, 16

    def attention(parameters, x):
        rows, frames, _ = x.shape
        parts = sf.split(x @ parameters["qkv"], 3, -1)
        q, k, v = (y.reshape(rows, frames, heads, -1).transpose(0, 2, 1, 3) for y in parts)
        scores = q @ k.mT * (width // heads) ** -0.5
        time = sf.arange(frames)
        scores = sf.where(time[:, None] >= time, scores, -np.inf)
        mixed = (sf.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(rows, frames, width)
        return mixed @ parameters["out"]

    def in_torch(parameters, x):
        rows, frames, _ = x.shape
        parts = (x @ parameters["qkv"]).chunk(3, -1)
        q, k, v = (y.reshape(rows, frames, heads, -1).transpose(1, 2) for y in parts)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(rows, frames, width) @ parameters["out"]

    loss = segfuse.value_and_grad(lambda p, x: (attention(p, x) ** 2).mean())
    parameters = {"qkv": torch.randn(width, 3 * width) / 4, "out": torch.randn(width, width) / 4}
    for rows, frames in [(2, 5), (3, 9), (4, 2)]:
        x = torch.randn(rows, frames, width)
        value, gradient = loss(parameters, x)
        leaves = {name: p.clone().requires_grad_() for name, p in parameters.items()}
        expected = (in_torch(leaves, x) ** 2).mean()
        expected.backward()
        torch.testing.assert_close(value, expected.detach())
        for name, leaf in leaves.items():
            torch.testing.assert_close(gradient[name], leaf.grad)
    assert loss.cache_info().traces == 1


# --- programs written value by value ---


def test_a_fusion_is_written_and_runs():
    f = segfuse.Fusion("residual")
    x = f.input("x", "float32", ("B", 4))
    scale = f.input("scale", np.float32, (4,))
    y = sf.gelu(sf.layer_norm(x, scale)) + x * f.constant(1.0) + f.arange(4, "f4") * 0
    f.output(y, "y")
    f.output(x.shape[0] * y.sum() / f.size("B"), "total")
    program = f.build()
    assert program.inputs == [("x", "float32", "[B, 4]"), ("scale", "float32", "[4]")]
    assert [name for name, _, _ in program.outputs] == ["y", "total"]
    ones = np.ones(4, "f4")
    for rows in (3, 1):
        out, total = program(like(rows, 4), scale=ones)
        exact, _ = program.reference(like(rows, 4), ones)
        np.testing.assert_allclose(out, exact, rtol=1e-5)
        np.testing.assert_allclose(total, out.sum(), rtol=1e-5)
    assert exact.dtype == np.float64
    assert program.text() == f.text() and "segfuse.Fusion 'residual'" in repr(f)
    assert x[:2].shape == (2, 4)  # that B is at least 2 is checked when it runs
    later = f.apply("pad", x, low=(0, 1), high=(0, 0), value=3.0)
    assert repr(later) == "<segfuse.Value f32[B, 5]>"
    f.require("B", f.size("N"))
    mean, m2 = f.apply("welford", x, axes=[1])
    assert mean.shape == m2.shape


def test_a_fusion_refuses():
    f, other = segfuse.Fusion("one"), segfuse.Fusion("two")
    x, z = f.input("x", "f4", ("N", 2)), other.input("z", "f4", (3,))
    for function, words in [
        (lambda: x + z, "two Fusions, 'one' and 'two'"),
        (lambda: f.output(z), "a value of the Fusion 'two'"),
        (lambda: f.output(3), "output: found a int, expected a segfuse.Value"),
        (lambda: x.shape[0] > 3, "whether N > 3 is not known before the program runs"),
        (lambda: int(x.shape[0]), "the size N is not known"),
        (lambda: x + X, "expected an input() for it"),
        (lambda: f.apply("expp", x), "no operation 'expp'"),
        (lambda: f.apply("sum", x), "expected ['axes']"),
        (lambda: f.build(), "has no output"),
        (lambda: f.input("x", "f4", ()), "'x' already"),
        (lambda: f.input("y", "f4", ("2N",)), "not a name of a size"),
        (lambda: f.input("y", "f4", (1.5,)), "found 1.5 as a size"),
    ]:
        with pytest.raises(segfuse.UsageError) as error:
            function()
        assert words in str(error.value)
    f.output(x)
    program = f.build()
    for args, words in [
        ((), "found 0 arrays, expected 1: x"),
        ((3,), "'x' is a int, expected an array"),
    ]:
        with pytest.raises(segfuse.UsageError, match=words):
            program(*args)
    with pytest.raises(segfuse.UsageError, match="found inputs named"):
        program(w=X)


def test_a_size_that_a_requirement_makes_one():
    """Rows taken with a step are one: the mask beside them has one row, too."""

    def masked(x, mask):
        rows = x[:, ::-2]
        return sf.where(mask, rows, rows * 0.5)

    x = np.arange(24.0).reshape(4, 2, 3)
    mask = np.arange(12).reshape(4, 1, 3) % 2 == 0
    rows = x[:, ::-2]
    want = np.where(mask, rows, rows * 0.5)
    np.testing.assert_array_equal(segfuse.compile(masked)(x, mask), want)

    def stretched(x, mask, y):  # the result's one column meets many
        return sf.where(mask, x.reshape(3, 4, -1), 2.0 * x.reshape(3, 4, -1)) + y

    x = np.arange(12.0).reshape(3, 4)
    mask = np.arange(12).reshape(3, 4, 1) % 2 == 0
    y = np.arange(20.0).reshape(4, 5)
    got = segfuse.compile(stretched)(x, mask, y)
    np.testing.assert_array_equal(got, np.where(mask, x[..., None], 2 * x[..., None]) + y)


# --- precision ---


def test_products_on_the_cpu_are_float32_in_each_precision():
    x = np.random.default_rng(0).standard_normal((20, 30), dtype=np.float32)
    expected = segfuse.compile(lambda x: x @ x.T)(x)
    np.testing.assert_array_equal(segfuse.compile(lambda x: x @ x.T, precision="tf32")(x), expected)
    fusion = segfuse.Fusion()
    a = fusion.input("a", "float32", ("M", 30))
    fusion.output(a @ sf.transpose(a))
    np.testing.assert_array_equal(fusion.build(precision="tf32")(x)[0], expected)
    again = segfuse.Fusion.from_text(fusion.text(), precision="tf32")
    np.testing.assert_array_equal(again(x)[0], expected)


@pytest.mark.parametrize("precision", ["bf16", "TF32", "", None, 32])
def test_other_precisions_are_refused(precision):
    sentence = re.escape(f"precision is {precision!r}, expected 'float32' or 'tf32'")
    with pytest.raises(segfuse.UsageError, match=sentence):
        segfuse.compile(lambda x: x, precision=precision)
    with pytest.raises(segfuse.UsageError, match=sentence):
        segfuse.Fusion().build(precision=precision)


# --- copies ---


@segfuse.compile
def decorated(x):
    return x * 2


def tripled(x):
    return x * 3


def test_copies_and_pickles():
    """A copy is the function itself; a pickle holds its name, or the function that it compiles."""
    made = segfuse.compile(tripled, threads=1, excess_precision=False, precision="tf32")
    made(X)
    gradient = segfuse.grad(lambda x: (x * x).sum())
    gradient(X)
    for function in (decorated, made, gradient):
        assert copy.copy(function) is function
        assert copy.deepcopy({"f": [function]})["f"][0] is function
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    again = pickle.loads(pickle.dumps(made))
    assert again is not made and again.cache_info().traces == 0
    assert (again._how, again._device) == (made._how, made._device)
    np.testing.assert_array_equal(again(X), X * 3)
    with pytest.raises(segfuse.UsageError, match="gradient of <lambda> cannot be pickled"):
        pickle.dumps(gradient)


def test_arrays_of_numpy_alone_are_constants_of_the_program():
    x, places = np.array([3.0, 1.0], np.float32), np.array([2, 0, 2, 2])

    def f(x, places):
        grid = sf.clip(sf.arange(4) - 1, 0, 7)
        counts = sf.asarray(sf.zeros(3)).at[places].add(1)
        weights = sf.outer(np.hanning(5).astype(np.float32), np.ones(2, np.float32))

        def step(carry, v):
            return carry + sf.sum(np.arange(3.0, dtype=np.float32)) * v, sf.sort(np.array([2, 1]))

        last, stacked = segfuse.scan(step, sf.asarray(np.float32([0.5])), x)
        return grid, counts, weights @ x, last, stacked

    found = segfuse.compile(f)(x, places)
    expected = [
        [0, 0, 1, 2],
        [1, 0, 3],
        np.hanning(5).astype(np.float32) * 4,
        [12.5],
        [[1, 2], [1, 2]],
    ]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    with pytest.raises(segfuse.UsageError, match="expected a value of a program"):
        sf.clip(np.arange(3), 0, 1)  # nothing is traced any more


@pytest.mark.parametrize("axes", [8, 12])
def test_many_axes(axes):
    """As many axes of the size that is assumed for symbols have more elements than 64 bits count."""
    x = np.random.default_rng(0).normal(size=(2,) * axes)
    f = segfuse.compile(lambda x: (sf.exp(x) * 2).sum(axis=(1, 3)) + x.T.sum(axis=(0, 2)))
    want = (np.exp(x) * 2).sum(axis=(1, 3)) + x.T.sum(axis=(0, 2))
    np.testing.assert_allclose(f(x), want, rtol=1e-12)
    empty = np.zeros((0, *x.shape))
    assert segfuse.compile(lambda x: sf.exp(x) + 1)(empty).shape == empty.shape
