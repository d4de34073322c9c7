"""``python -m segfuse`` is the command ``segfuse``."""

from ._command import main

main()
