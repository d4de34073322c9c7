"""`segfuse.torch.check_numerics` and `segfuse doctor numerics -- COMMAND`: planted faults are named,
clean programs are not, and the program's exit code and output stay what they are."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import numeric_faults

import segfuse
import segfuse.torch
from segfuse.torch._watch import compiled, judge, numerics
from segfuse.torch._watch.lane import magnitudes_at_once


def name_of(function):
    return function.__name__


@pytest.mark.parametrize("program", numeric_faults.FAULTS, ids=name_of)
def test_a_planted_fault_is_named_first(program, looks):
    if why := numeric_faults.missing(program):
        pytest.skip(why)
    assert numeric_faults.what_is_wrong(program) == ""


def test_of_thirty_faults_twenty_eight_are_named_first(looks, capsys):
    assert sum(map(len, numeric_faults.THIRTY.values())) == 30
    named, skipped = numeric_faults.count()
    assert skipped <= 1, capsys.readouterr().out
    assert named + skipped >= 28, capsys.readouterr().out


@pytest.mark.parametrize("program", numeric_faults.CLEAN, ids=name_of)
def test_a_clean_program_gives_no_report(program, looks):
    torch.manual_seed(0)
    with segfuse.torch.check_numerics() as watch:
        program()
    assert "nothing found" in watch.report()


def test_our_own_layer_is_clean(looks):
    crf = segfuse.torch.SemiMarkovCRF(3, 4, self_transitions=False)
    with segfuse.torch.check_numerics():
        optimizer = torch.optim.Adam(crf.parameters())
        labels = torch.tensor([[0, 0, 1, 2, 2, 1]])
        crf(torch.randn(1, 6, crf.num_scores, requires_grad=True), labels).backward()
        optimizer.step()


def test_the_message_has_module_line_element_operands_and_cause(looks):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), numeric_faults.Apply(torch.log))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
        model[0].bias.zero_()
    with pytest.raises(segfuse.DataError) as caught, segfuse.torch.check_numerics():
        model(torch.tensor([[1.0, 2.0], [3.0, -0.25]])).sum().backward()
    message = str(caught.value)
    assert "log gave nan at [1, 1]" in message
    assert "1 (Apply)" in message
    assert "self float32[2, 2] = -0.25" in message
    assert "the operand is negative" in message
    assert "reached   the loss (test_doctor_numerics.py" in message


def test_a_finding_stops_at_the_step_it_was_made_in(looks):
    steps = 0

    def middle(x):
        nonlocal steps
        steps += 1
        return x / 0 if steps == 2 else x

    with pytest.raises(segfuse.DataError, match="step 2"), segfuse.torch.check_numerics():
        numeric_faults.train_with(middle, steps=5)
    assert steps == 2


def test_watching_changes_no_bit(looks):
    def weights(watched):
        torch.manual_seed(3)
        model = numeric_faults.net(torch.nn.Dropout(0.5))
        if watched:
            with segfuse.torch.check_numerics(statistics=True):
                numeric_faults.train(model, steps=4)
        else:
            numeric_faults.train(model, steps=4)
        return [p.detach().clone() for p in model.parameters()]

    for a, b in zip(weights(False), weights(True), strict=True):
        assert torch.equal(a, b)


def test_statistics_have_a_row_for_each_step(looks):
    with segfuse.torch.check_numerics(statistics=True) as watch:
        numeric_faults.train_with(
            lambda x: x.tanh() * 1e-3 + 200,
            steps=3,
            loss_of=lambda m: m(torch.randn(6, 4)).tanh().mean(),
        )
    rows = watch.as_json()["statistics"]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[0]["forward"]["value"] > 100
    assert "gradient" in watch.report()


def test_statistics_of_a_gradient_without_weights(looks):
    with segfuse.torch.check_numerics(statistics=True) as watch:
        scores = torch.randn(3, 4, requires_grad=True)
        torch.nn.functional.cross_entropy(scores, torch.tensor([1, 2, 0])).backward()
    assert "nothing found" in watch.report()


def test_what_is_overwritten_at_once_was_seen_before(looks):
    def middle(x):
        y = x / 0
        z = y + x
        y.zero_()
        return z

    with segfuse.torch.check_numerics(raises=False) as watch:
        numeric_faults.train_with(middle)
    assert watch.findings[0].operation == "div", watch.report()


def test_operands_beyond_the_budget_are_let_go(looks):
    watch = numerics.Numerics(keep_bytes=0)
    watch.start()
    numeric_faults.train_with(torch.log)
    watch.stop()
    first = watch.findings[0]
    assert (first.operation, first.place.line.function) == ("log", "forward")
    if looks:
        assert first.readings[0].text == "overwritten or let go before being read"


def test_results_in_lists_are_let_go_of_with_their_lists(looks):
    watch = numerics.Numerics(keep_bytes=0)
    watch.start()
    numbers = [torch.ones(2), torch.full((3,), -1.0)]
    torch._foreach_log_(numbers)
    torch.sqrt(torch.ones(8))  # its memory is beyond the budget, so what came before goes
    float(numbers[1].sum())
    watch.stop()
    first = watch.findings[0]
    assert first.operation == "_foreach_log_"
    assert first.statement.endswith("-> float32[3]")
    if looks:
        assert first.readings[0].text == "overwritten or let go before being read"


def test_results_in_place_are_read_where_they_are(looks):
    watch = numerics.Numerics()
    watch.start()
    one, numbers = torch.full((3,), -1.0), [torch.ones(2), torch.full((4,), -1.0)]
    one.sqrt_()
    torch._foreach_log_(numbers)
    float(one.sum()) + float(numbers[1].sum())
    watch.stop()
    first, second = watch.findings
    assert first.operation == "sqrt_"
    assert (second.operation, second.element) == ("_foreach_log_", "[0]")


def test_a_list_whose_memory_was_exchanged_is_not_read(looks):
    watch = numerics.Numerics()
    watch.start()
    numbers = [torch.full((4,), -1.0)]
    torch._foreach_log_(numbers)
    total = numbers[0].sum()
    numbers[0].data = torch.ones(9)
    float(total)
    watch.stop()
    first = watch.findings[0]
    assert first.operation == "_foreach_log_"
    if looks:
        assert first.statement.endswith("-> float32")
        assert first.readings[0].text == "-1"  # what it was before


def test_an_operand_that_is_overwritten_in_place(looks):
    """On the CPU it is copied before, unless it is huge or one of several."""
    watch = numerics.Numerics()
    watch.start()
    large, numbers = torch.full((300, 300), -1.0), [torch.ones(2), torch.full((3,), -1.0)]
    large.sqrt_()
    torch._foreach_log_(numbers)
    float(large.sum()) + float(numbers[1].sum())
    watch.stop()
    first, second = watch.findings
    text = "overwritten or let go before being read"
    if looks:
        assert first.statement == "sqrt_(self) -> float32[300, 300]"
        assert (first.readings[0].name, first.readings[0].text) == ("self", text)
    else:
        assert first.statement == "sqrt_(self float32[300, 300]) -> float32[300, 300]"
        assert first.readings[0].text == "-1"
    assert (second.readings[0].name, second.readings[0].text) == ("self[0], self[1]", text)


def test_a_nan_that_a_large_operand_held_is_not_blamed_on_an_operation_in_place():
    data = np.ones((300, 300), np.float32)
    data[7, 9] = np.nan
    with segfuse.torch.check_numerics(raises=False) as watch:
        x = torch.from_numpy(data)
        x.mul_(2)
        float(x.sum())
    assert (watch.findings[0].operation, watch.findings[0].element) == ("input", "[7, 9]")


def test_lines_are_read_without_the_interpreters_lock(looks):
    if looks and sys.version_info < (3, 14):
        recorder, _ = compiled.compiled_here()
        with segfuse.torch.check_numerics(raises=False):
            torch.ones(2) + 1
        assert recorder.knows_frames()


def test_a_program_without_steps_is_looked_at_in_pieces(looks):
    with segfuse.torch.check_numerics(raises=False) as watch:
        total = torch.zeros(()) / torch.zeros(())
        for _ in range(17_000):
            total = total + 1
        total.item()
    assert watch.findings[0].operation == "div", watch.report()
    assert watch.findings[0].reached == "a number that the program reads"


def test_gradients_are_taken_over_as_without_a_watcher(looks):
    def kept(watched):
        x = torch.ones(1000, requires_grad=True)
        seen = []
        x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.data_ptr()))
        x.register_hook(lambda grad: seen.append(grad.data_ptr()))
        if watched:
            with segfuse.torch.check_numerics():
                (x * 3).sum().backward()
        else:
            (x * 3).sum().backward()
        return seen[0] == seen[1]

    assert kept(False)
    assert kept(True) or not looks


# --- the command ---


def doctor(*arguments, cwd, **environment):
    command = Path(segfuse.__file__).parent / "bin" / "segfuse"
    return subprocess.run(
        [command, "doctor", *map(str, arguments)], cwd=cwd, capture_output=True, text=True,
        timeout=300, check=False, env=os.environ | environment,
    )  # fmt: skip


TRAINING = """
    import sys, torch
    def half(x):
        return torch.sqrt(x) if "bad" in sys.argv else x
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        half(model(torch.full((4, 2), -1.0)) * 0 - 1).sum().backward()
        optimizer.step()
    print("trained", __name__, sys.argv)
    sys.exit(7 if "seven" in sys.argv else 0)
