"""The doctor's tools while a CUDA graph is captured: they do nothing that could not be captured."""

import io

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import segfuse.torch
from segfuse.torch._watch import captures
from segfuse.torch._watch.captures import Captures
from segfuse.torch._watch.determinism import Determinism


class Graph:
    """Stands in for a CUDA graph: what is captured must not be looked at."""

    capturing = 0

    def capture_begin(self, fails=False):
        if fails:
            raise RuntimeError("cannot be captured")
        Graph.capturing += 1

    def capture_end(self):
        Graph.capturing -= 1

    def __enter__(self):
        self.capture_begin()

    def __exit__(self, *_):
        self.capture_end()


@pytest.fixture(autouse=True, params=["current", "other"])
def stream(request, monkeypatch):
    """Whether the current stream is the one that is captured."""
    Graph.capturing = 0
    methods = Graph.capture_begin, Graph.capture_end
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    if request.param == "current":
        monkeypatch.setattr(captures, "is_capturing", lambda: Graph.capturing > 0)
    yield request.param
    assert (Graph.capture_begin, Graph.capture_end) == methods


class Strict:
    """Lets nothing through to a recorder or to lanes during a capture, but for `harmless`."""

    harmless = (
        "start", "stop", "clear", "exclude", "pause", "pending", "enter_module", "leave_module",
        "bound", "statistics",
    )  # fmt: skip

    def __init__(self, of):
        self._of = of

    def __getattr__(self, name):
        assert Graph.capturing == 0 or name in self.harmless, name
        return getattr(self._of, name)


def watched(**options):
    """check_numerics whose recorder, lanes and judge are not used during a capture."""
    watch = segfuse.torch.check_numerics(raises=False, **options)
    looks = watch._watch.looks
    for name in ("_recorder", "_lanes", "_judge"):
        if hasattr(looks, name):
            setattr(looks, name, Strict(getattr(looks, name)))
    return watch


class Training:
    def __init__(self):
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def step(self, factor=1.0):
        self.optimizer.zero_grad()
        (self.model(torch.ones(2, 4)) * factor).square().mean().backward()
        self.optimizer.step()


def test_a_step_that_is_captured_is_not_looked_at(looks):
    training = Training()
    with watched(statistics=True) as watch:
        training.step()
        with Graph():
            training.step(factor=float("inf"))
            torch.zeros(2).log().sum().item()
        before = watch._watch.operations
        for p in training.model.parameters():  # as if nothing had run
            p.data.fill_(1.0)
        training.optimizer = torch.optim.Adam(training.model.parameters())
        training.step()
    assert watch.findings == [], watch.report()
    assert watch._watch.step == 3
    assert watch._watch.operations > before


def test_what_was_pending_is_looked_at_before(looks):
    """Before the graph's memory can be given to anything else."""
    with watched() as watch:
        value = torch.zeros(2).log().sum()
        value.item()
        with Graph():
            assert [f.operation for f in watch.findings] == ["log"]


def test_what_follows_is_looked_at(looks):
    with watched() as watch:
        with Graph():
            torch.zeros(2).log().sum().item()
        torch.full((2,), -1.0).sqrt().sum().item()
    assert [f.operation for f in watch.findings] == ["sqrt"], watch.report()


def test_the_outermost_module_within_a_capture(looks):
    model = torch.nn.Linear(4, 4)
    with watched() as watch:
        torch.zeros(2).log()
        with Graph():
            model(torch.full((2, 4), float("inf")))
        model(torch.ones(2, 4))
    assert watch.findings == [], watch.report()


def test_captures_within_captures(looks):
    with watched() as watch:
        with Graph():
            with Graph():
                torch.zeros(2).log().sum().item()
            torch.zeros(2).log().sum().item()
        torch.full((2,), -1.0).sqrt().sum().item()
    assert [f.operation for f in watch.findings] == ["sqrt"], watch.report()


def test_a_capture_that_does_not_begin(looks):
    with watched() as watch:
        with pytest.raises(RuntimeError, match="cannot be captured"):
            Graph().capture_begin(fails=True)
        torch.full((2,), -1.0).sqrt().sum().item()
    assert [f.operation for f in watch.findings] == ["sqrt"], watch.report()


def test_a_watch_that_ends_within_a_capture(looks):
    training = Training()
    graph = Graph()
    with watched() as watch:
        torch.zeros(2).log()
        graph.capture_begin()
        training.step()
    graph.capture_end()
    assert watch.findings == []
    with watched() as watch:
        torch.ones(2).sqrt().sum().item()
    assert watch.findings == []


def test_a_watch_that_begins_within_a_capture(looks, stream):
    if stream == "other":
        pytest.skip("nobody can know of the capture")
    graph = Graph()
    graph.capture_begin()
    with watched() as watch:
        torch.zeros(2).log().sum().item()
        graph.capture_end()
        torch.full((2,), -1.0).sqrt().sum().item()
    assert [f.operation for f in watch.findings] == ["sqrt"], watch.report()


def test_determinism_leaves_out_what_is_captured(monkeypatch):
    training = Training()
    watch = Determinism(io.StringIO(), None)
    watch.start()
    with Graph():
        training.step()
    assert watch.operations == 0
    training.step()
    watch.stop()
    assert watch.operations > 0


def test_changes_are_told_once():
    told = []
    following = Captures(lambda: told.append("before"), told.append)
    following.start()
    with Graph(), Graph():
        pass
    following.stop()
    assert told == ["before", True, False]
