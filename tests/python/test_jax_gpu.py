"""The CRF and compiled functions as custom calls of XLA on a GPU."""

import functools

import numpy as np
import pytest
from conftest import SCORES, random_model

import segfuse
import segfuse.ops as sf

jax = pytest.importorskip("jax", reason="JAX is not installed")
sj = pytest.importorskip("segfuse.jax")
jnp = jax.numpy


def gpus():
    try:
        return jax.devices("gpu")
    except RuntimeError:
        return []


pytestmark = pytest.mark.skipif(not gpus(), reason="JAX has no GPU; with one, set JAX_PLATFORMS=")

LENGTHS = np.array([5, 0, 3], np.int32)
LABELS = np.array([[0, 0, 1, 1, 1], [-100] * 5, [1, 0, 0, -100, -100]], np.int32)


@pytest.fixture(autouse=True, params=[True, False], ids=["float64", "float32"])
def double(request):
    with jax.enable_x64(request.param), jax.default_device(gpus()[0]):
        yield request.param


def scores_of(case="full", seed=0):
    model = random_model(seed, full=case != "plain", by_duration="by_duration" in case)
    scores = {k: getattr(model, k) for k in SCORES if getattr(model, k) is not None}
    if "masked" in case:
        scores["transition"][0, 1] = -np.inf
        scores["emission"][0, 4, 0] = -np.inf
    return {k: jnp.asarray(v) for k, v in scores.items()}


