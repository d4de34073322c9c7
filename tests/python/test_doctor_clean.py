"""Programs without a fault (clean_programs.py) get no report. On a GPU doctor_visit.py runs them
under the commands; here they run under the tools."""

import io

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import clean_programs
from clean_programs import PROGRAMS, missing
from played_gpu import Played

import segfuse.torch
from segfuse.torch._watch.determinism import Determinism


def runs_here(name):
    why = missing(PROGRAMS[name])
    if why:
        pytest.skip(why)
    return name


@pytest.mark.parametrize("name", PROGRAMS)
def test_numerics_has_nothing_to_report(name, looks):
    with segfuse.torch.check_numerics():
        clean_programs.run(runs_here(name))


@pytest.mark.parametrize("name", PROGRAMS)
def test_streams_has_nothing_to_report(name):
    runs_here(name)
    if torch.cuda.is_available():
        with segfuse.torch.watch() as seen:
            clean_programs.run(name)
        assert seen.races == [], seen.report()
        return
    recorder = Played().recorder
    recorder.start()
    try:
        clean_programs.run(name)
    finally:
        recorder.stop()
    assert recorder.races() == []


@pytest.mark.parametrize("name", [name for name in PROGRAMS if PROGRAMS[name].same_bits])
def test_two_runs_have_the_same_bits(name):
    runs_here(name)
    trace = io.StringIO()
    for watch in (Determinism(trace, None), Determinism(None, iter(trace))):
        trace.seek(0)
        watch.start()
        try:
            clean_programs.run(name)
        finally:
            watch.stop()
    assert watch.finding is None, watch.finding
    assert watch.operations > 0
