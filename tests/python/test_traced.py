"""Some of the random functions of traced.py and of torch_programs.py in each run of the tests;
thousands by hand."""

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


def test_random_pytorch_functions_agree_with_eager():
    pytest.importorskip("torch")
    script = pathlib.Path(__file__).with_name("torch_programs.py")
    run = subprocess.run(
        [sys.executable, script, "--programs", "12", "--jobs", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout.endswith("12 passed, 0 failed\n"), run.stdout + run.stderr
