"""The CRF as one value: its methods are the functions of `segfuse`."""

import dataclasses
import inspect

import numpy as np
import pytest
from conftest import SCORES, random_model

import segfuse
from segfuse import Constraints, SemiCRF

LABELS = np.array([[0, 0, 1, 1, 1], [-100] * 5, [1, 0, 0, -100, -100]])
ROWS = [[(0, 2, 0), (2, 3, 1)], [], [(0, 1, 1), (1, 2, 0)]]
KNOWN = Constraints(labels=np.array([[-1, 0, -1, 1, -1]] * 3))
WEIGHTS = [1.0, 0.5, -2.0]

# method: arguments, and whether it takes constraints, and a tail
METHODS = {
    "log_partition": ({}, True, True),
    "log_partition_and_gradients": ({"weights": WEIGHTS}, True, True),
    "partial_loss": ({}, True, True),
    "partial_loss_and_gradients": ({"weights": WEIGHTS}, True, True),
    "loss": ({"labels": LABELS}, False, True),
    "loss_and_gradients": ({"segments": ROWS, "weights": WEIGHTS}, False, True),
    "score": ({"labels": LABELS}, False, False),
    "segment_posteriors": ({"segments": ROWS}, False, False),
    "posteriors": ({}, True, True),
    "entropy": ({}, True, True),
    "boundary_within": ({"tolerance": 1}, True, True),
    "expected_durations": ({}, True, True),
    "viterbi": ({}, True, True),
    "k_best": ({"n": 3}, True, True),
    "sample": ({"n": 3, "seed": 5}, True, True),
    "max_marginal": ({"ignore": -7}, True, True),
    "minimum_risk": ({"tolerance": 1}, True, True),
}


def flat(result):
    """All arrays in a result."""
    if result is None or isinstance(result, int):
        return []
    if isinstance(result, segfuse.SegmentationLists):
        return [result.list_pointer, *flat(result.segmentations)]
    if isinstance(result, tuple):
        return [array for part in result for array in flat(part)]
    if hasattr(result, "__slots__"):
        return [a for name in result.__slots__ for a in flat(getattr(result, name))]
    return [result]


def model_with(scope):
    model = random_model()
    tail = np.array([-0.5, -1.0]) if "tail" in scope else None
    return model.inputs() | {
        "constraints": KNOWN if "constraints" in scope else None,
        "tail": tail,
    }


@pytest.mark.parametrize("scope", [(), ("constraints",), ("tail",), ("constraints", "tail")])
@pytest.mark.parametrize("name", METHODS)
def test_functions_are_methods(name, scope):
    arguments, *takes = METHODS[name]
    fields = model_with(scope)
    refused = [f for f, taken in zip(("constraints", "tail"), takes, strict=True) if not taken]
    method = getattr(SemiCRF(**fields), name)
    if set(refused) & set(scope):
        message = f"{name} is for models without {next(f for f in refused if f in scope)}"
        with pytest.raises(segfuse.UsageError, match=message):
            method(**arguments)
        return
    expected = flat(method(**arguments))
    given = {field: x for field, x in fields.items() if field not in refused}
    found = flat(getattr(segfuse, name)(**given, **arguments))
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", METHODS)
def test_the_signatures_of_functions(name):
    parameters = inspect.signature(getattr(segfuse, name)).parameters
    kinds = [p.kind for p in parameters.values()]
    assert list(parameters)[:3] == ["emission", "transition", "duration"]
    assert kinds[:3] == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * 3
    assert set(kinds[3:]) == {inspect.Parameter.KEYWORD_ONLY}
    arguments, constraints, tail = METHODS[name]
    assert set(parameters) >= {*SCORES, "lengths", *arguments}
    assert ("constraints" in parameters, "tail" in parameters) == (constraints, tail)


def test_mistaken_keywords_are_told_as_python_tells_them():
    e, t, d = np.zeros((1, 2, 1)), np.zeros((1, 1)), np.zeros((2, 1))
    for call, message in [
        (lambda: segfuse.loss(e, t, d, constraints=None), r"loss\(\) got an unexpected .* 'constr"),
        (lambda: segfuse.viterbi(e, t, d, other=1), r"viterbi\(\) got an unexpected .* 'other'"),
        (lambda: segfuse.k_best(e, t, d), r"k_best\(\) missing 1 required keyword-only .*: 'n'"),
        (lambda: segfuse.sample(e, t, d), r"missing 2 required .* arguments: 'n' and 'seed'"),
        (lambda: segfuse.partial_loss(e, t, d), "missing 1 required .*: 'constraints'"),
        (lambda: segfuse.entropy(e, t), "missing 1 required positional argument: 'duration'"),
    ]:
        with pytest.raises(TypeError, match=message):
            call()


