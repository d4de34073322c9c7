"""What recipes of packages copy of the tree: all that the build reads or installs."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def paths_of_the_build():
    """Paths that CMake files name, but those of tests and benches."""
    found = set()
    for folder in ("cmake", "src", "cli", "models", "."):
        pattern = "CMakeLists.txt" if folder == "." else "**/*"
        for file in (ROOT / folder).glob(pattern):
            if file.name == "CMakeLists.txt" or file.suffix == ".cmake":
                found |= set(re.findall(r"PROJECT_SOURCE_DIR\}/([A-Za-z_/.]+)", file.read_text()))
    return sorted(path for path in found if path.split("/")[0] not in ("tests", "bench"))


class PackageSources(unittest.TestCase):
    def check(self, parts):
        paths = paths_of_the_build()
        self.assertIn("packaging/rmm", paths)
        for path in paths:
            self.assertTrue(
                any(f"{path}/".startswith(f"{part}/") for part in parts), f"{path} is not copied"
            )
            self.assertTrue((ROOT / path.rstrip("/")).exists(), path)

    def test_conan(self):
        text = (ROOT / "packaging/conan/conanfile.py").read_text()
        sources = re.search(r"SOURCES = \((.*?)\)", text, re.DOTALL).group(1)
        self.check([part.removesuffix("/*") for part in re.findall(r'"([^"]+)"', sources)])

    def test_vcpkg(self):
        text = (ROOT / "packaging/vcpkg/segfuse/portfile.cmake").read_text()
        self.check(re.search(r"foreach\(part (.*?)\)", text).group(1).split())


if __name__ == "__main__":
    unittest.main()
