"""Some of the random functions of traced.py and of torch_programs.py in each run of the tests;
thousands by hand."""

import importlib.util
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


def test_the_kernels_for_gpus_agree_on_a_simulated_device(tmp_path):
    """Those of the programs that functions of users are traced into, forward and backward."""
    simulated = os.environ.get("SEGFUSE_SIMULATED_PROGRAMS")
    if simulated is None:
        pytest.skip("SEGFUSE_SIMULATED_PROGRAMS names no program; ctest sets it")
    script = pathlib.Path(__file__).with_name("captured.py")
    kinds = ["--values", "8", "--gradients", "4"]
    if importlib.util.find_spec("torch"):
        kinds += ["--pytorch", "4"]
    subprocess.run(
        [sys.executable, script, tmp_path, *kinds],
        env={**os.environ, "SEGFUSE_BACKEND": "loops"},
        check=True,
    )
    programs = len(list(tmp_path.iterdir()))
    assert programs >= 12
    run = subprocess.run([simulated, tmp_path], capture_output=True, text=True, check=False)
    assert run.stdout.endswith(f"{programs} passed, 0 failed\n"), run.stdout + run.stderr


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
