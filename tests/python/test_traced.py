"""Some of the random functions of traced.py in each run of the tests; thousands by hand."""

import os
import pathlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("backend", "values", "gradients"), [("compiled", 24, 8), ("loops", 60, 20)]
)
def test_random_functions_agree_with_numpy(backend, values, gradients):
    script = pathlib.Path(__file__).with_name("traced.py")
    run = subprocess.run(
        [sys.executable, script, "--values", str(values), "--gradients", str(gradients)],
        env={**os.environ, "SEGFUSE_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout.endswith(f"{values + gradients} passed, 0 failed\n"), run.stdout + run.stderr
