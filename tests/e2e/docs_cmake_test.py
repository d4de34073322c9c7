"""README and docs: the CMake code builds and runs the C++ of its page, against an installed library."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import docs_test


class Cmake(unittest.TestCase):
    def build(self, lines, source, folder):
        project = "cmake_minimum_required(VERSION 3.25)\nproject(page LANGUAGES CXX)\nadd_executable(main main.cpp)\n"
        find = "" if "find_package" in lines else "find_package(segfuse REQUIRED)\n"
        (pathlib.Path(folder) / "CMakeLists.txt").write_text(project + find + lines)
        (pathlib.Path(folder) / "main.cpp").write_text(source)
        build = pathlib.Path(folder) / "build"
        prefix = os.environ["SEGFUSE_PREFIX"]
        configure = ["cmake", "-S", folder, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}",
                     f"-DCMAKE_CXX_COMPILER={docs_test.COMPILER}"]
        result = subprocess.run(configure, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            result = subprocess.run(["cmake", "--build", build], capture_output=True, text=True, check=False)
        if result.returncode == 0:
            result = subprocess.run([build / "main"], capture_output=True, text=True, check=False)
        return result

    def test_pages(self):
        """The lines of a page build and run the C++ of that page."""
        found = docs_test.blocks_in("cmake")
        self.assertIn("README.md", found)
        for page, blocks in found.items():
            with self.subTest(page), tempfile.TemporaryDirectory(prefix="segfuse-docs-") as folder:
                source = docs_test.program_of({page: docs_test.blocks_in("cpp")[page]})
                result = self.build("".join(block.code for block in blocks), source, folder)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_a_wrong_line_is_noticed(self):
        with tempfile.TemporaryDirectory(prefix="segfuse-docs-") as folder:
            result = self.build("target_link_libraries(main PRIVATE segfuse::sgefuse)\n", "int main() {}", folder)
        self.assertIn("segfuse::sgefuse", result.stderr)


if __name__ == "__main__":
    unittest.main()
