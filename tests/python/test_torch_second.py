"""Second derivatives of the CRF: against an oracle of PyTorch that lists every segmentation."""

import math

import pytest
from conftest import SCORES, all_segmentations, random_model

import segfuse

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
st = pytest.importorskip("segfuse.torch")

LENGTHS = [4, 0, 2]
GOLD = [[(0, 2, 1), (2, 1, 1), (3, 1, 0)], [], [(0, 2, 0)]]
LONG_GOLD = [[(0, 3, 1), (3, 1, 0)], [], [(0, 2, 0)]]
KNOWN = segfuse.Constraints(
    labels=[[-1, 1, -1, -1]] * 3,
    boundaries=[[1, -1, -1, -1], [-1] * 4, [-1, 0, -1, -1]],
)


def satisfies(segments):
    """Whether a row's segmentation fulfils KNOWN (rows of 4 and 2 frames)."""
    length = sum(d for _, d, _ in segments)
    labels = [c for _, d, c in segments for _ in range(d)]
    starts = {s for s, _, _ in segments}
    return not segments or (labels[1] == 1 and (length == 4 or 1 not in starts))


def scores_of(case, dtype=torch.float64):
    """The scores of a case as tensors."""
    model = random_model(
        lengths=LENGTHS, longest=2, full=case != "plain", by_duration="by_duration" in case
    )
    scores = {name: getattr(model, name) for name in SCORES}
    scores = {k: torch.tensor(v, dtype=dtype) for k, v in scores.items() if v is not None}
    if "tail" in case:
        scores["tail"] = torch.tensor([-0.5, -1.0], dtype=dtype)
    if "masked" in case:
        scores["emission"][0, 3, 1] = -math.inf
        scores["transition"][0, 1] = -math.inf
        scores["start"][2, 1, 0] = -math.inf
        scores["end"][0, 0, 0] = -math.inf
    return scores


CASES = ("plain", "full", "by_duration", "tail", "by_duration tail", "masked", "masked tail")


def path_score(scores, row, segments):
    """By definition; the terms are PyTorch's."""
    zero = scores["emission"].new_zeros(())
    use = lambda name, *index: scores[name][index] if name in scores else zero  # noqa: E731
    longest = len(scores["duration"])
    total = zero
    for i, (s, frames, c) in enumerate(segments):
        d = min(frames, longest)
        total = total + scores["emission"][row, s : s + frames, c].sum()
        total = total + scores["duration"][d - 1, c] + (frames - d) * use("tail", c)
        total = total + use("start", row, s, c) + use("end", row, s + frames - 1, c)
        if i == 0:
            total = total + use("initial", c)
            continue
        before = segments[i - 1][2]
        by_duration = scores["transition"].dim() == 3
        total = total + scores["transition"][(d - 1, before, c) if by_duration else (before, c)]
    return total + (use("final", segments[-1][2]) if segments else 0.0)


def log_sum(scores, wanted=lambda segments: True):
    longest, classes = scores["duration"].shape
    rows = []
    for row, length in enumerate(LENGTHS):
        found = all_segmentations(length, length if "tail" in scores else longest, classes)
        terms = [path_score(scores, row, y) for y in found if wanted(y)]
        # A forbidden path has no derivative either.
        rows.append(torch.logsumexp(torch.stack([x for x in terms if x > -math.inf]), 0))
    return torch.stack(rows)


def gold_of(scores):
    return LONG_GOLD if "tail" in scores else GOLD


def oracle(name, scores):
    total = log_sum(scores)
    if name == "log_partition":
        return total
    if name == "constrained":
        return log_sum(scores, satisfies)
    if name == "partial_loss":
        return total - log_sum(scores, satisfies)
    paths = [path_score(scores, row, y) for row, y in enumerate(gold_of(scores))]
    return total - torch.stack(paths)


LENGTH_TENSOR = torch.tensor(LENGTHS)
FUNCTIONS = {
    "log_partition": lambda s, r: st.log_partition(**s, lengths=LENGTH_TENSOR, reduction=r),
    "constrained": lambda s, r: st.log_partition(
        **s, lengths=LENGTH_TENSOR, constraints=KNOWN, reduction=r
    ),
    "loss": lambda s, r: st.loss(**s, gold=gold_of(s), lengths=LENGTH_TENSOR, reduction=r),
    "partial_loss": lambda s, r: st.partial_loss(
        **s, constraints=KNOWN, lengths=LENGTH_TENSOR, reduction=r
    ),
}


def joined(tree):
    return torch.cat([x.flatten() for x in tree.values()])