def large_scores(batch=4, frames=300, longest=20, classes=7, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {
        "emission": (batch, frames, classes), "transition": (classes, classes),
        "duration": (longest, classes), "initial": (classes,), "final": (classes,),
    }  # fmt: skip
    return {k: jnp.asarray(rng.normal(size=shape)) for k, shape in shapes.items()}


def on_cpu(f, *arguments):
    """The same function on the CPU, where the engine's numbers have tests of their own."""
    cpu = jax.devices("cpu")[0]
    arguments = jax.device_put(arguments, cpu)
    with jax.default_device(cpu):
        return jax.device_get(jax.jit(f)(*arguments))


def close(found, expected, double):
    tolerance = {"rtol": 1e-9, "atol": 1e-10} if double else {"rtol": 1e-5, "atol": 2e-6}
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(np.asarray(x), y, **tolerance)


log_partition = functools.partial(sj.log_partition, lengths=LENGTHS)
loss = functools.partial(sj.loss, labels=LABELS)


@pytest.mark.parametrize("case", ["plain", "full", "by_duration", "masked"])
@pytest.mark.parametrize("name", ["log_partition", "loss"])
def test_values_and_gradients_are_those_of_the_cpu(name, case, double):
    f = log_partition if name == "log_partition" else loss
    weights = np.array([0.5, 3.0, -2.0])
    scores = scores_of(case)
    whole = jax.value_and_grad(lambda s: f(**s) @ jnp.asarray(weights))
    found = jax.jit(whole)(scores)
    assert all(x.devices() == {gpus()[0]} for x in jax.tree.leaves(found))
    close(found, on_cpu(whole, scores), double)
    close(f(**scores), on_cpu(lambda s: f(**s), scores), double)


def test_long_rows_in_a_step_without_transfers(double):
    scores = large_scores()
    labels = jnp.asarray(np.arange(1200).reshape(4, 300) // 6 % 7)
    lengths = jnp.asarray(np.array([300, 7, 1, 255]))

    def total(s):
        return sj.loss(**s, labels=labels, lengths=lengths).mean()

    step = jax.jit(jax.value_and_grad(total))
    first = step(scores)
    with jax.transfer_guard("disallow"):
        second = jax.block_until_ready(step(scores))
    for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
    close(first, on_cpu(jax.value_and_grad(total), scores), double)


def test_a_mean_has_its_gradients_from_one_call(double):
    scores = large_scores()
    labels = jnp.asarray(np.arange(1200).reshape(4, 300) // 6 % 7)
    f = lambda s: sj.loss(**s, labels=labels, reduction="mean")  # noqa: E731
    whole = jax.value_and_grad(f)
    close(jax.jit(whole)(scores), on_cpu(whole, scores), double)
    rows = jax.value_and_grad(lambda s: sj.loss(**s, labels=labels).mean())
    close(jax.jit(whole)(scores), jax.device_get(jax.jit(rows)(scores)), double)


@pytest.mark.parametrize("batched", [("emission",), ("transition",), "all"])
def test_vmap(batched, double):
    many = [scores_of("full", seed) for seed in range(3)]
    names = tuple(many[0]) if batched == "all" else batched
    axes = {k: 0 if k in names else None for k in many[0]}
    together = {k: jnp.stack([s[k] for s in many]) if k in names else v for k, v in many[0].items()}
    whole = jax.vmap(jax.value_and_grad(lambda s: loss(**s).sum()), in_axes=(axes,))
    close(jax.jit(whole)(together), on_cpu(whole, together), double)


@pytest.mark.parametrize("case", ["plain", "full", "by_duration", "masked", "large"])
def test_best_paths_are_those_of_the_cpu(case, double):
    scores = large_scores() if case == "large" else scores_of(case)
    lengths = np.array([300, 0, 7, 1], np.int32) if case == "large" else LENGTHS
    f = lambda s: sj.viterbi(**s, lengths=lengths)  # noqa: E731
    found, expected = jax.jit(f)(scores), on_cpu(f, scores)
    close(found.score, expected.score, double)
    for name in ("count", "start", "duration", "label", "labels"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    many = jax.vmap(lambda e: sj.viterbi(**scores | {"emission": e}, lengths=lengths))(
        jnp.stack([2 * scores["emission"], scores["emission"]])
    )
    np.testing.assert_array_equal(many.labels[1], expected.labels)


def test_weights_that_are_not_finite_are_seen():
    scores = scores_of()
    f = lambda e, t: log_partition(**scores | {"emission": e, "transition": t})  # noqa: E731
    value, pull = jax.vjp(f, scores["emission"], scores["transition"])
    by_emission, by_transition = pull(value.at[0].set(jnp.inf))
    assert np.isnan(by_emission[0]).all() and np.isfinite(by_emission[2]).all()
    assert np.isnan(by_transition).all()


def test_empty_batches_and_rows_of_no_frames():
    c, k = jnp.zeros((2, 2)), jnp.zeros((3, 2))
    assert sj.log_partition(jnp.zeros((0, 4, 2)), c, k).shape == (0,)
    np.testing.assert_array_equal(sj.log_partition(jnp.zeros((2, 0, 2)), c, k), np.zeros(2))
    gradient = jax.grad(lambda t: sj.log_partition(jnp.zeros((0, 4, 2)), t, k).sum())(c)
    np.testing.assert_array_equal(gradient, np.zeros((2, 2)))
    assert sj.viterbi(jnp.zeros((2, 0, 2)), c, k).labels.shape == (2, 0)


def test_mistakes_are_told_by_the_call_that_meets_them():
    scores = scores_of("plain")
    rest = scores["transition"], scores["duration"]
    with pytest.raises(Exception, match="emission at batch 0, time 1, class 1 is NaN"):
        bad = scores["emission"].at[0, 1, 1].set(jnp.nan)
        jax.jit(sj.log_partition)(bad, *rest).block_until_ready()
    sj.log_partition(scores["emission"], *rest).block_until_ready()  # nothing is left over
    with pytest.raises(Exception, match="label 0 runs for 4 frames|longest segment"):
        labels = np.zeros((3, 4), np.int32)
        sj.loss(scores["emission"][:, :4], *rest, labels).block_until_ready()
    with pytest.raises(Exception, match="duration has shape"):
        sj.log_partition(scores["emission"], rest[0], jnp.zeros((3, 5))).block_until_ready()
    with pytest.raises(Exception, match="work on the CPU only"):
        jax.jit(sj.posteriors)(**scores).label.block_until_ready()
    with pytest.raises(Exception, match="tail.* work on the CPU only"):
        sj.log_partition(**scores, tail=jnp.zeros(2)).block_until_ready()
    with pytest.raises(Exception, match="out of range"):
        take = segfuse.compile(lambda a, i: a[i])
        jax.jit(take)(jnp.ones(3), jnp.array([7])).block_until_ready()


@segfuse.compile
def layer(x, scale, shift):
    return x + sf.gelu(sf.layer_norm(x, scale, shift))


def test_programs_and_their_gradients(double):
    rng = np.random.default_rng(0)
    arguments = tuple(jnp.asarray(rng.normal(size=s)) for s in ((33, 257), (257,), (257,)))
    f = lambda *a: (jnp.sin(layer(jnp.cos(a[0]), *a[1:])) ** 2).sum()  # noqa: E731
    whole = jax.value_and_grad(f, (0, 1, 2))
    with jax.transfer_guard("disallow"):
        found = jax.block_until_ready(jax.jit(whole)(*arguments))
    for x, y in zip(
        jax.tree.leaves(found), jax.tree.leaves(on_cpu(whole, *arguments)), strict=True
    ):
        np.testing.assert_allclose(np.asarray(x), y, rtol=2e-4, atol=2e-5)


def test_a_program_with_an_array_from_outside_and_vmap():
    table = np.arange(12.0).reshape(3, 4)
    f = segfuse.compile(lambda x: sf.softmax(x @ table))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2, 3)))
    found = jax.jit(jax.vmap(f))(x)
    np.testing.assert_allclose(found, jax.nn.softmax(x @ table, axis=-1), rtol=1e-4, atol=1e-6)


def test_every_gpu_has_its_own_calls():
    if len(gpus()) < 2:
        pytest.skip("one GPU")
    scores = large_scores()
    f = jax.jit(jax.value_and_grad(lambda s: sj.log_partition(**s).sum()))
    first, second = (f(jax.device_put(scores, gpu)) for gpu in gpus()[:2])
    for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert y.devices() == {gpus()[1]}
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
