"""PyTorch's transforms: torch.func and forward-mode differentiation, of the CRF and of compiled functions."""

import itertools

import numpy as np
import pytest
from conftest import SCORES, random_model

import segfuse
import segfuse.ops as sf

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
st = pytest.importorskip("segfuse.torch")
forward_ad = torch.autograd.forward_ad

LENGTHS = torch.tensor([5, 0, 3])
LABELS = torch.tensor([[0, 0, 1, 1, 1], [-100] * 5, [1, 0, 0, -100, -100]])
SEGMENTS = [[(0, 2, 1), (2, 1, 1), (3, 2, 0)], [], [(0, 3, 0)]]
KNOWN = segfuse.Constraints(labels=[[-1, 1, -1, 0, -1]] * 3, transitions=[[True, True]] * 2)


def scores_of(*, by_duration=False):
    model = random_model(by_duration=by_duration)
    scores = {name: torch.tensor(getattr(model, name)) for name in SCORES}
    return scores | {"tail": torch.tensor([-0.5, -1.0], dtype=torch.float64)}


FUNCTIONS = {
    "log_partition": lambda s, r: st.log_partition(**s, lengths=LENGTHS, reduction=r),
    "constrained": lambda s, r: st.log_partition(
        **s, lengths=LENGTHS, constraints=KNOWN, reduction=r
    ),
    "loss": lambda s, r: st.loss(**s, gold=LABELS, lengths=LENGTHS, reduction=r),
    "loss of segments": lambda s, r: st.loss(**s, gold=SEGMENTS, lengths=LENGTHS, reduction=r),
    "partial_loss": lambda s, r: st.partial_loss(
        **s, constraints=KNOWN, lengths=LENGTHS, reduction=r
    ),
}
every = pytest.mark.parametrize(
    ("name", "reduction"), list(itertools.product(FUNCTIONS, ("none", "mean", "sum")))
)


def central_difference(function, scores, tangents, step=1e-6):
    ends = [
        function(
            {k: v + sign * step * tangents[k] if k in tangents else v for k, v in scores.items()}
        )
        for sign in (1, -1)
    ]
    return (ends[0] - ends[1]) / (2 * step)


@every
def test_jvp_is_the_derivative_along_every_score(name, reduction):
    torch.manual_seed(0)
    scores = scores_of(by_duration=name == "loss")
    function = lambda s: FUNCTIONS[name](s, reduction)  # noqa: E731
    for chosen in [(k,) for k in scores] + [("emission", "start", "end"), tuple(scores)]:
        tangents = {k: torch.randn_like(scores[k]) for k in chosen}
        value, derivative = torch.func.jvp(
            lambda t: function(scores | t),
            ({k: scores[k] for k in chosen},),
            (tangents,),
        )
        torch.testing.assert_close(value, function(scores))
        expected = central_difference(function, scores, tangents)
        assert expected.abs().max() > 1e-7 or chosen == ("tail",)
        torch.testing.assert_close(derivative, expected, rtol=1e-6, atol=1e-7)


@every
@pytest.mark.parametrize("requires_grad", [False, True])
def test_dual_tensors_carry_their_tangents(name, reduction, requires_grad):
    scores = {k: v.requires_grad_(requires_grad) for k, v in scores_of().items()}
    tangent = torch.ones_like(scores["emission"])
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(scores["emission"], tangent)
        value = FUNCTIONS[name](scores | {"emission": dual}, reduction)
        found = forward_ad.unpack_dual(value).tangent
    expected = central_difference(
        lambda s: FUNCTIONS[name](s, reduction), scores, {"emission": tangent}
    )
    torch.testing.assert_close(found, expected.detach(), rtol=1e-6, atol=1e-7)
    if requires_grad:  # and the reverse mode of the same value is as ever
        (gradient,) = torch.autograd.grad(value.sum(), scores["emission"], retain_graph=True)
        assert gradient.abs().sum() > 0 or "partition" not in name


