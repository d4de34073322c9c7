"""Runs the command line tool and small trainings for the end-to-end tests."""

import os
import pathlib
import shutil
import signal
import struct
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SEGFUSE = os.environ.get("SEGFUSE", str(SOURCE / "build/cli/segfuse"))

TINY = """
[features]
kind = "log_mel"
n_mels = 16
[model]
width = 16
kernel = 3
dilations = [1, 2]
subsample = 2
dropout = 0.2
[training]
epochs = 6
batch_size = 4
learning_rate = 5e-3
clip = 5
average = 0.9
"""

# Where Ctrl-C (a job in the background) or the terminal's end (nohup) is ignored, children would ignore it as well.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def run(*arguments, check=None, env=None, **options):
    """Runs segfuse; with `check` the exit code must be that."""
    result = subprocess.run([SEGFUSE, *map(str, arguments)], capture_output=True, text=True,
                            env={**os.environ, **(env or {})}, **options)
    if check is not None and result.returncode != check:
        raise AssertionError(f"segfuse {arguments}: exit code {result.returncode}, expected "
                             f"{check}\n{result.stdout}\n{result.stderr}")
    return result


CODES = {"f": "<f4", "d": "<f8", "h": "<i2", "q": "<i8"}


def npy(shape, values, code="f"):
    """The bytes of numpy.save."""
    header = f"{{'descr': '{CODES[code]}', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    header = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack(f"<{len(values)}{code}", *values)


class ToolTest(unittest.TestCase):
    """A scratch directory, and on demand a small corpus and its configuration."""

    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(tempfile.mkdtemp(prefix="segfuse-e2e-"))
        cls.addClassCleanup(shutil.rmtree, cls.directory)

    @classmethod
    def corpus(cls, train=12, test=4, labels=4):
        data = cls.directory / f"data-{train}-{test}-{labels}"
        if not data.exists():
            run("synth", data, "--train", train, "--test", test, "--labels", labels, check=0)
        config = cls.directory / "tiny.toml"
        config.write_text(TINY)
        return data, config
