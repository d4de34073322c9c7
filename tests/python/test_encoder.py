"""`segfuse.train(encoder=module)`: encoders of PyTorch in the trainer."""

import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch import nn

import segfuse
from segfuse.torch import SemiMarkovCRF, _encoder

RATE = 50.0
MEANS = {"rest": (0.0, 0.0, 1.0), "step": (2.0, -1.0, 0.0), "turn": (-2.0, 1.0, 3.0)}
PLAIN = {"training.batch_size": 4, "training.epochs": 4}
LONGER = {"training.batch_size": 2, "training.epochs": 16}


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


def train(out, encoder, recordings=ARRAYS, labels=LABELS, settings=PLAIN, **how):
    data = {"recordings": recordings, "labels": labels, "frame_rate": RATE}
    return segfuse.train(out=out, **data, encoder=encoder, settings=settings, quiet=True, **how)


class Convolutions(nn.Module):
    """The encoder of [model] as a module: (batch, time, features) to (batch, time, width)."""

    def __init__(self, features=3, width=8, kernel=5, dilations=(1, 2)):
        super().__init__()
        self.stem = nn.Conv1d(features, width, 3, padding=1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in dilations)
        self.convs = nn.ModuleList(
            nn.Conv1d(width, width, kernel, padding=d * (kernel - 1) // 2, dilation=d)
            for d in dilations
        )
        self.mixes = nn.ModuleList(nn.Linear(width, width) for _ in dilations)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        x = self.stem(x.transpose(1, 2)).transpose(1, 2)
        for norm, conv, mix in zip(self.norms, self.convs, self.mixes, strict=True):
            x = x + mix(torch.relu(conv(norm(x).transpose(1, 2)).transpose(1, 2)))
        return torch.relu(self.norm(x))

    def pairs(self):
        """Each parameter, and the name of that of [model]'s encoder."""
        layers = {"stem": self.stem, "norm": self.norm}
        for i, parts in enumerate(zip(self.norms, self.convs, self.mixes, strict=True)):
            layers |= {
                f"block{i}.{n}": p for n, p in zip(("norm", "conv", "mix"), parts, strict=True)
            }
        for name, layer in layers.items():
            is_norm = isinstance(layer, nn.LayerNorm)
            yield f"{name}.{'scale' if is_norm else 'weight'}", layer.weight
            yield f"{name}.{'shift' if is_norm else 'bias'}", layer.bias


def in_our_layout(x):
    x = x.detach().numpy()
    if x.ndim == 3:  # (out, in, kernel)
        return x.transpose(2, 1, 0).reshape(-1, x.shape[0])
    return x.T


class Strided(nn.Module):
    """Half as many steps as frames, groups, and dropout."""

    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Conv1d(3, width, 4, stride=2, padding=1)
        self.second = nn.Conv1d(width, width, 3, padding=1, groups=2)
        self.norm = nn.GroupNorm(2, width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        x = self.norm(F.gelu(self.first(x.transpose(1, 2))))
        return self.drop(self.second(x)).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.into = nn.Linear(3, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x):
        return self.layer(self.into(x))


class Positions(nn.Module):
    """A table for 260 frames, a mean over time, and statistics that are kept."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(260, 3))
        self.batch = nn.BatchNorm1d(3)
        self.batch.running_mean += 0.3
        self.batch.eval()
        self.out = nn.Linear(6, 5)
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)

    def forward(self, x):
        x = x + self.table[: x.shape[1]] * self.frozen
        x = self.batch(x.transpose(1, 2)).transpose(1, 2)
        return self.out(torch.cat([x, (x - x.mean(1, keepdim=True)).abs()], -1))


class Bands(nn.Module):
    """Convolutions over time and features."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, (3, 2), padding=(1, 0))
        self.depth = nn.Conv2d(4, 8, (3, 1), padding=(1, 0), groups=4, bias=False)
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        x = F.silu(self.depth(torch.tanh(self.conv(x[:, None]))))
        return self.out(x.permute(0, 2, 1, 3).flatten(2))


class Songs(nn.Module):
    """Convolutions and pooling over time and features, then both directions of time."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, (3, 2), padding=(1, 1))
        self.pool = nn.MaxPool2d((3, 2), stride=(1, 2), padding=(1, 0))
        self.both = nn.LSTM(8, 3, num_layers=2, batch_first=True, bidirectional=True, dropout=0.2)
        self.out = nn.Linear(6, 4)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv(x[:, None])))
        x, _ = self.both(x.permute(0, 2, 1, 3).flatten(2))
        return self.out(x)


class Hourglass(nn.Module):
    """Fewer steps by pooling, and as many as before by transposed convolutions."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(3, 6, 5, padding=2)
        self.most, self.mean = nn.MaxPool1d(2), nn.AvgPool1d(3, 1, 1, count_include_pad=False)
        self.inner = nn.Conv1d(6, 8, 3, padding=2, dilation=2)
        self.back = nn.ConvTranspose1d(8, 6, 4, stride=2, padding=1, groups=2)
        self.out = nn.ConvTranspose1d(6, 4, 3, padding=1, bias=False)

    def forward(self, x):
        whole = torch.relu(self.first(x.transpose(1, 2)))
        inner = torch.relu(self.inner(self.mean(self.most(whole))))
        return self.out(self.back(inner) + whole).transpose(1, 2)


class Recurrent(nn.Module):
    """Recurrent layers of all kinds, with states that go from one to the next."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True)
        self.plain = nn.RNN(4, 4, nonlinearity="relu", bias=False)
        self.last = nn.RNN(4, 3, num_layers=2, bidirectional=True, batch_first=True)
        self.narrow = nn.LSTM(6, 5, proj_size=2, batch_first=True, bidirectional=True)

    def forward(self, x):
        y, state = self.gru(x)
        y = y + self.plain(y.transpose(0, 1), state)[0].transpose(0, 1)
        y, _ = self.last(y)
        y, (h, c) = self.narrow(y)
        return y + h.sum() + c[:, :, :4].mean(0)[:, None]


KINDS = {
    "convolutions": Convolutions,
    "strided": Strided,
    "attention": Attention,
    "positions": Positions,
    "bands": Bands,
    "songs": Songs,
    "hourglass": Hourglass,
    "recurrent": Recurrent,
}


def make(kind):
    torch.manual_seed(3)
    return KINDS[kind]()


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_is_its_module(kind):
    module = make(kind)
    traced = _encoder.trace(module, 3, list("abcd"), kind == "hourglass")
    program = segfuse.Fusion.from_text(traced.inference)
    weights = {"encoder." + n: x for n, x in {**traced.parameters, **traced.constants}.items()}
    module.eval()
    for steps in (1, 2, 7, 61):
        x = torch.randn(1, steps * traced.stride, 3)
        needed = {n: x for n, x in weights.items() if f'"{n}"' in traced.inference}
        (y,) = program(features=x.numpy(), **needed)
        with torch.no_grad():
            expected = module(x).numpy()
        if kind == "hourglass":  # two of its frames are a step
            expected = expected.reshape(1, steps, 8)
        assert y.shape == expected.shape
        np.testing.assert_allclose(y, expected, atol=2e-5)
    assert ("seed" in traced.training) == (kind in ("strided", "attention", "songs"))
    assert "seed" not in traced.inference


def test_an_encoder_that_takes_even_numbers_of_frames(tmp_path):
    module = make("hourglass").eval()
    with pytest.raises(segfuse.UsageError, match="takes multiples of 2 frames only"):
        train(tmp_path / "features", module)
    how = {"labels": list("abcd"), "features": VALUES, "channels": 3}
    model = segfuse.Model.from_torch(module, **how)
    for frames in (40, 41):
        x = torch.from_numpy(ARRAYS[0][:frames])[None]
        with torch.no_grad():
            scores = module(F.pad(x, (0, 0, 0, frames % 2)))[0, :frames]
        np.testing.assert_allclose(
            model.posteriors(ARRAYS[0][:frames]), scores.softmax(-1), atol=1e-5
        )


def test_the_same_architecture_learns_the_same(tmp_path):
    sizes = {"model.width": 8, "model.stem_kernel": 3, "model.kernel": 5, "model.subsample": 1}
    sizes |= {"model.dilations": [1, 2], "model.dropout": 0}
    still = {**PLAIN, **sizes, "training.shards": 4, "training.learning_rate": 0}
    first = train(tmp_path / "first", None, settings={**still, "training.epochs": 1}).parameters
    module = Convolutions()
    with torch.no_grad():
        for name, parameter in module.pairs():
            ours = first[name]
            if parameter.ndim == 3:
                size, inputs, outputs = parameter.shape[2], parameter.shape[1], parameter.shape[0]
                ours = ours.reshape(size, inputs, outputs).transpose(2, 1, 0)
            elif parameter.ndim == 2:
                ours = ours.T
            parameter.copy_(torch.from_numpy(ours.copy()))
    own = train(tmp_path / "own", None, settings={**PLAIN, **sizes, "training.shards": 4})
    given = train(tmp_path / "given", module)
    assert given.parameter_count == own.parameter_count
    assert np.abs(own.parameters["stem.weight"] - first["stem.weight"]).max() > 1e-3
    for name, parameter in module.pairs():  # has the trained weights
        np.testing.assert_allclose(in_our_layout(parameter), own.parameters[name], atol=1e-4)
    for name in ("emission.weight", "crf.transition", "crf.duration"):
        np.testing.assert_allclose(given.parameters[name], own.parameters[name], atol=1e-4)
    for one, other in zip(given.decode_all(ARRAYS), own.decode_all(ARRAYS), strict=True):
        assert [s[:3] for s in one.segments] == [s[:3] for s in other.segments]
    for name in ("label_error_rate", "frame_accuracy"):
        assert given.metrics[name] == own.metrics[name], name


@pytest.fixture(scope="module")
def strided(tmp_path_factory):
    torch.manual_seed(5)
    module = Strided()
    folder = tmp_path_factory.mktemp("encoder") / "run"
    return train(folder, module, settings=LONGER), module


def test_it_learns_and_the_module_holds_the_weights(strided):
    model, module = strided
    assert model.metrics["frame_accuracy"] > 0.9
    for name, parameter in module.named_parameters():
        np.testing.assert_array_equal(parameter.detach(), model.parameters["encoder." + name])
    other = Strided()
    again = segfuse.Model.load(model.path, encoder=other)
    assert torch.equal(other.first.weight, module.first.weight)
    assert again.decode(ARRAYS[0]).segments == model.decode(ARRAYS[0]).segments
    assert "width" not in model.configuration.split("[model]")[1].split("[")[0]


def test_a_recording_is_decoded_as_if_alone(strided):
    model, _ = strided
    short = ARRAYS[0][:7]  # no multiple of the stride
    alone = [model.decode(x, posteriors=True) for x in (short, ARRAYS[1], ARRAYS[2][:41])]
    beside = model.decode_all([ARRAYS[2][:41], ARRAYS[1], short, *ARRAYS], posteriors=True)
    for one, other in zip(alone, (beside[2], beside[1], beside[0]), strict=True):
        assert one.segments == other.segments
        np.testing.assert_array_equal(one.label_posteriors, other.label_posteriors)


def test_the_command_decodes_it_without_pytorch(strided, tmp_path):
    model, _ = strided
    np.save(tmp_path / "r.npy", ARRAYS[0])
    code = "import sys; sys.modules['torch'] = None; from segfuse.__main__ import main; main()"
    command = [sys.executable, "-c", code, "decode", model.path, str(tmp_path / "r.npy")]
    command += ["--out", str(tmp_path / "out"), "--format", "csv"]
    subprocess.run(command, check=True, capture_output=True)
    rows = (tmp_path / "out/r.csv").read_text().splitlines()[1:]
    found = [row.split(",")[2] for row in rows if not row.startswith("#")]
    assert found == [s.label for s in model.decode(ARRAYS[0]).segments]


def test_the_same_seed_gives_the_same_bits_also_after_a_pause(strided, tmp_path):
    model, _ = strided
    torch.manual_seed(5)
    train(tmp_path / "run", Strided(), settings=LONGER)
    expected = pathlib.Path(model.path, "model.safetensors").read_bytes()
    assert (tmp_path / "run/model.safetensors").read_bytes() == expected
    with pytest.raises(segfuse.UsageError, match="encoder"):
        train(tmp_path / "run", Convolutions(), settings=LONGER, resume=True)


def test_its_products_may_be_bfloat16(strided, tmp_path):
    model, _ = strided
    torch.manual_seed(5)
    found = train(tmp_path / "run", Strided(), settings={**LONGER, "training.precision": "bf16"})
    assert found.metrics["frame_accuracy"] > 0.9
    difference = max(
        np.abs(found.parameters[name] - x).max() for name, x in model.parameters.items()
    )
    assert 1e-4 < difference


def test_scores_of_labels_need_no_layer(tmp_path):
    torch.manual_seed(1)
    settings = {**LONGER, "training.learning_rate": 0.05}
    model = train(tmp_path / "run", nn.Linear(3, 3), settings=settings, encoder_scores=True)
    assert not any(name.startswith("emission") for name in model.parameters)
    assert model.metrics["frame_accuracy"] > 0.8
    with pytest.raises(segfuse.UsageError, match="4 numbers a step, and scores of 3 labels are 3"):
        train(tmp_path / "wrong", nn.Linear(3, 4), encoder_scores=True)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.function(self.layer(x))


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (lambda: 3, "expected a torch.nn.Module"),
        (lambda: nn.LSTMCell(3, 4), "is a LSTMCell, which takes one frame"),
        (lambda: nn.Sequential(nn.BatchNorm1d(3)), r"0 is a BatchNorm1d .* use GroupNorm"),
        (lambda: nn.Linear(3, 4).double(), "is float64, expected float32; call .float"),
        (lambda: nn.Linear(3, 4, device="meta"), "is on the device meta"),
        (lambda: nn.Linear(5, 4), r"does not take \(1, 240, 3\), one recording of 3 features"),
        (lambda: Function(lambda x: x[:, :-2]), r"\(1, 238, 3\), expected \(1, 240, width\)"),
        (lambda: Function(lambda x: x.mean(-1)), r"to \(1, 240\), expected"),
        (lambda: Function(lambda x: (x, x)), "a tuple, expected one tensor"),
        (lambda: Function(lambda x: x.half()), "to float16, expected float32"),
        (lambda: Function(torch.special.i0e), "no program for the encoder's operation .*i0e"),
        (lambda: Function(lambda x: x if x.sum() > 0 else -x), "PyTorch cannot trace"),
    ],
)
def test_what_cannot_be_an_encoder_is_one_sentence(module, sentence, tmp_path):
    with pytest.raises(segfuse.UsageError, match=sentence) as refused:
        train(tmp_path / "run", module())
    assert "\n" not in str(refused.value)


def test_a_weight_that_is_no_number_is_named(tmp_path):
    module = nn.Linear(3, 4)
    module.bias.data[1] = float("nan")
    with pytest.raises(segfuse.UsageError, match="bias holds NaN"):
        train(tmp_path / "run", module)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model.width": 5}, "model.width describes the built-in encoder"),
        ({"training.batch_size": 6}, "batch_size is 6; .* a power of two"),
        ({"training.batch_frames": 600}, "batch_frames is 600"),
        ({"training.batch_size": 4, "training.shards": 2}, "shards is 2; .* leave it out"),
    ],
)
def test_settings_that_an_encoder_does_not_have(settings, sentence, tmp_path):
    with pytest.raises(segfuse.UsageError, match=sentence):
        train(tmp_path / "run", nn.Linear(3, 4), settings=settings)


def test_recordings_longer_than_a_table_are_refused(tmp_path):
    model = train(tmp_path / "run", make("positions"), settings={"training.epochs": 1})
    assert "encoder.frozen" not in model.parameters
    with pytest.raises(segfuse.DataError, match="300 frames; the encoder takes at most 260"):
        model.decode(np.zeros((300, 3), np.float32))
    with pytest.raises(segfuse.DataError, match="but the module does not"):
        segfuse.Model.load(model.path, encoder=nn.Linear(3, 4))


@pytest.fixture(scope="module")
def parts():
    """A module, a layer, and what they make of a recording in PyTorch."""
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))
    crf = SemiMarkovCRF(3, 12, durations="poisson", self_transitions=False)
    with torch.no_grad():
        crf.initial += torch.randn(3)
        emission = 2 * module(torch.from_numpy(ARRAYS[0])[None])
        module[2].weight *= 2
        module[2].bias *= 2
    return module, crf, emission


VALUES = {"kind": "values", "frame_rate": RATE}


def test_a_model_of_parts_decodes_as_they_do(parts, tmp_path):
    module, crf, emission = parts
    labels = ["x", "a b", "m"]
    model = segfuse.Model.from_torch(module, labels=labels, features=VALUES, crf=crf, channels=3)
    found = model.decode(ARRAYS[0], posteriors=True)
    best = crf.decode(emission)[0]
    assert [(round(s.start * RATE), s.label) for s in found.segments] == [
        (start, labels[label]) for start, _, label in best
    ]
    np.testing.assert_allclose(found.label_posteriors, crf.posteriors(emission).label[0], atol=1e-4)
    model.save(tmp_path / "parts.safetensors")
    again = segfuse.Model.load(tmp_path / "parts.safetensors")
    assert again.labels == labels
    assert again.decode(ARRAYS[0]).segments == found.segments
    with pytest.raises(segfuse.UsageError, match="the file exists already"):
        again.save(tmp_path / "parts.safetensors")
    again.save(tmp_path / "parts.safetensors", overwrite=True)


def test_without_a_layer_each_frame_has_its_best_label(parts):
    module, _, emission = parts
    how = {"labels": ["x", "y", "z"], "features": VALUES, "channels": 3}
    model = segfuse.Model.from_torch(module, **how)
    assert model.head == "softmax"
    found = model.posteriors(ARRAYS[0])
    np.testing.assert_allclose(found, emission[0].softmax(-1), atol=1e-5)
    with pytest.raises(segfuse.UsageError, match="the CRF has 4 classes, and there are 3 labels"):
        segfuse.Model.from_torch(module, **how, crf=SemiMarkovCRF(4, 5))
    with pytest.raises(segfuse.UsageError, match="crf is a Linear, expected a segfuse.torch"):
        segfuse.Model.from_torch(module, **how, crf=nn.Linear(3, 3))
    with pytest.raises(segfuse.UsageError, match="number of channels"):
        segfuse.Model.from_torch(module, **{**how, "channels": 0})
    with pytest.raises(segfuse.UsageError, match="3 numbers a step, and scores of 2 labels are 2"):
        segfuse.Model.from_torch(module, **{**how, "labels": ["x", "y"]})


def test_a_loaded_module_has_frozen_weights_and_buffers_as_well(tmp_path):
    how = {"labels": list("abcde"), "features": VALUES, "channels": 3}
    model = segfuse.Model.from_torch(make("positions"), **how)
    model.save(tmp_path)
    module = Positions()  # other numbers
    with torch.no_grad():
        module.batch.running_var.fill_(7)
    segfuse.Model.load(tmp_path, encoder=module)
    with torch.no_grad():
        scores = module.eval()(torch.from_numpy(ARRAYS[0])[None])[0]
    np.testing.assert_allclose(model.posteriors(ARRAYS[0]), scores.softmax(-1), atol=1e-5)
    module.table = torch.randn(100, 3)
    with pytest.raises(segfuse.DataError, match="'table' is .260, 3. in the model and .100, 3."):
        model.load_into(module)
    del module.table
    with pytest.raises(segfuse.DataError, match="'table', but the module does not"):
        model.load_into(module)


def test_a_head_on_a_frozen_module_is_trained(tmp_path):
    module = nn.Linear(3, 4).requires_grad_(False)
    model = train(tmp_path / "run", module, settings={"training.epochs": 1})
    assert "encoder.weight" not in model.parameters
    other = nn.Linear(3, 4)
    model.load_into(other)
    assert torch.equal(other.weight, module.weight)


@pytest.mark.parametrize(
    ("features", "columns"),
    [
        ({"kind": "log_mel", "sample_rate": 8000, "n_mels": 10}, 10),
        ({"kind": "kaldi_fbank", "sample_rate": 8000, "snip_edges": False}, 80),
        ({"kind": "whisper"}, 80),
    ],
)
def test_a_model_of_parts_takes_audio(tmp_path, features, columns):
    torch.manual_seed(1)
    model = segfuse.Model.from_torch(nn.Linear(columns, 2), labels=["a", "b"], features=features)
    model.save(tmp_path)
    samples = np.sin(np.arange(8000, dtype=np.float32))
    read = segfuse.Model.load(tmp_path)
    found = read.decode(samples, 8000)
    assert found.segments == model.decode(samples, 8000).segments
    assert found.seconds == 1.0
    assert read.kind == features["kind"]


def test_a_changed_program_in_a_file_is_refused(strided, tmp_path):
    data = pathlib.Path(strided[0].path, "model.safetensors").read_bytes()
    data = data.replace(b'"crc32"', b'"crc-0"')  # it would be refused as damaged
    for old, new in ((b"unfold", b"unfolt"), (b"f32[1, 2*H, 3]", b"f32[2, 2*H, 3]")):
        assert old in data
        (tmp_path / "m.safetensors").write_bytes(data.replace(old, new))
        with pytest.raises(segfuse.DataError, match="m.safetensors") as refused:
            segfuse.Model.load(tmp_path / "m.safetensors")
        assert "\n" not in str(refused.value)


def test_ctrl_c_saves_and_resume_gives_the_same_model(tmp_path):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    settings = {**LONGER, "training.epochs": 60}

    def module():
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.1))

    def interrupt():
        while not (tmp_path / "cut/checkpoint.safetensors").exists():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    whole = train(tmp_path / "whole", module(), settings=settings)
    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", module(), settings=settings)
    watcher.join()
    assert not (tmp_path / "cut/model.safetensors").exists()
    other = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.1))  # other first weights
    resumed = train(tmp_path / "cut", other, settings=settings, resume=True)
    files = [pathlib.Path(m.path, "model.safetensors").read_bytes() for m in (whole, resumed)]
    assert files[0] == files[1]
    np.testing.assert_array_equal(other[0].weight.detach(), whole.parameters["encoder.0.weight"])


class Branches(nn.Module):
    def __init__(self, condition, stride=1):
        super().__init__()
        self.condition = condition
        self.layer = nn.Conv1d(3, 2 * stride, 2 * stride - 1, stride, stride - 1)

    def forward(self, x):
        y = self.layer(x.transpose(1, 2)).transpose(1, 2)
        return 2 * y if self.condition(x.shape[1]) else y


@pytest.mark.parametrize(
    ("condition", "stride", "frames"),
    [
        (lambda t: t > 100, 1, 100),
        (lambda t: t % 2 == 0, 1, 121),
        (lambda t: t == 37, 1, 37),
        (lambda t: t > 100, 2, 100),
    ],
)
def test_what_depends_on_the_number_of_frames_is_refused(condition, stride, frames):
    how = {"labels": ["a", "b"], "features": VALUES, "channels": 3}
    with pytest.raises(
        segfuse.UsageError, match=f"other operations for {frames} frames than for 240"
    ):
        segfuse.Model.from_torch(Branches(condition, stride), **how)
    segfuse.Model.from_torch(Branches(lambda _: True, stride), **how)


def test_lazy_layers_learn_the_number_of_features(tmp_path):
    module = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    model = train(tmp_path / "run", module, settings={"training.epochs": 1})
    assert model.parameters["encoder.0.weight"].shape == (4, 3)
    assert model.parameters["encoder.0.weight"][0, 0] == module[0].weight[0, 0].item()


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return F.dropout(self.layer(x), 0.5)


def test_dropout_that_eval_does_not_end_is_refused(tmp_path):
    with pytest.raises(segfuse.UsageError, match="at random in eval"):
        train(tmp_path / "run", Dropping())


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(3, 4, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.layer(x)[0]


def test_a_recurrent_encoder_learns_and_its_file_is_read_without_pytorch(tmp_path):
    torch.manual_seed(4)
    module = Both()
    settings = {**LONGER, "training.learning_rate": 0.02, "training.epochs": 6}
    model = train(tmp_path / "run", module, settings=settings)
    assert model.metrics["frame_accuracy"] > 0.9
    again = segfuse.Model.load(tmp_path / "run", encoder=Both())
    assert again.decode(ARRAYS[0]).segments == model.decode(ARRAYS[0]).segments


def test_parameters_that_the_model_does_not_have_are_said(tmp_path):
    how = {"labels": list("abcd"), "features": VALUES, "channels": 3}
    model = segfuse.Model.from_torch(nn.Sequential(nn.Linear(3, 4)), **how)
    with pytest.warns(UserWarning, match="the module's parameter '1.weight' and 1 more"):
        model.load_into(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"features": None}, "features is None, expected settings"),
        ({"features": {3: 4}}, "features"),
        ({"channels": 2**40}, "channels is 1099511627776, expected an integer from 0"),
        ({"device": 3}, "device is 3, expected a string"),
        ({"labels": "abc"}, "expected a list of strings"),
        ({"labels": ["a", "", "d"]}, "empty"),
        ({"labels": ["a", "a", "d"]}, "twice|several|same"),
    ],
)
def test_arguments_that_make_no_model_are_named(wrong, sentence):
    how = {"labels": list("abc"), "features": VALUES, "channels": 3}
    with pytest.raises(segfuse.UsageError, match=sentence) as refused:
        segfuse.Model.from_torch(nn.Linear(3, 3), **{**how, **wrong})
    assert "\n" not in str(refused.value)


def test_a_model_says_how_it_goes_elsewhere():
    how = {"labels": list("abc"), "features": VALUES, "channels": 3}
    model = segfuse.Model.from_torch(nn.Linear(3, 3), **how)
    with pytest.raises(segfuse.UsageError, match="save"):
        pickle.dumps(model)
