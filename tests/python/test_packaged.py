"""The package without the packages that it can do without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import segfuse

COMPILER = Path(segfuse.__file__).parent / "libsegfuse_clang.so"
PROGRAM = """
import numpy as np
import segfuse
x = np.arange(6, dtype=np.float32)
for function in (lambda x: x * x + 1, lambda x: (x - 2).sum()):
    assert np.array_equal(segfuse.compile(function)(x), function(x))
"""


def stderr_with(clang):
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"SEGFUSE_CLANG": clang},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stderr


def test_without_a_compiler_functions_run_on_loops_and_say_so_once(tmp_path):
    text = stderr_with(str(tmp_path / "none.so"))
    assert text.count("built-in loops") == 1, text
    assert "pip install segfuse-jit" in text


@pytest.mark.skipif(not COMPILER.exists(), reason="the package was built without clang")
def test_with_a_compiler_nothing_is_said():
    assert "built-in loops" not in stderr_with("")
