"""Captures of CUDA graphs, during which nothing may be looked at.

What is enqueued on a stream that is captured does not run, and an operation of the doctor's own
would become a part of the graph. To wait for the device is an error meanwhile, on any stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .operation import is_capturing


class Captures:
    """Follows captures until stop(). They may begin while others go on."""

    def __init__(
        self,
        before: Callable[[], None] = lambda: None,
        changed: Callable[[bool], None] = lambda going_on: None,
    ) -> None:
        """Calls `before` a capture, and `changed` when the first begins and the last has ended."""
        self._before, self._changed = before, changed
        self._count = 0
        self._methods: tuple[Any, Any] | None = None

    def going_on(self) -> bool:
        """Also if it was begun by other ways than PyTorch's, on the current stream."""
        return self._count > 0 or is_capturing()

    def start(self) -> None:
        self._count = 0
        if is_capturing():
            self._begin()
        graph = torch.cuda.CUDAGraph
        begin, end = self._methods = (graph.capture_begin, graph.capture_end)

        def capture_begin(this: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.going_on():
                self._before()
            self._begin()
            try:
                return begin(this, *args, **kwargs)
            except BaseException:
                self._end()
                raise

        def capture_end(this: Any) -> Any:
            try:
                return end(this)
            finally:
                self._end()

        graph.capture_begin, graph.capture_end = capture_begin, capture_end  # type: ignore

    def stop(self) -> None:
        if self._methods is not None:
            graph = torch.cuda.CUDAGraph
            graph.capture_begin, graph.capture_end = self._methods  # type: ignore[method-assign]
            self._methods = None

    def _begin(self) -> None:
        self._count += 1
        if self._count == 1:
            self._changed(True)

    def _end(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._changed(False)