def over_vector(scores, function):
    """A function of all scores as one of a vector, and the vector."""
    sizes = [x.numel() for x in scores.values()]

    def of_vector(x):
        parts = x.split(sizes)
        return function(
            {k: p.view(v.shape) for (k, v), p in zip(scores.items(), parts, strict=True)}
        )

    return of_vector, joined(scores)


def live(scores):
    """1 where a score may be moved."""
    return (joined(scores) > -math.inf).double()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_hessian_products_of_every_score(name, case, reduction):
    torch.manual_seed(0)
    scores = scores_of(case)
    weights = torch.tensor([0.5, 3.0, -2.0]).double()
    reduced = lambda v: v @ weights if reduction == "none" else v.mean()  # noqa: E731
    theirs, x = over_vector(scores, lambda s: reduced(oracle(name, s)))
    ours, _ = over_vector(
        scores,
        lambda s: (
            FUNCTIONS[name](s, "none") @ weights
            if reduction == "none"
            else FUNCTIONS[name](s, "mean")
        ),
    )
    x.requires_grad_()
    direction, mask = torch.randn_like(x), live(scores)
    (expected,) = torch.autograd.grad(theirs(x), x, create_graph=True)
    (gradient,) = torch.autograd.grad(ours(x), x, create_graph=True)
    torch.testing.assert_close(gradient, expected)
    (expected,) = torch.autograd.grad(expected @ (mask * direction), x)
    assert expected.abs().max() > 1e-3
    # Directions along forbidden scores lead nowhere, whatever they are.
    poisoned = torch.where(mask > 0, direction, torch.nan)
    (found,) = torch.autograd.grad(gradient, x, poisoned)
    torch.testing.assert_close(found, expected)


