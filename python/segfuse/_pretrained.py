"""Trained models that lie beside segfuse, found by their names."""

from __future__ import annotations

import dataclasses

from . import _native


@dataclasses.dataclass(frozen=True)
class PretrainedModel:
    """What is known of a pretrained model; `Model.load(name)` reads it.

    Attributes:
        name: what stands for the model wherever a path to one is taken.
        title: what it labels.
        recordings: what it was trained on.
        sample_rate: in Hz.
        hop_ms: the time from frame to frame.
        labels: in the order of its posteriors.
        licence: of the model, and what its data ask for.
        figure: how good it is on recordings that it was not trained on.
        bytes: the size of its file.
        sha256: of its file; a file with another one is refused.
        path: its file.
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
        """Its card, as Markdown: data, licence, split, figures, uses and limits."""
        return _native.pretrained_card(self.name)


def models() -> list[PretrainedModel]:
    """The pretrained models that are found: in the folders that SEGFUSE_MODELS names (with colons
    between them), and in the package segfuse-models (`pip install 'segfuse[models]'`).

    Raises:
        DataError: an index of models is malformed, or a folder of SEGFUSE_MODELS has none.
    """
    return [PretrainedModel(*row) for row in _native.pretrained_models()]
