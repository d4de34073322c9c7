"""Trained models: from samples to segments; and how they are trained and measured."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from . import _native
from ._errors import UsageError
from ._numbers import seed_of, whole

Path = str | os.PathLike[str]


class Segment(NamedTuple):
    """A segment that a model found.

    `posterior` is the probability of this very segment (start, end and label) under a semi-Markov
    model, else the mean label posterior of its frames; `label_posterior` the mean over its frames
    of the probability of its label; `start_confidence` the probability of a boundary near its start
    (NaN for a linear chain). Times are in seconds.
    """

    start: float
    end: float
    label: str
    posterior: float
    label_posterior: float
    start_confidence: float


class ScoredSegments(NamedTuple):
    """A segmentation as (start, end, label) in seconds, and its log-probability."""

    log_probability: float
    segments: list[tuple[float, float, str]]


@dataclass(frozen=True)
class Prediction:
    """What a model says of one recording.

    Attributes:
        segments: in time order, without gaps.
        seconds: the length of the recording.
        log_probability: of the segments under the model; NaN for a softmax.
        best: the `k_best` likeliest segmentations, best first, where they were asked for.
        samples: segmentations drawn from the model, where they were asked for.
        label_posteriors: (T, C) float32, P(frame t has label c), where asked for.
        boundary_posteriors: (T,) float32, P(a segment starts at frame t), where asked for; None for
            a linear chain.
    """

    segments: list[Segment]
    seconds: float
    log_probability: float
    best: list[ScoredSegments] = field(default_factory=list)
    samples: list[ScoredSegments] = field(default_factory=list)
    label_posteriors: np.ndarray | None = None
    boundary_posteriors: np.ndarray | None = None

    @classmethod
    def _of(cls, found: tuple[Any, ...]) -> Prediction:
        segments, seconds, log_probability, best, samples, label, boundary = found
        return cls(
            [Segment(*segment) for segment in segments],
            seconds,
            log_probability,
            [ScoredSegments(*one) for one in best],
            [ScoredSegments(*one) for one in samples],
            label,
            boundary,
        )


def _is_path(recording: object) -> bool:
    return isinstance(recording, (str, os.PathLike))


_MEAN, _ONLY, _STACK = -1, -2, -3  # as AudioOptions of segfuse/data.h


def _samples_of(recording: object, channel: int, name: str) -> np.ndarray:
    """What the model takes of it, as float32 in [-1, 1): integers are scaled as those of files."""
    samples = np.asarray(recording)
    if samples.ndim == 2 and 0 <= channel < samples.shape[1]:
        samples = samples[:, channel]
    if samples.ndim != 1 and not (samples.ndim == 2 and channel in (_MEAN, _STACK)):
        raise UsageError(
            f"{name} has shape {samples.shape}, expected (samples,), one channel; choose one of "
            "several, as recording[:, 0]"
        )
    if samples.dtype in (np.int16, np.int32):
        samples = samples / 2.0 ** (8 * samples.dtype.itemsize - 1)
    elif samples.dtype not in (np.float16, np.float32, np.float64):
        raise UsageError(
            f"{name} is {samples.dtype}, expected samples of float16, float32 or float64 in "
            "[-1, 1), or of int16 or int32"
        )
    if samples.ndim == 2 and channel == _MEAN:
        samples = samples.mean(1)
    return np.ascontiguousarray(samples, dtype=np.float32)


class Model:
    """A trained model, read from the file that a training wrote.

    ```python
    model = segfuse.Model.load("runs/finch/model.safetensors")
    for segment in model.decode(samples, 32000).segments:
        print(segment.start, segment.end, segment.label, segment.posterior)
    ```

    Calls of several threads run one after another. What is decoded does not depend on the
    recordings beside it, nor on the number of threads (`segfuse.set_threads`).

    Attributes:
        labels: the labels, in the order of the columns of posteriors.
        sample_rate: in Hz, to which recordings of other rates are resampled.
        hop_seconds: the time that a frame of the posteriors covers.
        head: "semi_markov", "linear_chain" or "softmax".
        max_duration: K, the longest segment in frames.
        parameter_count: how many numbers were trained.
        configuration: the settings of its training, as TOML.
        metrics: of the training that returned it, as in metrics.json; else None.
    """

    def __init__(self, native: _native.Model, metrics: dict[str, Any] | None = None) -> None:
        self._native = native
        self.metrics = metrics

    @classmethod
    def load(cls, path: Path, *, device: str = "", channel: int | str | None = None) -> Model:
        """Reads `path`, a model.safetensors or the directory of a training.

        `device` is "cpu", "cuda" or "cuda:1" ("": the default, or SEGFUSE_DEVICE). `channel` (a
        number from 0, or "mean") is what is taken of files with several channels.

        Raises:
            DataError: the file is no model of this version of segfuse.
        """
        return cls(_native.Model(os.fspath(path), device, "" if channel is None else str(channel)))

    @property
    def labels(self) -> list[str]:
        return self._native.labels

    @property
    def sample_rate(self) -> int:
        return self._native.sample_rate

    @property
    def hop_seconds(self) -> float:
        return self._native.hop_seconds

    @property
    def head(self) -> str:
        return self._native.head

    @property
    def max_duration(self) -> int:
        return self._native.max_duration

    @property
    def parameter_count(self) -> int:
        return self._native.parameter_count

    @property
    def configuration(self) -> str:
        return self._native.configuration

    def __repr__(self) -> str:
        return (
            f"segfuse.Model({len(self.labels)} labels, {self.head}, {self.sample_rate} Hz, "
            f"{self.parameter_count} parameters)"
        )

    def decode(
        self,
        recording: Any,
        sample_rate: int | None = None,
        *,
        minimum_risk: bool = False,
        posteriors: bool = False,
        k_best: int = 0,
        samples: int = 0,
        seed: int = 0,
    ) -> Prediction:
        """Segments a recording: the samples of one channel with their rate, or an audio file.

        A recording of another rate than the model's is resampled.

        Args:
            recording: (samples,) of float32 or float64 in [-1, 1), or of int16 or int32; or a path.
                (samples, channels) where the model says what it takes of several channels.
            sample_rate: in Hz, of samples; of a file None.
            minimum_risk: the best expected boundary F1 instead of the likeliest segmentation.
            posteriors: also the probabilities of labels and boundaries by frame.
            k_best: so many of the likeliest segmentations.
            samples: so many segmentations drawn from the model, with `seed`.

        Raises:
            UsageError: an array of another shape or dtype, or no sample rate.
            DataError: the recording cannot be read, a sample is not finite, or there is no
                segmentation.
        """
        how = _native.InferenceOptions(
            minimum_risk,
            posteriors,
            whole("k_best", k_best, 0),
            whole("samples", samples, 0),
            seed_of(seed),
        )
        if _is_path(recording):
            if sample_rate is not None:
                raise UsageError(
                    f"sample_rate={sample_rate} was given for the file "
                    f"{os.fspath(recording)!r}, which says its own; leave it out"
                )
            return Prediction._of(self._native.decode_file(os.fspath(recording), how))
        if sample_rate is None:
            raise UsageError(
                "no sample_rate was given for an array of samples; pass theirs in Hz, as "
                "decode(samples, 16000)"
            )
        array = _samples_of(recording, self._native.channel, "the recording")
        rate = whole("sample_rate", sample_rate, 1, (1 << 31) - 1)
        return Prediction._of(self._native.decode([array], rate, "the recording", how)[0])

    def decode_all(
        self, recordings: Sequence[Any], sample_rate: int, *, posteriors: bool = False
    ) -> list[Prediction]:
        """Segments several arrays of samples of one rate at once, which is faster than one by one.

        The results are those of `decode`.
        """
        how = _native.InferenceOptions(False, posteriors, 0, 0, 0)
        arrays = [
            _samples_of(one, self._native.channel, f"recording {i}")
            for i, one in enumerate(recordings)
        ]
        rate = whole("sample_rate", sample_rate, 1, (1 << 31) - 1)
        found = self._native.decode(arrays, rate, "a recording", how)
        return [Prediction._of(one) for one in found]

    def posteriors(self, recording: Any, sample_rate: int | None = None) -> np.ndarray:
        """(T, C) float32: P(frame t has label c). The arguments are those of `decode`."""
        found = self.decode(recording, sample_rate, posteriors=True).label_posteriors
        assert found is not None
        return found


def _setting(key: str, value: object) -> str:
    """ "section.key=value" with the value as TOML."""
    if isinstance(value, bool):
        return f"{key}={'true' if value else 'false'}"
    if isinstance(value, (int, float, np.integer, np.floating)):
        number = value.item() if isinstance(value, np.generic) else value
        if isinstance(number, float) and not math.isfinite(number):
            raise UsageError(f"the setting {key} is {number}, expected a finite number")
        return f"{key}={number!r}"
    if isinstance(value, (str, os.PathLike)):
        return f"{key}={json.dumps(os.fspath(value), ensure_ascii=False)}"
    if isinstance(value, (list, tuple)):
        return f"{key}=[{', '.join(_setting('', one)[1:] for one in value)}]"
    raise UsageError(
        f"the setting {key} is a {type(value).__name__}, expected a number, a text, True or "
        "False, or a list of them"
    )


def train(
    config: Path,
    out: Path,
    *,
    data: Path = "",
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    compare: bool = False,
    device: str = "",
    quiet: bool = False,
) -> Model:
    """Trains as ``segfuse train`` does, and returns the model, with its `metrics`.

    ```python
    model = segfuse.train("finch.toml", "runs/finch", data="songs",
                          settings={"training.epochs": 40, "model.width": 64})
    ```

    Args:
        config: a TOML file; see docs/data.md and examples/.
        out: a directory, made if missing: model.safetensors, metrics.json, recordings.json,
            report.html, checkpoint.
        data: a manifest or a directory of recordings; default: what the configuration says.
        settings: values by "section.key", which win over the file.
        resume: go on from the checkpoint in `out`.
        overwrite: replace a run in `out`.
        compare: also train the same encoder with a softmax and with a linear chain.
        device: "cpu", "cuda", "cuda:1"; "": the default, or SEGFUSE_DEVICE.
        quiet: no progress on the standard error stream.

    Ctrl-C saves a checkpoint, from which `resume` goes on, and raises KeyboardInterrupt. Call it
    from the main thread.

    Raises:
        UsageError: the configuration, or something of the user's in `out`.
        DataError: the recordings or their labels.
    """
    overrides = [_setting(key, value) for key, value in (settings or {}).items()]
    how = {
        "resume": bool(resume),
        "overwrite": bool(overwrite),
        "compare": bool(compare),
        "device": device,
        "quiet": bool(quiet),
    }
    text = _native.train(os.fspath(config), overrides, os.fspath(data), os.fspath(out), how)
    model = Model.load(out, device=device)
    model.metrics = json.loads(text)
    return model


def evaluate(
    model: Path,
    data: Path = "",
    *,
    split: str = "test",
    out: Path = "",
    overwrite: bool = False,
    device: str = "",
) -> dict[str, Any]:
    """Measures a model file on labelled recordings, as ``segfuse eval`` does.

    Returns the content of metrics.json. `data` is a manifest or a directory (default: the one it
    was trained on), `split` one of "train", "dev", "test", "all", `device` as for `train`; with
    `out`, metrics.json and report.html are written there, and what is not ours is replaced only
    with `overwrite`.
    """
    if split not in ("train", "dev", "test", "all"):
        raise UsageError(f"split is {split!r}, expected 'train', 'dev', 'test' or 'all'")
    text = _native.evaluate(
        os.fspath(model), os.fspath(data), split, os.fspath(out), bool(overwrite), device
    )
    return json.loads(text)
