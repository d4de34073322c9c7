"""The CRF as custom calls of XLA: the eager functions' numbers inside jit, grad and vmap."""

import functools
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from conftest import SCORES, random_model

import segfuse

jax = pytest.importorskip("jax", reason="JAX is not installed")
sj = pytest.importorskip("segfuse.jax")
jnp = jax.numpy

LABELS = np.array([[0, 0, 1, 1, 1], [-100] * 5, [1, 0, 0, -100, -100]])


@pytest.fixture(autouse=True, params=[True, False], ids=["float64", "float32"])
def double(request):
    with jax.enable_x64(request.param):
        yield request.param


def scores_of(case="full", seed=0):
    model = random_model(seed, full=case != "plain", by_duration="by_duration" in case)
    scores = {k: getattr(model, k) for k in SCORES if getattr(model, k) is not None}
    if "tail" in case:
        scores["tail"] = np.array([-0.5, -1.0])
    if "masked" in case:
        scores["transition"][0, 1] = -np.inf
        scores["emission"][0, 4, 0] = -np.inf
    return {k: jnp.asarray(v) for k, v in scores.items()}  # float32 where JAX narrows


LENGTHS = np.array([5, 0, 3], np.int32)
CASES = ("plain", "full", "by_duration", "tail", "by_duration tail", "masked")
FUNCTIONS = {
    "log_partition": (
        functools.partial(sj.log_partition, lengths=LENGTHS),
        functools.partial(segfuse.log_partition_and_gradients, lengths=LENGTHS),
    ),
    "loss": (
        functools.partial(sj.loss, labels=LABELS.astype(np.int32)),
        functools.partial(segfuse.loss_and_gradients, labels=LABELS),
    ),
}


def host(scores):
    return {k: np.asarray(v) for k, v in scores.items()}


def plain_results(name, scores, weights=None):
    """Without JAX. The loss with a tail is the partial loss of known frames, by the engine."""
    if name == "loss" and "tail" in scores:
        boundaries = np.diff(LABELS, axis=1, prepend=-1) != 0
        constraints = segfuse.Constraints(labels=LABELS, boundaries=boundaries.astype(np.int8))
        return segfuse.partial_loss_and_gradients(
            **scores, constraints=constraints, lengths=LENGTHS, weights=weights
        )
    return FUNCTIONS[name][1](**scores, weights=weights)


def close(found, expected, exact=True):
    tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 2e-5, "atol": 2e-6}
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), **tolerance)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_value_and_gradients_are_those_of_the_engine(name, case, double):
    scores = scores_of(case)
    function = lambda s: FUNCTIONS[name][0](**s)  # noqa: E731
    weights = np.array([0.5, 3.0, -2.0])
    value, gradients = plain_results(name, host(scores), weights)
    for found in (function(scores), jax.jit(function)(scores)):
        assert found.dtype == (np.float64 if double else np.float32)
        close(found, value.astype(found.dtype))
    for transform in (lambda f: f, jax.jit):
        found = transform(jax.grad(lambda s: function(s) @ jnp.asarray(weights)))(scores)
        for k, gradient in found.items():
            assert gradient.dtype == scores[k].dtype
            close(gradient, getattr(gradients, k).astype(gradient.dtype))


