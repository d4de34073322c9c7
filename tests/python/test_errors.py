"""Bad input raises ValueError with one clear sentence, which says what, and what to do."""

import numpy as np
import pytest
from conftest import random_model

import segfuse


def inputs(**changes):
    return random_model(lengths=(5, 4), full=True).inputs() | changes


def with_value(name, index, value):
    array = inputs()[name].copy()
    array[index] = value
    return {name: array}


LABELS = np.array([[0, 0, 1, 1, 1], [1, 0, 0, 0, -100]])

# changes of the inputs, class, what the message has to hold
BAD_SCORES = [
    ({"emission": np.zeros((5, 2))}, "UsageError", r"emission has shape \(5, 2\), expected \(B, T"),
    ({"emission": [[[0.0]]]}, "UsageError", "emission is of type list, expected a NumPy, JAX or"),
    ({"emission": None}, "UsageError", "emission is of type NoneType"),
    ({"emission": "scores"}, "UsageError", "emission is of type str"),
    ({"emission": np.zeros((2, 5, 2), int)}, "UsageError", "emission is int64, expected float32"),
    ({"emission": np.zeros((2, 5, 2), complex)}, "UsageError", "emission is complex128"),
    ({"emission": np.zeros((2, 5, 2), bool)}, "UsageError", "emission is bool"),
    ({"emission": np.zeros((2, 5, 2), np.uint8)}, "UsageError", "emission is uint8"),
    (
        {"emission": np.zeros((2, 5, 2), object)},
        "UsageError",
        "emission is of type ndarray of dtype object",
    ),
    ({"emission": np.zeros((2, 5, 0))}, "UsageError", "at least one class"),
    ({"transition": np.zeros((2, 3))}, "UsageError", r"transition has shape \(1, 2, 3\), expected"),
    ({"transition": np.zeros((2, 2, 2))}, "UsageError", r"transition has shape \(2, 2, 2\)"),
    ({"transition": np.zeros(2)}, "UsageError", r"transition has shape \(2,\), expected \(C, C\)"),
    ({"transition": None}, "UsageError", "transition is of type NoneType"),
    ({"transition": np.zeros((2, 2), np.float32)}, "UsageError", "transition is float32, but emis"),
    ({"duration": np.zeros((3, 4))}, "UsageError", r"duration has shape \(3, 4\), expected \(K, C"),
    ({"duration": np.zeros((0, 2))}, "UsageError", "duration has 0 rows"),
    ({"duration": np.zeros(3)}, "UsageError", r"duration has shape \(3,\), expected \(K, C\)"),
    ({"initial": np.zeros(3)}, "UsageError", "initial has shape"),
    ({"initial": np.zeros((1, 2))}, "UsageError", r"initial has shape \(1, 2\), expected \(C,\)"),
    ({"final": np.zeros(1)}, "UsageError", "final has shape"),
    ({"start": np.zeros((2, 4, 2))}, "UsageError", r"start has shape \(2, 4, 2\), expected \(B, T"),
    ({"end": np.zeros((1, 5, 2))}, "UsageError", r"end has shape \(1, 5, 2\), expected \(B, T, C"),
    ({"lengths": [5]}, "UsageError", "lengths has 1 elements, expected 2"),
    ({"lengths": [5, 6]}, "UsageError", r"length 6 of batch 1 is not in \[0, 5\]"),
    ({"lengths": [-1, 4]}, "UsageError", r"length -1 of batch 0 is not in \[0, 5\]"),
    ({"lengths": [5.0, 4.0]}, "UsageError", "lengths holds float64 numbers, expected integers"),
    (
        {"lengths": np.array([5.0, 4.0])},
        "UsageError",
        "lengths is float64, expected int32 or int64",
    ),
    ({"lengths": np.array([5, 4], np.int16)}, "UsageError", "lengths is int16, expected int32"),
    ({"lengths": np.array([[5, 4]])}, "UsageError", r"lengths has shape \(1, 2\), expected \(B,\)"),
    (
        with_value("emission", (1, 2, 1), np.nan),
        "DataError",
        "emission at batch 1, time 2, class 1 is nan; scores are finite or -inf",
    ),
    (
        with_value("emission", (0, 4, 0), np.inf),
        "DataError",
        "emission at batch 0, time 4, class 0 is inf",
    ),
    (with_value("start", (1, 0, 1), np.nan), "DataError", "start at batch 1, time 0, class 1 is n"),
    (with_value("end", (0, 1, 0), np.nan), "DataError", "end at batch 0, time 1, class 0 is nan"),
    (with_value("transition", (1, 0), np.nan), "DataError", r"transition\[1, 0\] is nan"),
    (with_value("duration", (2, 1), np.inf), "DataError", r"duration\[2, 1\] is inf"),
    (with_value("initial", 1, np.nan), "DataError", r"initial\[1\] is nan"),
    (with_value("final", 0, np.nan), "DataError", r"final\[0\] is nan"),
]


