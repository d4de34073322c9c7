"""Array libraries, dtypes, strides and threads."""

import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from conftest import SCORES, random_model

import segfuse

GOLD = [[(0, 3, 1), (3, 2, 0)], [], [(0, 3, 1)]]


def everything(model, convert):
    """All results of all functions, as a flat list of (name, array)."""
    inputs = model.inputs(convert)
    best = segfuse.viterbi(**inputs)
    loss, gradients = segfuse.loss_and_gradients(**inputs, segments=GOLD)
    posteriors = segfuse.posteriors(**inputs)
    found = [
        ("log_partition", segfuse.log_partition(**inputs)),
        ("loss", loss),
        ("score", segfuse.score(**inputs, segments=GOLD)),
        ("segment_posteriors", segfuse.segment_posteriors(**inputs, segments=GOLD)),
        ("entropy", segfuse.entropy(**inputs)),
        ("labels", best.to_labels()),
    ]
    found += [(name, getattr(best, name)) for name in ("row_pointer", "start", "score")]
    found += [(name, getattr(gradients, name)) for name in SCORES]
    found += [(name, getattr(posteriors, name)) for name in posteriors.__slots__]
    return found


def test_torch_arrays_come_back_and_are_the_same_bits(torch):
    model = random_model()
    for (name, expected), (_, found) in zip(
        everything(model, lambda a: a), everything(model, torch.from_numpy), strict=True
    ):
        assert isinstance(found, torch.Tensor), name
        np.testing.assert_array_equal(found.numpy(), expected, err_msg=name)


def test_jax_arrays_come_back(jax):
    model = random_model()
    single = {name: getattr(model, name).astype(np.float32) for name in SCORES}
    model = type(model)(**single, lengths=model.lengths)
    for (name, expected), (_, found) in zip(
        everything(model, lambda a: a), everything(model, jax.numpy.asarray), strict=True
    ):
        assert isinstance(found, jax.Array), name
        np.testing.assert_array_equal(
            np.asarray(found), np.asarray(expected, dtype=found.dtype), err_msg=name
        )


