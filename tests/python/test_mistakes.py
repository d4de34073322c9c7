"""Whatever stands in the place of a number, an axis or an array: a sentence of ours, never one of C++."""

import inspect
import re

import numpy as np
import pytest
from conftest import random_model

import segfuse
import segfuse.ops as sf

# What no message may hold: the words of the binding and of C++.
FOREIGN = re.compile(
    r"incompatible function arguments|std::|bad_cast|nanobind|_native|_M_range_check|unexpected:"
)
ODD = [None, True, -1, 1.5, 10**30, "axis", b"bytes", object(), [1.5], [None], (0, 1.0, 2), {}, np.nan,
       np.float32(2), np.array([1, 2]), np.array(None), 1j, lambda: 0, float]  # fmt: skip


def check(call):
    try:
        call()
    except segfuse.InternalError as error:
        pytest.fail(str(error))
    except Exception as error:
        assert not FOREIGN.search(str(error)), f"{type(error).__name__}: {error}"


def traced(function):
    """The function on a (2, 3, 4) and a (4) value of a program."""
    fusion = segfuse.Fusion()
    x = fusion.input("x", "float32", (2, 3, 4))
    y = fusion.input("y", "float32", (4,))
    function(x, y)


OPERATIONS = [name for name in sf.__all__ if inspect.isfunction(getattr(sf, name))]


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_on_odd_arguments(name):
    function = getattr(sf, name)
    parameters = list(inspect.signature(function).parameters.values())
    several = any(p.kind == p.VAR_POSITIONAL for p in parameters)
    count = 2 if several else len(parameters)
    for odd in ODD:
        for first in (lambda x, y: x, lambda x, y: [x, x]):
            check(lambda: traced(lambda x, y: function(odd, *[x] * (count - 1))))
            for place in range(1, count):
                for filler in (lambda y: y, lambda y: 0, lambda y: (0, 1, 2)):

                    def call(x, y, place=place, filler=filler, first=first, odd=odd):
                        operands = [first(x, y), *[filler(y)] * (count - 1)]
                        operands[place] = odd
                        function(*operands)

                    check(lambda: traced(call))
    for parameter in parameters:
        if parameter.default is not parameter.empty:
            for odd in ODD:
                check(lambda: traced(lambda x, y: function(x, **{parameter.name: odd})))


METHODS = ["reshape", "sum", "mean", "max", "astype", "transpose", "squeeze", "__getitem__", "__add__",
           "__matmul__", "__pow__", "__lt__", "__mod__", "__floordiv__", "argmax", "var", "swapaxes"]  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_methods_on_odd_arguments(name):
    for odd in ODD:
        check(lambda: traced(lambda x, y: getattr(x, name)(odd)))


def test_fusions_on_odd_arguments():
    for odd in ODD:
        f = segfuse.Fusion()
        x = f.input("x", "float32", ("N", 4))
        calls = [
            lambda: segfuse.Fusion(odd).input("x", "float32", (2,)),
            lambda: f.input(odd, "float32", (2,)),
            lambda: f.input("z", odd, (2,)),
            lambda: f.input("z", "float32", odd),
            lambda: f.output(odd),
            lambda: f.output(x, odd),
            lambda: f.alias(x, odd),
            lambda: f.constant(odd),
            lambda: f.constant(1, odd),
            lambda: f.full(odd, 1),
            lambda: f.full((2,), odd),
            lambda: f.arange(odd),
            lambda: f.size(odd),
            lambda: f.require(odd, 1),
            lambda: f.apply(odd, x),
            lambda: f.apply("exp", odd),
            lambda: f.apply("permute", x, perm=odd),
            lambda: f.apply("reshape", x, shape=odd),
            lambda: f.apply("pad", x, low=[0, 0], high=[0, 0], value=odd),
            lambda: f.apply("concat", x, x, axis=odd),
            lambda: f.apply("cast", x, dtype=odd),
            lambda: f.build(threads=odd),
            lambda: segfuse.Fusion.from_text(odd),
            lambda: segfuse.compile(odd),
            lambda: segfuse.compile(lambda x: x, threads=odd),
            lambda: segfuse.compile(lambda x: x + 1)(odd),
            lambda: segfuse.compile(lambda x: x + odd)(np.ones(2, np.float32)),
            lambda: segfuse.grad(lambda x: x.sum(), odd)(np.ones(2, np.float32)),
            lambda: segfuse.grad(lambda x: odd)(np.ones(2, np.float32)),
        ]
        for call in calls:
            check(call)