@pytest.mark.parametrize(
    "function",
    [
        segfuse.log_partition,
        segfuse.log_partition_and_gradients,
        segfuse.posteriors,
        segfuse.entropy,
        segfuse.viterbi,
    ],
)
@pytest.mark.parametrize(
    ("changes", "error", "message"), BAD_SCORES, ids=[message for _, _, message in BAD_SCORES]
)
def test_bad_scores_and_lengths(function, changes, error, message):
    with pytest.raises(ValueError, match=message) as caught:
        function(**inputs(**changes))
    assert type(caught.value) is getattr(segfuse, error)
    assert "\n" not in str(caught.value)


BAD_GOLD = [
    ({"labels": LABELS, "segments": []}, "UsageError", "either labels or segments"),
    ({}, "UsageError", "either labels or segments"),
    ({"labels": LABELS[0]}, "UsageError", r"labels has shape \(5,\), expected \(B, T\) = \(2, 5\)"),
    ({"labels": LABELS[:, :4]}, "UsageError", r"labels has shape \(2, 4\), expected \(B, T\)"),
    ({"labels": LABELS[:1]}, "UsageError", r"labels has shape \(1, 5\), expected \(B, T\)"),
    ({"labels": LABELS.astype(float)}, "UsageError", "labels is float64, expected int32 or int64"),
    ({"labels": LABELS + 1}, "DataError", r"batch 0, time 2: label 2 is not in \[0, 2\)"),
    (
        {"labels": LABELS * 0},
        "DataError",
        "label 0 runs for 5 frames, the longest segment has 3; raise K or split",
    ),
    ({"labels": LABELS - 5}, "DataError", r"label -5 is not in \[0, 2\)"),
    ({"labels": LABELS, "long_runs": "cut"}, "UsageError", "long_runs is 'cut', expected"),
    (
        {"segments": [[(0, 3, 0), (3, 2, 1)]]},
        "UsageError",
        "row pointer .* has 2 elements, expected",
    ),
    (
        {"segments": [[(0, 3, 0), (3, 2, 1)], [(0, 3, 1), (2, 2, 0)]]},
        "DataError",
        "segment 1 of batch 1 starts at 2, expected 3: segments tile",
    ),
    (
        {"segments": [[(0, 3, 0)], [(0, 2, 1), (2, 2, 0)]]},
        "DataError",
        "segments of batch 0 end at frame 3, the row at 5",
    ),
    ({"segments": [[(0, 3, 0), (3, 3, 1)], []]}, "DataError", r"covers frames 3 to 6, outside"),
    (
        {"segments": [[(0, 4, 0), (4, 1, 1)], []]},
        "DataError",
        "segment 0 of batch 0 has 4 frames, but the model allows 1 to 3; raise K",
    ),
    ({"segments": [[(0, 3, 0), (3, 2, 2)], []]}, "DataError", r"has label 2, expected \[0, 2\)"),
    ({"segments": [[(0, 3)], []]}, "UsageError", "a segment of batch 0 has 2 numbers, expected"),
    ({"segments": [[(0, 1.5, 0)], []]}, "UsageError", "segments holds float64 numbers"),
    (
        {"segments": segfuse.Segmentations([0, 1], [0], [3], [])},
        "UsageError",
        "1 starts, 1 durations and 0 labels",
    ),
    (
        {"segments": segfuse.Segmentations([1, 1], [0], [3], [0])},
        "UsageError",
        "row_pointer runs from 1 to 1, expected 0 to 1",
    ),
    (
        {"segments": segfuse.Segmentations([0, 2, 1], [0], [3], [0])},
        "UsageError",
        "row_pointer decreases at batch 1",
    ),
    ({"segments": segfuse.Segmentations([], [], [], [])}, "UsageError", "row_pointer is empty"),
    (
        {"segments": segfuse.Segmentations([0, 1], [2**40], [3], [0])},
        "UsageError",
        "is 1099511627776, which is out of range",
    ),
]


@pytest.mark.parametrize("function", [segfuse.loss, segfuse.loss_and_gradients, segfuse.score])
@pytest.mark.parametrize(
    ("gold", "error", "message"), BAD_GOLD, ids=[message for _, _, message in BAD_GOLD]
)
def test_bad_gold(function, gold, error, message):
    with pytest.raises(ValueError, match=message) as caught:
        function(**inputs(), **gold)
    assert type(caught.value) is getattr(segfuse, error)


def test_labels_after_padding():
    labels = np.array([[0, 0, -100, 1, 1], [1, 0, 0, 0, -100]])
    with pytest.raises(segfuse.DataError, match="batch 0, time 3: label 1 after ignored frames"):
        segfuse.loss(**inputs(lengths=None), labels=labels)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], "weights has 1 elements, expected 2"),
        ([1.0, np.nan], "weight nan of batch 1 is not finite"),
        ([[1.0, 2.0]], r"weights has shape \(1, 2\)"),
    ],
)
def test_bad_weights(weights, message):
    with pytest.raises(segfuse.UsageError, match=message):
        segfuse.log_partition_and_gradients(**inputs(), weights=weights)


