"""Trained models: from samples to segments; and how they are trained and measured."""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from . import _native
from ._errors import UsageError
from ._numbers import need_plain, path_of, real, seed_of, text_of, whole

Path = str | os.PathLike[str]


class Segment(NamedTuple):
    """A segment that a model found.

    `posterior` is the probability of exactly this segment (start, end and label) under a
    semi-Markov model. For other heads, and for a segment that was joined from pieces, it equals
    `label_posterior`: the mean of the probability of the label over the frames of the segment.
    `start_confidence` is the probability of a boundary near its start, and 1 for the first segment
    (NaN for a linear chain). Times are in seconds.
    """

    start: float
    end: float
    label: str
    posterior: float
    label_posterior: float
    start_confidence: float


class LiveSegment(NamedTuple):
    """A segment of a live recording. Times are in seconds."""

    start: float
    end: float
    label: str


class ScoredSegments(NamedTuple):
    """A segmentation as (start, end, label) in seconds, and its log-probability."""

    log_probability: float
    segments: list[tuple[float, float, str]]


@dataclass(frozen=True)
class Prediction:
    """The result of decoding one recording.

    Attributes:
        segments: the segments in time order, without gaps.
        seconds: the length of the recording.
        log_probability: the log-probability of the segments under the model; NaN for a softmax.
        best: the `k_best` most probable segmentations, best first, if `k_best` was given.
        samples: segmentations drawn from the model, if `samples` was given.
        label_posteriors: (T, C) float32, P(frame t has label c), if `posteriors` was True.
        boundary_posteriors: (T,) float32, P(a segment starts at frame t), if `posteriors` was True;
            None for a linear chain.
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


_MAX_CHANNELS = (1 << 31) - 1
_MEAN, _ONLY, _STACK = -1, -2, -3  # as AudioOptions of segfuse/data.h


def check_shape(array: np.ndarray, name: str, axes: str) -> None:
    """UsageError unless it has one or two axes, `axes` in words."""
    if array.ndim not in (1, 2):
        raise UsageError(f"{name} has shape {array.shape}, expected {axes}")


def array_of(recording: object, name: str) -> np.ndarray:
    """In the byte order of this machine."""
    need_plain(name, recording)
    try:
        array = np.asarray(recording)
    except ValueError:
        raise UsageError(f"{name} has rows of several lengths, expected an array") from None
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _float32(array: np.ndarray) -> np.ndarray:
    """Numbers beyond float32 become infinite, which the library refuses by their place."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


_WHOLE_SAMPLES = 128  # loud floats stay below, and whole numbers of a microphone do not


def samples_of(recording: object, name: str) -> np.ndarray:
    """Samples of audio as float32 in [-1, 1): integers are scaled as those of files."""
    samples = array_of(recording, name)
    if samples.dtype in (np.int16, np.int32):
        samples = samples / 2.0 ** (8 * samples.dtype.itemsize - 1)
    elif samples.dtype not in (np.float16, np.float32, np.float64):
        raise UsageError(
            f"{name} is {samples.dtype}, expected samples of float16, float32 or float64 in "
            "[-1, 1), or of int16 or int32"
        )
    else:
        peak = float(np.max(np.abs(samples), initial=0, where=np.isfinite(samples)))
        if peak >= _WHOLE_SAMPLES:
            raise UsageError(
                f"{name} has samples of {samples.dtype} up to {peak:g}, expected samples in "
                "[-1, 1): pass whole numbers as int16 or int32, or divide them by 32768"
            )
    return _float32(samples)


def values_of(recording: object, name: str) -> np.ndarray:
    """Rows of values as float32, as those of files."""
    values = array_of(recording, name)
    check_shape(values, name, "(frames, channels) or (frames,)")
    if values.dtype not in (np.int16, np.float16, np.float32, np.float64):
        raise UsageError(
            f"{name} is {values.dtype}, expected values of float16, float32, float64 or int16"
        )
    return _float32(values)


