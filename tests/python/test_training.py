"""Trainings without a configuration: folders, and arrays in memory; models of values."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

import segfuse

RATE = 50.0
MEANS = {"rest": (0.0, 0.0, 1.0), "step": (2.0, -1.0, 0.0), "turn": (-2.0, 1.0, 3.0)}
QUICK = {"training.epochs": 20, "model.width": 16}


def recording(seed):
    """(frames, 3) float32, and segments in seconds."""
    draw = np.random.default_rng(seed)
    rows, labels, at, last = [], [], 0, "turn"
    for _ in range(8):
        label = str(draw.choice([one for one in MEANS if one != last]))
        length = int(draw.integers(6, 20))
        labels.append((at / RATE, (at + length) / RATE, label))
        rows.append(draw.normal(MEANS[label], 0.4, (length, 3)))
        at, last = at + length, label
    return np.concatenate(rows).astype(np.float32), labels


ARRAYS, LABELS = map(list, zip(*map(recording, range(12)), strict=True))


def write(folder, arrays=ARRAYS, labels=LABELS):
    folder.mkdir()
    for i, (array, segments) in enumerate(zip(arrays, labels, strict=True)):
        np.save(folder / f"r{i:02}.npy", array)
        text = "".join(f"{a:.6f},{b:.6f},{label}\n" for a, b, label in segments)
        (folder / f"r{i:02}.csv").write_text("start,end,label\n" + text)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    write(folder / "steps")
    segfuse.train(folder / "steps", folder / "of-folder", settings=QUICK, quiet=True)
    return folder


@pytest.fixture(scope="module")
def trained(place):
    """The same recordings in memory."""
    return segfuse.train(
        out=place / "of-arrays",
        recordings=ARRAYS,
        labels=LABELS,
        frame_rate=RATE,
        settings=QUICK,
        quiet=True,
    )


def parameters(path):
    """The bytes of a model file behind its header, which has the place of the data."""
    data = pathlib.Path(path).read_bytes()
    return data[8 + int.from_bytes(data[:8], "little") :]


def test_a_folder_is_trained_on_as_the_command_does(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [f"--set={key}={value}" for key, value in QUICK.items()]
    command = [sys.executable, "-m", "segfuse", "train", str(place / "steps"), *arguments]
    subprocess.run(command, check=True, capture_output=True)
    expected = (tmp_path / "steps-model/model.safetensors").read_bytes()
    assert (place / "of-folder/model.safetensors").read_bytes() == expected
    model = segfuse.train(place / "steps", settings=QUICK, quiet=True)
    assert model.path == "steps-model-2"
    assert (tmp_path / "steps-model-2/model.safetensors").read_bytes() == expected


def test_the_first_of_several_ranks_returns_the_model(place, tmp_path):
    out = tmp_path / "model"
    settings = {**QUICK, "training.batch_size": 2, "training.shards": 2}
    program = f"""
