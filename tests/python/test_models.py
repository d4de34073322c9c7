"""Trained models in Python: the same segments as the command's, and what is refused."""

import csv
import itertools
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import threading
import wave

import numpy as np
import pytest

import segfuse

CONFIG = """
[features]
kind = "log_mel"
n_mels = 12
[model]
width = 12
kernel = 3
dilations = [1]
[training]
epochs = 2
batch_size = 4
learning_rate = 3e-3
"""


def run(*arguments, **how):
    return subprocess.run(
        [sys.executable, "-m", "segfuse", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        **how,
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    assert run("synth", folder / "corpus", "--labels", 4, "--train", 8, "--test", 3).returncode == 0
    (folder / "config.toml").write_text(CONFIG)
    segfuse.train(folder / "config.toml", folder / "run", data=folder / "corpus", quiet=True)
    return folder


@pytest.fixture
def model(place):
    return segfuse.Model.load(place / "run")


def recordings(place):
    return sorted((place / "corpus/test").glob("*.wav"))


def read(path):
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16), file.getframerate()


def same(a, b):
    """Equal, and NaN where the other is."""
    number = (a.log_probability == b.log_probability) or (
        math.isnan(a.log_probability) and math.isnan(b.log_probability)
    )
    return a.segments == b.segments and a.seconds == b.seconds and number


def test_a_training_is_the_command_s(place, tmp_path):
    how = ["--data", place / "corpus", "--out", tmp_path / "run"]
    assert run("train", place / "config.toml", *how).returncode == 0
    ours = (place / "run/model.safetensors").read_bytes()
    assert ours == (tmp_path / "run/model.safetensors").read_bytes()


def test_a_training_returns_its_model_and_metrics(place, tmp_path):
    settings = {"training.epochs": 1, "model.dropout": 0.25, "model.dilations": [1, 2]}
    model = segfuse.train(
        str(place / "config.toml"),
        str(tmp_path / "run"),
        data=place / "corpus",
        settings=settings,
        quiet=True,
    )
    assert model.metrics == json.loads((tmp_path / "run/metrics.json").read_text())
    assert "dilations = [1, 2]" in model.configuration
    assert "dropout = 0.25" in model.configuration
    assert segfuse.evaluate(tmp_path / "run")["label_error_rate"] == pytest.approx(
        model.metrics["label_error_rate"]
    )


def test_a_training_begins_with_a_model(place, tmp_path):
    still = {"training.epochs": 1, "training.average": 0, "training.learning_rate": 0}
    how = {"data": place / "corpus", "quiet": True}
    out = tmp_path / "run"
    model = segfuse.train(place / "config.toml", out, init=place / "run", settings=still, **how)
    assert model.metrics["run"]["initial_model"]["labels"].startswith("4 of 4 labels known from")
    audio = recordings(place)[0]
    former = segfuse.Model.load(place / "run")
    assert same(model.decode(audio), former.decode(audio))
    wider = {**still, "model.width": 24}
    with pytest.raises(segfuse.UsageError, match="model.width"):
        segfuse.train(
            place / "config.toml", tmp_path / "new", init=place / "run", settings=wider, **how
        )


def test_a_model_says_what_it_is(model):
    assert len(model.labels) == 4
    assert (model.sample_rate, model.hop_seconds, model.head) == (16000, 0.01, "semi_markov")
    assert model.max_duration > 1
    assert model.parameter_count > 100
    assert "4 labels, semi_markov, 16000 Hz" in repr(model)


def test_segments_are_those_of_the_command(place, model, tmp_path):
    files = recordings(place)
    arguments = ["--model", place / "run", "--out", tmp_path, "--format", "csv"]
    result = run("decode", *arguments, *files)
    if result.returncode == 2:  # the model is positional
        result = run("decode", place / "run", *files, "--out", tmp_path, "--format", "csv")
    assert result.returncode == 0, result.stderr
    for path in files:
        with open(tmp_path / f"{path.stem}.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        found = model.decode(*read(path)).segments
        assert [row["label"] for row in rows] == [s.label for s in found]
        for row, segment in zip(rows, found, strict=True):
            assert float(row["end"]) == pytest.approx(segment.end, abs=1e-6)
            assert float(row["posterior"]) == pytest.approx(segment.posterior, abs=1e-4)


def test_files_arrays_and_dtypes_agree(place, model):
    path = recordings(place)[0]
    samples, rate = read(path)
    expected = model.decode(path)
    assert same(model.decode(samples, rate), expected)
    for dtype in (np.float32, np.float64):
        assert same(model.decode(samples.astype(dtype) / 32768, rate), expected)
    wide = samples.astype(np.int32) << 16
    assert same(model.decode(wide, rate), expected)
    assert same(model.decode(np.stack([samples, samples], 1)[:, 0], rate), expected)
    assert same(model.decode(list(samples / 32768), rate), expected)
    loud = samples / 32768 * 50  # clipped in no file, and still no whole numbers
    assert model.decode(loud, rate).segments
    with pytest.raises(segfuse.UsageError, match="pass whole numbers as int16"):
        model.decode(samples.astype(np.float32), rate)


def test_channels_are_those_of_the_model(place):
    samples, rate = read(recordings(place)[0])
    other = np.zeros_like(samples)
    expected = segfuse.Model.load(place / "run").decode(samples, rate)
    both = np.stack([other, samples], 1)
    assert same(segfuse.Model.load(place / "run", channel=1).decode(both, rate), expected)
    mean = segfuse.Model.load(place / "run", channel="mean")
    assert same(mean.decode(np.stack([samples, samples], 1), rate), expected)
    assert not same(mean.decode(both, rate), expected)
    stack = segfuse.Model.load(place / "run", channel="stack")
    assert same(stack.decode(samples[:, None], rate), expected)
    with pytest.raises(segfuse.DataError, match="24 columns, those of the model 12"):
        stack.decode(both, rate)
    with pytest.raises(segfuse.UsageError, match="one channel"):
        segfuse.Model.load(place / "run", channel=2).decode(both, rate)


def test_other_rates_are_resampled(place, model):
    samples, rate = read(recordings(place)[0])
    twice = np.repeat(samples, 2)  # crude, but the labels are the same
    found = model.decode(twice, 2 * rate)
    assert found.seconds == pytest.approx(len(samples) / rate)
    assert found.segments[-1].end == pytest.approx(len(samples) / rate)


def test_company_and_threads_change_nothing(place, model):
    audio = [read(path) for path in recordings(place)]
    alone = [model.decode(*one) for one in audio]
    rate = audio[0][1]
    together = model.decode_all([samples for samples, _ in audio], rate)
    assert all(map(same, alone, together))
    before = segfuse.get_threads()
    try:
        segfuse.set_threads(1)
        assert all(same(model.decode(*one), other) for one, other in zip(audio, alone, strict=True))
    finally:
        segfuse.set_threads(before)
    found = {}
    workers = [
        threading.Thread(target=lambda i=i: found.setdefault(i, model.decode(*audio[i])))
        for i in range(len(audio))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(same(found[i], alone[i]) for i in range(len(audio)))


def test_a_child_made_by_fork_decodes(place, model):
    samples, rate = read(recordings(place)[0])
    expected = model.decode(samples, rate)
    child = os.fork()
    if child == 0:
        os._exit(0 if same(model.decode(samples, rate), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert same(model.decode(samples, rate), expected)


def test_posteriors_are_distributions(place, model):
    samples, rate = read(recordings(place)[0])
    found = model.decode(samples, rate, posteriors=True)
    frames = math.ceil(len(samples) / (rate * model.hop_seconds))
    assert found.label_posteriors.shape == (frames, 4)
    assert found.label_posteriors.dtype == np.float32
    np.testing.assert_allclose(found.label_posteriors.sum(1), 1, atol=1e-5)
    assert found.boundary_posteriors.shape == (frames,)
    np.testing.assert_array_equal(model.posteriors(samples, rate), found.label_posteriors)
    assert model.decode(samples, rate).label_posteriors is None
    # A segment's label posterior is the mean of its frames.
    first = found.segments[0]
    frames = round(first.end / model.hop_seconds)
    mean = found.label_posteriors[:frames, model.labels.index(first.label)].mean()
    assert first.label_posterior == pytest.approx(mean, abs=1e-5)


def test_other_segmentations(place, model):
    samples, rate = read(recordings(place)[0])
    found = model.decode(samples, rate, k_best=3, samples=2, seed=5)
    assert [s.log_probability for s in found.best] == sorted(
        (s.log_probability for s in found.best), reverse=True
    )
    assert found.best[0].segments == [(s.start, s.end, s.label) for s in found.segments]
    assert len(found.samples) == 2
    again = model.decode(samples, rate, k_best=3, samples=2, seed=5)
    assert found.samples == again.samples
    assert found.samples != model.decode(samples, rate, samples=2, seed=6).samples


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m, x: m.decode(x), segfuse.UsageError, "no sample_rate"),
        (lambda m, x: m.decode(x, 10), segfuse.DataError, "10 Hz"),
        (lambda m, x: m.decode(x, 0), segfuse.UsageError, "sample_rate is 0"),
        (lambda m, x: m.decode(x, 16000.5), segfuse.UsageError, "sample_rate is 16000.5"),
        (lambda m, x: m.decode(x[None], 16000), segfuse.UsageError, "one channel"),
        (lambda m, x: m.decode(x.astype(np.uint8), 16000), segfuse.UsageError, "uint8"),
        (lambda m, x: m.decode(x * np.nan, 16000), segfuse.DataError, "sample 0 is nan"),
        (lambda m, x: m.decode(x[:0], 16000), segfuse.DataError, "no samples"),
        (lambda m, x: m.decode("missing.wav"), segfuse.DataError, "missing.wav"),
        (lambda m, x: m.decode("x.wav", 16000), segfuse.UsageError, "leave it out"),
        (lambda m, x: m.decode(x, 16000, k_best=-1), segfuse.UsageError, "k_best is -1"),
        (lambda m, x: m.decode(x, 16000, k_best=10**6), segfuse.UsageError, "expected 0 to 1000"),
        (lambda m, x: m.decode("\udce9.wav"), segfuse.DataError, "\udce9.wav: "),
        (lambda m, x: m.align(x, "\udce9", 16000), segfuse.UsageError, "a string that UTF-8"),
        (lambda m, x: m.decode(x, 16000, seed=1.5), segfuse.UsageError, "seed is 1.5"),
        (lambda m, x: m.decode_all([x, x[None]], 16000), segfuse.UsageError, "recording 1 has"),
    ],
)
def test_bad_recordings_are_one_sentence(model, call, error, words):
    samples = np.linspace(-0.5, 0.5, 16000)
    with pytest.raises(error, match=words) as caught:
        call(model, samples)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda p: segfuse.Model.load(p / "missing"), segfuse.DataError, "missing"),
        (lambda p: segfuse.Model.load(p / "config.toml"), segfuse.DataError, "config.toml"),
        (lambda p: segfuse.Model.load(p / "run", device="cpux"), segfuse.UsageError, "cpux"),
        (
            lambda p: segfuse.Model.load(p / "run", channel="left"),
            segfuse.UsageError,
            "^channel is",
        ),
        (lambda p: segfuse.Model.load("\udce9"), segfuse.DataError, "open '\udce9'"),
        (lambda p: segfuse.Model.load(p / "run", device="\udce9"), segfuse.UsageError, "UTF-8"),
        (lambda p: segfuse.train(p / "no.toml", p / "new"), segfuse.DataError, "no.toml"),
        (lambda p: segfuse.train(p / "config.toml", p / "new"), segfuse.UsageError, "data"),
        (
            lambda p: segfuse.train(
                p / "config.toml",
                p / "new",
                data=p / "corpus",
                settings={"training.epoch": 1},
            ),
            segfuse.UsageError,
            "epochs",
        ),
        (
            lambda p: segfuse.train(
                p / "config.toml",
                p / "new",
                data=p / "corpus",
                settings={"training.learning_rate": float("nan")},
            ),
            segfuse.UsageError,
            "learning_rate is nan",
        ),
        (
            lambda p: segfuse.train(
                p / "config.toml", p / "new", data=p / "corpus", settings={"data.tier": object()}
            ),
            segfuse.UsageError,
            "data.tier is a object",
        ),
        (
            lambda p: segfuse.train(p / "config.toml", p / "run", data=p / "corpus"),
            segfuse.UsageError,
            "finished run",
        ),
        (
            lambda p: segfuse.evaluate(p / "run", split="half"),
            segfuse.UsageError,
            "split is 'half'",
        ),
    ],
)
def test_bad_models_and_trainings_are_one_sentence(place, call, error, words):
    before = sorted(place.rglob("*"))
    with pytest.raises(error, match=words) as caught:
        call(place)
    assert "\n" not in str(caught.value)
    assert sorted(place.rglob("*")) == before


