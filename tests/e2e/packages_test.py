"""Version, libraries and files: what CMake says, every recipe under packaging/ says as well."""

import ast
import fnmatch
import json
import pathlib
import re
import subprocess
import tempfile
import unittest

import tool

# What CMake looks for: the names of that library in Debian, vcpkg and conda. None: that recipe does without it.
LIBRARIES = {
    "CLI11": ("libcli11-dev", None, "cli11"),
    "MPI": ("libopenmpi-dev", "mpi", None),
    "SEGFUSE_CLANG_LIBRARY": ("libclang-19-dev", None, "clangdev"),
    "SEGFUSE_LLVM_INCLUDE": ("llvm-19-dev", None, "llvmdev"),
    "SEGFUSE_LLVM_LIBRARY": ("llvm-19-dev", None, "llvmdev"),
    "SEGFUSE_SNDFILE_INCLUDE": ("libsndfile1-dev", "libsndfile", "libsndfile"),
    "SEGFUSE_SNDFILE_LIBRARY": ("libsndfile1-dev", "libsndfile", "libsndfile"),
    "SEGFUSE_SOXR_INCLUDE": ("libsoxr-dev", "soxr", "soxr"),
    "SEGFUSE_SOXR_LIBRARY": ("libsoxr-dev", "soxr", "soxr"),
    "SEGFUSE_TOMLPLUSPLUS_INCLUDE": ("libtomlplusplus-dev", "tomlplusplus", "tomlplusplus"),
    "SndFile": ("libsndfile1-dev", "libsndfile", "libsndfile"),  # only where it is static
    "Threads": (None, None, None),
    "ZLIB": ("zlib1g-dev", "zlib", "zlib"),
    "fmt": ("libfmt-dev", "fmt", "fmt"),
    "hwy": ("libhwy-dev", "highway", "libhwy"),
    "nlohmann_json": ("nlohmann-json3-dev", "nlohmann-json", "nlohmann_json"),
    "pugixml": ("libpugixml-dev", "pugixml", "pugixml"),
}
DEBIAN_TOOLS = {"debhelper-compat", "cmake", "ninja-build"}
CONDA_TOOLS = {"cmake", "ninja"}
CONDA_PYTHON = {"nanobind", "pip", "python", "scikit-build-core"}


def text(path):
    return (tool.SOURCE / path).read_text()


def only(pattern, path):
    found = re.findall(pattern, text(path), re.MULTILINE)
    if len(found) != 1:
        raise AssertionError(f"{path}: {len(found)} lines like '{pattern}', expected one")
    return found[0]


def version():
    return only(r"^project\(segfuse VERSION (\S+)", "CMakeLists.txt")


def port():
    return json.loads(text("packaging/vcpkg/segfuse/vcpkg.json"))


def requirements(output, section):
    """What an output of conda's recipe needs, without versions and compilers."""
    recipe = text("packaging/conda/recipe.yaml").split(f"name: {output}\n    build:")[1]
    lines = recipe.split(f"\n      {section}:\n")[1].split("\n")
    found = []
    for line in lines:
        if not line.startswith("        - "):
            break
        found.append(line.split("- ")[1].split(" ")[0])
    return {name for name in found if name != "${{"}


class VersionTest(unittest.TestCase):
    def test_copies_of_the_version(self):
        for found, where in (
            (port()["version"], "vcpkg.json"),
            (only(r'^  version: "(\S+)"', "packaging/conda/recipe.yaml"), "recipe.yaml"),
            (only(r"^version: (\S+)", "CITATION.cff"), "CITATION.cff"),
            (re.search(r"^## (\S+)", text("CHANGELOG.md"), re.MULTILINE).group(1), "CHANGELOG.md"),
        ):
            with self.subTest(file=where):
                self.assertEqual(found, version())

    def test_the_name_of_the_library_has_the_minor_version(self):
        minor = ".".join(version().split(".")[:2])
        names = [path.name for path in (tool.SOURCE / "packaging/debian").glob("libsegfuse[0-9]*")]
        self.assertEqual(names, [f"libsegfuse{minor}.install"])
        self.assertIn(f"Package: libsegfuse{minor}\n", text("packaging/debian/control"))
        self.assertIn(f"libsegfuse{minor}_", text("packaging/container/Containerfile"))

    def test_the_changelog_has_a_heading_and_a_date_for_each_version(self):
        for heading in re.findall(r"^## (.*)", text("CHANGELOG.md"), re.MULTILINE):
            self.assertRegex(heading, r"^\d+\.\d+\.\d+ \((unreleased|\d{4}-\d\d-\d\d)\)$")


