"""The doctor's tools as context managers, for a part of a program."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from ..._errors import DataError, DeviceError
from .finding import Finding
from .numerics import Numerics
from .report import numerics_json, numerics_text
from .streams import Cuda, Recorder


class check_numerics:  # noqa: N801
    """Finds the first operation with a result that is not finite and operands that are.

    It observes all operations of PyTorch in this thread and in backward passes that it starts:

        with segfuse.torch.check_numerics():
            train()

    On a GPU, results are examined later: nothing waits before an optimizer's step or the end.

    Args:
        raises: whether a finding raises `segfuse.DataError`, at the end of the optimizer's step in
            which it was made or at the end of the block. Otherwise `findings` has the findings.
        statistics: whether `report()` has the largest magnitudes of each step.
    """

    def __init__(self, *, raises: bool = True, statistics: bool = False) -> None:
        self._watch = Numerics(statistics)
        self._raises = raises
        if raises:
            self._watch.on_step = self._raise

    def __enter__(self) -> check_numerics:
        self._watch.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._watch.stop()
        if kind is None and self._raises:
            self._raise()

    def _raise(self) -> None:
        if self._watch.findings:
            raise DataError(self._watch.findings[0].text().rstrip())

    @property
    def findings(self) -> list[Finding]:
        """The findings in the order of the operations; examine the first one first."""
        return self._watch.findings

    def report(self) -> str:
        """The text that `segfuse doctor numerics` prints."""
        return numerics_text(self._watch)

    def as_json(self) -> dict[str, Any]:
        return numerics_json(self._watch)


class watch:  # noqa: N801
    """Finds races between streams and memory that is freed while in use, on CUDA devices.

    It observes all operations of PyTorch in this thread and in backward passes that it starts:

        with segfuse.torch.watch() as seen:
            step()
        print(seen.report())
    """

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise DeviceError("watch: PyTorch sees no CUDA device here, expected at least one")
        self._recorder = Recorder(Cuda())

    def __enter__(self) -> watch:
        self._recorder.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._recorder.stop()

    @property
    def races(self) -> list[dict[str, Any]]:
        """The races, each with its kind, sentence, places, remedy and picture."""
        return self._recorder.races()

    def report(self) -> str:
        """The text that `segfuse doctor streams` prints."""
        return self._recorder.trace.text()