def test_names_that_are_not_utf_8_are_names(place, tmp_path):
    corpus = tmp_path / "caf\udce9"
    corpus.symlink_to(place / "corpus")
    out = tmp_path / "run\udce9"
    model = segfuse.train(
        place / "config.toml", out, data=corpus, quiet=True, settings={"training.epochs": 1}
    )
    assert model.path == str(out)
    recording = sorted((corpus / "test").glob("*.wav"))[0]
    assert segfuse.Model.load(out).decode(recording) == model.decode(str(recording))
    assert segfuse.evaluate(out, corpus, out=tmp_path / "eval\udce9")["label_error_rate"] >= 0


def test_texts_and_numbers_arrive_as_they_are(place, tmp_path):
    title = 'quotes " and \\ and ä'
    model = segfuse.train(
        place / "config.toml",
        tmp_path / "run",
        data=place / "corpus",
        quiet=True,
        settings={"title": title, "training.epochs": np.int64(1), "features.fmin": np.float32(50)},
    )
    assert "fmin = 50" in model.configuration
    assert "epochs = 1" in model.configuration


def test_ctrl_c_saves_and_resume_gives_the_same_model(place, tmp_path):
    script = """
import segfuse, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
config, out, data, resume = sys.argv[1:]
try:
    segfuse.train(config, out, data=data, settings={"training.epochs": 200}, resume=resume == "yes")
except KeyboardInterrupt as interrupt:
    print("interrupted:", interrupt)
    sys.exit(9)
"""

    def start(out, resume):
        return subprocess.Popen(
            [
                sys.executable,
                "-c",
                script,
                place / "config.toml",
                tmp_path / out,
                place / "corpus",
                resume,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    with start("cut", "no") as process:
        for line in process.stderr:
            if line.startswith("epoch "):
                process.send_signal(signal.SIGINT)
                break
        process.stderr.read()
        assert "interrupted:" in process.stdout.read()
    assert process.returncode == 9
    for out, resume in (("cut", "yes"), ("whole", "no")):
        with start(out, resume) as process:
            process.communicate()
        assert process.returncode == 0
    models = [(tmp_path / out / "model.safetensors").read_bytes() for out in ("cut", "whole")]
    assert models[0] == models[1]


def test_the_command_is_in_the_package():
    result = run("--version")
    assert (result.returncode, result.stdout.strip()) == (0, f"segfuse {segfuse.__version__}")
    assert run("no-such-command").returncode == 2
    program = pathlib.Path(sys.executable).parent / "segfuse"
    if program.exists():
        assert subprocess.run([program, "--version"], check=False).returncode == 0


def test_aligns_as_the_command(place, model, tmp_path):
    path = recordings(place)[0]
    samples, rate = read(path)
    order = [line.split()[2] for line in path.with_suffix(".phn").read_text().splitlines()]
    (tmp_path / f"{path.stem}.txt").write_text(" ".join(order))
    out = tmp_path / "out"
    result = run(
        "align", place / "run", path, "--orders", tmp_path, "--out", out, "--format", "csv"
    )
    assert result.returncode == 0, result.stderr
    with open(out / f"{path.stem}.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for found in (
        model.align(samples, order, rate),
        model.align(path, order),
        model.align(path, " ".join(order)),
    ):
        assert [segment.label for segment in found.segments] == order
        for segment, row in zip(found.segments, rows, strict=True):
            assert segment.start == pytest.approx(float(row["start"]))
            assert segment.posterior == pytest.approx(float(row["posterior"]), abs=1e-6)
            assert math.isnan(segment.start_confidence)
        assert found.log_probability <= 0
    shorter = [label for label in order if label != order[0]]
    found = model.align(path, shorter, optional=order[0])
    assert [s.label for s in found.segments if s.label != order[0]] == shorter


def test_orders_that_are_none_are_refused(place, model):
    path = recordings(place)[0]
    for order, kind, words in (
        ("s00 zz", segfuse.DataError, "the order:1:5: the model has no label"),
        (["s00", "zz"], segfuse.UsageError, "'zz'"),
        (["s00"] * 5000, segfuse.DataError, "check that the order belongs to this recording"),
        ("", segfuse.DataError, "no labels"),
    ):
        with pytest.raises(kind, match=words):
            model.align(path, order)
    with pytest.raises(segfuse.UsageError, match="no label 'zz'"):
        model.align(path, ["s00"], optional="zz")
    with pytest.raises(segfuse.UsageError, match="leave it out"):
        model.align(path, ["s00"], 16000)
    with pytest.raises(segfuse.UsageError, match="sample_rate"):
        model.align(np.zeros(100), ["s00"])


def in_pieces(samples, sizes=(1, 7, 333, 5000)):
    at, turn = 0, 0
    while at < len(samples):
        size = sizes[turn % len(sizes)]
        yield samples[at : at + size]
        at, turn = at + size, turn + 1


def streamed(model, samples, *arguments, **how):
    """All segments, and how many came before the end."""
    with model.stream(*arguments, **how) as live:
        found = [one for piece in in_pieces(samples) for one in live.push(piece)]
        early = len(found)
        found += live.finish()
        assert live.seconds == pytest.approx(len(samples) / (arguments[0] if arguments else 16000))
    return found, early


def test_a_stream_has_the_segments_of_decode(place, model):
    samples = np.concatenate([read(path)[0] for path in recordings(place)])[:-5]
    for rate in (16000, 12000):
        wanted = [one[:3] for one in model.decode(samples, rate).segments]
        found, _ = streamed(model, samples, rate)
        assert [tuple(one) for one in found] == wanted
    assert streamed(model, samples) == streamed(model, samples, 16000)
    floats, _ = streamed(model, (samples / 32768).astype(np.float32))
    assert floats == streamed(model, samples)[0]
    late, early = streamed(model, samples, lookahead=2)
    assert 0 < early < len(late)
    assert late[0].start == 0
    assert all(a.end == b.start for a, b in itertools.pairwise(late))


def test_a_stream_s_mistakes(place, model):
    with pytest.raises(segfuse.UsageError, match="expected at least"):
        model.stream(lookahead=0.01)
    with pytest.raises(segfuse.UsageError, match="lookahead"):
        model.stream(lookahead="long")
    live = model.stream(16000)
    assert live.push(np.zeros(0, np.float32)) == []
    with pytest.raises(segfuse.UsageError, match="shape"):
        live.push(np.zeros((2, 2, 2), np.float32))
    live.push(np.zeros(100, np.float32))
    with pytest.raises(segfuse.DataError, match="sample 101 is nan"):
        live.push(np.array([0, np.nan], np.float32))
    assert live.seconds == 100 / 16000  # nothing of that was taken
    assert live.finish()[-1].end == 100 / 16000
    for call in (live.finish, lambda: live.push(np.zeros(3, np.float32))):
        with pytest.raises(segfuse.UsageError, match="has ended"):
            call()
    with pytest.raises(segfuse.DataError, match="the stream was empty"):
        model.stream().finish()


def test_a_stream_stays_in_its_process(model):
    live = model.stream()
    child = os.fork()
    if child == 0:
        try:
            live.push(np.zeros(10, np.float32))
        except segfuse.UsageError:
            model.stream().push(np.zeros(10, np.float32))
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    live.push(np.zeros(10, np.float32))


def test_streams_of_several_threads(place, model):
    samples, rate = read(recordings(place)[0])
    wanted = streamed(model, samples, rate)
    found = [None] * 3

    def work(i):
        found[i] = streamed(model, samples, rate)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted] * 3
