"""Layers of PyTorch in programs: values and gradients against PyTorch's own."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch import nn

import segfuse
from segfuse.torch._convolution import convolution
from segfuse.torch._pooling import max_pool, mean_pool
from segfuse.torch._recurrent import recurrence
from segfuse.torch._recurrent import write as recurrent_layer


def check(ours, theirs, *arrays):
    """Both functions of these arrays, and what a weighted sum of each result tells the arrays."""
    tensors = [torch.from_numpy(a).requires_grad_() for a in arrays]
    expected = theirs(*tensors)
    draw = np.random.default_rng(9)
    weights = [draw.normal(size=y.shape).astype(np.float32) for y in expected]

    def loss(*values):
        made = ours(*values)
        total = sum((y * w).sum() for y, w in zip(made, weights, strict=True))
        return total, tuple(made)

    argnums = tuple(range(len(arrays)))
    run = segfuse.compile(segfuse.value_and_grad(loss, argnums=argnums, has_aux=True))
    (_, made), gradients = run(*arrays)
    sum((y * torch.from_numpy(w)).sum() for y, w in zip(expected, weights, strict=True)).backward()
    for found, y in zip(made, expected, strict=True):
        assert found.shape == tuple(y.shape)
        np.testing.assert_allclose(found, y.detach(), atol=1e-5, rtol=1e-5)
    for found, x in zip(gradients, tensors, strict=True):
        np.testing.assert_allclose(found, x.grad, atol=2e-5, rtol=1e-4)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "projection"),
    [("lstm", 0), ("lstm", 2), ("gru", 0), ("rnn_tanh", 0), ("rnn_relu", 0)],
)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
def test_a_recurrent_layer_is_pytorchs(kind, projection, bias, reverse):
    states, inputs, gates = 4, 3, {"lstm": 4, "gru": 3}.get(kind, 1)
    outputs = projection or states
    arrays = [normal(1, 7, 2, inputs), normal(2, 2, outputs), normal(3, 2, states)]
    shapes = [(gates * states, inputs), (gates * states, outputs)]
    shapes += [(gates * states,), (gates * states,)] if bias else []
    shapes += [(projection, states)] if projection else []
    arrays += [0.5 * normal(10 + i, *shape) for i, shape in enumerate(shapes)]
    torch_layer = recurrence._init_fn  # PyTorch's own, which has gradients

    def ours(x, h, c, *weights):
        y, last_h, last_c = recurrent_layer(x, h, c, list(weights), kind, reverse)
        return [y, last_h, last_c] if kind == "lstm" else [y, last_h, 0 * c]

    def theirs(x, h, c, *weights):
        y, last_h, last_c = torch_layer(x, h, c, list(weights), kind, reverse)
        return [y, last_h, last_c] if kind == "lstm" else [y, last_h, 0 * c]

    check(ours, theirs, *arrays)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [(2, 2, 0, 1), (3, 1, 1, 1), (3, 2, 1, 1), (2, 3, 0, 1), (3, 1, 1, 2), (1, 1, 0, 1)],
)
def test_pooling_is_pytorchs(kernel, stride, padding, dilation):
    x = normal(1, 2, 3, 1, 12)
    x[0, :, :, 4:8] = np.maximum(x[0, :, :, 4:8], 0)  # equal values: the first has the gradient
    two = [[1, size] for size in (kernel, stride)] + [[0, padding], [1, dilation]]
    check(
        lambda x: [max_pool(x, *two)[0]],
        lambda x: [F.max_pool1d(x[:, :, 0], kernel, stride, padding, dilation)[:, :, None]],
        x,
    )
    if dilation > 1:
        return
    for whole in (True, False):
        check(
            lambda x, whole=whole: [mean_pool(x, *two[:3], False, whole)],
            lambda x, whole=whole: [
                F.avg_pool1d(x[:, :, 0], kernel, stride, padding, False, whole)[:, :, None]
            ],
            x,
        )


def test_pooling_over_two_axes_takes_the_first_of_equals_and_nan():
    x = np.random.default_rng(1).integers(0, 3, (2, 3, 6, 8)).astype(np.float32)
    check(
        lambda x: [max_pool(x, [2, 3], [2, 1], [1, 1])[0]],
        lambda x: [F.max_pool2d(x, (2, 3), (2, 1), (1, 1))],
        x,
    )
    x[0, 0, 2, 2] = np.nan
    (found,) = segfuse.compile(lambda x: (max_pool(x, [2, 3], [2, 1])[0],))(x)
    np.testing.assert_array_equal(found, F.max_pool2d(torch.from_numpy(x), (2, 3), (2, 1)))


@pytest.mark.parametrize(
    ("kernel", "how"),
    [
        ((2,), {"stride": 2}),
        ((4,), {"stride": 2, "padding": 1}),
        ((3,), {"padding": 1}),
        ((5,), {"stride": 3, "padding": 4, "output_padding": 2, "groups": 2}),
        ((1,), {"stride": 2, "output_padding": 1}),
        ((3,), {"stride": 2, "padding": 3, "dilation": 2, "output_padding": 1, "groups": 4}),
        ((3, 2), {"stride": (2, 1), "padding": (0, 1), "groups": 2}),
    ],
)
def test_a_transposed_convolution_is_pytorchs(kernel, how):
    torch.manual_seed(1)
    layer = [nn.ConvTranspose1d, nn.ConvTranspose2d][len(kernel) - 1](4, 8, kernel, **how)
    sizes = [layer.stride, layer.padding, layer.dilation, True, layer.output_padding, layer.groups]
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()

    def theirs(x, weight, bias):
        function = [F.conv_transpose1d, F.conv_transpose2d][len(kernel) - 1]
        stride, padding, dilation, _, output_padding, groups = sizes
        return [function(x, weight, bias, stride, padding, output_padding, groups, dilation)]

    x = normal(1, 2, 4, *(6, 5)[: len(kernel)])
    check(lambda *given: [convolution(*given, *sizes)], theirs, x, weight, bias)


def test_what_pooling_does_not_have_is_named():
    module = nn.Sequential(nn.AvgPool1d(3, 1, 1, ceil_mode=True))
    how = {"labels": ["a", "b", "c"], "features": {"kind": "values", "frame_rate": 50}}
    with pytest.raises(segfuse.UsageError, match=r"avg_pool2d.* in 0: its ceil_mode is True"):
        segfuse.Model.from_torch(module, **how, channels=3)
