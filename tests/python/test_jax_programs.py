"""Compiled functions inside JAX's transformations."""

import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import segfuse
import segfuse.ops as sf

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy


@pytest.fixture(autouse=True, params=[False, True], ids=["float32", "float64"])
def double(request):
    with jax.enable_x64(request.param):
        yield request.param


def numbers(*shape, dtype=np.float32, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(dtype))


@segfuse.compile
def layer(x, scale, shift):
    return x + sf.gelu(sf.layer_norm(x, scale, shift))


def plain_layer(x, scale, shift):
    mean = x.mean(-1, keepdims=True)
    h = (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
    return x + jax.nn.gelu(h * scale + shift, approximate=False)


def test_results_inside_jit_are_those_outside():
    x, scale, shift = numbers(2, 5, 8), numbers(8, seed=1), numbers(8, seed=2)
    outside = np.asarray(layer(x, scale, shift))
    inside = jax.jit(lambda *a: layer(a[0] * 1, *a[1:]) * 1)(x, scale, shift)
    np.testing.assert_array_equal(outside, inside)
    assert isinstance(inside, jax.Array)
    for rows in range(4):  # another shape is another call of one trace
        y = numbers(rows, 3, 8)
        np.testing.assert_array_equal(jax.jit(layer)(y, scale, shift), layer(y, scale, shift))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["grad", "jit"])
def test_gradients_are_jaxs(transform):
    arguments = numbers(4, 8), numbers(8, seed=1), numbers(8, seed=2)

    def loss(f, *a):
        return (jnp.sin(f(jnp.cos(a[0]), *a[1:])) ** 2).sum()

    found = transform(jax.grad(lambda *a: loss(layer, *a), (0, 1, 2)))(*arguments)
    expected = jax.grad(lambda *a: loss(plain_layer, *a), (0, 1, 2))(*arguments)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=1e-5)


def test_gradients_of_arrays_that_are_spread_over_devices():
    text = textwrap.dedent("""
        import jax, jax.numpy as jnp, numpy as np, segfuse, segfuse.ops as sf
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        mesh = Mesh(np.array(jax.devices()), ("d",))
        x = jax.device_put(jnp.arange(12.0).reshape(4, 3) / 10, NamedSharding(mesh, PartitionSpec("d")))
        w = jax.device_put(jnp.arange(6.0).reshape(3, 2) / 10, NamedSharding(mesh, PartitionSpec()))
        assert len(x.sharding.device_set) == 2
        f = segfuse.compile(lambda x, w: sf.tanh(x @ w))
        for transform in (lambda f: f, jax.jit):
            found = transform(jax.grad(lambda *a: f(*a).sum(), (0, 1)))(x, w)
            expected = jax.grad(lambda x, w: jnp.tanh(x @ w).sum(), (0, 1))(x, w)
            for a, b in zip(found, expected):
                np.testing.assert_allclose(a, b, rtol=1e-5)
    """)
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    subprocess.run([sys.executable, "-c", text], env={**os.environ, **flags}, check=True)


def test_no_value_of_a_transformation_is_kept():
    x, scale, shift = numbers(4, 8), numbers(8, seed=1), numbers(8, seed=2)
    with jax.checking_leaks():
        jax.jit(lambda x: layer(x, scale, shift))(x)
        jax.jit(jax.grad(lambda x: layer(x, scale, shift).sum()))(x)


def test_second_derivatives_in_reverse_mode(double):
    cube = segfuse.compile(lambda x: x**3)
    x = jnp.asarray([1.0, -2.0, 0.5])
    found = jax.jit(jax.grad(lambda y: jax.grad(lambda z: cube(z).sum())(y).sum()))(x)
    np.testing.assert_allclose(found, 6 * x, rtol=1e-6)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(cube, (x,), (x,))