CRF = ["log_partition", "loss", "posteriors", "viterbi", "score", "entropy", "k_best", "sample",
       "boundary_within", "expected_durations", "max_marginal", "minimum_risk", "partial_loss",
       "log_partition_and_gradients", "loss_and_gradients", "segment_posteriors"]  # fmt: skip


@pytest.mark.parametrize("name", CRF)
def test_the_crf_on_odd_arguments(name):
    function = getattr(segfuse, name)
    good = random_model().inputs() | {"n": 2, "seed": 1, "tolerance": 1, "ignore": -100}
    good["labels"] = np.array([[0, 0, 1, 1, 1], [-100] * 5, [1, 0, 0, -100, -100]])
    good["constraints"] = segfuse.Constraints(labels=[[-1] * 5] * 3)
    good["segments"] = [[(0, 2, 1)], [], []]
    parameters = inspect.signature(function).parameters
    if "labels" in parameters:
        good.pop("segments")
    good = {k: v for k, v in good.items() if k in parameters}
    function(**good)
    for changed in parameters:
        for odd in ODD:
            check(lambda: function(**good | {changed: odd}))


def test_models_and_counts_on_odd_arguments():
    table = np.zeros((3, 2))
    for odd in ODD:
        for call in [
            lambda: segfuse.set_threads(odd),
            lambda: segfuse.duration_buckets(odd),
            lambda: segfuse.duration_buckets(4, buckets=odd),
            lambda: segfuse.duration_parameters(odd, 4),
            lambda: segfuse.duration_parameters("buckets", 4, buckets=odd),
            lambda: segfuse.duration_scores("table", odd, 3),
            lambda: segfuse.duration_scores("table", table, odd),
            lambda: segfuse.Segmentations.from_labels([[0]], max_duration=odd, num_classes=2),
            lambda: segfuse.Segmentations.from_labels([[0]], max_duration=2, num_classes=odd),
            lambda: segfuse.Segmentations.from_labels(odd, max_duration=2, num_classes=2),
            lambda: segfuse.Segmentations.from_rows(odd),
            lambda: segfuse.Segmentations.from_rows([[(0, 1, 0)]]).to_labels(odd),
            lambda: (
                segfuse.sample_prior(np.zeros((2, 2)), table, rows=odd, min_frames=2, seed=1)
                if odd != 10**30
                else None
            ),
            lambda: segfuse.sample_prior(np.zeros((2, 2)), table, rows=1, min_frames=2, seed=odd),
        ]:
            try:
                check(call)
            finally:
                segfuse.set_threads(0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: sf.transpose(x, [0, 1.0, 2]), "transpose: axis is 1.0, expected an integer"),
        (lambda x: sf.sum(x, "a"), "sum: axis is 'a', expected an integer"),
        (
            lambda x: sf.layer_norm(x, epsilon="small"),
            "layer_norm: epsilon is 'small', expected a num",
        ),
        (
            lambda x: x._fusion.apply("permute", x, perm=[0, 1.5, 2]),
            "permute: perm is .*, expected ints",
        ),
    ],
)
def test_the_sentence(call, message):
    with pytest.raises(segfuse.UsageError, match=message):
        traced(lambda x, y: call(x))


@pytest.mark.parametrize(
    ("seed", "found"), [(-1, "-1"), (2**64, "1844"), (1.5, "1.5"), ("a", "'a'")]
)
def test_seeds(seed, found):
    model = random_model().inputs()
    table = np.zeros((3, 2))
    for call in (
        lambda: segfuse.sample(**model, n=1, seed=seed),
        lambda: segfuse.sample_prior(np.zeros((2, 2)), table, rows=1, min_frames=2, seed=seed),
    ):
        with pytest.raises(segfuse.UsageError, match=f"seed is {found}.*, expected an integer"):
            call()
    assert segfuse.sample(**model, n=1, seed=2**64 - 1)[0]


def test_durations_on_their_side():
    model = random_model(longest=3, classes=2).inputs()
    with pytest.raises(segfuse.UsageError, match=r"duration has shape \(2, 3\).*pass duration.T"):
        segfuse.log_partition(**model | {"duration": model["duration"].T})
