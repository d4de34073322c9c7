"""Comparison of compiled functions of PyTorch with eager ones."""

import copy

import torch

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2}


def close(found, expected, tolerance=None):
    assert type(found) is type(expected)
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            close(a, b, tolerance)
    elif isinstance(expected, torch.Tensor):
        assert found.shape == expected.shape and found.dtype == expected.dtype
        if not expected.dtype.is_floating_point:
            assert torch.equal(found, expected)
            return
        tolerance = tolerance or TOLERANCE.get(expected.dtype, 2e-3)
        scale = expected.detach().abs().double()
        scale = scale[scale.isfinite()].max().item() if scale.isfinite().any() else 1.0
        torch.testing.assert_close(
            found, expected, rtol=0, atol=tolerance * max(scale, 1e-6), equal_nan=True
        )
    else:
        assert found == expected


def leaves(args, dtype=None):
    """Copies of arguments; floats require gradients."""
    return [
        a.detach().clone().to(dtype or a.dtype).requires_grad_()
        if isinstance(a, torch.Tensor) and a.is_floating_point() else copy.copy(a)
        for a in args
    ]  # fmt: skip


def weighed(results):
    """A scalar that depends on every element of every float."""
    total = 0.0
    for x in torch.utils._pytree.tree_leaves(results):
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.requires_grad:
            weights = torch.linspace(-1, 1.3, max(x.numel(), 1), dtype=torch.float64)
            total = total + (x.double() * weights[: x.numel()].view(x.shape)).sum()
    return total


def gradients(results, tensors):
    total = weighed(results)
    if not isinstance(total, torch.Tensor):
        return []
    wanted = [x for x in tensors if isinstance(x, torch.Tensor) and x.requires_grad]
    found = torch.autograd.grad(total, wanted, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]
