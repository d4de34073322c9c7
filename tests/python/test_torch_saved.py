"""What PyTorch's backward passes read again, of the CRF and of compiled functions."""

import numpy as np
import pytest

import segfuse
import segfuse.ops as sf

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
st = pytest.importorskip("segfuse.torch")
checkpoint = torch.utils.checkpoint.checkpoint


def operands():
    torch.manual_seed(1)
    return (
        torch.randn(3, 4, dtype=torch.float64, requires_grad=True),
        torch.randn(4, 2, dtype=torch.float64, requires_grad=True),
    )


compiled = segfuse.compile(lambda x, w: sf.tanh(x @ w))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_a_compiled_function(reentrant):
    x, w = operands()
    for function in (compiled, lambda x, w: compiled(torch.sin(x), w).square()):
        expected = torch.autograd.grad(function(x, w).sum(), (x, w))
        checkpoint(function, x, w, use_reentrant=reentrant).sum().backward()
        for tensor, gradient in zip((x, w), expected, strict=True):
            assert torch.equal(tensor.grad, gradient)
            tensor.grad = None


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_checkpointing_the_crf(reentrant, reduction):
    torch.manual_seed(1)
    layer = st.SemiMarkovCRF(3, 5)
    emission = torch.randn(2, 12, 3, requires_grad=True)
    labels = torch.zeros(2, 12, dtype=torch.int64)
    labels[:, 4:] = 2
    labels[:, 8:] = 1

    def loss(emission):
        return layer.loss(emission, labels, reduction=reduction).sum()

    expected = torch.autograd.grad(loss(emission), (emission, layer.transition))
    checkpoint(loss, emission, use_reentrant=reentrant).backward()
    assert torch.equal(emission.grad, expected[0])
    assert torch.equal(layer.transition.grad, expected[1])


# --- what changes between a call and its backward pass


def test_tensors_that_changed_are_an_error_as_in_pytorch():
    captured = torch.ones(3)
    product, scaled = segfuse.compile(lambda x, y: x * y), segfuse.compile(lambda x: x * captured)
    for function, other in ((lambda x, y: product(x, y), torch.ones(3)), (None, captured)):
        x = torch.ones(3, requires_grad=True)
        value = (scaled(x) if function is None else function(x, other)).sum()
        other.mul_(10)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.backward()


@pytest.mark.parametrize("where", ["argument", "outside"])
def test_arrays_of_numpy_may_change(where):
    """First and second derivatives, by reverse and by forward mode, are those of the call."""
    array = np.array([2.0, 3.0, 4.0])
    cube = segfuse.compile(lambda x, y=array: x**3 * y)
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    for expected in (array.copy(), np.full(3, 10.0)):  # a second call reads anew
        value = cube(x, array) if where == "argument" else cube(x)
        array[:] = 100.0
        (first,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        np.testing.assert_array_equal(first.detach(), 3 * expected)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        np.testing.assert_array_equal(second.detach(), 6 * expected)
        (third,) = torch.autograd.grad(second.sum(), x)
        np.testing.assert_array_equal(third, 6 * expected)
        array[:] = 10.0


def test_arrays_from_outside_under_transforms():
    array, tensor = np.array([2.0, 3.0]), torch.tensor([5.0, 7.0], dtype=torch.float64)
    function = segfuse.compile(lambda x: (x**2 * array * tensor).sum())
    plain = lambda x: (x**2 * torch.from_numpy(array) * tensor).sum()  # noqa: E731
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    many = torch.stack([x, x + 1])
    for transform in (torch.func.grad, torch.func.jacfwd, torch.func.hessian):
        torch.testing.assert_close(transform(function)(x), transform(plain)(x))
        torch.testing.assert_close(
            torch.func.vmap(transform(function))(many), torch.func.vmap(transform(plain))(many)
        )


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_gold_and_lengths_of_numpy_may_change(reduction):
    layer, emission = st.SemiMarkovCRF(3, 5), torch.randn(2, 6, 3, requires_grad=True)
    arrays = {
        "labels": np.repeat([[0, 1, 2]], 2, 0).repeat(2, 1),
        "lengths": np.array([6, 4]),
        "start": np.array([0, 2, 0]),
    }
    segments = segfuse.Segmentations(
        np.array([0, 2, 3]), arrays["start"], np.array([2, 4, 4]), np.array([1, 0, 2])
    )
    known = segfuse.Constraints(labels=arrays["labels"])
    for call in (
        lambda: layer.loss(emission, arrays["labels"], reduction=reduction),
        lambda: layer.loss(emission, segments, lengths=arrays["lengths"], reduction=reduction),
        lambda: st.partial_loss(
            emission, layer.transition, layer.durations(), known, reduction=reduction
        ),
    ):
        value = call().sum()
        (expected,) = torch.autograd.grad(call().sum(), emission)
        kept = {name: array.copy() for name, array in arrays.items()}
        for array in arrays.values():
            array[:] = 0
        assert torch.equal(torch.autograd.grad(value, emission)[0], expected)
        for name, array in kept.items():
            arrays[name][:] = array


# --- what modules keep


def moved_to_its_first_place():
    with torch.device("meta"):
        layer = st.SemiMarkovCRF(3, 12, durations="buckets")
    layer.to_empty(device="cpu")
    layer.reset_parameters()
    layer.durations._index = layer.durations._index.to("meta")  # as if `theta` came from elsewhere
    return layer


def test_a_module_that_decoded_first_can_be_trained():
    layer, emission = moved_to_its_first_place(), torch.randn(2, 12, 3)
    with torch.inference_mode():
        layer.decode(emission)
    layer(emission, torch.zeros(2, 12, dtype=torch.int64)).backward()
    assert layer.durations.theta.grad.abs().sum() > 0


def test_magnitudes_are_taken_in_and_out_of_inference_mode():
    lane = pytest.importorskip("segfuse.torch._watch.lane")
    lanes, values = lane.Lanes(), torch.tensor([1.0, -3.0])
    with torch.inference_mode():
        slots = lanes.reduce([values])
    slots += lanes.reduce([2 * values])
    lanes.send()
    assert [slot.value() for slot in slots] == [3.0, 6.0]
