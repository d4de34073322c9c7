"""What the tools say at the end, as text and for programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .numerics import Numerics


class Reporter(Protocol):
    """A tool in a process of a program."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def seen(self) -> bool:
        """Whether any operation was watched."""

    def on_change(self, write: Callable[[], None]) -> None:
        """`write` is to be called when there is something new to report."""

    def report(self) -> dict[str, Any]:
        """ "found", "text" and "report", which is JSON."""


class _NumericsReporter:
    def __init__(self, statistics: bool) -> None:
        self._watch = Numerics(statistics)
        self._written = 0

    def start(self) -> None:
        self._watch.start()

    def stop(self) -> None:
        self._watch.stop()

    def seen(self) -> bool:
        return self._watch.operations > 0

    def on_change(self, write: Callable[[], None]) -> None:
        def on_step() -> None:
            if len(self._watch.findings) > self._written:
                self._written = len(self._watch.findings)
                write()

        self._watch.on_step = on_step

    def report(self) -> dict[str, Any]:
        return {
            "found": bool(self._watch.findings),
            "text": numerics_text(self._watch),
            "report": numerics_json(self._watch),
        }


def numerics_reporter(options: dict[str, Any], _folder: str, _key: str) -> Reporter:
    return _NumericsReporter(bool(options.get("statistics")))


def numerics_text(watch: Numerics) -> str:
    devices = " and ".join(sorted(watch.devices)) or "no device"
    steps = watch.step - 1
    text = f"{watch.operations} operations on {devices}, {steps} optimizer steps\n"
    if watch.findings:
        text += "\n" + watch.findings[0].text()
        for later in watch.findings[1:]:
            text += f"later: {later.fault}: {later.sentence()} ({later.place})\n"
    else:
        text += "nothing found: no NaN or infinity reached a loss, a gradient or a parameter\n"
    aside = watch.put_aside()
    if aside:
        text += (
            f"note: {len(aside)} operations made NaN or infinities that went no further; the first "
            f"is {aside[0].operation} at {aside[0].place}\n"
        )
    if watch.note:
        text += f"note: {watch.note}\n"
    if watch.statistics is not None:
        text += "\n" + watch.statistics.text()
    return text


def numerics_json(watch: Numerics) -> dict[str, Any]:
    report: dict[str, Any] = {
        "operations": watch.operations,
        "devices": sorted(watch.devices),
        "steps": watch.step - 1,
        "findings": [finding.as_json() for finding in watch.findings],
        "put_aside": [finding.as_json() for finding in watch.put_aside()],
    }
    if watch.statistics is not None:
        report["statistics"] = watch.statistics.as_json()
    return report
