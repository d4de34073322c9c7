"""Starts a tool in a process of a program, and writes its report: called by `_hook`."""

from __future__ import annotations

import atexit
import json
import math
import multiprocessing
import os
from typing import Any

from .determinism import determinism_reporter
from .report import Reporter, numerics_reporter
from .streams import streams_reporter


def _process() -> str:
    """Which process of the program this is: "" for the only one."""
    parts = []
    if "RANK" in os.environ:
        parts.append(f"rank {os.environ['RANK']}")
    if multiprocessing.parent_process() is not None:
        parts.append(multiprocessing.current_process().name)
    return ", ".join(parts)


def _key(process: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in process) or "main"


_TOOLS = {
    "determinism": determinism_reporter,
    "numerics": numerics_reporter,
    "streams": streams_reporter,
}


def _as_json(value: Any) -> Any:
    """What JSON has no form for as text: numbers that are not finite, names of files in bytes."""
    if isinstance(value, dict):
        return {key: _as_json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(part) for part in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def start() -> None:
    tool = os.environ["SEGFUSE_WATCH"]
    folder = os.environ["SEGFUSE_WATCH_OUT"]
    options: dict[str, Any] = json.loads(os.environ.get("SEGFUSE_WATCH_OPTIONS") or "{}")
    process = _process()
    reporter: Reporter = _TOOLS[tool](options, folder, _key(process))
    pid = os.getpid()

    def write() -> None:
        if os.getpid() != pid or not reporter.seen():
            return
        report = {"process": process, **reporter.report()}
        path = os.path.join(folder, f"{_key(process)}-{pid}.json")
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(_as_json(report), file, allow_nan=False)
        os.replace(path + ".part", path)

    def finish() -> None:
        if os.getpid() == pid:
            reporter.stop()
            write()
            if not reporter.seen():  # it was watched, but has nothing to tell
                open(os.path.join(folder, f"{_key(process)}-{pid}.idle"), "wb").close()

    reporter.on_change(write)
    atexit.register(finish)
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, finish, exitpriority=100)
    reporter.start()
