"""The methods of `SemiCRF` as functions of its fields: `segfuse.log_partition` and others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .._errors import UsageError
from ._call import SCORES, TABLES
from ._semicrf import Array, SemiCRF

Result = TypeVar("Result")

_PLAIN = (*SCORES, *TABLES, "lengths")
_TAILED = (*_PLAIN, "tail")
_SCOPED = (*_PLAIN, "constraints", "tail")


def _function(
    method: Callable[..., Result], takes: tuple[str, ...], needs: str = ""
) -> Callable[..., Result]:
    """A function of fields of `SemiCRF` and, by their names, of the arguments of a method; `needs`
    is a field that has to be given beside the first three."""
    name, signature = method.__name__, inspect.signature(method)
    fields = dict(inspect.signature(SemiCRF).parameters)
    if needs:
        annotation = fields[needs].annotation.removesuffix(" | None")
        fields[needs] = inspect.Parameter(needs, fields[needs].kind, annotation=annotation)
    _, *own = [p.replace(kind=p.KEYWORD_ONLY) for p in signature.parameters.values()]
    parameters = [fields[field] for field in takes] + own
    arguments = [p.name for p in own]
    required = [p.name for p in parameters[3:] if p.default is p.empty]
    known = frozenset(takes)

    def function(emission: Array, transition: Array, duration: Array, **keywords: Any) -> Result:
        if missing := [key for key in required if key not in keywords]:
            count, s = len(missing), "s" if len(missing) > 1 else ""
            names = " and ".join(map(repr, missing))
            raise TypeError(f"{name}() missing {count} required keyword-only argument{s}: {names}")
        given = {key: keywords.pop(key) for key in arguments if key in keywords}
        if not keywords.keys() <= known:
            unknown = next(key for key in keywords if key not in known)
            raise TypeError(f"{name}() got an unexpected keyword argument {unknown!r}")
        return method(SemiCRF(emission, transition, duration, **keywords), **given)

    function.__name__ = function.__qualname__ = name
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {p.name: p.annotation for p in parameters}
    function.__annotations__["return"] = signature.return_annotation
    function.__doc__ = (
        f"{inspect.getdoc(method)}\n\nThis is a method of `segfuse.crf.SemiCRF`, whose help has"
        f" {', '.join(takes)}."
    )
    return function


log_partition = _function(SemiCRF.log_partition, _SCOPED)
log_partition_and_gradients = _function(SemiCRF.log_partition_and_gradients, _SCOPED)
partial_loss = _function(SemiCRF.partial_loss, _SCOPED, "constraints")
partial_loss_and_gradients = _function(SemiCRF.partial_loss_and_gradients, _SCOPED, "constraints")
loss = _function(SemiCRF.loss, _TAILED)
loss_and_gradients = _function(SemiCRF.loss_and_gradients, _TAILED)
score = _function(SemiCRF.score, _PLAIN)
segment_posteriors = _function(SemiCRF.segment_posteriors, _PLAIN)
posteriors = _function(SemiCRF.posteriors, _SCOPED)
entropy = _function(SemiCRF.entropy, _SCOPED)
boundary_within = _function(SemiCRF.boundary_within, _SCOPED)
expected_durations = _function(SemiCRF.expected_durations, _SCOPED)
viterbi = _function(SemiCRF.viterbi, _SCOPED)
k_best = _function(SemiCRF.k_best, _SCOPED)
sample = _function(SemiCRF.sample, _SCOPED)
max_marginal = _function(SemiCRF.max_marginal, _SCOPED)
minimum_risk = _function(SemiCRF.minimum_risk, _SCOPED)


def _model(name: str, scores: Mapping[str, Array], lengths: Array | None) -> SemiCRF:
    unknown = set(scores) - set(SCORES)
    if unknown:
        raise UsageError(f"{name} has {sorted(unknown)}, expected some of {list(SCORES)}")
    return SemiCRF(**dict.fromkeys(SCORES) | dict(scores), lengths=lengths)


def cross_entropy(
    p: Mapping[str, Array], q: Mapping[str, Array], *, lengths: Array | None = None
) -> Array:
    """`SemiCRF.cross_entropy` of p with q: their scores by name, such as
    ``{"emission": e, "transition": t, "duration": d}``; both have rows of these lengths."""
    return _model("p", p, lengths).cross_entropy(_model("q", q, lengths))


def kl(p: Mapping[str, Array], q: Mapping[str, Array], *, lengths: Array | None = None) -> Array:
    """`SemiCRF.kl` of p with q: scores by name, and lengths, as for `cross_entropy`."""
    return _model("p", p, lengths).kl(_model("q", q, lengths))