def test_jax_keeps_64_bits_when_it_is_set_to(jax):
    code = """
        import jax, numpy as np
        jax.config.update("jax_enable_x64", True)
        import segfuse
        x = jax.numpy.zeros((1, 4, 2)), jax.numpy.zeros((2, 2)), jax.numpy.zeros((3, 2))
        value, gradients = segfuse.log_partition_and_gradients(*x)
        assert value.dtype == np.float64 and gradients.emission.dtype == np.float64
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_arrays_of_different_libraries_mix(torch):
    model = random_model()
    inputs = model.inputs()
    expected = segfuse.log_partition(**inputs)
    found = segfuse.log_partition(**inputs | {"emission": torch.from_numpy(model.emission)})
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found.numpy(), expected)


def test_float32_is_close_and_gradients_keep_its_dtype():
    model = random_model()
    single = model.inputs(lambda a: a.astype(np.float32) if a.dtype == np.float64 else a)
    value, gradients = segfuse.loss_and_gradients(**single, segments=GOLD)
    expected, exact = segfuse.loss_and_gradients(**model.inputs(), segments=GOLD)
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    for name in SCORES:
        assert getattr(gradients, name).dtype == np.float32
        np.testing.assert_allclose(getattr(gradients, name), getattr(exact, name), atol=1e-6)


def strided(array):
    """The same numbers with every axis reversed and spread out in memory."""
    space = np.full(tuple(2 * n + 1 for n in array.shape), np.nan, dtype=array.dtype)
    view = space[tuple(slice(1, None, 2) for _ in array.shape)]
    view[...] = array[tuple(slice(None, None, -1) for _ in array.shape)]
    return view[tuple(slice(None, None, -1) for _ in array.shape)]


def test_fields_of_records():
    """Their strides need not be multiples of an element."""
    records = np.zeros(4, [("tag", "u1"), ("x", "f4"), ("y", "f8"), ("n", "i4")])
    records["x"] = records["y"] = records["n"] = np.arange(4)
    triple = segfuse.compile(lambda x: x * 3)
    for field in ("x", "y", "n"):
        np.testing.assert_array_equal(triple(records[field]), np.arange(4) * 3)
        np.testing.assert_array_equal(triple(records[field][::-2]), [9, 3])
    zeros = np.zeros((2, 3, 4)), np.zeros((4, 4)), np.zeros((2, 4))
    found = segfuse.log_partition(*zeros, initial=records["y"], lengths=records["n"][1:3])
    np.testing.assert_array_equal(
        found, segfuse.log_partition(*zeros, initial=np.arange(4.0), lengths=[1, 2])
    )
    step = segfuse.Fusion("step")
    w = step.input("w", "float32", ("N",))
    new = w + 1
    step.output(new, "new")
    step.alias(new, w)
    with pytest.raises(segfuse.UsageError):  # a copy would be overwritten
        step.build()(w=records["x"])


def test_any_strides_are_read_as_they_are():
    model = random_model(by_duration=True)
    inputs = model.inputs()
    spread = {name: strided(array) for name, array in inputs.items() if name != "lengths"}
    lengths = np.array([[5, 9], [0, 9], [3, 9]])[:, 0]
    expected, exact = segfuse.log_partition_and_gradients(**inputs)
    found, gradients = segfuse.log_partition_and_gradients(**spread, lengths=lengths)
    np.testing.assert_array_equal(found, expected)
    for name in SCORES:
        np.testing.assert_array_equal(getattr(gradients, name), getattr(exact, name))


def test_transposed_and_expanded_tensors(torch):
    model = random_model(lengths=(4, 4), full=False)
    time_first = torch.from_numpy(np.ascontiguousarray(model.emission.transpose(1, 0, 2)))
    shared = torch.from_numpy(model.duration[:, :1].copy()).expand(-1, 2)
    inputs = {"transition": torch.from_numpy(model.transition), "duration": shared}
    found = segfuse.log_partition(time_first.transpose(0, 1), **inputs)
    expected = segfuse.log_partition(model.emission, model.transition, shared.numpy().copy())
    np.testing.assert_array_equal(found.numpy(), expected)


def test_read_only_arrays_are_fine():
    model = random_model()
    expected = segfuse.log_partition(**model.inputs())
    for name in SCORES:
        getattr(model, name).setflags(write=False)
    np.testing.assert_array_equal(segfuse.log_partition(**model.inputs()), expected)


@pytest.mark.parametrize("kind", [np.int32, np.int64, list])
def test_lengths_of_either_width_and_lists(kind):
    model = random_model()
    lengths = model.lengths if kind is list else np.array(model.lengths, dtype=kind)
    value = segfuse.log_partition(**model.inputs() | {"lengths": lengths})
    np.testing.assert_allclose(value, model.log_partition(), atol=1e-12)


def test_an_empty_batch():
    empty = np.zeros((0, 4, 2)), np.zeros((2, 2)), np.zeros((3, 2))
    assert segfuse.log_partition(*empty).shape == (0,)
    assert len(segfuse.viterbi(*empty)) == 0
    assert segfuse.loss(*empty, labels=np.zeros((0, 4), np.int64)).shape == (0,)
    no_frames = np.zeros((2, 0, 2)), np.zeros((2, 2)), np.zeros((3, 2))
    np.testing.assert_array_equal(segfuse.log_partition(*no_frames), [0.0, 0.0])
    value, gradients = segfuse.log_partition_and_gradients(*no_frames)
    assert gradients.emission.shape == (2, 0, 2) and (gradients.duration == 0).all()


def many_rows(seed=1):
    rng = np.random.default_rng(seed)
    shapes = (16, 200, 7), (7, 7), (12, 7)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def test_same_bits_for_any_number_of_threads():
    inputs = many_rows()
    results = []
    try:
        for threads in (1, 2, 5):
            segfuse.set_threads(threads)
            assert segfuse.get_threads() == threads
            value, gradients = segfuse.log_partition_and_gradients(*inputs)
            results.append((value, gradients.emission, gradients.transition, gradients.duration))
    finally:
        segfuse.set_threads(0)
    for other in results[1:]:
        for expected, found in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(found, expected)
    assert segfuse.get_threads() == len(os.sched_getaffinity(0))


def test_calls_from_several_python_threads():
    inputs = many_rows()
    expected = segfuse.log_partition(*inputs)
    found = [None] * 4

    def work(i):
        found[i] = segfuse.log_partition(*inputs)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for value in found:
        np.testing.assert_array_equal(value, expected)


def test_the_gil_is_released_while_the_engine_works():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(8, 20000, 40)), rng.normal(size=(40, 40)), rng.normal(size=(60, 40))
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.perf_counter()
    segfuse.log_partition(*inputs)
    end = time.perf_counter()
    stop.set()
    thread.join()
    inside = [t for t in ticks if begin + 0.01 < t < end - 0.01]
    assert len(inside) >= 1, f"no other Python code ran in {end - begin:.3f} s"


def test_a_forked_child_has_its_own_engine():
    code = """
        import os, sys, warnings
        import numpy as np, segfuse
        warnings.simplefilter("ignore")  # about fork in a process with threads
        x = np.zeros((8, 50, 3)), np.zeros((3, 3)), np.zeros((4, 3))
        segfuse.set_threads(3)
        expected = segfuse.log_partition(*x)
        child = os.fork()
        if child == 0:
            same = np.array_equal(segfuse.log_partition(*x), expected)
            os._exit(0 if same and segfuse.get_threads() == 3 else 1)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


def test_arrays_whose_meaning_would_be_lost_are_refused():
    masked = np.ma.array([[1.0, 2.0]], mask=[[False, True]])
    double = segfuse.compile(lambda x: x * x)
    emission, square = np.zeros((1, 3, 2)), np.zeros((2, 2))
    for call in (
        lambda: double(masked),
        lambda: segfuse.compile(lambda x: x + masked)(square),
        lambda: segfuse.log_partition(emission, square, np.ma.array(square)),
        lambda: segfuse.viterbi(np.ma.array(emission), square, square),
    ):
        with pytest.raises(segfuse.UsageError, match=r"a masked array, expected.*x\.filled"):
            call()
    with pytest.raises(segfuse.UsageError, match=r"numpy\.matrix.*numpy\.asarray"):
        double(square.view(np.matrix))
    with pytest.raises(segfuse.UsageError, match="dtype >f8 .* in the byte order"):
        double(np.arange(3, dtype=">f8"))


def test_another_byte_order_is_named_with_the_argument():
    function = segfuse.compile(lambda x, y: x + y)
    with pytest.raises(segfuse.UsageError, match="argument 1 is .*>f4.*byte order of this machine"):
        function(np.ones(2, "f4"), np.ones(2, ">f4"))
    outside = np.ones(2, ">f4")
    with pytest.raises(segfuse.UsageError, match="from outside .*>f4.*byte order of this machine"):
        segfuse.compile(lambda x: x + outside)(np.ones(2, "f4"))


def test_a_mask_within_a_list_is_refused():
    hidden = np.ma.array([1.0, 2.0], mask=[False, True])
    with pytest.raises(segfuse.UsageError, match="an element of a list is a masked array"):
        segfuse.compile(lambda x: x + [hidden])(np.ones(2, "f4"))
