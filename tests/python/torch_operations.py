"""PyTorch's own samples of its operations, through parts of segfuse, against PyTorch."""

import collections
import contextlib
import importlib.util
import itertools
import sys
import types
import unittest
import warnings

import torch
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils import _pytree as pytree

from segfuse.torch._compile import backend, divide

if importlib.util.find_spec("expecttest") is None:  # only PyTorch's own tests need it
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase

from torch.testing._internal.common_methods_invocations import op_db

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.bool)
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 4e-2, torch.float16: 4e-3}
RANDOM = ("dropout", "rand", "normal", "bernoulli", "multinomial", "uniform", "rrelu", "cauchy",
          "exponential", "geometric", "empty", "svd_lowrank", "pca_lowrank", "new_empty",
          "log_normal")  # fmt: skip


@contextlib.contextmanager
def parts_of_one():
    """A part may have a single operation."""
    before, divide.FEWEST = divide.FEWEST, 1
    try:
        yield
    finally:
        divide.FEWEST = before


def compiled(function, watch=None):
    """The function by AOTAutograd: with parts of segfuse if somebody watches them, else plain."""

    def compiler(graph, _):
        if watch is None:
            return make_boxed_func(graph.forward)
        with parts_of_one():
            divided = divide.divide(graph, "test", backend.settings(None, None))
        watch.append(divided)
        return make_boxed_func(divided.module.forward)

    return aot_function(
        function, compiler, compiler, min_cut_rematerialization_partition,
        decompositions=backend.decompositions(),
    )  # fmt: skip


def flat_function(op, sample):
    """The operation as a function of its floats and of all tensors."""
    tree, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, x in enumerate(tree) if isinstance(x, torch.Tensor)]

    def function(*tensors):
        leaves = list(tree)
        for place, x in zip(places, tensors, strict=True):
            leaves[place] = x
        first, args, kwargs = pytree.tree_unflatten(leaves, spec)
        results = pytree.tree_leaves(op(first, *args, **kwargs))
        return [x for x in results if isinstance(x, torch.Tensor)]

    return function, [tree[i].detach() for i in places]


def with_gradients(function):
    """Results, and the gradients of a weighed sum of them by all floats."""

    def both(*tensors):
        wanted = [x.detach().requires_grad_() if x.is_floating_point() else x for x in tensors]
        results = function(*wanted)
        differentiable = [x for x in results if x.requires_grad]
        floats = [x for x in wanted if x.requires_grad]
        if not differentiable or not floats:
            return [x.detach() for x in results]
        weights = [torch.ones_like(x) * 0.75 for x in differentiable]
        found = torch.autograd.grad(differentiable, floats, weights, allow_unused=True)
        return [x.detach() for x in results] + [x for x in found if x is not None]

    return both


def _layout(x):
    """Type, sizes, and those strides that say something."""
    says = [size > 1 and x.numel() > 0 for size in x.shape]
    return x.dtype, tuple(x.shape), [n for n, said in zip(x.stride(), says, strict=True) if said]


def difference(found, expected):
    """A sentence about the first difference, or None."""
    if len(found) != len(expected):
        return f"{len(found)} results, expected {len(expected)}"
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        if _layout(a) != _layout(b):
            return f"result {i} is {_layout(a)}, expected {_layout(b)}"
        tolerance = TOLERANCE.get(b.dtype, 0)
        if not torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True):
            worst = (a.double() - b.double()).abs().max().item() if a.numel() else 0
            return f"result {i} differs by {worst:.3g}"
    return None


Outcome = collections.namedtuple("Outcome", "status text operations")


def try_sample(op, sample):
    """right, left (no operation ran in a part), wrong or skipped (PyTorch cannot trace it)."""
    try:
        function, tensors = flat_function(op, sample)
        if any(x.layout is not torch.strided for x in tensors):
            return Outcome("skipped", "not dense", set())
        expected = with_gradients(function)(*[x.clone() for x in tensors])
        plain = with_gradients(compiled(function))(*[x.clone() for x in tensors])
        text = difference(plain, expected)
    except Exception as error:
        return Outcome("skipped", f"{type(error).__name__}: {error}"[:200], set())
    if text is not None:  # what PyTorch's decompositions give without segfuse is not ours
        return Outcome("skipped", f"PyTorch's decomposition: {text}", set())
    graphs = []
    try:
        found = with_gradients(compiled(function, graphs))(*[x.clone() for x in tensors])
    except Exception as error:
        return Outcome("wrong", f"{type(error).__name__}: {error}"[:300], set())
    ran = {node.target for graph in graphs for part in graph.parts for node in part.steps}
    text = difference(found, expected)
    if text is not None:
        return Outcome("wrong", text, ran)
    return Outcome("right" if ran else "left", "", ran)


def sweep(names=None, dtypes=DTYPES, most=None, only_table=True):
    """(operation, dtype, outcome) of the samples of PyTorch's operations."""
    warnings.simplefilter("ignore")
    for info in op_db:
        if names is not None and info.name not in names:
            continue
        if any(word in info.name for word in RANDOM):
            continue
        for dtype in dtypes:
            if dtype not in info.dtypes:
                continue
            torch.manual_seed(1)
            try:
                samples = info.sample_inputs("cpu", dtype, requires_grad=False)
                samples = list(itertools.islice(samples, most))
            except Exception:
                continue
            for sample in samples:
                yield info, dtype, sample, try_sample(info.op, sample)