def test_a_value_holds_the_arrays_and_nothing_else():
    model = random_model()
    crf = SemiCRF(**model.inputs())
    assert crf.emission is model.emission and crf.tail is None
    assert repr(crf).startswith("SemiCRF(emission (3, 5, 2), transition (2, 2), duration (3, 2), ")
    before = crf.log_partition()
    model.emission[0, 0, 0] += 1.0
    assert (crf.log_partition() != before)[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        crf.emission = model.emission
    known = dataclasses.replace(crf, constraints=KNOWN)
    np.testing.assert_allclose(known.partial_loss(), crf.log_partition() - known.log_partition())
    assert (
        SemiCRF(None, None, None).emission is None
    )  # nothing is checked before a method is called
    with pytest.raises(segfuse.UsageError, match="emission is of type NoneType"):
        SemiCRF(None, None, None).log_partition()


def test_two_models():
    p, q = (SemiCRF(**random_model(seed).inputs()) for seed in (1, 2))
    scores = [{name: getattr(crf, name) for name in SCORES} for crf in (p, q)]
    np.testing.assert_array_equal(p.kl(q), segfuse.kl(*scores, lengths=p.lengths))
    cross = segfuse.cross_entropy(*scores, lengths=p.lengths)
    np.testing.assert_array_equal(p.cross_entropy(q), cross)
    np.testing.assert_allclose(p.kl(p), 0.0, atol=1e-12)
    with pytest.raises(segfuse.UsageError, match="batch 1 has 0 frames in one model and 1 in"):
        p.kl(dataclasses.replace(q, lengths=[5, 1, 3]))
    with pytest.raises(segfuse.UsageError, match="kl of a dict, expected a SemiCRF"):
        p.kl(scores[1])
    with pytest.raises(segfuse.UsageError, match="cross_entropy is for models without tail"):
        p.cross_entropy(dataclasses.replace(q, tail=np.zeros(2)))


def test_arrays_of_the_library_of_emission_come_back(torch, jax):
    for convert, kind in ((torch.from_numpy, torch.Tensor), (jax.numpy.asarray, jax.Array)):
        crf = SemiCRF(**random_model().inputs(convert))
        found = [crf.log_partition(), crf.entropy(), crf.viterbi().start, crf.k_best(2)[0].score]
        assert all(isinstance(array, kind) for array in found)


def test_jax_tracers_are_refused_by_the_crf_which_names_segfuse_jax(jax):
    tables = np.zeros((2, 2), np.float32)
    with pytest.raises(
        segfuse.UsageError, match="inside a JAX transformation; there take the CRF's functions from"
    ):
        jax.jit(lambda x: SemiCRF(x, tables, tables).viterbi().start)(
            np.zeros((1, 3, 2), np.float32)
        )


# --- with PyTorch's autograd ---


def tensors(torch, **more):
    inputs = random_model().inputs(torch.from_numpy) | more
    for name in SCORES:
        inputs[name].requires_grad_()
    return inputs


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("name", ["log_partition", "loss", "partial_loss"])
def test_losses_are_differentiable_as_the_functions_are(torch, name, reduction):
    st = pytest.importorskip("segfuse.torch")
    inputs = tensors(torch)
    gold = {"loss": {"labels": torch.from_numpy(LABELS)}}.get(name, {})
    known = {"constraints": KNOWN} if name == "partial_loss" else {}
    value = getattr(st.SemiCRF(**inputs, **known), name)(**gold, reduction=reduction)
    found = torch.autograd.grad(value.sum(), [inputs[n] for n in SCORES])
    weights = [1.0 / 3 if reduction == "mean" else 1.0] * 3
    plain = {n: x.detach() for n, x in inputs.items()} | known
    rows, expected = getattr(segfuse, f"{name}_and_gradients")(**plain, **gold, weights=weights)
    rows = rows if reduction == "none" else (rows * torch.tensor(weights)).sum()
    torch.testing.assert_close(value.detach(), rows, check_dtype=False)
    for n, gradient in zip(SCORES, found, strict=True):
        torch.testing.assert_close(gradient, getattr(expected, n))
    arguments = {"loss": (torch.from_numpy(LABELS),), "partial_loss": (KNOWN,)}.get(name, ())
    by_position = getattr(st, name)(*list(inputs.values())[:3], *arguments, **{
        n: inputs[n] for n in (*SCORES[3:], "lengths")}, reduction=reduction)  # fmt: skip
    torch.testing.assert_close(by_position, value)


def test_a_module_gives_its_model(torch):
    st = pytest.importorskip("segfuse.torch")
    layer = st.SemiMarkovCRF(2, 3, boundary_scores=True, tail=True)
    emission = torch.randn(2, 6, layer.num_scores, requires_grad=True)
    lengths = torch.tensor([6, 4])
    crf = layer.distribution(emission, lengths)
    assert isinstance(crf, SemiCRF)
    gold = [[(0, 4, 1), (4, 2, 0)], [(0, 4, 0)]]
    torch.testing.assert_close(crf.loss(segments=gold), layer(emission, gold, lengths))
    crf.loss(segments=gold).backward()
    assert emission.grad is not None and layer.tail_logit.grad is not None
    with torch.no_grad():
        assert crf.viterbi() == layer.decode(emission, lengths)
        assert len(crf.sample(3, seed=1)[0]) == 3
    with pytest.raises(segfuse.UsageError, match="requires a gradient.*segfuse.torch"):
        crf.entropy()


def test_values_of_tensors_take_half_precision_and_refuse_the_rest(torch):
    st = pytest.importorskip("segfuse.torch")
    half = {n: x.detach().bfloat16() if n in SCORES else x for n, x in tensors(torch).items()}
    crf = st.SemiCRF(**half)
    assert crf.emission.dtype == torch.float32
    assert crf.loss(torch.from_numpy(LABELS)).dtype == torch.float32
    assert len(crf.viterbi()) == 3
    with pytest.raises(
        segfuse.UsageError, match="transition is a ndarray, expected a torch.Tensor"
    ):
        st.SemiCRF(**half | {"transition": np.zeros((2, 2))})
    for name in ("duration", "lengths"):
        mixed = st.SemiCRF(**half | {name: half[name].to("meta")})
        with pytest.raises(segfuse.UsageError, match="found tensors on the meta device beside oth"):
            mixed.loss(torch.from_numpy(LABELS))
    with pytest.raises(segfuse.UsageError, match="either labels or segments"):
        crf.loss()
    with pytest.raises(segfuse.UsageError, match="loss is for models without constraints"):
        dataclasses.replace(crf, constraints=KNOWN).loss(torch.from_numpy(LABELS))
