"""The command `segfuse`, which lies in the package."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Becomes the command, with this process's arguments."""
    command = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "segfuse")
    os.execv(command, ["segfuse", *sys.argv[1:]])
