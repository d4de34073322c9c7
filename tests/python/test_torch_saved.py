"""What PyTorch's backward passes read again, of the CRF and of compiled functions."""

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
