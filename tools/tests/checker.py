"""Runs a checker on a small tree that a test writes."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent.parent


class CheckerTest(unittest.TestCase):
    checker = ""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, path, text):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode() if isinstance(text, str) else text)

    def run_checker(self):
        command = [sys.executable, TOOLS / self.checker, "--root", self.root]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def assert_clean(self):
        result = self.run_checker()
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def assert_found(self, *lines):
        """The checker fails with exactly these messages (in any order)."""
        result = self.run_checker()
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertEqual(sorted(result.stderr.splitlines()[:-1]), sorted(lines))
