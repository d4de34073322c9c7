"""`segfuse doctor determinism -- COMMAND`: the first operation that differs between two runs."""

import io
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import determinism_programs

import segfuse
from segfuse.torch._watch.determinism import Determinism, _cause
from segfuse.torch._watch.operation import operation_of


def doctor(folder, program, *arguments):
    (folder / "train.py").write_text(textwrap.dedent(program))
    command = Path(segfuse.__file__).parent / "bin" / "segfuse"
    return subprocess.run(
        [command, "doctor", "determinism", "--json", *arguments, "--", sys.executable, "train.py"],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


TRAINING = """
    import time, random, numpy as np, torch
    {seed}
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(20):
        x = torch.ones(6, 4)
        {step}
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
SEED = "torch.manual_seed(0)"


def finding_of(program):
    """Of two runs in this process."""
    code = compile(textwrap.dedent(program), "train.py", "exec")
    found = runs_of(*[lambda: exec(code, {"__name__": "__main__"})] * 2)
    assert found is not None
    return found


@pytest.mark.parametrize("tool", ["determinism", "numerics"])
@pytest.mark.parametrize("program", ["import torch", "import torch; torch.empty(3).view(3, 1)"])
def test_a_program_without_operations(tool, program):
    """It was watched, so this is no error; a program without PyTorch was not."""
    command = [Path(segfuse.__file__).parent / "bin" / "segfuse", "doctor", tool, "--"]

    def run(text):
        return subprocess.run(
            [*command, sys.executable, "-c", text], capture_output=True, text=True, check=False
        )

    done = run(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("no operation of PyTorch ran, so nothing was checked\n")
    ended = run(program + "; raise SystemExit(5)")
    assert ended.returncode == 5
    other = run("print(1)")
    assert other.returncode == 4
    assert "could be watched" in other.stderr


def test_a_clean_training_has_the_same_bits(tmp_path):
    run = doctor(tmp_path, TRAINING.format(seed=SEED, step=""))
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(run.stdout)["processes"][0]
    assert report["finding"] is None
    assert report["operations"] > 20 * 30


def test_parameters_without_a_seed():
    found = finding_of(TRAINING.format(seed="", step=""))
    assert found["operation"] == "uniform_"
    assert "torch.manual_seed" in found["cause"]


def test_the_seed_of_the_command_helps(tmp_path):
    run = doctor(tmp_path, TRAINING.format(seed="", step=""), "--seed", "3")
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    "step, kind, operation",
    [
        ("x = x + torch.from_numpy(np.random.rand(6, 4).astype('f'))", "given", "add"),
        ("x = x * random.random()", "given", "mul"),
        ("x = x + torch.tensor(time.time() % 1)", "given", "add"),
        ("x = x.exp() if time.time_ns() // 1000 % 1009 > 1 and random.random() < 0.5 else x.sin()",
         "parted", None),
        ("torch.seed(); x = x + torch.randn(6, 4)", "operation", "randn"),
        ("torch.seed()", "operation", "bernoulli_"),
        ("x = torch.empty(6, 4); x.numpy()[:] = np.random.rand(6, 4); x = x + 1", "unwritten", "add"),
    ],
)  # fmt: skip
def test_what_differs_is_named(step, kind, operation):
    found = finding_of(TRAINING.format(seed=SEED, step=step))
    assert found["kind"] == kind, found
    if operation is not None:
        assert found["operation"].startswith(operation), found
        assert "train.py:" in dict(found["rows"])["line"]


def test_the_order_of_a_set_of_strings(tmp_path):
    step = "x = torch.stack([torch.full((6, 4), float(ord(c))) for c in set('segmental')])[0]"
    run = doctor(tmp_path, TRAINING.format(seed=SEED, step=step), "--vary", "hash")
    assert run.returncode == 1, run.stdout + run.stderr
    found = json.loads(run.stdout)["processes"][0]["finding"]
    assert (found["kind"], found["operation"]) == ("given", "full"), found


def test_another_order_in_an_operation():
    program = """
        import random, torch
        class Sum(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.sum()
            @staticmethod
            def backward(ctx, gradient):
                order = list(range(32)); random.shuffle(order)
                return gradient * torch.arange(32.0)[torch.tensor(order)]
        x = torch.arange(32.0, requires_grad=True)
        Sum.apply(x * 2).backward()
    """
    found = finding_of(program)
    assert found["kind"] == "given"
    assert "in backward" in dict(found["rows"])["line"]


def runs_of(*programs):
    """The finding of two runs, each of a program of its own."""
    trace = io.StringIO()
    for watch, program in zip(
        (Determinism(trace, None), Determinism(None, iter(trace))), programs, strict=True
    ):
        trace.seek(0)
        watch.start()
        program()
        watch.stop()
    return watch.finding


def counter_in_former_memory(value, other):
    """Adds to a number that lies where the result of another library lay, or elsewhere."""
    filled = torch.empty(3)
    filled.numpy()[:] = 1  # as our decoder does: PyTorch has no operation for it
    former = filled.untyped_storage()._cdata
    if not other:
        del filled
    kept = []
    for _ in range(1000):  # as Adam's counters: no operation makes them
        kept.append(torch.tensor(value))
        if kept[-1].untyped_storage()._cdata == former:
            break
    kept[-1].add_(1)


@pytest.mark.parametrize("first", [False, True])
def test_what_lies_where_other_memory_lay_is_no_difference(first):
    found = runs_of(
        lambda: counter_in_former_memory(0.0, first),
        lambda: counter_in_former_memory(0.0, not first),
    )
    assert found is None


def test_what_lies_where_other_memory_lay_is_not_unwritten():
    found = runs_of(
        lambda: counter_in_former_memory(0.0, False), lambda: counter_in_former_memory(1.0, False)
    )
    assert found["kind"] == "given"


def test_unwritten_memory_with_the_same_bits_is_no_difference():
    def program(filled):
        x = torch.empty(3)
        if filled:
            x.numpy()[:] = 1
        else:
            x = torch.from_numpy(np.ones(3, dtype=np.float32))
        return x + 1

    assert runs_of(lambda: program(True), lambda: program(False)) is None


def memory_of(value):
    """Makes malloc() give out memory with these bytes."""
    sizes = [size for size in range(16, 4096, 16) for _ in range(16)] + [1 << 14, 1 << 16] * 16
    blocks = [np.full(size, value, dtype=np.uint8) for size in sizes]
    del blocks


def lstm(dirty):
    module, x = torch.nn.LSTM(4, 5), torch.randn(3, 2, 4)
    dirty()
    module(x)[0].sum().backward()


def ctc_loss(dirty):
    scores = torch.randn(12, 2, 5, requires_grad=True)
    labels, frames, lengths = torch.ones(2, 6, dtype=torch.long), [12, 9], [6, 2]
    dirty()
    torch.nn.functional.ctc_loss(scores.log_softmax(2), labels, frames, lengths).backward()


def circular_padding(dirty):
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    dirty()
    torch.nn.functional.pad(x, (2, 1, 1, 2), mode="circular").clone().sum().backward()


def rrelu_of_inference(dirty):
    x = torch.randn(40, requires_grad=True)
    dirty()
    torch.nn.functional.rrelu(x).sum().backward()


@pytest.mark.parametrize("program", [lstm, ctc_loss, circular_padding, rrelu_of_inference])
def test_scratch_memory_of_an_operation_is_no_difference(program):
    def with_memory_of(value):
        torch.manual_seed(0)
        memory_of(value)
        program(lambda: memory_of(value))

    assert runs_of(lambda: with_memory_of(1), lambda: with_memory_of(254)) is None


def test_a_copy_of_memory_that_is_partly_unwritten_is_read_later():
    def program(left):
        x = torch.empty(2, 40)
        x[0].copy_(torch.ones(40))
        x.numpy()[1] = left  # by no operation of PyTorch
        y = x.clone()
        y[0].add(1)
        y[1].add(1)

    assert runs_of(lambda: program(3.0), lambda: program(3.0)) is None
    found = runs_of(lambda: program(3.0), lambda: program(4.0))
    assert (found["kind"], found["operation"], found["number"]) == ("unwritten", "add", 5)


def test_the_same_operation_at_another_line_has_parted():
    def program(numbers):
        x = torch.from_numpy(np.array(numbers, dtype=np.float32))
        if len(numbers) > 1 and numbers[0] > 1:
            return x * 2
        return x * 2

    assert runs_of(lambda: program([1.0, 1.0]), lambda: program([2.0, 1.0]))["kind"] == "parted"
    assert runs_of(lambda: program([1.0, 1.0]), lambda: program([1.0, 2.0]))["kind"] == "given"


@pytest.mark.parametrize("name", determinism_programs.PROGRAMS)
def test_programs_for_a_gpu_and_for_any_device(name):
    """doctor_visit.py has the GPU's verdicts."""
    program = determinism_programs.PROGRAMS[name]
    if why := determinism_programs.missing(program):
        pytest.skip(why)
    options = ["--vary", program.vary] if program.vary else []
    run = subprocess.run(
        [Path(segfuse.__file__).parent / "bin" / "segfuse", "doctor", "determinism", "--json",
         *options, "--", sys.executable, determinism_programs.__file__, name],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found = json.loads(run.stdout)["processes"][0]["finding"]
    if program.operation == "":
        assert (run.returncode, found) == (0, None), run.stdout
    elif program.certain or found is not None:
        assert run.returncode == 1
        assert found["operation"].startswith(program.operation), found


@pytest.mark.parametrize(
    "operation, advice",
    [
        ("index_add_", "use_deterministic_algorithms"),
        ("scatter_add_", "use_deterministic_algorithms"),
        ("embedding_dense_backward", "use_deterministic_algorithms"),
        ("cudnn_convolution", "torch.backends.cudnn.deterministic"),
        ("convolution_backward", "torch.backends.cudnn.deterministic"),
        ("mm", "CUBLAS_WORKSPACE_CONFIG"),
        ("native_dropout", "torch.manual_seed"),
        ("sum", "the same number of threads"),
    ],
)
def test_advice_for_what_only_a_gpu_shows(operation, advice):
    assert advice in _cause(operation_of(getattr(torch.ops.aten, operation).default))