class LibrariesTest(unittest.TestCase):
    def test_what_cmake_looks_for_is_known_here(self):
        found = set()
        files = [tool.SOURCE / "CMakeLists.txt", *(tool.SOURCE / "cmake").glob("*.cmake")]
        for folder in ("src", "cli"):
            for name in ("*.cmake", "CMakeLists.txt"):
                files += (tool.SOURCE / folder).rglob(name)
        for path in files:
            found.update(re.findall(r"find_(?:package|library|path)\((\w+)", path.read_text()))
        self.assertEqual(found, set(LIBRARIES))

    def test_debian(self):
        control = text("packaging/debian/control").split("Build-Depends:\n")[1].split("\nStandards")[0]
        named = set(re.findall(r"^ ([a-z0-9.+-]+)", control, re.MULTILINE))
        self.assertEqual(named - DEBIAN_TOOLS, {debian for debian, _, _ in LIBRARIES.values()} - {None})
        for name in named - {"debhelper-compat"}:
            self.assertRegex(text("tools/setup"), rf"[ \n]{re.escape(name)}:")

    def test_debian_knows_every_compiled_file(self):
        """lintian refuses those without source that no override names."""
        overrides = text("packaging/debian/source/lintian-overrides")
        known = re.findall(r"source-is-missing \[(.*)\]$", overrides, re.MULTILINE)
        files = [str(path.relative_to(tool.SOURCE)) for path in (tool.SOURCE / "tests").rglob("*.cubin")]
        self.assertTrue(files)
        for file in files:
            self.assertTrue(any(fnmatch.fnmatchcase(file, pattern) for pattern in known), file)

    def test_vcpkg(self):
        named = {name for name in port()["dependencies"] if isinstance(name, str)}
        named.update(port()["features"]["mpi"]["dependencies"])
        self.assertEqual(named, {vcpkg for _, vcpkg, _ in LIBRARIES.values()} - {None})
        self.assertEqual(set(port()["features"]), {"jit", "mpi"})

    def test_one_package_of_conda_has_the_command(self):
        self.assertIn('rm "$PREFIX/bin/segfuse"\n', text("packaging/conda/build_python.sh"))
        python = text("packaging/conda/recipe.yaml").split("name: segfuse\n    build:")[1]
        self.assertIn('- ${{ pin_subpackage("libsegfuse", exact=True) }}\n', python)

    def test_conda(self):
        wanted = {conda for _, _, conda in LIBRARIES.values()} - {None}
        self.assertEqual(requirements("libsegfuse", "host"), wanted)
        self.assertEqual(requirements("segfuse", "host"), wanted | CONDA_PYTHON)
        for output in ("libsegfuse", "segfuse"):
            self.assertEqual(requirements(output, "build"), CONDA_TOOLS)
        project = text("pyproject.toml")
        for name in ("nanobind", "scikit-build-core"):
            pinned = re.search(rf'"{name}==(\S+)"', project).group(1)
            self.assertIn(f"- {name} =={pinned}\n", text("packaging/conda/recipe.yaml"))


class NewerLibrariesTest(unittest.TestCase):
    """What registries have is newer than the distribution's."""

    def test_of_fmt_no_more_is_used_than_newer_versions_have(self):
        for folder in ("cli", "python", "src", "tests"):
            for path in (tool.SOURCE / folder).rglob("*.[ch]*"):
                if path.suffix not in (".cpp", ".h"):
                    continue
                found = path.read_text()
                with self.subTest(file=path):
                    self.assertNotIn("fmt::localtime", found)  # gone from fmt 12 on
                    if "fmt::join(" in found:  # in fmt/format.h up to fmt 10
                        self.assertIn("#include <fmt/ranges.h>", found)


