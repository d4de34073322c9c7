"""What segfuse.torch.allocator refuses; test_allocator_cuda.py has the rest."""

import importlib.util
import re
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import segfuse
from segfuse.torch import allocator
from segfuse.torch._watch import compiled

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")


def refused(kind, text, call):
    with pytest.raises(kind, match=re.escape(text)) as caught:
        call()
    assert "\n" not in str(caught.value)


@no_gpu
def test_without_a_device_it_is_not_enabled():
    refused(segfuse.DeviceError, "PyTorch sees no CUDA device here", allocator.enable)
    assert not allocator.enabled()


def test_a_limit_is_a_number_of_bytes():
    refused(segfuse.UsageError, "limit is 0, expected an integer of at least 1",
            lambda: allocator.enable(limit=0))  # fmt: skip
    refused(segfuse.UsageError, "limit is '1 GB', expected an integer",
            lambda: allocator.enable(limit="1 GB"))  # fmt: skip


@no_gpu
@pytest.mark.parametrize("call", [
    allocator.statistics, allocator.trim, allocator.reset_peaks, allocator.snapshot,
    lambda: allocator.keep_history(10),
])  # fmt: skip
def test_there_is_nothing_to_see_before_it_is_enabled(call):
    refused(segfuse.UsageError, "the allocator is not enabled; call", call)


@no_gpu
def test_after_the_first_use_of_a_gpu_it_is_too_late(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    refused(segfuse.UsageError, "PyTorch has used a GPU already", allocator.enable)


class Installed:
    """What PyTorch makes of two addresses."""

    def __init__(self, *functions):
        self.functions = functions

    def __getattr__(self, name):
        if not name.startswith("set_"):
            raise AttributeError(name)
        return lambda address: self.__dict__.__setitem__(name, address)


class Old:
    def __init__(self, *functions):
        pass


def pretend(monkeypatch, kind):
    current = []
    monkeypatch.setattr(torch._C, "_cuda_customAllocator", kind, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_changeCurrentAllocator", current.append, raising=False)
    return current


def test_pytorch_gets_a_function_for_everything_it_may_ask(monkeypatch):
    current = pretend(monkeypatch, Installed)
    made = allocator._install()
    assert current == [made] and all(made.functions)
    setters = [name for name in vars(made) if name.startswith("set_")]
    assert sorted(setters) == ["set_begin_allocate_to_pool", "set_end_allocate_to_pool_fn",
                               "set_memory_fraction_fn", "set_record_stream_fn", "set_release_pool",
                               "set_reset_fn"]  # fmt: skip
    assert len({*made.functions, *(getattr(made, name) for name in setters)}) == 8


def test_a_pytorch_without_them_is_too_old(monkeypatch):
    assert pretend(monkeypatch, Old) == []
    refused(segfuse.DeviceError, "expected PyTorch 2.6 or later", allocator._install)


def test_streams_that_python_enters_are_followed(monkeypatch):
    program = """
import torch, types
from segfuse.torch import allocator
from segfuse.torch._watch import compiled
seen = []
monkey = types.SimpleNamespace(enter=lambda *a: seen.append(("enter", *a)))
torch.cuda.set_stream = lambda stream: seen.append("set")
allocator._native = types.SimpleNamespace(
    memory_enter=lambda *a: seen.append(("enter", *a)),
    memory_mark=lambda *a: seen.append(("mark", *a)),
    memory_mark_all=lambda: seen.append("all"))
torch._C._activate_gpu_trace = lambda: seen.append("trace")
torch.cuda.current_device = lambda: 0
allocator._follow_streams()
stream = types.SimpleNamespace(device_index=0, cuda_stream=7)
torch.cuda.set_stream(stream)
torch.cuda.set_stream(stream=stream)
torch.cuda.set_stream(None)
from torch.cuda import _gpu_trace as trace
trace.EventWaitCallbacks.fire_callbacks(5, 9)
trace.DeviceSynchronizationCallbacks.fire_callbacks()
trace.StreamSynchronizationCallbacks.fire_callbacks(9)
trace.EventSynchronizationCallbacks.fire_callbacks(5)
print(seen)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(
        ["trace", "set", ("enter", 0, 7), "set", ("enter", 0, 7), "set", ("mark", 0, 9),
         "all", "all", "all"])  # fmt: skip


def test_pools_that_are_not_of_graphs_are_refused_before_pytorch_begins_them():
    program = """
import torch
from segfuse.torch import allocator
begin_capture = torch.cuda.CUDAGraph.capture_begin
allocator._refuse_pools()
assert torch.cuda.CUDAGraph.capture_begin is begin_capture
general = getattr(torch.accelerator, "Graph", torch.cuda.MemPool)
for begin in (torch.cuda.MemPool.__init__, torch._C._cuda_beginAllocateToPool,
              torch._C._cuda_beginAllocateCurrentThreadToPool,
              getattr(general, "__enter__", general.__init__),
              getattr(general, "capture_begin", general.__init__)):
    try:
        begin(object(), pool=None)
    except RuntimeError as error:
        print(type(error).__name__, str(error).count(". "), chr(10) in str(error))
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "DeviceError 0 False\n" * 5


def test_a_capture_that_cannot_end_is_told_to_the_memory(monkeypatch):
    told = []
    monkeypatch.setattr(allocator._native, "memory_abandon_captures", lambda: told.append(1))

    def capture_end(graph):
        if graph == "bad":
            raise RuntimeError("the capture failed")

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_end", capture_end)
    allocator._follow_captures()
    torch.cuda.CUDAGraph.capture_end("good")
    with pytest.raises(RuntimeError, match="the capture failed"):
        torch.cuda.CUDAGraph.capture_end("bad")
    assert len(told) == 2


CATCHER = r"""
#include <torch/csrc/Exceptions.h>

static PyObject* call(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  unsigned long long address;
  const char* message;
  if (!PyArg_ParseTuple(args, "Ks", &address, &message)) return nullptr;
  reinterpret_cast<void (*)(const char*)>(address)(message);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}
static PyMethodDef methods[] = {{"call", call, METH_VARARGS, ""}, {}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "catcher", "", -1, methods};
PyMODINIT_FUNC PyInit_catcher() { return PyModule_Create(&module); }
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_memory_that_is_out_is_what_programs_of_pytorch_catch(tmp_path):
    source = tmp_path / "catcher.cpp"
    source.write_text(CATCHER)
    subprocess.run(compiled.command(source, tmp_path / "catcher.so", "c++"), check=True)
    spec = importlib.util.spec_from_file_location("catcher", tmp_path / "catcher.so")
    catcher = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(catcher)
    address = segfuse._native.memory_out_of_memory()
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            catcher.call(address, "CUDA out of memory. 3 GiB are held")
        assert str(caught.value) == "CUDA out of memory. 3 GiB are held"
