"""Pretrained models, which are found by their names."""

from __future__ import annotations

import dataclasses

from . import _native


@dataclasses.dataclass(frozen=True)
class PretrainedModel:
    """The description of a pretrained model; `Model.load(name)` reads the model.

    Attributes:
        name: the name, which can be used wherever a path of a model is expected.
        title: what the model labels.
        recordings: the recordings that it was trained on.
        sample_rate: the sample rate in Hz.
        hop_ms: the time from a frame to the next, in milliseconds.
        labels: the labels, in the order of the columns of posteriors.
        licence: the licence of the model, and the terms of its data.
        figure: its error on recordings that it was not trained on.
        bytes: the size of its file.
        sha256: the hash of its file; `Model.load` refuses a file with another hash.
        path: the path of its file.
    """

    name: str
    title: str
    recordings: str
    sample_rate: int
    hop_ms: float
    labels: list[str]
    licence: str
    figure: str
    bytes: int
    sha256: str
    path: str

    @property
    def card(self) -> str:
        """The card of the model, as Markdown: data, licence, split, figures, uses and limits."""
        return _native.pretrained_card(self.name)


def models() -> list[PretrainedModel]:
    """Lists the installed pretrained models: those in the folders of SEGFUSE_MODELS (separated by
    colons) and in the package segfuse-models (`pip install 'segfuse[models]'`).

    Raises:
        DataError: an index of models is malformed, or a folder of SEGFUSE_MODELS has no index.
    """
    return [PretrainedModel(*row) for row in _native.pretrained_models()]
