"""The library that tells who registers memory comes with the package, and works by itself."""

import os
import pathlib
import platform
import subprocess
import sys

import pytest

import segfuse

LIBRARY = pathlib.Path(segfuse.__file__).parent / "libsegfuse_forktrace.so"

PROGRAM = """
import ctypes, mmap
pages = mmap.mmap(-1, 8192)
address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
advise = ctypes.CDLL(None, use_errno=True).madvise
advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
assert advise(address, 4096, 10) == 0  # MADV_DONTFORK
assert advise(address, 4096, 4) == 0   # MADV_DONTNEED: nobody's business
assert advise(1, 4096, 10) != 0
print(hex(address))
"""


@pytest.mark.skipif(platform.system() != "Linux", reason="fork and madvise are Linux's here")
def test_calls_are_told_to_a_file(tmp_path):
    said = tmp_path / "calls.txt"
    env = {**os.environ, "LD_PRELOAD": str(LIBRARY), "SEGFUSE_FORK_TRACE": str(said)}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    calls = [
        dict(line.split(" ", 1) for line in part.splitlines())
        for part in said.read_text().split("end \n")
        if part
    ]
    kept = [call for call in calls if call["kind"] == "keep"]
    assert [call["call"] for call in kept] == ["madvise", "madvise"]
    assert kept[0]["address"] == result.stdout.strip()
    assert (kept[0]["error"], kept[1]["error"]) == ("0", "22")
    assert "libsegfuse_forktrace" not in kept[0]["frame"]
