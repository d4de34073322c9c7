"""Pretrained models by their names in Python."""

import hashlib
import json
import pathlib
import shutil

import numpy as np
import pytest

import segfuse

TREE = pathlib.Path(__file__).resolve().parents[2] / "models"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the models of the tree, which SEGFUSE_MODELS names."""
    place = tmp_path / "models"
    shutil.copytree(TREE, place)
    monkeypatch.setenv("SEGFUSE_MODELS", str(place))
    return place


def test_models_lists_them(folder):
    found = {row.name: row for row in segfuse.models()}
    assert set(found) >= {path.parent.name for path in TREE.glob("*/model.safetensors")}
    row = found["ecg-waves"]
    assert row.path == str(folder / "ecg-waves/model.safetensors")
    assert row.sha256 == hashlib.sha256(pathlib.Path(row.path).read_bytes()).hexdigest()
    assert (row.labels, row.sample_rate, row.hop_ms) == (["-", "P", "QRS", "T"], 500, 10)
    assert row.bytes == pathlib.Path(row.path).stat().st_size
    assert row.card == (TREE / "ecg-waves/card.md").read_text()
    for text in (row.title, row.recordings, row.licence, row.figure):
        assert text


def test_a_name_is_a_model(folder, tmp_path, monkeypatch):
    by_name = segfuse.Model.load("ecg-waves")
    by_path = segfuse.Model.load(folder / "ecg-waves")
    assert by_name.labels == by_path.labels
    samples = np.random.default_rng(3).normal(size=2000).astype(np.float32) / 8
    assert by_name.decode(samples, 500).segments == by_path.decode(samples, 500).segments
    # What is there by that name is taken instead.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ecg-waves").write_bytes(b"no model")
    with pytest.raises(segfuse.DataError, match="^ecg-waves: byte 0: "):
        segfuse.Model.load("ecg-waves")


def test_a_training_begins_with_a_name(folder, tmp_path):
    draw = np.random.default_rng(1)
    recordings = [draw.normal(size=4000).astype(np.float32) / 8 for _ in range(4)]
    labels = [[(0.0, 3.0, "P"), (3.0, 8.0, "other")]] * 4
    model = segfuse.train(
        recordings=recordings,
        labels=labels,
        sample_rate=500,
        out=tmp_path / "out",
        init="ecg-waves",
        settings={"training.epochs": 1},
        quiet=True,
    )
    assert model.labels == ["P", "other"]
    metrics = json.loads((tmp_path / "out/metrics.json").read_text())
    digest = hashlib.sha256((folder / "ecg-waves/model.safetensors").read_bytes()).hexdigest()
    begun = metrics["run"]["initial_model"]
    assert (begun["path"], begun["sha256"]) == ("ecg-waves", digest)


def test_what_is_wrong_is_said(folder):
    with pytest.raises(segfuse.DataError, match="did you mean 'ecg-waves'"):
        segfuse.Model.load("ecg-wave")
    file = folder / "ecg-waves/model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(segfuse.DataError, match="damaged or was changed"):
        segfuse.Model.load("ecg-waves")
    segfuse.Model.load(file)  # by its path any file is taken