def _chosen_samples(recording: object, channel: int, name: str) -> np.ndarray:
    """What a model of audio takes of it."""
    samples = array_of(recording, name)
    if samples.ndim == 2 and 0 <= channel < samples.shape[1]:
        samples = samples[:, channel]
    if samples.ndim != 1 and not (samples.ndim == 2 and channel in (_MEAN, _STACK)):
        raise UsageError(
            f"{name} has shape {samples.shape}, expected (samples,), one channel; choose one of "
            "several, as recording[:, 0]"
        )
    if samples.ndim == 2 and channel == _MEAN:
        return samples_of(samples_of(samples, name).mean(1), name)
    return samples_of(samples, name)


def _labels_of(order: Any) -> list[str]:
    """The labels of an order that is a sequence."""
    if isinstance(order, (bytes, set, frozenset, Mapping)) or not isinstance(order, Iterable):
        raise UsageError(f"the order is {order!r}, expected a string or a sequence of labels")
    labels = list(order)
    for label in labels:
        if not isinstance(label, str):
            raise UsageError(f"the order has {label!r}, expected labels, which are strings")
    return labels


def _path_of(recording: Any, sample_rate: float | None) -> str | None:
    """The path of a file; None for samples."""
    if not _is_path(recording):
        return None
    if sample_rate is not None:
        raise UsageError(
            f"sample_rate={sample_rate} was given for the file "
            f"{os.fspath(recording)!r}, which has its own sample rate; leave it out"
        )
    return path_of("recording", recording)


def setting(key: str, value: object) -> str:
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
        return f"{key}=[{', '.join(setting('', one)[1:] for one in value)}]"
    raise UsageError(
        f"the setting {key} is a {type(value).__name__}, expected a number, a string, True or "
        "False, or a list of these"
    )


def of_torch() -> Any:
    """What is about modules of PyTorch, which is imported where one is given."""
    return importlib.import_module(".torch._encoder", __package__)


