"""The race checker for traces of other libraries: what a program enqueued, allocated and freed goes
in, verdicts come out. The traces are made up, so no GPU is needed."""

import json

import pytest

from segfuse import _native

MAIN, SIDE = 1, 2
SOURCE, OTHER = 0x1000, 0x2000
BYTES = 64


class Program:
    """Writes a trace; each call is a line of its own."""

    def __init__(self):
        self.trace = _native.StreamTrace()
        self.line = 0
        self.trace.name_stream(MAIN, "main")
        self.trace.name_stream(SIDE, "side")

    def place(self):
        self.line += 1
        return f"train.py:{self.line} in step\ntrain.py:99 in <module>"

    def make(self, block, name="full"):
        self.trace.allocate(block, "float32[16]", self.place())
        return self.write(MAIN, block, name)

    def use(self, stream, block, write, name="gather", first=0, count=BYTES):
        self.trace.operation(stream, name, self.place(), [(block, block + first, count, write)])
        return self

    def read(self, stream, block, name="gather", **part):
        return self.use(stream, block, False, name, **part)

    def write(self, stream, block, name="fill", **part):
        return self.use(stream, block, True, name, **part)

    def order(self, before, after, event=7):
        self.trace.record(before, event, self.place())
        self.trace.wait(after, event, self.place())
        return self

    def free(self, block):
        self.trace.release(block, self.place())
        return self

    def races(self):
        return json.loads(self.trace.json())["races"]


def story(recorded):
    """An index tensor on the default stream, a gather on a side stream, the last reference dropped,
    the memory handed out again."""
    p = Program().make(SOURCE).order(MAIN, SIDE).read(SIDE, SOURCE)
    if recorded:
        p.trace.record_stream(SOURCE, SIDE)
    return p.free(SOURCE).make(SOURCE, "poison")


def test_a_missing_record_stream_has_its_places_and_its_remedy():
    p = story(recorded=False)
    (race,) = p.races()
    assert race["kind"] == "freed while in use"
    places = {name: place.split(" in ")[0] for name, place in race["places"].items()}
    assert places == {
        "allocated": "train.py:1",
        "used": "train.py:5",
        "freed": "train.py:6",
        "reused": "train.py:8",
        "owner": "train.py:7",
    }
    assert race["remedy"].startswith("behind train.py:5 in step: TENSOR.record_stream(")
    assert "train.py:1 in step allocated" in race["remedy"]
    assert "<svg" in race["picture"]
    assert "freed while in use: 'poison at train.py:8 in step'" in p.trace.text()


def test_with_record_stream_nothing_is_reported():
    assert story(recorded=True).races() == []


def test_record_stream_covers_no_use_after_it_was_freed():
    p = Program().make(SOURCE).order(MAIN, SIDE)
    p.trace.record_stream(SOURCE, SIDE)
    p.free(SOURCE).read(SIDE, SOURCE).make(SOURCE)
    assert len(p.races()) == 1


def test_record_stream_of_another_stream_does_not_help():
    p = Program().make(SOURCE).order(MAIN, SIDE).read(SIDE, SOURCE)
    p.trace.record_stream(SOURCE, 3)
    assert len(p.free(SOURCE).make(SOURCE).races()) == 1


def test_a_stream_that_is_ordered_before_a_recorded_one_is_covered():
    p = Program().make(SOURCE).order(MAIN, SIDE).read(SIDE, SOURCE).order(SIDE, 3).read(3, SOURCE)
    p.trace.record_stream(SOURCE, 3)
    assert p.free(SOURCE).make(SOURCE).races() == []


def test_a_use_without_a_wait_is_a_race():
    (race,) = Program().make(SOURCE).read(SIDE, SOURCE).races()
    assert race["kind"] == "race"
    assert "wait_stream" in race["remedy"]
    assert "stream 1 (main)" in race["missing"]


