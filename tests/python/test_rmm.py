"""segfuse/rmm.h, the header for programs with RMM, with the RMM of PyPI."""

import importlib.util
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
CONSUMER = ROOT / "tests/consumer/rmm/resource.cpp"


def folder_of(package):
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed")
    return pathlib.Path(next(iter(spec.submodule_search_locations)))


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
@pytest.mark.skipif(not CONSUMER.is_file(), reason="there is no source tree here")
def test_rmm_takes_its_memory_from_the_heap(tmp_path):
    rmm, logger = folder_of("librmm"), folder_of("rapids_logger")
    cuda = folder_of("nvidia") / "cu13"
    runtime = cuda / "lib/libcudart.so.13"
    if not (cuda / "include/crt").is_dir() or not runtime.exists():
        pytest.skip("the headers of CUDA are not installed")
    headers = [rmm / "include", rmm / "include/rapids", cuda / "include/cccl", cuda / "include",
               logger / "include"]  # fmt: skip
    libraries = [rmm / "lib64/librmm.so", logger / "lib64/librapids_logger.so", runtime]
    program = tmp_path / "resource"
    subprocess.run(
        ["c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", CONSUMER, "-o", program,
         "-I", ROOT / "include", "-I", ROOT / "packaging/rmm",
         *[text for header in headers for text in ("-isystem", header)], *libraries,
         *[f"-Wl,-rpath,{library.parent}" for library in libraries]], check=True)  # fmt: skip
    run = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "0 wrong\n")