@every
def test_grad_vjp_and_jacobians(name, reduction):
    scores = scores_of()
    total = lambda s: FUNCTIONS[name](s, reduction).sum()  # noqa: E731
    leaves = {k: v.clone().requires_grad_() for k, v in scores.items()}
    expected = dict(
        zip(leaves, torch.autograd.grad(total(leaves), list(leaves.values())), strict=True)
    )
    for found in (
        torch.func.grad(total)(scores),
        torch.func.vjp(total, scores)[1](torch.tensor(1.0).double())[0],
    ):
        for k, gradient in expected.items():
            torch.testing.assert_close(found[k], gradient)
    rows = lambda s: FUNCTIONS[name](s, reduction)  # noqa: E731
    backwards, forwards = torch.func.jacrev(rows)(scores), torch.func.jacfwd(rows)(scores)
    for k, gradient in expected.items():
        summed = backwards[k] if reduction != "none" else backwards[k].sum(0)
        torch.testing.assert_close(summed, gradient)
        torch.testing.assert_close(forwards[k], backwards[k])


@every
@pytest.mark.parametrize("batched", ["emission", "transition", "both"])
def test_vmap_and_gradients_of_examples(name, reduction, batched):
    torch.manual_seed(0)
    scores = scores_of()
    names = ("emission", "transition") if batched == "both" else (batched,)
    examples = {k: torch.randn(4, *scores[k].shape, dtype=torch.float64) for k in names}
    function = lambda t: FUNCTIONS[name](scores | t, reduction)  # noqa: E731
    gradient = torch.func.grad(lambda t: function(t).sum())
    found, gradients = torch.func.vmap(function)(examples), torch.func.vmap(gradient)(examples)
    for i in range(4):
        one = {k: v[i] for k, v in examples.items()}
        assert torch.equal(found[i], function(one))  # the same bits as alone
        alone = gradient(one)
        for k in names:
            torch.testing.assert_close(gradients[k][i], alone[k], rtol=0, atol=0)


def test_gradients_of_each_row_by_a_module():
    """The way of opacus and of torch.func's tutorial: vmap(grad) over functional_call."""
    torch.manual_seed(0)
    crf = st.SemiMarkovCRF(3, 4, durations="negative_binomial", tail=True)
    parameters = {k: v.detach() for k, v in crf.named_parameters()}
    emission, labels = torch.randn(5, 7, 3), torch.arange(7).remainder(3).expand(5, -1)

    def loss(p, e, y):
        return torch.func.functional_call(crf, p, (e[None], y[None]))

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(
        parameters, emission, labels
    )
    for i in range(5):
        crf.zero_grad()
        crf(emission[i : i + 1], labels[i : i + 1]).backward()
        for k, p in crf.named_parameters():
            torch.testing.assert_close(each[k][i], p.grad)


def test_forward_mode_inside_a_compiled_graph_is_never_zero():
    scores = scores_of()
    function = torch.compile(
        lambda e: FUNCTIONS["loss"](scores | {"emission": e}, "mean"), backend="aot_eager"
    )
    ones = torch.ones_like(scores["emission"])
    expected = central_difference(
        lambda s: FUNCTIONS["loss"](s, "mean"), scores, {"emission": ones}
    )
    try:
        _, found = torch.func.jvp(function, (scores["emission"],), (ones,))
    except Exception:  # PyTorch refuses it today
        return
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def inside_transforms(function, x):
    """The same call under each transform."""
    ones = torch.ones_like(x)

    def dual():
        with forward_ad.dual_level():
            return function(forward_ad.make_dual(x, ones))

    return {
        "jvp": lambda: torch.func.jvp(function, (x,), (ones,)),
        "dual": dual,
        "grad": lambda: torch.func.grad(lambda y: function(y).sum())(x),
        "vmap": lambda: torch.func.vmap(function)(x[None]),
    }


@pytest.mark.parametrize("transform", ["jvp", "dual", "grad", "vmap"])
def test_the_plain_functions_lose_no_derivative_in_silence(transform):
    scores = {k: v for k, v in scores_of().items() if k != "emission"}
    plain = [
        lambda e: segfuse.log_partition(e, **scores),
        lambda e: segfuse.loss(e, **scores, labels=LABELS),
        lambda e: segfuse.posteriors(e, **scores).label,
        lambda e: segfuse.partial_loss(e, **scores, constraints=KNOWN),
        lambda e: segfuse.entropy(e, **scores),
    ]
    for function in plain:
        with pytest.raises(ValueError, match="emission .*, which this function does not record"):
            inside_transforms(function, scores_of()["emission"])[transform]()


# --- compiled functions


def layer(x, w):
    y = sf.tanh(x @ w)
    return y, (y * x.sum()).sum(0), sf.argmax(y, -1)


def torch_layer(x, w):
    y = torch.tanh(x @ w)
    return y, (y * x.sum()).sum(0), y.argmax(-1)


