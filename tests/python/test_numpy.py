"""The functions of numpy_table.py in each run of the tests, and docs/operations.md."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import segfuse
import segfuse.ops as sf

HERE = pathlib.Path(__file__).parent


@pytest.mark.parametrize(
    ("backend", "more"),
    [("loops", ["--dtypes", "f2,f4,f8"]), ("compiled", ["--dtypes", "f4", "--no-gradients"])],
)
def test_functions_are_numpys(backend, more):
    run = subprocess.run(
        [sys.executable, HERE / "numpy_table.py", *more],
        env={**os.environ, "SEGFUSE_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r"^\d{3,} passed, 0 failed\n\Z", run.stdout, re.M), run.stdout + run.stderr


def test_the_list_of_operations_is_current():
    sys.path.insert(0, str(HERE))
    import operations_list

    found = (HERE.parents[1] / "docs" / "operations.md").read_text()
    assert found == operations_list.text(), "run tests/python/operations_list.py --write"


def test_other_names_hide_no_function():
    import segfuse.ops as sf

    others = [name for names in sf._ALIASES.values() for name in names]
    own = [name for module in sf._MODULES for name in module.__all__]
    assert not set(others) & set(own), "take them from _ALIASES"
    assert len(set(others)) == len(others)


def test_names_of_jax(jax):
    import segfuse.ops as sf

    for module, least in ((jax.numpy, 250), (jax.nn, 30)):
        names = {n for n in dir(module) if not n.startswith("_") and callable(getattr(module, n))}
        assert len(names & set(sf.__all__)) >= least, sorted(names - set(sf.__all__))


def test_powers_keep_integers_and_become_floats_beside_floats():
    import numpy as np

    import segfuse

    a, b = np.array([2, -3, 7], np.int32), np.array([3, 2, 0], np.int32)
    power = segfuse.compile(lambda x, y: (x**y, x**True, x**2, x**2.0, x ** np.float64(2.0)))
    found = power(a, b)
    assert [r.dtype.name for r in found] == ["int32", "int32", "int32", "float32", "float32"]
    assert [r.tolist() for r in found] == [[8, 9, 1], [2, -3, 7], *([[4, 9, 49]] * 3)]
    large = np.array([1 << 16], np.int32)  # its square is no int32
    assert segfuse.compile(lambda x: x**2.0)(large).tolist() == [float(1 << 32)]


def test_odd_arguments_are_refused_in_one_sentence():
    import numpy as np

    import segfuse
    import segfuse.ops as sf

    x = np.arange(4.0)
    for call, words in {
        lambda v: sf.split(v, 0): "sections is 0",
        lambda v: sf.array_split(v, 0): "sections is 0",
        lambda v: sf.polyval(v[0], 1.0): "a vector of coefficients",
        lambda v: sf.polyadd(v[0], v): "a vector of coefficients",
        lambda v: sf.polyint(v[0]): "a vector of coefficients",
        lambda v: sf.ix_(v[0]): "vectors of indices",
        lambda v: sf.ix_(v > 1): "a mask would make a shape",  # to NumPy it is where it holds
        lambda v: sf.reshape(v, (v[0], 4)): "as a size",
        lambda v: sf.astype(v, v): "found the dtype",
    }.items():
        with pytest.raises(segfuse.UsageError, match=words):
            segfuse.compile(call)(x)
    parts = segfuse.compile(
        lambda v: (*sf.split(v, np.int64(2)), sf.pad(v[0], ()), sf.cov(v, ddof=9))
    )(x)
    assert [p.tolist() for p in parts] == [[0.0, 1.0], [2.0, 3.0], 0.0, np.inf]
    point = np.array(1.0)
    assert segfuse.compile(lambda v: v.at[()].set(5.0))(point) == 5.0
    assert segfuse.compile(lambda v: v.at[...].add(5.0))(point) == 6.0


def test_the_quantile_of_no_elements_is_nan():
    import warnings

    import numpy as np

    import segfuse
    import segfuse.ops as sf

    functions = {
        (sf.median, np.nanmedian),  # NumPy's other one refuses no elements of some shapes
        (sf.nanmedian, np.nanmedian),
        (lambda x, axis: sf.quantile(x, 0.3, axis), lambda x, axis: np.nanquantile(x, 0.3, axis)),
        (lambda x, axis: sf.nanpercentile(x, 3, axis), lambda x, axis: np.nanpercentile(x, 3, axis)),
    }  # fmt: skip
    for ours, numpys in functions:
        for shape in ((0,), (3, 0), (0, 3), (0, 0), (2, 0, 3), (7, 0, 0)):
            for axis in range(len(shape)):
                x = np.zeros(shape)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    wanted = np.asarray(numpys(x, axis=axis))
                found = segfuse.compile(lambda x, f=ours, axis=axis: f(x, axis=axis))(x)
                assert found.shape == wanted.shape
                np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["max", "min", "ptp"])
def test_extremes_of_nothing_are_errors_as_in_numpy(name):
    ours, theirs = getattr(sf, name), getattr(np, name)
    over_rows = segfuse.compile(lambda x: ours(x, 0))
    over_columns = segfuse.compile(lambda x: ours(x, 1))
    some, none = np.ones((2, 3), "f4"), np.zeros((0, 3), "f4")
    for x in (some, none, some):  # one function for both
        if x is none:
            with pytest.raises(ValueError):
                theirs(x, 0)
            with pytest.raises(segfuse.UsageError, match="found no elements along axis 0"):
                over_rows(x)
        else:
            np.testing.assert_array_equal(over_rows(x), theirs(x, 0))
        np.testing.assert_array_equal(over_columns(x), theirs(x, 1))
    with pytest.raises(segfuse.UsageError, match="found no elements along axis 1"):
        segfuse.compile(lambda x: ours(x[:, :0], 1))(some)


@pytest.mark.parametrize("dtype", ["f4", "i4", "i8"])
def test_reductions_of_nothing_that_have_a_value(dtype):
    x = np.ones((2, 3), dtype)
    for nothing in (lambda x: x[:, :0], lambda x: x[:, x.shape[1] :]):
        for ours, theirs in (
            (lambda y: sf.max(y, 1, initial=-2), lambda y: np.max(y, 1, initial=-2)),
            (lambda y: sf.min(y, 1, True, initial=7), lambda y: np.min(y, 1, None, True, 7)),
            (lambda y: sf.any(y, 1), lambda y: np.any(y, 1)),
            (lambda y: sf.all(y, 1), lambda y: np.all(y, 1)),
            (lambda y: sf.sum(y, 1), lambda y: np.sum(y, 1)),
        ):
            found = segfuse.compile(lambda x, f=ours, g=nothing: f(g(x)))(x)
            np.testing.assert_array_equal(found, theirs(nothing(x)))
    found = segfuse.compile(lambda x, at, new: x.at[at].set(new))(
        np.arange(3), np.zeros(0, "i8"), np.zeros(0, "i8")
    )
    np.testing.assert_array_equal(found, np.arange(3))