def test_vmap_is_a_loop():
    x, w = numbers(3, 4, 8), numbers(8, seed=1)
    f = segfuse.compile(lambda a, b: sf.softmax(a * b))
    one = jax.jit(jax.vmap(f, in_axes=(0, None)))(x, w)
    np.testing.assert_array_equal(one, np.stack([f(row, w) for row in x]))
    twice = jax.vmap(jax.vmap(f, in_axes=(0, None)), in_axes=(0, None))(x, w)
    assert twice.shape == (3, 4, 8)
    gradient = jax.vmap(jax.grad(lambda a: f(a, w)[0, 0]))(x)
    expected = jax.vmap(jax.grad(lambda a: jax.nn.softmax(a * w)[0, 0]))(x)
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_trees_static_arguments_and_results_that_are_no_arrays():
    @segfuse.compile
    def f(p, n, *, axis):
        return {"sum": p["a"].sum(axis) + p["b"][0] * n, "n": n, "none": None}

    p = {"a": numbers(3, 4), "b": [numbers(4, seed=1)]}
    found = jax.jit(lambda q: {k: v for k, v in f(q, 2, axis=0).items() if k == "sum"})(p)
    np.testing.assert_allclose(found["sum"], p["a"].sum(0) + 2 * p["b"][0], rtol=1e-5)
    whole = jax.eval_shape(lambda q: f(q, 2, axis=1)["sum"], {"a": p["a"], "b": [p["a"][:, 0]]})
    assert whole.shape == (3,)


@pytest.mark.parametrize(
    "dtype", ["bool", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
)
def test_element_types(dtype, double):
    x = jnp.asarray(np.array([[3, 1, 0], [2, 5, 4]]), dtype)
    f = segfuse.compile(lambda a: (a, sf.argmax(a, 1), a.astype("float64"), a.shape[0] * 2))
    results = jax.jit(lambda a: tuple(f(a)))(x)
    wide = np.float64 if double else np.float32
    integers = np.int64 if double else np.int32
    assert [r.dtype for r in results] == [x.dtype, integers, wide, integers]
    first = np.argmax(np.asarray(x).astype(float), 1)
    for found, expected in zip(results, (x, first, x, 4), strict=True):
        np.testing.assert_array_equal(found, np.asarray(expected).astype(found.dtype))


def test_arrays_of_numpy_beside_values_and_from_outside(double):
    table = np.arange(12.0).reshape(3, 4)  # float64, which JAX narrows
    f = segfuse.compile(lambda x, y: x @ table + y)
    x = jnp.ones((2, 3))
    found = jax.jit(lambda a: f(a, np.float32(1)))(x)
    np.testing.assert_array_equal(found, np.ones((2, 3)) @ table + 1)
    np.testing.assert_array_equal(jax.jit(lambda a: f(a, np.ones(4)))(x), found)
    known = numbers(3, 4)
    g = segfuse.compile(lambda x: x @ known)
    np.testing.assert_allclose(jax.jit(g)(x), x @ known, rtol=1e-6)


def test_integers_have_no_gradient_and_no_array_is_a_result():
    f = segfuse.compile(lambda x, i: (x[i] * 2, i + 1))
    x, i = numbers(5, 2), jnp.array([1, 1, 4])
    gradient = jax.jit(jax.grad(lambda a: f(a, i)[0].sum()))(x)
    np.testing.assert_array_equal(gradient, np.array([[0] * 2, [4] * 2, [0] * 2, [0] * 2, [2] * 2]))
    nothing = segfuse.compile(lambda x: x[:0])
    assert jax.jit(nothing)(x).shape == (0, 2)


def test_a_training_step_with_donated_parameters():
    @segfuse.compile
    def scores(p, x):
        return sf.relu(x @ p["in"]) @ p["out"]

    x, y = numbers(32, 4), jnp.sin(numbers(32, 1, seed=1))
    parameters = {"in": numbers(4, 16, seed=2), "out": numbers(16, 1, seed=3) / 4}

    @jax.jit
    def step(p):
        value, g = jax.value_and_grad(lambda q: ((scores(q, x) - y) ** 2).mean())(p)
        return jax.tree.map(lambda a, b: a - 0.05 * b, p, g), value

    losses = []
    for _ in range(20):
        parameters, value = step(parameters)
        losses.append(float(value))
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] / 2


