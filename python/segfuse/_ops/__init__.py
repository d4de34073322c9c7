"""What `segfuse.ops` has, by kind; `segfuse.ops` is what users import."""

from __future__ import annotations

import inspect
from typing import Any


def public(module: dict[str, Any]) -> list[str]:
    """The functions that a module defines, without those whose names begin with "_"."""
    return [
        name
        for name, found in sorted(module.items())
        if inspect.isfunction(found)
        and found.__module__ == module["__name__"]
        and not name.startswith("_")
    ]