def paths_of_the_build():
    """Paths that CMake files name, but those of tests and benches."""
    files = [tool.SOURCE / "CMakeLists.txt"]
    for folder in ("cmake", "src", "cli", "models"):
        files += (tool.SOURCE / folder).rglob("*.cmake")
        files += (tool.SOURCE / folder).rglob("CMakeLists.txt")
    text_of_all = "".join(file.read_text() for file in files)
    found = set(re.findall(r"PROJECT_SOURCE_DIR\}/([A-Za-z_/.]+)", text_of_all))
    return sorted(path for path in found if path.split("/")[0] not in ("tests", "bench"))


class LauncherTest(unittest.TestCase):
    """ccache serves builds that name no other launcher."""

    def launcher(self, *options):
        head = text("cmake/options.cmake").split("find_package(")[0]
        with tempfile.TemporaryDirectory(prefix="segfuse-launcher-") as folder:
            pathlib.Path(folder, "CMakeLists.txt").write_text(
                "cmake_minimum_required(VERSION 3.25)\nproject(launcher LANGUAGES NONE)\n"
                f'{head}\nmessage("it is ${{CMAKE_CXX_COMPILER_LAUNCHER}};")\n'
            )
            command = ["cmake", "-S", folder, "-B", f"{folder}/build", "-DSEGFUSE_CCACHE=/a/ccache", *options]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return re.search(r"it is (.*);", done.stdout + done.stderr).group(1)

    def test_of_the_project_and_of_the_user(self):
        self.assertEqual(self.launcher(), "/a/ccache")
        self.assertEqual(self.launcher("-DCMAKE_CXX_COMPILER_LAUNCHER=/a/sccache"), "/a/sccache")
        self.assertEqual(self.launcher("-DCMAKE_CXX_COMPILER_LAUNCHER="), "")


class CommandsTest(unittest.TestCase):
    def test_names_of_extras_are_quoted(self):
        """zsh takes the brackets for a pattern."""
        project = text("pyproject.toml")
        for folder in ("cli", "docs", "packaging", "python", "src"):
            for path in (tool.SOURCE / folder).rglob("*"):
                if path.suffix not in (".cpp", ".h", ".md", ".py"):
                    continue
                with self.subTest(file=path):
                    for command in re.findall(r"pip install (?:-\S+ \S+ )*(\S*\w\[.*)", path.read_text()):
                        found = re.match(r"'segfuse\[(\w+)\]'", command)
                        self.assertTrue(found, command)
                        self.assertIn(f"\n{found.group(1)} = [", project)


class FilesTest(unittest.TestCase):
    def test_every_recipe_builds_from_the_same_parts(self):
        recipe = ast.parse(text("packaging/conan/conanfile.py"))
        (sources,) = (
            ast.literal_eval(node.value)
            for node in recipe.body
            if isinstance(node, ast.Assign) and node.targets[0].id == "SOURCES"
        )
        conan = {name.removesuffix("/*") for name in sources}
        copied = re.findall(r"^COPY (\w\S*) \S+$", text("packaging/container/Containerfile"), re.MULTILINE)
        self.assertEqual(set(copied) - {"packaging/debian"}, conan)
        parts = only(r"^foreach\(part (.*)\)$", "packaging/vcpkg/segfuse/portfile.cmake").split()
        self.assertEqual(set(parts), conan - {"cli"})
        for name in conan:
            self.assertTrue((tool.SOURCE / name).exists(), name)
        for name in paths_of_the_build():
            self.assertTrue(any(f"{name}/".startswith(f"{part}/") for part in conan), name)

    def test_the_paths_of_the_build(self):
        self.assertIn("packaging/rmm", paths_of_the_build())


if __name__ == "__main__":
    unittest.main()
