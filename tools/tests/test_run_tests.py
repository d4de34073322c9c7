import pathlib
import subprocess
import sys
import tempfile
import unittest

from checker import TOOLS

GTEST_SKIPS = """[==========] Running 3 tests.
a_test.cpp:7: Skipped
no GPU on
this machine

[  SKIPPED ] Device.Copies (0 ms)
[==========] 3 tests from 1 test suite ran. (0 ms total)
[  PASSED  ] 2 tests.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Device.Copies
"""
GTEST_FAILS = """[  PASSED  ] 5 tests.
[  FAILED  ] 2 tests, listed below:
[  FAILED  ] A.B
[  FAILED  ] A.C
"""
UNITTEST = """..F
----------------------------------------------------------------------
Ran 6 tests in 0.1s

FAILED (failures=1, skipped=2)
"""
PYTEST = """..sF
SKIPPED [2] tests/a_test.py:3: no JAX
FAILED tests/a_test.py::test_b - assert 1 == 2
1 failed, 10 passed, 2 skipped, 1 warning in 0.52s
"""


class RunTests(unittest.TestCase):
    def run_programs(self, **programs):
        """Each program is (output, exit status)."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        lines = []
        for name, (output, status) in programs.items():
            (root / name).write_text(output)
            lines.append(f'add_test({name} "sh" "-c" "cat {root / name}; exit {status}")\n')
        (root / "CTestTestfile.cmake").write_text("".join(lines))
        result = subprocess.run(
            [sys.executable, TOOLS / "run_tests", root], capture_output=True, text=True, check=False
        )
        return result.returncode, result.stdout.splitlines()

    def test_skipped_tests_are_listed_with_their_reason(self):
        status, lines = self.run_programs(a=(GTEST_SKIPS, 0))
        self.assertEqual(status, 0)
        self.assertEqual(lines[-2], "skipped Device.Copies: no GPU on this machine")
        self.assertEqual(lines[-1], "2 passed, 0 failed, 1 skipped")

    def test_counts_add_up_over_frameworks(self):
        status, lines = self.run_programs(
            a=(GTEST_SKIPS, 0), b=(GTEST_FAILS, 1), c=(UNITTEST, 1), d=("fine\n", 0), e=(PYTEST, 1)
        )
        self.assertNotEqual(status, 0)
        self.assertEqual(lines[-2], "skipped tests/a_test.py:3: no JAX")
        self.assertEqual(lines[-1], "21 passed, 4 failed, 5 skipped")

    def test_a_program_that_breaks_off_is_a_failure(self):
        status, lines = self.run_programs(a=("[ RUN      ] A.B\n", 139), b=(GTEST_SKIPS, 0))
        self.assertNotEqual(status, 0)
        self.assertEqual(lines[-1], "2 passed, 1 failed, 1 skipped")

    def test_a_bad_exit_after_good_tests_is_a_failure(self):
        status, lines = self.run_programs(a=(GTEST_SKIPS, 23))
        self.assertNotEqual(status, 0)
        self.assertEqual(lines[-1], "2 passed, 1 failed, 1 skipped")

    def test_no_tests_is_a_failure(self):
        status, _ = self.run_programs()
        self.assertNotEqual(status, 0)


if __name__ == "__main__":
    unittest.main()