MODES = {
    "hessian": torch.func.hessian,
    "jacrev of jacrev": lambda f: torch.func.jacrev(torch.func.jacrev(f)),
    "jacrev of jacfwd": lambda f: torch.func.jacrev(torch.func.jacfwd(f)),
    "jacfwd of jacfwd": lambda f: torch.func.jacfwd(torch.func.jacfwd(f)),
    "autograd.functional": lambda f: lambda x: torch.autograd.functional.hessian(f, x),
    "vectorized": lambda f: lambda x: torch.autograd.functional.hessian(f, x, vectorize=True),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_hessians_in_every_mode(mode, reduction):
    scores = scores_of("tail")
    for chosen in (("emission",), ("transition", "duration", "initial", "tail")):
        part = {k: scores[k] for k in chosen}
        theirs, x = over_vector(part, lambda s: oracle("loss", scores | s).sum())
        ours, _ = over_vector(part, lambda s: FUNCTIONS["loss"](scores | s, reduction).sum())
        expected = torch.autograd.functional.hessian(theirs, x)
        torch.testing.assert_close(MODES[mode](ours)(x), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_hessians_of_each_row(name):
    scores = scores_of("full")
    part = {k: scores[k] for k in ("transition", "final")}
    theirs, x = over_vector(part, lambda s: oracle(name, scores | s))
    ours, _ = over_vector(part, lambda s: FUNCTIONS[name](scores | s, "none"))
    expected = torch.stack(
        [torch.autograd.functional.hessian(lambda y, i=i: theirs(y)[i], x) for i in range(3)]
    )
    torch.testing.assert_close(torch.func.hessian(ours)(x), expected)
    for i in range(3):
        row = torch.autograd.functional.hessian(lambda y, i=i: ours(y)[i], x)
        torch.testing.assert_close(row, expected[i])


@pytest.mark.parametrize("case", ["full", "by_duration tail"])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_gradgradcheck(case, reduction):
    scores = scores_of(case)
    for name in ("log_partition", "loss", "partial_loss"):
        leaves = [x.clone().requires_grad_() for x in scores.values()]
        function = lambda *x: FUNCTIONS[name](dict(zip(scores, x, strict=True)), reduction)  # noqa: E731
        torch.autograd.gradgradcheck(function, leaves, fast_mode=True)
        torch.autograd.gradcheck(function, leaves, fast_mode=True, check_forward_ad=True)
        torch.autograd.gradgradcheck(function, leaves, fast_mode=True, check_fwd_over_rev=True)


def test_products_of_pytorchs_own_functions():
    scores = scores_of("full")
    ours, x = over_vector(scores, lambda s: FUNCTIONS["log_partition"](s, "sum"))
    theirs, _ = over_vector(scores, lambda s: oracle("log_partition", s).sum())
    torch.manual_seed(0)
    v = torch.randn_like(x)
    for product in (torch.autograd.functional.hvp, torch.autograd.functional.vhp):
        torch.testing.assert_close(product(ours, x, v)[1], product(theirs, x, v)[1])
    _, along = torch.func.jvp(torch.func.grad(ours), (x,), (v,))
    torch.testing.assert_close(along, torch.autograd.functional.hvp(theirs, x, v)[1])


def test_float32_is_computed_in_double():
    scores, single = scores_of("tail"), scores_of("tail", torch.float32)
    products = []
    for s in (single, {k: v.double() for k, v in single.items()}):
        f, x = over_vector(s, lambda s: FUNCTIONS["log_partition"](s, "sum"))
        ones = torch.linspace(-1, 1, len(x)).to(x.dtype)
        products.append(torch.autograd.functional.hvp(f, x, ones)[1])
    assert products[0].dtype == torch.float32
    torch.testing.assert_close(products[0].double(), products[1], rtol=3e-6, atol=3e-7)
    assert scores.keys() == single.keys()


@pytest.mark.parametrize("case", ["full", "tail", "masked"])
def test_the_entropy_through_marginals(case):
    """Entropy regularisation: log Z - sum of marginal * score, differentiated."""
    scores = scores_of(case)
    ours, x = over_vector(scores, lambda s: FUNCTIONS["log_partition"](s, "sum"))
    x.requires_grad_()
    mask = live(scores)

    def entropy(f):
        value = f(x)
        (marginals,) = torch.autograd.grad(value, x, create_graph=True)
        return value - (marginals * torch.where(mask > 0, x, 0.0)).sum()

    def listed(s):
        total = log_sum(s)
        longest, classes = s["duration"].shape
        entropies = []
        for row, length in enumerate(LENGTHS):
            found = all_segmentations(length, length if "tail" in s else longest, classes)
            terms = torch.stack([path_score(s, row, y) for y in found])
            log_p = terms[terms > -math.inf] - total[row]
            entropies.append(-(log_p.exp() * log_p).sum())
        return torch.stack(entropies).sum()

    value = entropy(ours)
    theirs, _ = over_vector(scores, listed)
    torch.testing.assert_close(value, theirs(x))
    expected = segfuse.entropy(
        **{k: v.detach() for k, v in scores.items()}, lengths=LENGTH_TENSOR
    ).sum()
    torch.testing.assert_close(value.detach(), expected)
    found, wanted = (torch.autograd.grad(v, x)[0] for v in (value, theirs(x)))
    torch.testing.assert_close(found, wanted)


def test_gradients_of_each_example_can_be_differentiated():
    torch.manual_seed(0)
    scores = scores_of("full")
    examples = torch.randn(3, *scores["emission"].shape, dtype=torch.float64)

    def penalty(f):
        return lambda e: torch.func.grad(lambda y: f(y).sum())(e).square().sum()

    ours = lambda e: FUNCTIONS["loss"](scores | {"emission": e}, "none")  # noqa: E731
    theirs = lambda e: oracle("loss", scores | {"emission": e})  # noqa: E731
    found = torch.func.vmap(torch.func.grad(penalty(ours)))(examples)
    products = torch.func.vmap(
        lambda e: torch.func.jvp(torch.func.grad(lambda y: ours(y).sum()), (e,), (e,))[1]
    )(examples)
    for i in range(3):
        torch.testing.assert_close(found[i], torch.func.grad(penalty(theirs))(examples[i]))
        _, along = torch.func.jvp(
            torch.func.grad(lambda y: theirs(y).sum()), (examples[i],), (examples[i],)
        )
        torch.testing.assert_close(products[i], along)


def test_learning_to_learn_with_the_module():
    """A step of gradient descent inside the loss, differentiated: by differences."""
    torch.manual_seed(0)
    crf = st.SemiMarkovCRF(2, 3, durations="negative_binomial", tail=True).double()
    parameters = {k: v.detach() for k, v in crf.named_parameters()}
    emission, labels = torch.randn(3, 6, 2).double(), torch.randint(0, 2, (3, 6))

    def outer(e):
        inner = lambda p: torch.func.functional_call(crf, p, (e, labels))  # noqa: E731
        gradients = torch.func.grad(inner)(parameters)
        stepped = {k: v - 0.3 * gradients[k] for k, v in parameters.items()}
        return torch.func.functional_call(crf, stepped, (emission, labels))

    direction = torch.randn_like(emission)
    found = (torch.func.grad(outer)(emission) * direction).sum()
    difference = (outer(emission + 1e-5 * direction) - outer(emission - 1e-5 * direction)) / 2e-5
    torch.testing.assert_close(found, difference, rtol=1e-6, atol=1e-8)


def test_a_penalty_on_the_gradient_reaches_the_parameters():
    torch.manual_seed(0)
    crf = st.SemiMarkovCRF(2, 3, boundary_scores=True)
    emission, labels = torch.randn(2, 5, 6, requires_grad=True), torch.tensor([[0, 0, 1, 1, 1]] * 2)

    def penalty():
        (gradient,) = torch.autograd.grad(crf(emission, labels), emission, create_graph=True)
        return gradient.square().sum()

    penalty().backward()
    with torch.no_grad():
        p = crf.durations.theta
        before = p.clone()
        step = torch.randn_like(p)
        expected = (p.grad * step).sum()
        p.copy_(before + 1e-2 * step)
    after = penalty().detach()
    with torch.no_grad():
        p.copy_(before - 1e-2 * step)
    torch.testing.assert_close((after - penalty().detach()) / 2e-2, expected, rtol=1e-2, atol=1e-4)


def test_rows_without_a_path_have_no_second_derivative():
    emission = torch.zeros(2, 3, 2).double()
    emission[1] = -math.inf
    emission.requires_grad_()
    shared = torch.zeros(2, 2).double().requires_grad_(), torch.zeros(2, 2).double()
    value = st.log_partition(emission, *shared)
    gradients = torch.autograd.grad(value.sum(), (emission, shared[0]), create_graph=True)
    found = torch.autograd.grad(sum((g * g).sum() for g in gradients), (emission, shared[0]))
    assert torch.equal(found[0][1], torch.zeros(3, 2).double())
    assert all(torch.isfinite(x).all() for x in found)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_weights_that_are_not_finite_are_seen(reduction):
    emission = torch.randn(2, 3, 2).double().requires_grad_()
    value = st.log_partition(emission, torch.zeros(2, 2).double(), torch.zeros(2, 2).double())
    scale = torch.tensor([math.inf, 1.0] if reduction == "none" else math.inf).double()
    value = value if reduction == "none" else value.mean()
    (gradient,) = torch.autograd.grad(value, emission, scale, create_graph=True)
    (found,) = torch.autograd.grad(gradient.sum(), emission)
    assert torch.isnan(found[0]).all()
    if reduction == "none":
        assert torch.isfinite(found[1]).all()


THIRD = {
    "jacfwd": lambda f, x: torch.func.jacfwd(torch.func.hessian(f))(x),
    "jacrev": lambda f, x: torch.func.jacrev(torch.func.hessian(f))(x),
    "grad of hvp": lambda f, x: torch.func.grad(
        lambda y: torch.func.jvp(torch.func.grad(f), (y,), (torch.ones_like(y),))[1].sum()
    )(x),
    "grad of curvature": lambda f, x: torch.func.grad(
        lambda y: torch.func.jvp(
            lambda z: torch.func.jvp(f, (z,), (torch.ones_like(z),))[1], (y,), (torch.ones_like(y),)
        )[1]
    )(x),
}


@pytest.mark.parametrize("which", THIRD)
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_third_derivatives_are_refused_in_every_mode(which, reduction):
    scores = scores_of("full")
    f = lambda e: FUNCTIONS["loss"](scores | {"emission": e}, reduction).sum()  # noqa: E731
    with pytest.raises(RuntimeError, match="segfuse computes first and second derivatives only"):
        THIRD[which](f, scores["emission"])


def test_create_graph_thrice_is_refused():
    scores = scores_of("full")
    x = scores["emission"].requires_grad_()
    value = FUNCTIONS["loss"](scores, "mean")
    for _ in range(2):
        (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="segfuse computes first and second derivatives only"):
        value.sum().backward()


def test_operations_pass_opcheck():
    scores = scores_of("full")
    along = [x.clone() for x in scores.values()]
    leaves = [x.requires_grad_() for x in scores.values()]
    no = (None, None, None)  # two tables and a tail
    inputs = (*leaves, *no, LENGTH_TENSOR, *[None] * 11, -100, False, False)
    weights = torch.ones(3).double()
    for operation, arguments in {
        "derivative": (*inputs, *along, *no),
        "curvature": (*inputs, *along, *no, *along, *no),
        "hessian_product": (weights, *inputs, *along, *no, 127),
    }.items():
        # Its gradients by the scores are refused, which the last check would try.
        utils = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(getattr(torch.ops.segfuse, operation), arguments, test_utils=utils)