@pytest.mark.parametrize("batched", [("emission",), ("transition",), ("emission", "tail"), "all"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap_is_a_loop(name, batched):
    many = [scores_of("tail", seed) for seed in range(3)]
    names = tuple(many[0]) if batched == "all" else batched
    axes = {k: 0 if k in names else None for k in many[0]}
    together = {k: jnp.stack([s[k] for s in many]) if k in names else v for k, v in many[0].items()}
    function = lambda s: FUNCTIONS[name][0](**s)  # noqa: E731
    gradient = jax.grad(lambda s: function(s).sum())
    values = jax.jit(jax.vmap(function, in_axes=(axes,)))(together)
    gradients = jax.jit(jax.vmap(gradient, in_axes=(axes,)))(together)
    for i in range(3):
        one = {k: together[k][i] if k in names else v for k, v in together.items()}
        close(values[i], function(one))
        for k, v in gradient(one).items():
            close(gradients[k][i], v)
    summed = jax.grad(lambda s: jax.vmap(function, in_axes=(axes,))(s).sum())(together)
    for k in names:
        close(summed[k], gradients[k])


def test_vmap_twice_and_over_rows_of_their_own():
    scores = scores_of("tail")
    rows = {k: scores.pop(k) for k in ("emission", "start", "end")}

    def one(r, n):
        r = {k: v[None] for k, v in r.items()}
        return sj.log_partition(**r, **scores, lengths=n[None])[0]

    expected = FUNCTIONS["log_partition"][0](**scores, **rows)
    close(jax.vmap(one)(rows, LENGTHS), expected)  # one call with the rows of all examples
    pairs = {k: jnp.stack([v, v[::-1]]) for k, v in rows.items()}
    twice = jax.vmap(jax.vmap(one))(pairs, np.stack([LENGTHS, LENGTHS[::-1]]))
    close(twice, np.stack([expected, expected[::-1]]))
    # Each with each: the emissions of one axis, the boundary scores of another.
    inner = jax.vmap(one, in_axes=({"emission": 0, "start": None, "end": None}, None))
    outer = jax.vmap(inner, in_axes=({"emission": None, "start": 0, "end": 0}, 0))
    gradients = jax.grad(lambda r: outer(r, LENGTHS).sum())(rows)
    found, total = outer(rows, LENGTHS), 0
    for i in range(3):
        for j in range(3):
            row = {k: v[j if k == "emission" else i] for k, v in rows.items()}
            close(found[i, j], one(row, jnp.asarray(LENGTHS[i])))
            total += jax.grad(one)(row, jnp.asarray(LENGTHS[i]))["start"].sum()
    close(gradients["start"].sum(), total, exact=False)


@pytest.mark.parametrize("case", ["full", "tail"])
def test_second_derivatives_in_reverse_mode(case, double):
    scores = scores_of(case)
    f = lambda s: FUNCTIONS["loss"][0](**s).sum()  # noqa: E731
    direction = {
        k: jnp.cos(jnp.arange(v.size, dtype=v.dtype)).reshape(v.shape) for k, v in scores.items()
    }

    def along(s):
        gradients = jax.grad(f)(s)
        return sum((gradients[k] * direction[k]).sum() for k in s)

    products = jax.jit(jax.grad(along))(scores)
    if not double:
        return
    step = 1e-5
    ends = [
        jax.grad(f)({k: v + sign * step * direction[k] for k, v in scores.items()})
        for sign in (1, -1)
    ]
    for k, product in products.items():
        np.testing.assert_allclose(product, (ends[0][k] - ends[1][k]) / (2 * step), atol=1e-8)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(f, (scores,), (direction,))
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.grad(lambda s: sum((x**2).sum() for x in jax.grad(along)(s).values()))(scores)


def test_weights_of_rows_are_differentiated():
    scores = scores_of()
    f = FUNCTIONS["log_partition"][0]
    weights = jnp.asarray(np.array([1.0, 2.0, 3.0]))

    def square(w):
        gradient = jax.grad(lambda e: f(**scores | {"emission": e}) @ w)(scores["emission"])
        return (gradient**2).sum()

    found = jax.grad(square)(weights)
    each = [square(weights.at[i].add(0.5)) - square(weights.at[i].add(-0.5)) for i in range(3)]
    close(found, np.array(each), exact=False)


@pytest.mark.parametrize("case", CASES)
def test_posteriors_and_viterbi_are_pytrees_of_the_engines_numbers(case, double):
    scores = scores_of(case)
    arguments = host(scores)
    found = jax.jit(functools.partial(sj.posteriors, lengths=LENGTHS))(**scores)
    expected = segfuse.posteriors(**arguments, lengths=LENGTHS)
    assert isinstance(found, segfuse.Posteriors) and len(jax.tree.leaves(found)) == 7
    for name in ("label", "start", "end", "boundary", "duration", "entropy", "log_partition"):
        value = getattr(found, name)
        close(value, getattr(expected, name).astype(value.dtype))
    best = jax.jit(functools.partial(sj.viterbi, lengths=LENGTHS))(**scores)
    segments = segfuse.viterbi(**arguments, lengths=LENGTHS)
    close(best.score, segments.score.astype(best.score.dtype))
    for b in range(3):
        n = int(best.count[b])
        rows = [
            (int(best.start[b, i]), int(best.duration[b, i]), int(best.label[b, i]))
            for i in range(n)
        ]
        assert rows == [tuple(map(int, s)) for s in segments[b]]
        assert (np.asarray(best.label[b, n:]) == -100).all()
    close(best.labels, segments.to_labels(5))
    many = jax.vmap(lambda e: sj.viterbi(**scores | {"emission": e}, lengths=LENGTHS))(
        jnp.stack([scores["emission"], 2 * scores["emission"]])
    )
    close(many.score[0], best.score)
    close(many.labels[0], best.labels)


def test_training_step_with_bfloat16_and_donated_parameters(double):
    scores = scores_of("plain")
    parameters = {k: scores[k] for k in ("transition", "duration")}
    emission = scores["emission"].astype(jnp.bfloat16)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(p):
        p32 = {k: v.astype(jnp.float32) for k, v in p.items()}
        value = lambda q: sj.loss(emission, **q, labels=LABELS.astype(np.int32)).mean()  # noqa: E731
        v, g = jax.value_and_grad(value)(p32)
        return {k: (p32[k] - 0.1 * g[k]).astype(p[k].dtype) for k in p}, v

    losses = []
    for _ in range(5):
        parameters, value = step(parameters)
        losses.append(float(value))
    assert losses == sorted(losses, reverse=True)


def test_weights_that_are_not_finite_are_seen():
    scores = scores_of()
    f = lambda e, t: FUNCTIONS["log_partition"][0](**scores | {"emission": e, "transition": t})  # noqa: E731
    _, pull = jax.vjp(f, scores["emission"], scores["transition"])
    by_emission, by_transition = pull(
        f(scores["emission"], scores["transition"]).at[0].set(jnp.inf)
    )
    assert np.isnan(by_emission[0]).all() and np.isfinite(by_emission[2]).all()
    assert np.isnan(by_transition).all()


def test_empty_batches_and_rows_of_no_frames():
    c, k = jnp.zeros((2, 2)), jnp.zeros((3, 2))
    assert sj.log_partition(jnp.zeros((0, 4, 2)), c, k).shape == (0,)
    close(sj.log_partition(jnp.zeros((2, 0, 2)), c, k), np.zeros(2))
    close(
        jax.grad(lambda e: sj.log_partition(e, c, k).sum())(jnp.zeros((2, 0, 2))),
        np.zeros((2, 0, 2)),
    )


def test_mistakes_are_one_sentence():
    scores = scores_of("plain")
    with pytest.raises(segfuse.UsageError, match="duration has shape .*, expected 2 axes"):
        sj.log_partition(scores["emission"], scores["transition"], scores["duration"][0])
    with pytest.raises(segfuse.UsageError, match="emission is int32, expected float32 or float64"):
        sj.log_partition(jnp.zeros((1, 2, 2), np.int32), scores["transition"], scores["duration"])
    with pytest.raises(segfuse.UsageError, match=r"lengths has shape \(2,\), expected \(3,\)"):
        sj.log_partition(**scores, lengths=np.array([1, 2], np.int32))
    with pytest.raises(segfuse.UsageError, match="labels is None"):
        sj.loss(**scores, labels=None)
    with pytest.raises(Exception, match="emission at batch 0, time 1, class 1 is nan"):
        bad = scores["emission"].at[0, 1, 1].set(jnp.nan)
        jax.jit(sj.log_partition)(bad, scores["transition"], scores["duration"]).block_until_ready()
    with pytest.raises(Exception, match="label 0 runs for 4 frames, the longest segment has 3"):
        labels = np.zeros((3, 4), np.int32)
        sj.loss(
            scores["emission"][:, :4], scores["transition"], scores["duration"], labels
        ).block_until_ready()
    with pytest.raises(Exception, match="duration has shape"):
        sj.log_partition(
            scores["emission"], scores["transition"], jnp.zeros((3, 5))
        ).block_until_ready()


def test_calls_of_many_threads():
    from concurrent.futures import ThreadPoolExecutor

    scores = scores_of()
    f = jax.jit(jax.grad(lambda s: FUNCTIONS["loss"][0](**s).sum()))
    expected = f(scores)
    with ThreadPoolExecutor(4) as pool, jax.enable_x64(scores["emission"].dtype == np.float64):
        for found in pool.map(lambda _: f(scores), range(20)):
            if found["emission"].dtype == expected["emission"].dtype:
                close(found["emission"], expected["emission"])


def test_arrays_on_several_devices_are_named():
    text = textwrap.dedent("""
        import jax, numpy as np, segfuse
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
        rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
        emission = jax.device_put(np.zeros((2, 3, 2), np.float32), rows)
        square = np.zeros((2, 2), np.float32)
        for call in (
            lambda: segfuse.log_partition(emission, square, square),
            lambda: segfuse.compile(lambda x: x + 1)(emission),
            lambda: segfuse.compile(lambda x: x + emission)(np.zeros((2, 3, 2), np.float32)),
        ):
            try:
                call()
            except segfuse.UsageError as error:
                assert "spread over 2 devices" in str(error), error
            else:
                raise AssertionError
    """)
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, **flags}, capture_output=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_calls_on_a_gpu_are_lowered_without_one():
    scores = scores_of()
    step = jax.jit(jax.grad(lambda s: FUNCTIONS["loss"][0](**s).sum()))
    text = step.trace(scores).lower(lowering_platforms=("cuda",)).as_text()
    assert "segfuse_crf_gradients" in text
    best = jax.jit(lambda s: sj.viterbi(**s)).trace(scores)
    assert "segfuse_crf_viterbi_packed" in best.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("shape", [(3, 5), (2, 1), (1, 0), (0, 4)])
def test_packed_segments_become_arrays(shape, monkeypatch):
    """A GPU gives the segments of all rows one after the other."""
    rng = np.random.default_rng(sum(shape))
    scores = tuple(jnp.asarray(rng.normal(size=s)) for s in ((*shape, 2), (2, 2), (3, 2)))
    lengths = np.minimum(LENGTHS[: shape[0]], shape[1])
    expected = sj.viterbi(*scores, lengths=lengths)
    best = segfuse.viterbi(*map(np.asarray, scores), lengths=lengths)

    def packed(target, results, *_):
        assert target == "segfuse_crf_viterbi_packed"
        columns = (np.full(results[2].shape, 77, np.int32) for _ in range(3))
        filled = []
        for column, name in zip(columns, ("start", "duration", "label"), strict=True):
            values = getattr(best, name)
            column[: len(values)] = values
            filled.append(jnp.asarray(column))
        pointer = np.asarray(best.row_pointer, np.int64).view(np.int32).reshape(-1, 2)
        return [expected.score, jnp.asarray(pointer), *filled]

    monkeypatch.setattr(sj._calls, "_call", packed)
    gaps = (None,) * 5
    found = sj._calls._viterbi_packed((*scores, *gaps), jnp.asarray(lengths))
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)


