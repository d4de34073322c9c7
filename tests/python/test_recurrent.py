"""Recurrent blocks of trained models against PyTorch's layers with the weights of the file."""

import json
import pathlib

import numpy as np
import pytest
import torch

import segfuse

RATE = 50.0
STATES = 5
SETTINGS = {
    "model.head": "softmax",
    "model.width": 6,
    "model.stem_kernel": 1,
    "model.dilations": [],
    "model.recurrent_blocks": 1,
    "model.recurrent_states": STATES,
    "training.epochs": 3,
}


def recording(seed):
    """(frames, 3) float32, and segments in seconds: runs of three levels."""
    draw = np.random.default_rng(seed)
    rows, labels, at = [], [], 0
    for i in range(7):
        length = int(draw.integers(4, 15))
        labels.append((at / RATE, (at + length) / RATE, "abc"[(i + seed) % 3]))
        rows.append(draw.normal((i + seed) % 3, 0.4, (length, 3)))
        at += length
    return np.concatenate(rows).astype(np.float32), labels


def read(path):
    """The tensors of a safetensors file."""
    data = pathlib.Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    types = {"F32": "f4", "F64": "f8", "I64": "i8", "I32": "i4"}
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + at for at in entry["data_offsets"])
        flat = np.frombuffer(data[begin:end], types[entry["dtype"]])
        tensors[name] = torch.from_numpy(flat.reshape(entry["shape"]).copy())
    return tensors


def layer_of(kind, parameters):
    """The layer with the weights of "forward" and "backward"."""
    make = torch.nn.LSTM if kind == "lstm" else torch.nn.GRU
    layer = make(6, STATES, bidirectional=True, batch_first=True)
    for name, suffix in [("forward", ""), ("backward", "_reverse")]:
        own = {
            key: parameters(f"recurrent0.both.{name}.{key}")
            for key in ["input.weight", "input.bias", "state.weight"]
        }
        state_bias = torch.zeros_like(own["input.bias"])
        if kind == "gru":
            state_bias[2 * STATES :] = parameters(f"recurrent0.both.{name}.state.bias")
        with torch.no_grad():
            getattr(layer, "weight_ih_l0" + suffix).copy_(own["input.weight"].T)
            getattr(layer, "weight_hh_l0" + suffix).copy_(own["state.weight"].T)
            getattr(layer, "bias_ih_l0" + suffix).copy_(own["input.bias"])
            getattr(layer, "bias_hh_l0" + suffix).copy_(state_bias)
    return layer


def posteriors(kind, tensors, features):
    def parameters(name):
        return tensors["parameter." + name]

    def linear(name, x):
        return x @ parameters(name + ".weight") + parameters(name + ".bias")

    def norm(name, x):
        sizes = x.shape[-1:]
        return torch.nn.functional.layer_norm(
            x, sizes, parameters(name + ".scale"), parameters(name + ".shift")
        )

    x = torch.from_numpy(features).double() - tensors["normalisation.mean"]
    x = (x / tensors["normalisation.deviation"]).float()[None]
    x = linear("stem", x)
    y = layer_of(kind, parameters)(norm("recurrent0.norm", x))[0]
    x = x + linear("recurrent0.out", y)
    return linear("emission", torch.relu(norm("norm", x))).softmax(-1)[0].detach().numpy()


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_trained_model_is_pytorch_s_layer(tmp_path, kind):
    arrays, labels = map(list, zip(*map(recording, range(10)), strict=True))
    model = segfuse.train(
        out=tmp_path / "run",
        recordings=arrays,
        labels=labels,
        frame_rate=RATE,
        settings={**SETTINGS, "model.recurrence": kind},
        quiet=True,
    )
    tensors = read(tmp_path / "run/model.safetensors")
    for array in [*arrays[:3], arrays[3][:1]]:
        expected = posteriors(kind, tensors, array)
        np.testing.assert_allclose(model.posteriors(array), expected, rtol=2e-4, atol=2e-5)
    one_by_one = [model.decode(array).segments for array in arrays]
    assert [found.segments for found in model.decode_all(arrays)] == one_by_one