"""


@pytest.fixture
def training(tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAINING))
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__main__.py").write_text(textwrap.dedent(TRAINING))
    return tmp_path


def test_the_command_names_the_operation_of_a_script(training):
    run = doctor("numerics", "--", sys.executable, "train.py", "bad", cwd=training)
    assert run.returncode == 1, run.stderr
    assert "NaN: sqrt gave nan at [0, 0]" in run.stdout
    assert "train.py:4 in half: return torch.sqrt(x)" in run.stdout
    assert "trained __main__ ['train.py', 'bad']" in run.stderr


def test_the_command_keeps_the_exit_code_of_a_clean_program(training):
    run = doctor("numerics", "--json", "--", sys.executable, "-m", "pkg", "seven", cwd=training)
    assert run.returncode == 7, run.stderr
    report = json.loads(run.stdout)
    assert report["exit_code"] == 7
    assert report["processes"][0]["findings"] == []
    assert report["processes"][0]["steps"] == 2


def test_the_command_reports_magnitudes_that_are_not_finite(training):
    run = doctor("numerics", "--statistics", "--json", "--", sys.executable, "train.py", "bad",
                 cwd=training)  # fmt: skip
    assert run.returncode == 1, run.stderr
    [report] = json.loads(run.stdout)["processes"]
    assert report["findings"][0]["operation"] == "sqrt"
    assert report["statistics"][0]["forward"]["value"] == "nan"


def test_the_command_reports_files_whose_names_are_not_text(training):
    name = os.fsdecode(b"tr\xe4n.py")
    (training / "train.py").rename(training / name)
    run = doctor("numerics", "--", sys.executable, name, "bad", cwd=training)
    assert run.returncode == 1, run.stderr
    assert ":4 in half: return torch.sqrt(x)" in run.stdout


def test_the_command_watches_the_ranks_of_torchrun(training):
    code = "import sys; from torch.distributed.run import main; sys.exit(main())"
    run = doctor("numerics", "--", sys.executable, "-c", code, "--standalone", "--nproc-per-node=2",
                 "train.py", "bad", cwd=training)  # fmt: skip
    assert run.returncode == 1, run.stderr
    assert "(rank 0): " in run.stdout and "(rank 1): " in run.stdout


def test_a_sitecustomize_of_the_user_runs_as_always(training):
    hooks = training / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text("print('hook of the user')\n")
    run = doctor("numerics", "--", sys.executable, "train.py", cwd=training, PYTHONPATH=str(hooks))
    assert run.returncode == 0, run.stderr
    assert "hook of the user" in run.stderr
    assert "nothing found" in run.stdout


def test_a_program_without_pytorch_is_told_so(tmp_path):
    run = doctor("numerics", "--", sys.executable, "-c", "print(1)", cwd=tmp_path)
    assert run.returncode == 4
    assert "no process" in run.stderr


def test_a_command_that_does_not_exist(tmp_path):
    run = doctor("numerics", "--", "no-such-program", "x", cwd=tmp_path)
    assert run.returncode == 2
    assert "no-such-program cannot be started" in run.stderr


def test_a_list_that_is_written_and_read_is_not_the_cause(looks):
    """After `xs *= xs` all that can be seen of the second operand is what has been written."""
    xs = [torch.full((3,), 1e30) for _ in range(20)]
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], 0.1)
    with segfuse.torch.check_numerics(raises=False) as watch:
        torch._foreach_mul_(xs, xs)
        (xs[11] * weight).sum().backward()
        optimizer.step()
    first = watch.findings[0].as_json()
    assert first["operation"].startswith("_foreach_mul"), watch.report()
    assert first["fault"] == "infinity", watch.report()


# --- tensors of other kinds, long lists, errors ---


def test_nested_tensors_are_seen_when_they_are_unpacked(looks):
    rows = [torch.ones(2, 3), torch.ones(4, 3)]
    with segfuse.torch.check_numerics(raises=False) as watch:
        nested = torch.nested.nested_tensor(rows) * 2
        print(nested.to_padded_tensor(0.0).sum().item())
        assert not watch.findings
        print((torch.nested.nested_tensor(rows) / 0).to_padded_tensor(0.0).sum().item())
    assert len(watch.findings) == 1, watch.report()


def test_operands_of_a_list_are_read_once_for_all_its_results(looks, monkeypatch):
    reads = []

    def counted(tensors):
        reads.append(len(tensors))
        return magnitudes_at_once(tensors)

    monkeypatch.setattr(judge, "magnitudes_at_once", counted)
    with segfuse.torch.check_numerics(raises=False) as watch:
        many = torch._foreach_mul([torch.full((3,), 1e38) for _ in range(100)], 10.0)
        print(many[99].sum().item())
    assert watch.findings[0].operation == "_foreach_mul", watch.report()
    assert sum(reads) < 400


def test_a_watch_after_one_that_failed(looks, monkeypatch):
    """What the failed one has left is not taken for what the next one sees."""
    with (
        monkeypatch.context() as patch,
        pytest.raises(RuntimeError, match="of the flush"),
        segfuse.torch.check_numerics() as failed,
    ):
        patch.setattr(failed._watch.looks, "flush", failing)
        for _ in range(3):
            torch.ones(()) / 0
    with segfuse.torch.check_numerics() as watch:
        for _ in range(6):
            torch.zeros(3)
    assert watch._watch.put_aside() == []


def failing(*_):
    raise RuntimeError("of the flush")


def test_errors_leave_modules_and_operators_as_they_were(looks):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), numeric_faults.Apply(torch.log))
    call = torch.nn.Module._call_impl
    with segfuse.torch.check_numerics(raises=False) as watch:
        with pytest.raises(RuntimeError, match="shape"):
            model(torch.ones(2, 2))
        print(torch.zeros(1).log().item())
        with pytest.raises(RuntimeError, match="shape"), segfuse.torch.check_numerics():
            model(torch.ones(2, 2))
    assert torch.nn.Module._call_impl is call
    assert watch.findings[0].module == "", watch.report()


def test_a_watch_within_a_watch_ends_alone(looks):
    with segfuse.torch.check_numerics(raises=False) as watch:
        with segfuse.torch.check_numerics(raises=False) as inner:
            torch.zeros(1).log().item()
        torch.ones(1).div(0).item()
    assert [f.operation for f in inner.findings] == ["log"]
    assert "div" in [f.operation for f in watch.findings], watch.report()