def test_rows_over_devices_in_shard_map():
    """What is the same on all devices gets the sum of its gradients; results are not taken to be
    the same."""
    text = textwrap.dedent("""
        import jax, numpy as np, segfuse, segfuse.jax as sj
        from jax import numpy as jnp
        P = jax.sharding.PartitionSpec
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
        rng = np.random.default_rng(0)
        e, t, d = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((4, 9, 3), (3, 3), (4, 3)))
        layer = segfuse.compile(lambda x, w: x @ w)
        whole = lambda e, t, d: sj.log_partition(layer(e, t), t, d)
        parts = jax.shard_map(whole, mesh=mesh, in_specs=(P("rows"), P(), P()), out_specs=P("rows"))
        np.testing.assert_allclose(jax.jit(parts)(e, t, d), whole(e, t, d), rtol=1e-6)
        by = lambda f: jax.jit(jax.grad(lambda *a: (f(*a) ** 2).sum(), (0, 1, 2)))(e, t, d)
        for x, y in zip(by(parts), by(whole), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
        best = jax.shard_map(lambda e, t, d: sj.viterbi(e, t, d).labels, mesh=mesh,
                             in_specs=(P("rows"), P(), P()), out_specs=P("rows"))
        np.testing.assert_array_equal(jax.jit(best)(e, t, d), sj.viterbi(e, t, d).labels)
        for f in (whole, lambda e, t, d: layer(e, t)[0, 0]):
            same = jax.shard_map(f, mesh=mesh, in_specs=(P("rows"), P(), P()), out_specs=P())
            try:
                jax.jit(same)(e, t, d)
            except ValueError as error:
                assert "rows" in str(error), error
            else:
                raise AssertionError
    """)
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, **flags}, capture_output=True, check=False
    )
    assert run.returncode == 0, run.stderr.decode()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_reductions_have_the_gradients_of_their_sums(name, case, double):
    scores, reduction = scores_of(case), "mean" if name == "loss" else "sum"
    f = FUNCTIONS[name][0]
    reduced = lambda s: jnp.sin(f(**s, reduction=reduction))  # noqa: E731
    rows = lambda s: jnp.sin(getattr(f(**s), reduction)())  # noqa: E731
    for transform in (lambda f: f, jax.jit):
        found, expected = (transform(jax.value_and_grad(g))(scores) for g in (reduced, rows))
        close(found[0], expected[0], exact=False)
        for k, gradient in found[1].items():
            assert gradient.dtype == scores[k].dtype
            close(gradient, expected[1][k], exact=False)
    text = jax.jit(jax.grad(reduced)).lower(scores).as_text()
    assert "segfuse_crf_weighted" in text and "segfuse_crf_gradients" not in text


def test_reductions_are_differentiated_twice_and_mapped(double):
    scores = scores_of("tail")
    f = FUNCTIONS["loss"][0]
    many = jnp.stack([scores["emission"], 2 * scores["emission"]])

    def along(reduction):
        def total(s):
            value = f(**s, reduction=reduction)
            return value if value.ndim == 0 else value.sum()

        products = jax.grad(lambda s: sum((x**2).sum() for x in jax.grad(total)(s).values()))
        mapped = jax.vmap(jax.grad(lambda e: total(scores | {"emission": e})))
        return (
            products(scores),
            mapped(many),
            jax.vmap(jax.grad(total), in_axes=(None,), axis_size=2)(scores),
        )

    found, expected = along("sum"), along("none")
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        close(x, y, exact=False)
    empty = {k: v[:0] if k in ("emission", "start", "end") else v for k, v in scores.items()}
    assert float(sj.log_partition(**empty, reduction="mean")) == 0
    with pytest.raises(segfuse.UsageError, match="reduction is 'max', expected"):
        sj.log_partition(**scores, reduction="max")
