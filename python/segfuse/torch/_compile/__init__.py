"""The backend of `torch.compile`: graphs of ATen operations as compiled programs."""

from __future__ import annotations

import weakref
from typing import Any

alive: weakref.WeakSet[Any] = weakref.WeakSet()
"""All parts; `segfuse.torch.check` asks them what their runs on GPUs have found wrong."""