import segfuse
model = segfuse.train({str(place / "steps")!r}, {str(out)!r}, settings={settings!r}, quiet=True)
print("none" if model is None else model.metrics["frame_accuracy"])
"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    where["SEGFUSE_JOB_KEY"] = "a key of this test"
    ranks = [
        subprocess.Popen([sys.executable, "-c", program], env=os.environ | where | {"RANK": str(r)},
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for r in range(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert 0 <= float(said[0][0]) <= 1
    assert said[1][0] == "none\n"
    alone = segfuse.train(place / "steps", tmp_path / "alone", settings=settings, quiet=True)
    assert float(said[0][0]) == alone.metrics["frame_accuracy"]
    assert parameters(out / "model.safetensors") == parameters(tmp_path / "alone/model.safetensors")


def test_arrays_give_the_model_of_their_files(place, trained):
    models = [place / name / "model.safetensors" for name in ("of-folder", "of-arrays")]
    assert parameters(models[0]) == parameters(models[1])
    assert trained.metrics["frame_accuracy"] > 0.9
    assert trained.metrics["frame_accuracy"] == pytest.approx(
        json.loads((place / "of-folder/metrics.json").read_text())["frame_accuracy"]
    )


def test_settings_of_augmentation_are_those_of_the_command(place, tmp_path):
    augmentation = {"time_masks": 1, "time_mask_ms": 60, "noise_snr_db": [5, 15.5]}
    how = {f"augmentation.{key}": value for key, value in augmentation.items()}
    model = segfuse.train(place / "steps", tmp_path / "a", settings={**QUICK, **how}, quiet=True)
    assert "noise_snr_db = [5, 15.5]" in model.configuration
    arguments = [f"--set={key}={value}" for key, value in {**QUICK, **how}.items()]
    command = ["train", str(place / "steps"), "--out", str(tmp_path / "b"), *arguments]
    subprocess.run([sys.executable, "-m", "segfuse", *command], check=True, capture_output=True)
    assert parameters(tmp_path / "a/model.safetensors") == parameters(
        tmp_path / "b/model.safetensors"
    )
    assert parameters(tmp_path / "a/model.safetensors") != parameters(
        place / "of-folder/model.safetensors"
    )
    with pytest.raises(segfuse.UsageError, match="needs features with bands"):
        segfuse.train(place / "steps", settings={"augmentation.transpose_bands": 1}, quiet=True)


def test_groups_of_arrays_and_of_folders_stay_together(place, tmp_path):
    birds = [f"bird{i % 4}" for i in range(12)]
    arrays = {"recordings": ARRAYS, "labels": LABELS, "frame_rate": RATE, "quiet": True}
    how = {"settings": {**QUICK, "training.epochs": 1}, **arrays}
    segfuse.train(out=tmp_path / "arrays", groups=birds, **how)
    tested = json.loads((tmp_path / "arrays/recordings.json").read_text())["recordings"]
    assert [row["id"] for row in tested] == [f"recording {i}" for i in (0, 4, 8)]
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for bird in range(4):
        write(corpus / f"bird{bird}", ARRAYS[bird::4], LABELS[bird::4])
    folder = {"settings": {**QUICK, "training.epochs": 1}, "quiet": True, "frame_rate": RATE}
    model = segfuse.train(corpus, tmp_path / "folder", group="folder", **folder)
    assert 'group = "folder"' in model.configuration
    tested = json.loads((tmp_path / "folder/recordings.json").read_text())["recordings"]
    assert [row["id"] for row in tested] == [f"bird0/r{i:02}" for i in range(3)]
    for change, words in (
        ({"groups": birds[:3]}, "12 recordings and 3 groups"),
        ({"groups": ["", *birds[1:]]}, r"groups\[0\] is empty"),
        ({"groups": [3, *birds[1:]]}, r"groups\[0\] is 3, expected a string"),
        ({"groups": ["bird"] * 12}, 'all 12 recordings are of one group, "bird"'),
        ({"group": "folder"}, "pass groups=, one for each"),
    ):
        with pytest.raises(segfuse.UsageError, match=words):
            segfuse.train(out=tmp_path / "no", **{**how, **change})
    with pytest.raises(segfuse.UsageError, match="groups= .*are for recordings="):
        segfuse.train(corpus, groups=birds)


def test_a_study_is_that_of_the_command(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = {**QUICK, "training.epochs": 2}
    result = segfuse.study(place / "steps", folds=3, settings=few, quiet=True)
    assert result["path"] == "steps-study"
    arguments = [f"--set={key}={value}" for key, value in few.items()]
    command = ["study", str(place / "steps"), "--out", "other", "--folds", "3", *arguments]
    subprocess.run([sys.executable, "-m", "segfuse", *command], check=True, capture_output=True)
    said = json.loads(pathlib.Path("steps-study/study.json").read_text())
    assert result == {"path": "steps-study", **said}
    counts = [pathlib.Path(study, "recordings.json") for study in ("steps-study", "other")]
    assert counts[0].read_bytes() == counts[1].read_bytes()
    for fold in ("fold-1", "fold-2", "fold-3"):
        models = [
            pathlib.Path(study, fold, "model.safetensors") for study in ("steps-study", "other")
        ]
        assert models[0].read_bytes() == models[1].read_bytes()
    assert segfuse.Model.load("steps-study/fold-2").labels == sorted(MEANS)


def test_a_study_of_arrays_tries_settings_seeds_and_shares(tmp_path):
    how = {"recordings": ARRAYS, "labels": LABELS, "frame_rate": RATE, "quiet": True}
    few = {"settings": {**QUICK, "training.epochs": 1}}
    search = {"model.width": [8, 16], "model.head": ["softmax", "semi_markov"]}
    result = segfuse.study(out=tmp_path / "search", search=search, **how, **few)
    assert [point["overrides"] for point in result["points"]] == [
        [f"model.width={width}", f'model.head="{head}"']
        for width in (8, 16)
        for head in ("softmax", "semi_markov")
    ]
    assert result["chosen"]["name"] in [point["name"] for point in result["points"]]
    result = segfuse.study(out=tmp_path / "curve", seeds=2, shares=[0.5, 1], **how, **few)
    assert [len(point["runs"]) for point in result["points"]] == [2, 2]
    birds = [f"bird{i % 3}" for i in range(12)]
    result = segfuse.study(out=tmp_path / "folds", folds=3, groups=birds, **how, **few)
    for fold in range(3):
        tested = json.loads((tmp_path / f"folds/fold-{fold + 1}/recordings.json").read_text())
        assert {int(row["id"].split()[1]) % 3 for row in tested["recordings"]} == {fold}


def test_what_cannot_be_studied_is_said(place, tmp_path):
    for how, words in (
        ({}, "pass folds=, seeds=, search= or shares="),
        ({"folds": 1}, "folds is 1, expected 2 or more"),
        ({"folds": 2.5}, "folds is 2.5, expected an integer"),
        ({"seeds": 0}, "seeds is 0"),
        ({"folds": 99}, "there are 12 recordings for 99 folds"),
        ({"search": {"model.width": 8}}, "the values of 'model.width' are 8, expected a list"),
        ({"search": {"model.width": [8]}}, "'model.width' has 1 values to try"),
        ({"search": {"model.widht": [8, 16]}}, "did you mean 'width'"),
        ({"shares": [1, 0.5]}, "rising numbers"),
        ({"shares": ["half"]}, r"shares\[0\] is 'half', expected a number"),
        ({"folds": 2, "search": {"model.width": [8, 16]}}, "can be combined with --seeds only"),
        ({"folds": 2, "encoder": None}, "leave encoder= out"),
    ):
        with pytest.raises(segfuse.UsageError, match=words):
            segfuse.study(place / "steps", tmp_path / "no", quiet=True, **how)
    with pytest.raises(TypeError, match="epochs"):
        segfuse.study(place / "steps", tmp_path / "no", folds=2, epochs=3)


@pytest.mark.parametrize("quiet", [True, False])
def test_the_data_card_is_shown_unless_quiet(place, tmp_path, capfd, quiet):
    how = {"settings": {**QUICK, "training.epochs": 1}, "quiet": quiet}
    segfuse.train(place / "steps", tmp_path / "run", **how)
    card = capfd.readouterr().err
    assert ("50 rows a second" in card) != quiet
    assert "--" not in card


def test_a_model_of_values_says_what_it_is(place, trained):
    model = segfuse.Model.load(place / "of-arrays/model.safetensors")
    assert (model.kind, model.sample_rate, model.frame_rate) == ("values", 0, RATE)
    assert "50 rows a second" in repr(model)
    assert sorted(model.labels) == sorted(MEANS)
    assert trained.path == str(place / "of-arrays")


def test_values_are_decoded_as_from_files(place, trained):
    for i in (0, 10):  # for test
        from_file = trained.decode(place / f"steps/r{i:02}.npy")
        found = trained.decode(ARRAYS[i], RATE)
        assert found.segments == from_file.segments
        assert found.seconds == pytest.approx(len(ARRAYS[i]) / RATE)
        assert found.segments == trained.decode(ARRAYS[i].astype(np.float64)).segments
        gold = {(round(a, 3), label) for a, _, label in LABELS[i]}
        right = sum((round(s.start, 3), s.label) in gold for s in found.segments)
        assert right > 0.7 * len(gold)
        posteriors = trained.posteriors(ARRAYS[i], RATE)
        assert posteriors.shape == (len(ARRAYS[i]), 3)
        np.testing.assert_allclose(posteriors.sum(1), 1, atol=1e-5)
    together = trained.decode_all(ARRAYS[:3], RATE)
    assert [one.segments for one in together] == [trained.decode(x).segments for x in ARRAYS[:3]]


def test_what_was_decoded_can_be_trained_on(place, trained, tmp_path):
    found = [trained.decode(array).segments for array in ARRAYS[:4]]
    splits = ["train", "train", "dev", "test"]
    again = segfuse.train(
        out=tmp_path / "again",
        recordings=ARRAYS[:4],
        labels=found,
        splits=splits,
        frame_rate=RATE,
        settings={"training.epochs": 1},
        quiet=True,
    )
    assert again.labels == trained.labels
    assert segfuse.evaluate(tmp_path / "again", place / "steps")["frame_accuracy"] >= 0


def test_audio_in_memory(tmp_path):
    time = np.arange(8000) / 8000
    tones = {"low": np.sin(2 * np.pi * 300 * time), "high": np.sin(2 * np.pi * 1500 * time)}
    recordings = [
        np.concatenate([tones["low"][: 2000 + 100 * i], tones["high"][:3000]]) for i in range(6)
    ]
    labels = [
        [("low", 0, 2000 + 100 * i), ("high", 2000 + 100 * i, 5000 + 100 * i)] for i in range(6)
    ]
    labels = [[(a / 8000, b / 8000, label) for label, a, b in one] for one in labels]
    how = {"sample_rate": 8000, "settings": {"training.epochs": 3}, "quiet": True}
    floats = segfuse.train(out=tmp_path / "a", recordings=recordings, labels=labels, **how)
    assert (floats.kind, floats.sample_rate) == ("log_mel", 8000)
    stereo = [np.stack([one, one], 1).astype(np.float32) for one in recordings]
    pairs = segfuse.train(out=tmp_path / "b", recordings=stereo, labels=labels, **how)
    assert pairs.decode(stereo[0], 8000).segments == floats.decode(recordings[0], 8000).segments
    with pytest.raises(segfuse.UsageError, match="trained on recordings in memory"):
        segfuse.evaluate(tmp_path / "a")
    config = tmp_path / "config.toml"
    config.write_text(floats.configuration)
    by_file = segfuse.train(config, tmp_path / "c", recordings=recordings, labels=labels, **how)
    assert by_file.decode(recordings[0], 8000) == floats.decode(recordings[0], 8000)


def with_(**changes):
    """A call of train() on arrays with some arguments changed."""
    how = {"recordings": ARRAYS[:4], "labels": LABELS[:4], "frame_rate": RATE, "quiet": True}
    return lambda p: segfuse.train(**{"out": p / "never", **how, **changes})


def spoilt(value):
    array = ARRAYS[1].astype(np.float64)
    array[3, 1] = value
    return [ARRAYS[0], array, *ARRAYS[2:4]]


def relabelled(*rows):
    return [LABELS[0], list(rows), *LABELS[2:4]]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda p: segfuse.train(), segfuse.UsageError, "nothing was given to train on"),
        (lambda p: segfuse.train(out=p / "never"), segfuse.UsageError, "nothing was given"),
        (with_(out=None), segfuse.UsageError, "pass out="),
        (with_(data="x"), segfuse.UsageError, "a folder was given as well"),
        (with_(labels=None), segfuse.UsageError, "without labels"),
        (with_(labels=LABELS[:3]), segfuse.UsageError, "4 recordings and 3 labels"),
        (with_(splits=["train"]), segfuse.UsageError, "4 recordings and 1 splits"),
        (with_(splits=["train", "dev", "test", "valid"]), segfuse.UsageError, "is 'valid'"),
        (with_(recordings=[], labels=[]), segfuse.UsageError, "recordings is empty"),
        (with_(frame_rate=None), segfuse.UsageError, "need one rate"),
        (with_(sample_rate=8000), segfuse.UsageError, "need one rate"),
        (with_(frame_rate=0), segfuse.UsageError, "the frame rate is 0"),
        (with_(frame_rate="fast"), segfuse.UsageError, "frame_rate is 'fast'"),
        (with_(preset="bat"), segfuse.UsageError, "'bat' is for sound"),
        (with_(preset="bird"), segfuse.UsageError, "no preset 'bird'"),
        (
            with_(recordings=spoilt(np.nan)),
            segfuse.DataError,
            "recording 1: row 3, column 1 is nan",
        ),
        (
            with_(recordings=[*ARRAYS[:3], ARRAYS[3][None]]),
            segfuse.UsageError,
            "recording 3 has shape",
        ),
        (
            with_(recordings=[*ARRAYS[:3], ARRAYS[3].astype(np.int64)]),
            segfuse.UsageError,
            "recording 3 is int64",
        ),
        (
            with_(recordings=[*ARRAYS[:3], ARRAYS[3][:, :2]]),
            segfuse.DataError,
            "recording 3: its rows have 2 values, those of recording 0 have 3",
        ),
        (
            with_(recordings=[*ARRAYS[:3], ARRAYS[3][:0]]),
            segfuse.DataError,
            "recording 3: there are no values",
        ),
        (with_(labels=relabelled((0, 1))), segfuse.UsageError, r"labels\[1\]\[0\] is \(0, 1\)"),
        (with_(labels=relabelled("abc")), segfuse.UsageError, r"labels\[1\]\[0\] is 'abc'"),
        (with_(labels=relabelled((0, 1, 2))), segfuse.UsageError, r"labels\[1\]\[0\] is 2, exp"),
        (with_(labels=relabelled((0, 1, "\udce9"))), segfuse.UsageError, "a string that UTF-8"),
        (
            with_(recordings=spoilt(1e300)),
            segfuse.DataError,
            "recording 1: row 3, column 1 is inf; expected numbers of at most 3.4e38",
        ),
        (
            with_(settings={"data.path": "elsewhere"}),
            segfuse.UsageError,
            "two places for the data: data.path is 'elsewhere', and recordings in memory",
        ),
        (
            with_(tier="\udce9"),
            segfuse.UsageError,
            "tier is '.udce9', expected a string that UTF-8",
        ),
        (with_(labels=relabelled((0, "b", "c"))), segfuse.UsageError, "'b', expected a number"),
        (
            with_(labels=relabelled((0, np.nan, "a"))),
            segfuse.DataError,
            "labels of recording 1: segment 0 is from 0 s to nan s",
        ),
        (
            with_(labels=relabelled((0, 1, "a"), (0.5, 2, "b"))),
            segfuse.DataError,
            "starts at 0.5 s",
        ),
        (with_(labels=relabelled()), segfuse.DataError, "labels of recording 1:1: no segments"),
        (with_(labels=relabelled((0, 99, "a"))), segfuse.DataError, "the labels end at 99 s"),
        (
            lambda p: segfuse.train(p / "steps", p / "never", data=p / "steps"),
            segfuse.UsageError,
            "two places for the data",
        ),
        (
            lambda p: segfuse.train(p / "steps", p / "never", labels=LABELS),
            segfuse.UsageError,
            "are for recordings=",
        ),
        (lambda p: segfuse.train(p / "steps", resume=True), segfuse.UsageError, "pass out="),
        (
            lambda p: segfuse.train(p / "early", p / "never"),
            segfuse.UsageError,
            "say how many rows are a second with frame_rate=",
        ),
        (
            lambda p: segfuse.train(p / "none.toml", p / "never", preset="bat"),
            segfuse.UsageError,
            "preset= is for folders",
        ),
    ],
)
def test_bad_trainings_are_one_sentence(place, call, error, words):
    if not (place / "early").exists():
        write(place / "early", ARRAYS[:3], [LABELS[0], LABELS[1][:3], LABELS[2]])
    with pytest.raises(error, match=words) as caught:
        call(place)
    assert "\n" not in str(caught.value)
    assert not (place / "never/model.safetensors").exists()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m: m.decode(ARRAYS[0], 30), segfuse.UsageError, "trained on 50 rows a second"),
        (lambda m: m.decode(ARRAYS[0], "x"), segfuse.UsageError, "sample_rate is 'x'"),
        (lambda m: m.decode(ARRAYS[0][None], RATE), segfuse.UsageError, "shape"),
        (lambda m: m.decode(ARRAYS[0] > 0, RATE), segfuse.UsageError, "is bool"),
        (lambda m: m.decode(ARRAYS[0][:, :2], RATE), segfuse.DataError, "2 columns"),
        (lambda m: m.decode(ARRAYS[0][:, 0], RATE), segfuse.DataError, "1 columns"),
        (lambda m: m.decode(ARRAYS[0][:0], RATE), segfuse.DataError, "no values"),
        (lambda m: m.decode(ARRAYS[0] * np.inf, RATE), segfuse.DataError, "row 0, column 0 is"),
        (lambda m: m.decode_all([ARRAYS[0], spoilt(np.nan)[1]]), segfuse.DataError, "recording 1"),
    ],
)
def test_bad_values_are_one_sentence(trained, call, error, words):
    with pytest.raises(error, match=words) as caught:
        call(trained)
    assert "\n" not in str(caught.value)


