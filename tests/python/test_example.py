"""The examples run; the one of the CRF draws its picture, with matplotlib and without."""

import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

import pytest

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples/torch_crf.py"


def test_fused_layer():
    command = [sys.executable, str(EXAMPLE.with_name("fused_layer.py")), "--frames", "40"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    assert "traces: 1" in run.stdout and "difference from NumPy" in run.stdout


def test_torch_compile(torch):
    command = [sys.executable, str(EXAMPLE.with_name("torch_compile.py")), "--steps", "4"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    assert re.search(r"segfuse runs \d+ of \d+ operations", run.stdout)
    assert "largest difference" in run.stdout


@pytest.mark.parametrize("matplotlib", [False, True])
def test_torch_crf(torch, tmp_path, matplotlib):
    if matplotlib:
        pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    else:
        (tmp_path / "matplotlib.py").write_text("raise ImportError")
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        f"import runpy; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')",
    ]
    command += ["--steps", "3", "--out", str(tmp_path / "out/picture")]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    assert "semi-Markov" in run.stdout and "linear chain" in run.stdout
    if matplotlib:
        assert (tmp_path / "out/picture.png").read_bytes().startswith(b"\x89PNG")
    else:
        root = xml.etree.ElementTree.parse(tmp_path / "out/picture.svg").getroot()
        assert len(root.findall("{*}polyline")) == 2 + 3 * 3


@pytest.mark.parametrize("options", [[], ["--fsdp"], ["--rows", "1"]], ids=["ddp", "fsdp", "empty"])
def test_train_ddp(torch, options):
    """With one row a step the second rank has none."""
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(EXAMPLE.with_name("train_ddp.py")), "--steps", "12", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert "2 ranks on" in run.stdout
    assert "difference between the parameters of two ranks: 0\n" in run.stdout
    if "--rows" not in options:
        first, last = re.search(r"loss per frame: (\S+) -> (\S+)", run.stdout).groups()
        assert float(last) < 0.6 * float(first)
