"""Starts the doctor in a Python process: `segfuse doctor TOOL -- COMMAND` puts this folder before
PYTHONPATH. What it hides, a sitecustomize of the system, is run as always."""

import importlib
import importlib.abc
import importlib.util
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _run_hidden():
    """Runs the sitecustomize behind this one, if there is one."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _FOLDER]
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    sys.modules.setdefault("sitecustomize", this)


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Starts the watch when PyTorch has been imported."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                _start()

            spec.loader.exec_module = exec_module
        return spec


def _start():
    try:
        start = importlib.import_module("segfuse.torch._watch.start")
    except ModuleNotFoundError as error:
        if error.name != "segfuse":
            raise
        # This Python has PyTorch, and segfuse lies in another one's packages.
        sys.path.append(os.path.dirname(os.path.dirname(_FOLDER)))
        start = importlib.import_module("segfuse.torch._watch.start")
    start.start()


_run_hidden()
if os.environ.get("SEGFUSE_WATCH"):
    sys.meta_path.insert(0, _AfterTorch())