def test_arguments_of_other_kinds_are_one_sentence(trained, tmp_path):
    values = ARRAYS[0]
    for call, words in [
        (lambda: segfuse.train(out=tmp_path / "x", recordings=iter(ARRAYS), labels=LABELS, frame_rate=50),
         "recordings is"),
        (lambda: segfuse.train(out=tmp_path / "x", recordings=ARRAYS, labels=[None] * 12, frame_rate=50),
         r"labels\[0\] is None"),
        (lambda: segfuse.train(out="", recordings=ARRAYS, labels=LABELS, frame_rate=50), "pass out="),
        (lambda: segfuse.train(out=tmp_path / "x", recordings=ARRAYS, labels=LABELS, frame_rate=10**400),
         "outside the range"),
        (lambda: trained.decode([[1.0, 2.0, 3.0], [1.0]]), "several lengths"),
        (lambda: trained.decode(np.ma.masked_array(values, values > 1)), "masked array"),
        (lambda: segfuse.Model.load("a\0b"), "path without a NUL character"),
        (lambda: segfuse.Model.load(3), "path is 3, expected a path"),
        (lambda: trained.save("a\0b"), "path without a NUL character"),
        (lambda: segfuse.train("a\0b", out=tmp_path / "x"), "path without a NUL character"),
        (lambda: segfuse.evaluate("a\0b"), "path without a NUL character"),
        (lambda: trained.align(values, ["rest", 1]), "expected labels"),
        (lambda: trained.align(values, 5), "the order is 5"),
        (lambda: trained.align(values, {"rest"}), "expected a string or a sequence"),
    ]:  # fmt: skip
        with pytest.raises(segfuse.UsageError, match=words):
            call()


def test_arrays_of_either_byte_order_are_the_same(trained):
    other = ARRAYS[0].astype(ARRAYS[0].dtype.newbyteorder(">"))
    found, expected = trained.decode(other, posteriors=np.True_), trained.decode(ARRAYS[0])
    assert found.segments == expected.segments
    order = [s.label for s in expected.segments]
    aligned = trained.align(other, iter(order))
    assert [s.label for s in aligned.segments] == order
    assert [(s.start, s.end) for s in aligned.segments] == [
        (s.start, s.end) for s in expected.segments
    ]