def operands():
    torch.manual_seed(1)
    return torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)


def close(found, expected):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_compiled_functions_have_tangents():
    compiled, (x, w) = segfuse.compile(layer), operands()
    tangents = torch.randn_like(x), torch.randn_like(w)
    for primals, along in (((x, w), tangents), ((x, w), (tangents[0], torch.zeros_like(w)))):
        for found, expected in zip(
            torch.func.jvp(lambda *a: compiled(*a)[:2], primals, along),
            torch.func.jvp(lambda *a: torch_layer(*a)[:2], primals, along),
            strict=True,
        ):
            close(found, expected)
    with forward_ad.dual_level():
        y, _, index = compiled(forward_ad.make_dual(x, tangents[0]), w)
        expected, _, at = torch_layer(forward_ad.make_dual(x, tangents[0]), w)
        torch.testing.assert_close(
            forward_ad.unpack_dual(y).tangent, forward_ad.unpack_dual(expected).tangent
        )
        assert torch.equal(index, at)


def test_compiled_functions_under_every_transform():
    compiled, (x, w) = segfuse.compile(layer), operands()
    ours, theirs = (lambda x, w, f=f: f(x, w)[1].square().sum() for f in (compiled, torch_layer))
    for argnums in (0, 1, (0, 1)):
        found, expected = (torch.func.grad(f, argnums)(x, w) for f in (ours, theirs))
        close(*((v if isinstance(v, tuple) else (v,)) for v in (found, expected)))
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        close(
            *(jacobian(lambda x, w: f(x, w)[:2], (0, 1))(x, w)[0] for f in (compiled, torch_layer))
        )
    many = torch.randn(5, 3, 4, dtype=torch.float64)
    close(*(torch.func.vmap(f, in_dims=(0, None))(many, w) for f in (compiled, torch_layer)))
    close(
        *(
            (torch.func.vmap(torch.func.grad(f), in_dims=(0, None))(many, w),)
            for f in (ours, theirs)
        )
    )
    close(*((torch.func.hessian(f)(x, w),) for f in (ours, theirs)))
    vector = torch.ones_like(x)
    close(
        *(
            torch.func.jvp(torch.func.grad(lambda x, f=f: f(x, w)), (x,), (vector,))
            for f in (ours, theirs)
        )
    )


def test_what_a_compiled_function_captures_loses_no_derivative_in_silence():
    x, w = operands()

    def outer(v):
        return segfuse.compile(lambda x: x @ v)(x)

    for transform in ("jvp", "dual", "grad", "vmap"):
        with pytest.raises(ValueError, match="an array from outside the function"):
            inside_transforms(outer, w)[transform]()
    w.requires_grad_()
    for first in (x, x.clone().requires_grad_()):  # an argument with a gradient hides none
        with pytest.raises(ValueError, match="an array from outside the function requires a grad"):
            segfuse.compile(lambda x: x @ w)(first)


def test_programs_lose_no_derivative_in_silence():
    f = segfuse.Fusion()
    f.output(sf.exp(f.input("x", "float64", ("N",))), "y")
    program = f.build()
    for transform in ("jvp", "dual", "grad", "vmap"):
        with pytest.raises(ValueError, match="the input 'x'"):
            inside_transforms(lambda v: program(v)[0], torch.ones(3).double())[transform]()
    np.testing.assert_allclose(program(torch.zeros(2).double())[0], 1)


def test_compiled_functions_in_the_vmap_of_autograd():
    """Which PyTorch's functions before torch.func use."""
    compiled, (x, w) = segfuse.compile(layer), operands()
    ours, theirs = (lambda x, w, f=f: f(x, w)[0] for f in (compiled, torch_layer))
    functional = torch.autograd.functional
    for strategy in ("reverse-mode", "forward-mode"):
        jacobians = (
            functional.jacobian(f, (x, w), vectorize=True, strategy=strategy)
            for f in (ours, theirs)
        )
        close(*jacobians)
    hessians = (
        functional.hessian(lambda x, w, f=f: f(x, w).square().sum(), (x, w), vectorize=True)
        for f in (ours, theirs)
    )
    for found, expected in zip(*hessians, strict=True):
        close(found, expected)
    x.requires_grad_()
    cotangents = torch.randn(5, 3, 2, dtype=torch.float64)
    close(
        *(
            torch.autograd.grad(f(x, w), x, cotangents, is_grads_batched=True)
            for f in (ours, theirs)
        )
    )