def test_an_event_before_the_work_is_named_with_its_line():
    p = Program().make(SOURCE)
    p.trace.record(MAIN, 7, p.place())
    p.write(MAIN, SOURCE)
    p.trace.wait(SIDE, 7, p.place())
    (race,) = p.read(SIDE, SOURCE).races()
    assert race["kind"] == "event too early"
    assert race["remedy"] == (
        "record the event after train.py:4 in step, not at train.py:3 in step"
    )


def test_a_wait_of_a_former_turn_is_no_early_event():
    p = Program().make(SOURCE).order(MAIN, SIDE).read(SIDE, SOURCE).order(SIDE, MAIN, 8)
    (race,) = p.write(MAIN, SOURCE).read(SIDE, SOURCE).races()
    assert race["kind"] == "race"


def test_an_event_on_the_wrong_stream_orders_nothing():
    assert len(Program().make(SOURCE).order(3, SIDE).read(SIDE, SOURCE).races()) == 1


def test_a_wait_for_an_event_that_nobody_recorded_is_noted():
    p = Program().make(SOURCE)
    p.trace.wait(SIDE, 9, p.place())
    assert len(p.read(SIDE, SOURCE).races()) == 1
    assert "note: train.py:3 in step waits for an event that was not recorded" in p.trace.text()


@pytest.mark.parametrize("how", ["stream", "event", "device"])
def test_the_host_may_wait_instead(how):
    p = Program().make(SOURCE)
    p.trace.record(MAIN, 7, p.place())
    if how == "stream":
        p.trace.synchronize_stream(MAIN)
    elif how == "event":
        p.trace.synchronize_event(7)
    else:
        p.trace.synchronize_device()
    assert p.write(SIDE, SOURCE).races() == []


def test_two_buffers_in_turn():
    p = Program().make(SOURCE).make(OTHER)
    for turn in range(6):
        block = (SOURCE, OTHER)[turn % 2]
        p.order(MAIN, SIDE, 7 + turn % 2).read(SIDE, block)
        p.order(SIDE, MAIN, 9 + turn % 2).write(MAIN, block)
    assert p.races() == []
    p.order(MAIN, SIDE).read(SIDE, OTHER).write(MAIN, SOURCE)  # the other one: fine
    assert p.races() == []
    assert len(p.write(MAIN, OTHER).races()) == 1


def test_parts_of_a_tensor_are_told_apart():
    p = Program().make(SOURCE).order(MAIN, SIDE)
    p.write(SIDE, SOURCE, count=32).write(MAIN, SOURCE, first=32, count=32)
    assert p.races() == []
    assert len(p.read(MAIN, SOURCE, first=16, count=32).races()) == 1


def test_a_split_block_is_followed_to_its_new_owner():
    p = Program().make(SOURCE).order(MAIN, SIDE).read(SIDE, SOURCE).free(SOURCE)
    p.trace.allocate(SOURCE + 32, "float32[8]", p.place())
    (race,) = p.write(MAIN, SOURCE + 32, count=32).races()
    assert race["kind"] == "freed while in use"


def test_the_host_writes_what_a_copy_still_reads():
    p = Program().make(SOURCE)
    p.read(SIDE, OTHER, "copy_")
    p.trace.host_use("train.py:50 in step", (OTHER, OTHER, BYTES, True))
    (race,) = p.races()
    assert (race["kind"], race["places"]["host"]) == ("host", "train.py:50 in step")
    p.trace.synchronize_stream(SIDE)
    p.trace.host_use("train.py:51 in step", (OTHER, OTHER, BYTES, True))
    assert len(p.races()) == 1


def test_a_race_of_every_turn_is_told_once():
    p = Program().make(SOURCE)
    for _ in range(3):
        p.line = 10
        p.order(MAIN, SIDE, 7).read(SIDE, SOURCE).write(MAIN, SOURCE)
    assert len(p.races()) == 1


def test_long_loops_without_a_race_stay_silent():
    p = Program()
    for turn in range(1500):
        p.line = 20
        block = SOURCE + 0x1000 * (turn % 3)
        p.make(block).order(MAIN, SIDE).read(SIDE, block)
        p.trace.record_stream(block, SIDE)
        p.free(block)
    assert p.races() == []
