"""Trainings and their measurement: the commands as functions, and trainings on arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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

    Args:
        config: a folder of recordings with labels, whose configuration follows from what is in it;
            or a TOML file; see docs/data.md and examples/. With `recordings` a TOML file, or None.
        out: a directory, made if missing: model.safetensors, metrics.json, recordings.json,
            report.html, checkpoint.
            Default: NAME-model in the current directory, a new one; with `recordings` none.
        data: a manifest or a directory of recordings; default: what the configuration says.
        recordings: arrays in memory instead of files, at least two. Audio: (samples,) or
            (samples, channels), of floats in [-1, 1), int16 or int32. Values, one row a frame:
            (frames, channels) or (frames,), of float16, float32, float64 or int16.
        labels: of each of `recordings` its segments (start, end, label), times in seconds, in any
            order and without overlaps; what they leave free is filled as in a folder.
        sample_rate: in Hz, of `recordings` that are audio.
        frame_rate: rows a second, of `recordings` that are values and of folders of values
            (default of folders: what the labels say).
        splits: "train", "dev" or "test" of each of `recordings`; default: of ten recordings the
            first is for test, the sixth for development.
        groups: of each of `recordings` the speaker, animal or whatever it shares with others; those
            of one group come into one set, and into one fold.
        group: what recordings of one group have in common, where they are files: "folder", a column
            of the manifest, or an expression as "^(bird[0-9]+)_".
        preset: one of "birdsong", "speech", "ecg", "mouse", "bat", "generic"; default: the one that
            fits best. Not with a TOML file.
        tier: of label files that have several; default: the one that can be meant.
        settings: values by "section.key", which win over the configuration.
        init: a model file, or the directory of a training, whose weights the training begins with.
        resume: go on from the checkpoint in `out`.
        overwrite: replace a run in `out`.
        compare: also train the same encoder with a softmax and with a linear chain.
        device: "cpu", "cuda", "cuda:1"; "": the default, or SEGFUSE_DEVICE.
        quiet: no progress and no data card on the standard error stream.
        encoder: a `torch.nn.Module` from (batch, time, features) to (batch, time, width), in the
            place of the encoder of [model]. It is traced, not run: programs of it are compiled and
            stored in the model, which needs no PyTorch. A step takes one recording after the other,
            so none sees the padding of another. Where its training ends the module holds the
            weights. docs/python_encoder.md says which modules there are programs for.
        encoder_scores: the module's width is the number of labels (sorted), and gives their scores;
            else a linear layer makes them.

    Ctrl-C saves a checkpoint, from which `resume` goes on, and raises KeyboardInterrupt. Call it
    from the main thread. Arrays are copied.

    Raises:
        UsageError: the configuration, the arguments, or something of the user's in `out`.
        DataError: the recordings or their labels.
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
        config, out: as for `train`; `out` is the directory of the study, in which each run has one
            of its own. Default: NAME-study, a new one.
        folds: 2 or more: so many, each of which is the test set once.
        seeds: so many trainings of each kind, from training.seed on.
        search: values of settings by "section.key"; each is tried with each of the others. Not with
            `folds` or `shares`.
        shares: of the training recordings, rising numbers above 0 and at most 1.
        training: what `train` takes by name, but for `encoder`.

    Returns the content of study.json, and under "path" the directory. docs/measures.md says what is
    in it; `segfuse.Model.load` takes the directory of a run.

    Raises:
        UsageError: nothing that the runs differ in, or as for `train`.
        DataError: the recordings or their labels.
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

    Returns the content of metrics.json. `data` is a manifest or a directory (default: the one it
    was trained on), `split` one of "train", "dev", "test", "all", `device` as for `train`; with
    `out`, metrics.json and report.html are written there, and what is not ours is replaced only
    with `overwrite`.
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