def test_grad_of_segfuse_inside_jit():
    by = segfuse.value_and_grad(lambda x: (x**2).sum())
    value, gradient = jax.jit(by)(jnp.arange(3.0))
    assert float(value) == 5
    np.testing.assert_array_equal(gradient, [0, 2, 4])


def test_mistakes_are_one_sentence():
    x = jnp.ones(3)
    with pytest.raises(segfuse.UsageError, match="pass it as an argument"):
        jax.jit(lambda a: segfuse.compile(lambda b: a + b)(a))(x)
    with pytest.raises(segfuse.UsageError, match="compiled with device= or check_numerics"):
        jax.jit(segfuse.compile(lambda b: b, device="cpu"))(x)
    with pytest.raises(Exception, match="index 7 .* out of range|out of range"):
        jax.jit(segfuse.compile(lambda a, i: a[i]))(x, jnp.array([7])).block_until_ready()
    torch = pytest.importorskip("torch")
    with pytest.raises(segfuse.UsageError, match="expected an array of JAX or NumPy"):
        jax.jit(lambda a: segfuse.compile(lambda b, c: b + c)(a, torch.ones(3)))(x)


def test_denormals_are_kept():
    """XLA's threads flush them, but the results are those outside of jit."""
    f = segfuse.compile(lambda x: (sf.sqrt(x), x * 0.75))
    for x in (np.array([1e-39, 1.5e-38], "f4"), np.array([6e-5, 1e-6], "f2")):
        for found, wanted in zip(jax.jit(f)(x), f(x), strict=True):
            assert np.all(wanted > 0)
            assert np.asarray(found).tobytes() == wanted.tobytes()


def in_another_process(text, **env):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **env},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_kept_code_finds_its_program_in_another_process(tmp_path):
    """JAX's cache on disk: a second process compiles nothing again, an edited function it does."""
    text = """
        import jax, numpy as np, segfuse
        hits = []
        jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        f = segfuse.compile(lambda x: x * FACTOR)
        found = jax.jit(jax.value_and_grad(lambda x: f(x).sum()))(np.arange(5, dtype=np.float32))
        print(*found, hits.count("/jax/compilation_cache/cache_hits"))
    """
    runs = [
        in_another_process(text.replace("FACTOR", factor), JAX_COMPILATION_CACHE_DIR=str(tmp_path))
        for factor in ("3.0", "3.0", "4.0")
    ]
    first = "30.0 [3. 3. 3. 3. 3.] "
    assert runs[0] == first + "0\n"
    assert runs[1].startswith(first) and int(runs[1].split()[-1]) > 0
    assert runs[2].startswith("40.0 [4. 4. 4. 4. 4.] ")


def test_equal_programs_have_one_number():
    """Others have others: of other code, other sizes, and another precision."""

    def number(function, size=3, **how):
        text = jax.jit(segfuse.compile(function, **how)).lower(jnp.ones(size)).as_text()
        return re.search(r"call = (\d+)", text)[1]

    one = number(lambda x: x + 1)
    assert number(lambda x: x + 1) == one
    others = {
        number(lambda x: x + 1.0000001), number(lambda x: x + 1, 4),
        number(lambda x: x + 1, precision="tf32"), number(lambda x: x + 1, threads=1),
    }  # fmt: skip
    assert len(others - {one}) == 4


def test_unknown_code_is_refused():
    jax.jit(layer).lower(*[jnp.ones(3, np.float32)] * 3)  # makes the call known to XLA
    call = jax.ffi.ffi_call("segfuse_program", jax.ShapeDtypeStruct((3,), np.float32))
    with pytest.raises(Exception, match="program that was not compiled in this process"):
        call(jnp.ones(3, np.float32), call=np.int64(1)).block_until_ready()


def test_programs_for_a_gpu_are_lowered_without_one():
    lowered = jax.jit(layer).trace(numbers(2, 8), numbers(8), numbers(8))
    assert "segfuse_program" in lowered.lower(lowering_platforms=("cuda",)).as_text()