class Model:
    """A trained model, read from a file that a training wrote.

    ```python
    model = segfuse.Model.load("runs/finch/model.safetensors")
    for segment in model.decode(samples, 32000).segments:
        print(segment.start, segment.end, segment.label, segment.posterior)
    ```

    Several threads can use one model; their calls run one after another. The result for a recording
    depends neither on other recordings of the call nor on the number of threads
    (`segfuse.set_threads`).

    Attributes:
        labels: the labels, in the order of the columns of posteriors.
        kind: the kind of features: "log_mel", "mfcc", "raw", "kaldi_fbank" or "whisper" for a model
            of audio; "values" for a model whose recordings are rows of numbers, one for each frame.
        sample_rate: the rate in Hz to which audio of other rates is resampled; 0 for a model of
            values.
        frame_rate: frames per second, 1 / hop_seconds; for a model of values, rows per second.
        hop_seconds: the time from a frame to the next.
        head: "semi_markov", "linear_chain" or "softmax".
        max_duration: K, the length of the longest segment, in frames.
        parameter_count: the number of trained parameters.
        configuration: the configuration of the training, as TOML.
        path: the file or directory from which the model was read.
        metrics: the content of metrics.json if `segfuse.train` returned this model, otherwise None.
    """

    def __init__(
        self, native: _native.Model, path: str, metrics: dict[str, Any] | None = None
    ) -> None:
        self._native = native
        self.path = path
        self.metrics = metrics

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        device: str = "",
        channel: int | str | None = None,
        encoder: Any = None,
    ) -> Model:
        """Reads a model.

        Args:
            path: a file model.safetensors, the directory of a training, or the name of a pretrained
                model (`segfuse.models()`). A file or folder takes precedence over a model of the
                same name.
            device: "cpu", "cuda" or "cuda:1". By default, SEGFUSE_DEVICE or the CPU.
            channel: the channel to read from files with several channels: a number from 0, or
                "mean".
            encoder: a PyTorch module like the one that `segfuse.train` trained. The weights are
                copied into it (see `load_into`). Decoding does not need it.

        Raises:
            DataError: the model does not exist, or the file is not a model of this version of
                segfuse.
        """
        chosen = "" if channel is None else text_of("channel", str(channel))
        place = path_of("path", path)
        model = cls(_native.Model(place, text_of("device", device), chosen), place)
        if encoder is not None:
            model.load_into(encoder)
        return model

    @classmethod
    def from_torch(
        cls,
        encoder: Any,
        *,
        labels: Sequence[str],
        features: Mapping[str, Any],
        crf: Any = None,
        channels: int = 0,
        device: str = "",
    ) -> Model:
        """Makes a model of a module and a CRF layer that were trained in PyTorch.

        The module is traced as in `segfuse.train`; docs/python_encoder.md lists the supported
        modules. Its input are the features without normalisation: a module that was trained on
        normalised features must normalise them itself.

        Args:
            encoder: a `torch.nn.Module` from (batch, time, features) to (batch, time, labels).
            labels: the labels of the columns of its results.
            features: settings of the section [features], such as
                {"kind": "log_mel", "sample_rate": 16000} or {"kind": "values", "frame_rate": 50}.
            crf: a `segfuse.torch.SemiMarkovCRF` without tail and boundary scores. Without a CRF,
                each frame gets the label with the highest score.
            channels: for values, the number of columns of a recording.
            device: as in `load`.

        Raises:
            UsageError: the module cannot be traced, or the parts do not fit together.
        """
        torch = of_torch()
        if not isinstance(features, Mapping):
            raise UsageError(
                f'features is {features!r}, expected settings as {{"kind": "log_mel", '
                '"sample_rate": 16000}'
            )
        settings = [
            setting(text_of("a name of features", f"features.{key}"), value)
            for key, value in features.items()
        ]
        if isinstance(labels, str):
            raise UsageError(f"labels is {labels!r}, expected a list of strings")
        names = _labels_of(labels)
        native = _native.Model.of(
            torch.tracing(encoder, True),
            names,
            settings,
            whole("channels", channels, 0, _MAX_CHANNELS),
            torch.crf_scores(crf, len(names)),
            text_of("device", device),
        )
        return cls(native, f"a {type(encoder).__name__}")

    def save(self, path: Path, *, overwrite: bool = False) -> None:
        """Writes the model to the file `path`, which `load` and `segfuse decode` read. If `path` is
        a directory, writes model.safetensors in it.

        Raises:
            UsageError: the file exists, and `overwrite` is False.
        """
        self.path = path_of("path", path)
        self._native.save(self.path, bool(overwrite))

    def load_into(self, module: Any) -> None:
        """Copies the encoder's weights into `module`, a `torch.nn.Module` like the one that was
        trained: trained and frozen parameters, and buffers such as the statistics of a batch norm.

        Other parameters and buffers of `module` keep their values; a UserWarning names such
        parameters.

        Raises:
            UsageError: the encoder of the model is not a PyTorch module.
            DataError: `module` lacks one of the weights, or has it in another shape.
        """
        torch = of_torch()
        loaded = torch.load_into(module, self._encoder_arrays(), self.path)
        torch.warn_of_others(module, loaded, self.path)

    def _encoder_arrays(self) -> dict[str, np.ndarray]:
        return {**self._native.constants, **self._native.parameters}

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """Copies of the trained parameters, as float32 arrays by name. The names of the parameters
        of a PyTorch module begin with "encoder."."""
        return self._native.parameters

    @property
    def labels(self) -> list[str]:
        return self._native.labels

    @property
    def kind(self) -> str:
        return self._native.kind

    @property
    def sample_rate(self) -> int:
        return 0 if self.kind == "values" else self._native.sample_rate

    @property
    def frame_rate(self) -> float:
        return 1 / self.hop_seconds

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

    def __reduce__(self) -> Any:
        raise UsageError(
            "a segfuse.Model cannot be pickled or copied; save() it, and load() it elsewhere"
        )

    def __repr__(self) -> str:
        rate = (
            f"{self.sample_rate} Hz" if self.sample_rate else f"{self.frame_rate:g} rows a second"
        )
        return (
            f"segfuse.Model({len(self.labels)} labels, {self.head}, {rate}, "
            f"{self.parameter_count} parameters)"
        )

    def _array(self, recording: object, name: str) -> np.ndarray:
        if self.kind == "values":
            return values_of(recording, name)
        return _chosen_samples(recording, self._native.channel, name)

    def _rate(self, rate: float | None, example: str = "decode(samples, 16000)") -> int:
        """In Hz; 0 for values, whose rate has to be the model's."""
        if self.kind == "values":
            if rate is not None and not math.isclose(
                real("sample_rate", rate), self.frame_rate, rel_tol=1e-6
            ):
                raise UsageError(
                    f"sample_rate is {rate!r}, and the model was trained on "
                    f"{self.frame_rate:g} rows a second; pass rows of that rate"
                )
            return 0
        if rate is None:
            raise UsageError(
                f"no sample_rate was given for an array of samples; pass theirs in Hz, as {example}"
            )
        return whole("sample_rate", rate, 1, (1 << 31) - 1)

    def decode(
        self,
        recording: Any,
        sample_rate: float | None = None,
        *,
        minimum_risk: bool = False,
        posteriors: bool = False,
        k_best: int = 0,
        samples: int = 0,
        seed: int = 0,
    ) -> Prediction:
        """Segments a recording: a file, or an array of samples or values.

        Audio is resampled to the rate of the model. A model of values (see `kind`) needs rows of
        the rate that it was trained on.

        Args:
            recording: a path or an array. Audio is (samples,) of float16, float32 or float64 in
                [-1, 1), or of int16 or int32; it is (samples, channels) if the model combines
                channels. Values are (frames, channels), or (frames,) for one channel, of float16,
                float32, float64 or int16, and are not scaled.
            sample_rate: the rate of the samples in Hz. Leave it out for a file. For values it is
                the number of rows per second, and optional.
            minimum_risk: whether to find the segmentation with the best expected boundary F1
                instead of the most probable one.
            posteriors: whether to compute the probabilities of labels and boundaries for each
                frame as well.
            k_best: how many of the most probable segmentations to return in `best`.
            samples: how many segmentations to draw from the model.
            seed: the seed of these draws.

        Raises:
            UsageError: the array has a wrong shape or dtype, or the sample rate is missing.
            DataError: the recording cannot be read, a sample is not finite, or no segmentation is
                possible.
        """
        how = _native.InferenceOptions(
            bool(minimum_risk),
            bool(posteriors),
            whole("k_best", k_best, 0),
            whole("samples", samples, 0),
            seed_of(seed),
        )
        path = _path_of(recording, sample_rate)
        if path is not None:
            return Prediction._of(self._native.decode_file(path, how))
        rate = self._rate(sample_rate)
        array = self._array(recording, "the recording")
        return Prediction._of(self._native.decode([array], rate, "the recording", how)[0])

    def stream(
        self, sample_rate: float | None = None, *, lookahead: float | None = None
    ) -> LiveStream:
        """Begins a live recording, which is decoded while it arrives.

        ```python
        with model.stream(16000, lookahead=2) as live:
            for block in blocks:  # arrays of any length
                for segment in live.push(block):
                    print(segment.start, segment.end, segment.label)
            rest = live.finish()
        ```

        Args:
            sample_rate: the rate of the samples in Hz; by default, the rate of the model. For
                values, as for `decode`.
            lookahead: the time in seconds after which a boundary is decided at the latest; the
                segments may then differ from those of `decode`. With None, a segment is returned
                as soon as no later input can change it, and the segments are those of `decode`.

        Raises:
            UsageError: the model's encoder or features need the whole recording, or the lookahead
                is too short for the model (its longest segment plus the input that the features and
                the network look ahead).
        """
        rate = self._rate(self.sample_rate or None if sample_rate is None else sample_rate)
        seconds = None if lookahead is None else real("lookahead", lookahead)
        return LiveStream(self, _native.Stream(self._native, seconds), rate)

    def align(
        self,
        recording: Any,
        order: str | Sequence[str],
        sample_rate: float | None = None,
        *,
        optional: str = "",
    ) -> Prediction:
        """Finds the times of the labels of a recording, given their order (forced alignment).

        All probabilities are conditional on the order; `start_confidence` is NaN.

        Args:
            recording: as for `decode`.
            order: a sequence of labels, or a text such as "a b? {c|d e}" (docs/alignment.md).
            sample_rate: as for `decode`.
            optional: a label that may occur before, between and after the words of the order.

        Raises:
            UsageError: as for `decode`; or the model has no label `optional`.
            DataError: as for `decode`; or the order has an error or an unknown label, or does not
                fit the length of the recording.
        """
        if not isinstance(order, str):
            order = _labels_of(order)
            unknown = [label for label in order if label not in self.labels]
            spaced = [label for label in order if len(label.split()) != 1]
            if unknown or spaced:
                raise UsageError(
                    f"the order has {(unknown or spaced)[0]!r}; expected labels of the model "
                    "without white space"
                )
            order = " ".join(order)
        order = text_of("the order", order)
        optional = text_of("optional", optional)
        path = _path_of(recording, sample_rate)
        if path is not None:
            return Prediction._of(self._native.align_file(path, order, optional))
        rate = self._rate(sample_rate, "align(samples, order, 16000)")
        array = self._array(recording, "the recording")
        return Prediction._of(self._native.align(array, rate, order, optional))

    def decode_all(
        self,
        recordings: Sequence[Any],
        sample_rate: float | None = None,
        *,
        posteriors: bool = False,
    ) -> list[Prediction]:
        """Segments several arrays of the same rate in one call, which is faster than a call for
        each. The results are those of `decode`.
        """
        how = _native.InferenceOptions(False, posteriors, 0, 0, 0)
        rate = self._rate(sample_rate)
        arrays = [self._array(one, f"recording {i}") for i, one in enumerate(recordings)]
        found = self._native.decode(arrays, rate, "a recording", how)
        return [Prediction._of(one) for one in found]

    def posteriors(self, recording: Any, sample_rate: float | None = None) -> np.ndarray:
        """The label posteriors of a recording: (T, C) float32, P(frame t has label c).

        The arguments are those of `decode`.
        """
        found = self.decode(recording, sample_rate, posteriors=True).label_posteriors
        assert found is not None
        return found