def test_bad_number_of_threads():
    with pytest.raises(segfuse.UsageError, match="found -1 threads"):
        segfuse.set_threads(-1)


def test_bad_priors():
    zeros = np.zeros((2, 2))
    with pytest.raises(segfuse.UsageError, match="found -1 rows"):
        segfuse.sample_prior(zeros, zeros, rows=-1, min_frames=3, seed=0)
    with pytest.raises(segfuse.UsageError, match="tables disagree"):
        segfuse.sample_prior(zeros, np.zeros((2, 3)), rows=1, min_frames=3, seed=0)
    with pytest.raises(segfuse.UsageError, match="no successor"):
        segfuse.sample_prior(zeros - np.inf, zeros, rows=1, min_frames=9, seed=0)


def test_tensors_that_require_a_gradient(torch):
    model = random_model(lengths=(5, 4))
    x = model.inputs(torch.from_numpy)
    x["transition"].requires_grad_()
    for function in (segfuse.log_partition, segfuse.posteriors, segfuse.entropy):
        with pytest.raises(
            segfuse.UsageError, match="transition requires a gradient.*segfuse.torch"
        ):
            function(**x)
        with torch.no_grad():
            function(**x)
    segfuse.viterbi(**x)
    segfuse.log_partition_and_gradients(**x)


def test_values_inside_jax_transformations(jax):
    model = random_model(lengths=(5, 4), full=False)

    def traced(emission):
        return segfuse.log_partition(emission, model.transition, model.duration)

    with pytest.raises(segfuse.UsageError, match="emission is a value inside a JAX transformation"):
        jax.jit(traced)(model.emission)


def test_devices_without_an_engine(torch):
    model = random_model(lengths=(5, 4), full=False)
    x = model.inputs(torch.from_numpy)
    with pytest.raises(segfuse.UsageError, match="emission lies on the meta device"):
        segfuse.log_partition(**x | {"emission": x["emission"].to("meta")})


def test_sums_that_overflow():
    x = random_model(lengths=(5, 4), full=False).inputs()
    x["emission"] = np.full_like(x["emission"], 1.7e308)
    by_duration = np.repeat(x["transition"][None], len(x["duration"]), 0)
    for transition in (x["transition"], by_duration):
        for function in (segfuse.log_partition, segfuse.posteriors, segfuse.viterbi):
            with pytest.raises(segfuse.DataError, match="add up to more than a double holds"):
                function(**x | {"transition": transition})


def masked(values):
    return np.ma.masked_array(values, np.zeros_like(values, dtype=bool))


def test_masked_arrays(torch, jax):
    """A mask is refused wherever an array comes in; it would get lost in silence."""
    import segfuse.jax
    import segfuse.torch

    x, ones = random_model(lengths=(5, 4)).inputs(), np.ones((2, 3), np.float32)
    calls = [
        (f"{name} is", lambda name=name: segfuse.log_partition(**x | {name: masked(x[name])}))
        for name in x
    ]
    crf = segfuse.torch.SemiMarkovCRF(num_classes=2, max_duration=3)
    fusion = segfuse.Fusion()
    value = fusion.input("x", "float32", (2, 3))
    plain = (x["emission"], x["transition"], x["duration"])
    calls += [
        ("labels is", lambda: segfuse.loss(**x, labels=masked(LABELS))),
        (
            "weights is",
            lambda: segfuse.log_partition_and_gradients(**x, weights=masked(np.ones(2))),
        ),
        ("an argument is", lambda: segfuse.compile(lambda x: x + 1)(masked(ones))),
        ("an argument is", lambda: segfuse.compile(lambda x: x + masked(ones))(ones)),
        ("an argument is", lambda: value + masked(ones)),
        ("repeat: repeats is", lambda: segfuse.ops.repeat(value, masked(np.array([1, 2])), 0)),
        ("digitize: bins is", lambda: segfuse.ops.digitize(value, masked(np.array([1.0, 2.0])))),
        ("lengths is", lambda: crf(torch.zeros(2, 5, 2), LABELS, masked(np.array([5, 4])))),
        ("emission is", lambda: segfuse.jax.log_partition(masked(plain[0]), *plain[1:])),
    ]
    for what, call in calls:
        with pytest.raises(segfuse.UsageError, match=f"{what} a masked array, expected an array"):
            call()


def test_error_classes():
    assert issubclass(segfuse.UsageError, ValueError) and issubclass(segfuse.DataError, ValueError)
    assert issubclass(segfuse.DeviceError, RuntimeError)
    for name in ("UsageError", "DataError", "DeviceError", "InternalError"):
        assert issubclass(getattr(segfuse, name), segfuse.Error)
        assert getattr(segfuse, name).__module__ == "segfuse"
