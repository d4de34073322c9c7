"""The doctor's tools for PyTorch on a real GPU."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device here", allow_module_level=True)

import numeric_faults

import segfuse.torch
from segfuse.torch._watch.streams import Cuda, Recorder


def story(recorded, products):
    count = 1 << 22
    side = torch.cuda.Stream()
    table = torch.arange(count, device="cuda", dtype=torch.float32)
    indices = torch.arange(count, device="cuda")  # allocated
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        slow = torch.ones(2048, 2048, device="cuda")
        for _ in range(products):
            slow = torch.mm(slow, slow) * 1e-4
        out = table[indices]  # used
        if recorded:
            indices.record_stream(side)
    del indices
    poison = torch.zeros(count, device="cuda", dtype=torch.int64)  # reused
    torch.cuda.synchronize()
    return int((out != table).sum() + poison[0])


def line_of(comment):
    lines = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith(f"  # {comment}"))


def told(recorded, products):
    """Wrong elements, and the races that the doctor reports."""
    recorder = Recorder(Cuda())
    recorder.start()
    try:
        wrong = story(recorded, products)
    finally:
        recorder.stop()
    return wrong, recorder.races()


@pytest.mark.parametrize("products", [20, 0], ids=["late", "soon"])
@pytest.mark.parametrize("run", range(10))
def test_the_story_of_record_stream_is_named_with_its_lines(run, products):
    """Soon: what is read has mostly been read when it is overwritten."""
    wrong, (race,) = told(False, products)
    print(f"{wrong} elements are wrong")
    assert race["kind"] == "freed while in use"
    for place in ("allocated", "used", "reused"):
        assert f"test_doctor_cuda.py:{line_of(place)} in story" in race["places"][place]


@pytest.mark.parametrize("run", range(10))
def test_with_record_stream_nothing_is_reported(run):
    assert told(True, 20) == (0, [])


@pytest.fixture
def default_device():
    with torch.device("cuda"):
        yield


@pytest.mark.parametrize("program", numeric_faults.FAULTS, ids=lambda p: p.__name__)
def test_a_planted_fault_is_named_first(program, default_device):
    if why := numeric_faults.missing(program):
        pytest.skip(why)
    assert numeric_faults.what_is_wrong(program) == ""


def test_of_thirty_faults_twenty_eight_are_named_first(default_device):
    named, _ = numeric_faults.count()
    assert named >= 28


@pytest.mark.parametrize("program", numeric_faults.CLEAN, ids=lambda p: p.__name__)
def test_a_clean_program_gives_no_report(program, default_device):
    if any(word in program.__name__ for word in ("data", "half_that", "batches")):
        pytest.skip("it keeps to the CPU")
    torch.manual_seed(0)
    with segfuse.torch.check_numerics():
        program()


# --- what is not read for its bound ---


def test_a_wrong_guess_on_a_gpu_hides_nothing():
    with segfuse.torch.check_numerics(raises=False) as watch:
        x = torch.full((1 << 20,), 1e30).to("cuda")
        y = x * x
        assert recorder_of(watch).counts()[1] == 1, "the guess of x bounds y"
        print(y.sum().item())
    assert watch.findings[0].operation == "mul", watch.report()


def test_a_guess_that_holds_is_enough():
    with segfuse.torch.check_numerics() as watch:
        x = torch.full((1 << 20,), 3.0).to("cuda")
        print((x * x).sum().item())
        proven, pending, read, read_bytes = recorder_of(watch).counts()
    assert pending >= 1 and read_bytes < 9 << 20


def recorder_of(watch):
    return watch._watch.looks._recorder


def test_a_list_that_is_longer_than_a_buffer_of_magnitudes():
    with segfuse.torch.check_numerics(raises=False) as watch:
        xs = [torch.ones(2, device="cuda") for _ in range(5000)]
        xs[4999] = xs[4999] * 0
        print(torch._foreach_reciprocal(xs)[4999].sum().item())
    assert watch.findings[0].operation == "_foreach_reciprocal", watch.report()