class LiveStream:
    """A live recording, which is decoded while it arrives; made by `Model.stream`.

    The segments of all calls follow each other without gaps, and do not depend on the sizes of the
    pieces. They have no probabilities, because these depend on later input. Calls from several
    threads run one after another; calls release the GIL. The end of a `with` block closes the
    stream; without a call of `finish`, the remaining segments are dropped.

    Attributes:
        seconds: the length of the input so far.
    """

    def __init__(self, model: Model, native: _native.Stream, rate: int) -> None:
        self._model = model
        self._native: _native.Stream | None = native
        self._rate = rate
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        return self._native.seconds if self._native is not None else self._seconds

    def _open(self) -> _native.Stream:
        if self._native is None:
            raise UsageError("the stream has ended; start another one with model.stream()")
        return self._native

    def push(self, samples: Any) -> list[LiveSegment]:
        """Takes the next samples or values, in the forms of `Model.decode`; the array may be empty.

        Returns the segments that have become final, in order.

        Raises:
            UsageError: the array has a wrong shape or dtype, or the stream has ended.
            DataError: a sample is not finite. The stream then ignores all of `samples`.
        """
        native = self._open()
        array = self._model._array(samples, "the next piece of the stream")
        return [LiveSegment(*one) for one in native.push(array, self._rate)]

    def finish(self) -> list[LiveSegment]:
        """Ends the recording and returns the rest of its segments.

        Raises:
            UsageError: the stream has already ended.
            DataError: the input is empty, or no segmentation is possible.
        """
        native = self._open()
        try:
            return [LiveSegment(*one) for one in native.finish()]
        finally:
            self.close()

    def close(self) -> None:
        """Ends the recording and drops the rest of its segments. Further calls do nothing."""
        self._seconds, self._native = self.seconds, None

    def __enter__(self) -> LiveStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
