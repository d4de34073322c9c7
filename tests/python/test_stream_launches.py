"""What doctor streams makes of launches, replays, collectives and pinned memory, on a played GPU."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from played_gpu import MAIN, SIDE, run

from segfuse.torch._watch.dispatch import when_imported
from segfuse.torch._watch.launches import Launches, written_pointers

GOLDEN = Path(__file__).parents[1] / "golden/kernels/triton"


def text_of(kernel):
    (file,) = GOLDEN.glob(f"*/{kernel}.ttir")
    return file.read_text()


def test_kernels_of_triton_say_what_they_write():
    assert written_pointers(text_of("add")) == [False, False, True]
    assert written_pointers(text_of("row_sum")) == [False, True]  # a loop, an atomic addition


BRANCH = """
module {
  tt.func public @k(%a: !tt.ptr<f32>, %b: !tt.ptr<f32>, %c: !tt.ptr<f32>, %n: i1) {
    %0 = scf.if %n -> (!tt.ptr<f32>) {
      scf.yield %a : !tt.ptr<f32>
    } else {
      scf.yield %b : !tt.ptr<f32>
    }
    %1 = tt.load %c : !tt.ptr<f32>
    tt.store %0, %1 : !tt.ptr<f32>
    tt.return
  }
}
"""
LOOP = """
module {
  tt.func public @k(%a: !tt.ptr<f32>, %b: !tt.ptr<f32>, %n: i32) attributes {noinline = false} {
    %0:2 = scf.for %i = %n to %n step %n iter_args(%p = %a, %q = %b) -> (!tt.ptr<f32>, !tt.ptr<f32>) : i32 {
      %1 = tt.addptr %q, %i : !tt.ptr<f32>, i32
      %2 = tt.load %p : !tt.ptr<f32>
      tt.store %1, %2 : !tt.ptr<f32>
      scf.yield %p, %1 : !tt.ptr<f32>, !tt.ptr<f32>
    }
    tt.return
  }
}
"""
POINTERS = """
module {
  tt.func public @k(%a: !tt.ptr<!tt.ptr<f32>>, %b: !tt.ptr<f32>) {
    %0 = tt.load %a : !tt.ptr<!tt.ptr<f32>>
    %1 = tt.load %b : !tt.ptr<f32>
    tt.store %0, %1 : !tt.ptr<f32>
    tt.return
  }
}
"""


def test_branches_and_loops_of_triton():
    assert written_pointers(BRANCH) == [True, True, False]
    assert written_pointers(LOOP) == [False, True]
    assert written_pointers(POINTERS) == [False, False]
    called = BRANCH.replace("%1 = tt.load %c", "%1 = tt.call @f(%c)")
    assert written_pointers(called) is None
    assert written_pointers("no kernel") is None
    described = "tt.func public @k(%x: !tt.tensordesc<tensor<8xf32>>, %n: i32) {\n%c = x\n"
    described += "tt.descriptor_store %x[%n], %c : !tt.tensordesc<tensor<8xf32>>\n}"
    assert written_pointers(described) == [True]


def launch(gpu, *tensors, names=("x", "y", "out"), text=None, **options):
    launches = Launches(gpu.recorder, lambda: gpu.current)
    kernel = SimpleNamespace(arg_names=names, __name__="add")
    compiled = SimpleNamespace(asm={"ttir": text or text_of("add")})
    launches._run(lambda *_, **__: compiled, kernel, *tensors, grid=(1,), warmup=False, **options)


@pytest.mark.parametrize("waits", [False, True])
def test_a_launch_of_triton_writes(waits):
    def program(gpu):
        x, y, out = torch.ones(4), torch.ones(4), torch.ones(4)
        launch(gpu, x, y, out=out)
        if waits:
            gpu.order(MAIN, SIDE)
        with gpu.on(SIDE):
            out.sum()

    races = run(program)
    assert len(races) == (0 if waits else 1)
    if not waits:
        assert "kernel add of Triton on stream" in races[0]["places"]["first"]


def test_launches_that_read_the_same_are_no_race():
    def program(gpu):
        x, y, out, other = (torch.ones(4) for _ in range(4))
        gpu.order(MAIN, SIDE)
        launch(gpu, x, y, out)
        with gpu.on(SIDE):
            launch(gpu, x, y, other)

    assert run(program) == []


@torch.library.custom_op("segfuse_test::to_host", mutates_args=())
def to_host(x: torch.Tensor) -> torch.Tensor:
    HOST[0].recorder.synchronize_stream(MAIN)
    return x.clone()


HOST = []


def test_an_operation_may_make_the_host_wait():
    """As x.cpu() does: all that was enqueued has ended, its own work too."""

    def program(gpu):
        HOST[:] = [gpu]
        x = torch.ones(4)
        to_host(x)
        with gpu.on(SIDE):
            x.add_(1)

    assert run(program) == []


NCCL, END = 9, 50


@torch.library.custom_op("_c10d_functional_test::all_reduce", mutates_args={"x"})
def all_reduce(x: torch.Tensor) -> None:
    """As a collective of NCCL: on a stream of its own, behind what was there before."""
    (gpu,) = HOST
    gpu.order(MAIN, NCCL, 49)
    gpu.recorder.record(NCCL, END)


@pytest.mark.parametrize("waits", [False, True])
def test_a_collective_runs_on_its_own_stream(waits):
    def program(gpu):
        HOST[:] = [gpu]
        x = torch.ones(4)
        all_reduce(x)
        if waits:
            gpu.recorder.wait(MAIN, END)
        x.sum()

    assert [race["kind"] for race in run(program)] == ([] if waits else ["race"])


def test_another_stream_may_wait_for_a_collective():
    def program(gpu):
        HOST[:] = [gpu]
        x = torch.ones(4)
        all_reduce(x)
        gpu.recorder.wait(SIDE, END)
        with gpu.on(SIDE):
            x.sum()

    assert run(program) == []


def test_memory_of_a_collective_is_kept_until_it_has_ended():
    def program(gpu):
        HOST[:] = [gpu]
        x = torch.ones(4)
        all_reduce(x)
        del x
        torch.ones(4)

    assert run(program) == []


def test_gradients_are_kept_for_nodes_on_other_streams():
    def program(gpu):
        HOST[:] = [gpu]
        x = torch.ones(4, requires_grad=True)
        y = x * 2
        y.register_hook(on_the_side)
        y.sum().backward()

    def on_the_side(gradient):
        (gpu,) = HOST
        made = gradient + 1
        gpu.order(MAIN, SIDE)
        with gpu.on(SIDE):
            made * 2
        del made
        torch.ones(4)  # lies where it lay

    assert run(program) == []
    gpu_kinds = run(lambda gpu: (HOST.__setitem__(0, gpu), on_the_side(torch.ones(4))))
    assert [race["kind"] for race in gpu_kinds] == ["freed while in use"]


def test_pinned_memory_is_given_out_again():
    def program(gpu):
        memory, batch = bytearray(64), torch.ones(16)
        for _ in range(2):
            pinned = gpu.pin(torch.frombuffer(memory, dtype=torch.float32))
            pinned.fill_(2)
            batch.copy_(pinned, non_blocking=True)
            del pinned

    assert run(program) == []


def test_what_is_in_a_graph_counts_when_it_is_replayed():
    def program(gpu):
        x = torch.ones(4)
        gpu.recorder.begin_capture()
        gpu.capturing = True
        x.add_(1)
        gpu.capturing = False
        uses = gpu.recorder.end_capture()
        gpu.order(MAIN, SIDE)
        gpu.recorder.use(SIDE, "replay of a CUDA graph", uses)
        x.sum()

    (race,) = run(program)
    assert "replay of a CUDA graph" in race["places"]["first"]


def test_an_event_in_a_graph_orders_nothing_outside():
    def program(gpu):
        x = torch.ones(4)
        gpu.capturing = True
        gpu.recorder.record(MAIN, 7)
        gpu.capturing = False
        gpu.recorder.wait(SIDE, 7)
        with gpu.on(SIDE):
            x.sum()

    assert len(run(program)) == 1


def test_a_call_when_a_module_has_been_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("imported_later", "never_waited_for"):
        (tmp_path / f"{name}.py").write_text("value = 3\n")
    seen = []
    when_imported("imported_later", lambda module: seen.append(module.value))
    when_imported("never_waited_for", lambda module: seen.append("wrong"))()
    assert seen == []
    importlib.import_module("imported_later")
    importlib.import_module("never_waited_for")
    when_imported("imported_later", lambda module: seen.append("at once"))
    assert seen == [3, "at once"]
    assert not any(type(finder).__name__ == "_Finder" and finder._module == "imported_later"
                   for finder in sys.meta_path)  # fmt: skip
