"""Trainings and their measurement: the commands as functions, and trainings on arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from . import _native
from ._errors import UsageError
from ._models import (
    Model,
    Path,
    Segment,
    check_shape,
    of_torch,
    samples_of,
    setting,
    values_of,
)
from ._numbers import path_of, real, text_of, whole

_SPLITS = ("train", "dev", "test")


def _segments_of(rows: Iterable[Any], name: str) -> list[tuple[float, float, str]]:
    """Rows of (start, end, label), in seconds; a `Segment` is one, too."""
    segments = []
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise UsageError(f"{name} is {rows!r}, expected a list of (start, end, label)")
    for i, row in enumerate(rows):
        three = row[:3] if isinstance(row, Segment) else row
        if isinstance(three, str) or not isinstance(three, Sequence) or len(three) != 3:
            raise UsageError(f"{name}[{i}] is {row!r}, expected (start, end, label)")
        label = text_of(f"the label of {name}[{i}]", three[2])
        start, end = (real(f"a time of {name}[{i}]", time) for time in three[:2])
        segments.append((start, end, label))
    return segments


def _given(
    recordings: Sequence[Any],
    labels: Sequence[Iterable[Any]] | None,
    splits: Sequence[str] | None,
    groups: Sequence[str] | None,
    is_audio: bool,
) -> list[tuple[str, np.ndarray, list[tuple[float, float, str]], str, str]]:
    """Recordings in memory, as the library takes them."""
    if labels is None:
        raise UsageError("recordings were given without labels; pass labels=, a list for each")
    lists = {"labels": labels, "splits": splits, "groups": groups}
    for name, values in (("recordings", recordings), *lists.items()):
        if values is not None and not isinstance(values, (Sequence, np.ndarray)):
            raise UsageError(f"{name} is {type(values).__name__}, expected a list of one each")
    count = len(recordings)
    if count == 0:
        raise UsageError("recordings is empty, expected at least two arrays")
    for name, values in lists.items():
        if values is not None and len(values) != count:
            raise UsageError(
                f"there are {count} recordings and {len(values)} {name}, expected one for each"
            )
    given = []
    for i, recording in enumerate(recordings):
        name = f"recording {i}"
        if is_audio:
            array = samples_of(recording, name)
            check_shape(array, name, "(samples,) or (samples, channels)")
        else:
            array = values_of(recording, name)
        split = "" if splits is None else splits[i]
        if splits is not None and split not in _SPLITS:
            raise UsageError(f"splits[{i}] is {split!r}, expected 'train', 'dev' or 'test'")
        group = "" if groups is None else text_of(f"groups[{i}]", groups[i])
        if groups is not None and not group:
            raise UsageError(f"groups[{i}] is empty, expected the name of a speaker or an animal")
        given.append((name, array, _segments_of(labels[i], f"labels[{i}]"), split, group))
    return given


def _rates(sample_rate: int | None, frame_rate: float | None) -> int:
    """Of recordings in memory: the sample rate, or 0 for values."""
    if (sample_rate is None) == (frame_rate is None):
        raise UsageError(
            "recordings need one rate: sample_rate= in Hz for samples of audio, or frame_rate= for "
            "rows of values, in rows a second"
        )
    return 0 if sample_rate is None else whole("sample_rate", sample_rate, 1, (1 << 31) - 1)


def _check_place(
    config: Path | None, out: Path | None, data: Path, in_memory: bool, resume: bool
) -> None:
    """What is trained on is said once, and where the model goes where it cannot be chosen."""
    if in_memory and (data or (config is not None and os.path.isdir(config))):
        raise UsageError("recordings are arrays, and a folder was given as well; pass one of them")
    if config is None and not in_memory:
        raise UsageError("nothing was given to train on; pass a folder, a TOML file or recordings=")
    if not out and (in_memory or resume):
        raise UsageError("no directory was named for the model; pass out=")
    if data and config is not None and os.path.isdir(config):
        raise UsageError(
            f"two places for the data: {os.fspath(config)!r} and data={os.fspath(data)!r}; pass "
            "one of them"
        )


def _encoder(module: Any, scores: bool) -> Any:
    """What the library calls once it has read the data; None without a module."""
    if module is None:
        if scores:
            raise UsageError("encoder_scores= is for encoder=; pass that as well")
        return None
    return of_torch().tracing(module, bool(scores))


def _values(key: str, values: Sequence[Any]) -> str:
    """ "section.key=a,b" of the values that are tried, each as TOML."""
    if isinstance(values, (str, bytes)) or not isinstance(values, (Sequence, np.ndarray)):
        raise UsageError(f"the values of {key!r} are {values!r}, expected a list of two or more")
    if len(values) < 2:
        raise UsageError(f"{key!r} has {len(values)} values to try, expected two or more")
    words = [text_of(f"the setting {key!r}", setting(key, value)) for value in values]
    return key + "=" + ",".join(word[len(key) + 1 :] for word in words)


def _arguments(
    config: Path | None,
    out: Path | None,
    *,
    data: Path = "",
    recordings: Sequence[Any] | None = None,
    labels: Sequence[Iterable[Any]] | None = None,
    sample_rate: int | None = None,
    frame_rate: float | None = None,
    splits: Sequence[str] | None = None,
    groups: Sequence[str] | None = None,
    group: str = "",
    preset: str = "",
    tier: str = "",
    settings: Mapping[str, Any] | None = None,
    init: Path = "",
    resume: bool = False,
    overwrite: bool = False,
    compare: bool = False,
    device: str = "",
    quiet: bool = False,
    encoder: Any = None,
) -> tuple[str, list[str], str, str, list[Any], dict[str, Any]]:
    """What the library takes for a training, or for each of a study."""
    in_memory = recordings is not None
    _check_place(config, out, data, in_memory, resume)
    rate, given = 0, []
    if recordings is not None:
        rate = _rates(sample_rate, frame_rate)
        given = _given(recordings, labels, splits, groups, rate > 0)
    elif any(one is not None for one in (labels, splits, groups, sample_rate)):
        raise UsageError(
            "labels=, splits=, groups= and sample_rate= are for recordings=; pass them as well"
        )
    overrides = [
        text_of(f"the setting {key!r}", setting(key, value))
        for key, value in (settings or {}).items()
    ]
    overrides += [setting("training.init", path_of("init", init))] if init else []
    how: dict[str, Any] = {
        "sample_rate": rate,
        "resume": bool(resume),
        "overwrite": bool(overwrite),
        "compare": bool(compare),
        "device": text_of("device", device or ""),
        "quiet": bool(quiet),
        "encoder": encoder,
    }
    frames = None if frame_rate is None else real("frame_rate", frame_rate)
    if config is None or os.path.isdir(config):
        how["plan"] = {
            "preset": text_of("preset", preset or ""),
            "tier": text_of("tier", tier or ""),
            "group": text_of("group", group or ""),
            "frame_rate": frames,
        }
    else:
        if preset:
            raise UsageError(
                "preset= is for folders and arrays; leave it out with a TOML file, which sets "
                "what a preset sets"
            )
        overrides += [setting("data.tier", text_of("tier", tier))] if tier else []
        overrides += [setting("data.group", text_of("group", group))] if group else []
        overrides += [] if frames is None else [setting("features.frame_rate", frames)]
    return (
        path_of("config", config or ""),
        overrides,
        path_of("data", data),
        path_of("out", out or ""),
        given,
        how,
    )


def train(
    config: Path | None = None,
    out: Path | None = None,
    *,
    data: Path = "",
    recordings: Sequence[Any] | None = None,
    labels: Sequence[Iterable[Any]] | None = None,
    sample_rate: int | None = None,
    frame_rate: float | None = None,
    splits: Sequence[str] | None = None,
    groups: Sequence[str] | None = None,
    group: str = "",
    preset: str = "",
    tier: str = "",
    settings: Mapping[str, Any] | None = None,
    init: Path = "",
    resume: bool = False,
    overwrite: bool = False,
    compare: bool = False,
    device: str = "",
    quiet: bool = False,
    encoder: Any = None,
    encoder_scores: bool = False,
) -> Model:
    """Trains as ``segfuse train`` does, and returns the model, with its `metrics`.

    ```python
    model = segfuse.train("songs")                      # a folder is enough
    model = segfuse.train("finch.toml", "runs/finch", data="songs",
                          settings={"training.epochs": 40, "model.width": 64})
    model = segfuse.train(out="runs/steps", recordings=[x0, x1, x2], frame_rate=50,
                          labels=[[(0, 0.4, "rest"), (0.4, 1.1, "step")], ...])
    ```

    In a process started by a launcher such as torchrun, the process is a rank
    (docs/distributed.md). The first rank writes and measures the model; the others return None.

    Args:
        config: a folder of recordings with labels, from which the configuration is derived; or a
            TOML file (docs/data.md; examples/ has some). With `recordings`, a TOML file or None.
        out: the directory for model.safetensors, metrics.json, recordings.json, report.html and the
            checkpoint; it is made if it does not exist. By default, the first of NAME-model,
            NAME-model-2 and so on in the current directory that does not exist. With `recordings`,
            `out` is required.
        data: a manifest or a directory of recordings; by default, the one of the configuration.
        recordings: arrays in memory instead of files, at least two. Audio is (samples,) or
            (samples, channels), of floats in [-1, 1), int16 or int32. Values have a row for each
            frame: (frames, channels) or (frames,), of float16, float32, float64 or int16.
        labels: for each of `recordings` its segments (start, end, label), with times in seconds, in
            any order and without overlaps. Gaps between segments are filled as for a folder.
        sample_rate: the rate of `recordings` in Hz, if they are audio.
        frame_rate: rows per second of `recordings` or of a folder, if they have values. For a
            folder, the default is derived from the labels.
        splits: "train", "dev" or "test" for each of `recordings`. By default, of ten recordings the
            first is for testing and the sixth for development.
        groups: for each of `recordings` the name of its group, for example the speaker or animal.
            Recordings of one group are never divided between sets or folds.
        group: how the group of a file is found: "folder", a column of the manifest, or a regular
            expression such as "^(bird[0-9]+)_".
        preset: "birdsong", "speech", "ecg", "mouse", "bat" or "generic"; by default, the one that
            fits the data best. Not allowed with a TOML file.
        tier: the tier to read from label files with several tiers; by default, the only possible
            one.
        settings: values by "section.key", which override the configuration.
        init: a model file or the directory of a training, whose weights the training starts from.
        resume: whether to continue from the checkpoint in `out`.
        overwrite: whether to replace a run in `out`.
        compare: whether to train the same encoder with a softmax and with a linear chain, too.
        device: "cpu", "cuda" or "cuda:1". By default, SEGFUSE_DEVICE or the CPU.
        quiet: whether to write no progress and no data card to the standard error stream.
        encoder: a `torch.nn.Module` from (batch, time, features) to (batch, time, width), which
            replaces the encoder of the section [model]. The module is traced and compiled; the
            model file contains the compiled programs and needs no PyTorch. A step processes one
            recording at a time, so the module never sees padding. After the training, the module
            has the trained weights. docs/python_encoder.md lists the supported modules.
        encoder_scores: whether the module computes the scores of the labels itself, so that its
            width is the number of labels (in sorted order). Otherwise a linear layer computes them.

    Ctrl-C saves a checkpoint, from which `resume` continues, and raises KeyboardInterrupt. Call
    `train` from the main thread. Arrays are copied.

    Raises:
        UsageError: the configuration or an argument is wrong, or `out` has files of the user.
        DataError: the recordings or their labels cannot be used.
    """
    text, folder = _native.train(
        *_arguments(
            config,
            out,
            data=data,
            recordings=recordings,
            labels=labels,
            sample_rate=sample_rate,
            frame_rate=frame_rate,
            splits=splits,
            groups=groups,
            group=group,
            preset=preset,
            tier=tier,
            settings=settings,
            init=init,
            resume=resume,
            overwrite=overwrite,
            compare=compare,
            device=device,
            quiet=quiet,
            encoder=_encoder(encoder, encoder_scores),
        )
    )
    if not text:  # only the first rank writes and measures
        return cast(Model, None)
    model = Model.load(folder, device=device or "")
    model.metrics = json.loads(text)
    if encoder is not None:
        of_torch().load_into(encoder, model._encoder_arrays(), model.path)
    return model


def study(
    config: Path | None = None,
    out: Path | None = None,
    *,
    folds: int = 0,
    seeds: int = 1,
    search: Mapping[str, Sequence[Any]] | None = None,
    shares: Sequence[float] | None = None,
    **training: Any,
) -> dict[str, Any]:
    """Trains several times, as ``segfuse study`` and ``segfuse learncurve`` do.

    ```python
    result = segfuse.study("songs", folds=5, group="folder")        # every bird is tested once
    result = segfuse.study("finch.toml", "runs/widths", data="songs", seeds=3,
                           search={"model.width": [32, 64]})        # the development set chooses
    result["points"][0]["systems"]["semi_markov"]["label_error_rate"]
    ```

    Args:
        config, out: as for `train`; `out` is the directory of the study, with a subdirectory for
            each run. By default, NAME-study, which must not exist yet.
        folds: the number of folds of a cross-validation, 2 or more; each fold is the test set once.
        seeds: the number of trainings of each kind, with seeds from training.seed on.
        search: lists of values by "section.key"; all combinations are tried. Not allowed with
            `folds` or `shares`.
        shares: shares of the training recordings to train on, increasing, above 0 and at most 1.
        training: keyword arguments of `train`, except `encoder` and `encoder_scores`.

    Returns the content of study.json (docs/measures.md describes it), and the directory under
    "path". `segfuse.Model.load` reads the directory of a run.

    Raises:
        UsageError: the runs would not differ in anything, or as for `train`.
        DataError: the recordings or their labels cannot be used.
    """
    most = (1 << 31) - 1
    runs: dict[str, Any] = {
        "folds": whole("folds", folds, 0, most),
        "seeds": whole("seeds", seeds, 1, most),
        "search": [_values(key, values) for key, values in (search or {}).items()],
        "shares": [real(f"shares[{i}]", share) for i, share in enumerate(shares or ())],
    }
    if runs["folds"] == 1:
        raise UsageError("folds is 1, expected 2 or more")
    if runs["folds"] == 0 and runs["seeds"] == 1 and not runs["search"] and not runs["shares"]:
        raise UsageError(
            "the runs of a study must differ in something; pass folds=, seeds=, search= or shares="
        )
    if "encoder" in training or "encoder_scores" in training:
        raise UsageError("a study trains the encoder of the configuration; leave encoder= out")
    text, folder = _native.study(*_arguments(config, out, **training), runs)
    return {"path": os.fspath(folder), **json.loads(text)}


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

    Args:
        model: a model file, the directory of a training, or the name of a pretrained model.
        data: a manifest or a directory of recordings; by default, the one of the training.
        split: the set to measure: "train", "dev", "test" or "all".
        out: a directory for metrics.json and report.html; by default, they are not written.
        overwrite: whether to replace files in `out` that segfuse did not write.
        device: as for `train`.

    Returns the content of metrics.json.
    """
    if split not in ("train", "dev", "test", "all"):
        raise UsageError(f"split is {split!r}, expected 'train', 'dev', 'test' or 'all'")
    text = _native.evaluate(
        path_of("model", model),
        path_of("data", data),
        split,
        path_of("out", out),
        bool(overwrite),
        text_of("device", device),
    )
    return json.loads(text)
