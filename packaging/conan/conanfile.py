"""segfuse for Conan 2: conan create packaging/conan. Its own dependencies are the distribution's
packages, those that packaging/debian/control names."""

import re
from pathlib import Path

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import copy, load
from conan.tools.system.package_manager import Apt

SOURCES = (
    "CMakeLists.txt",
    "LICENSE",
    "cmake/*",
    "src/*",
    "include/*",
    "cli/*",
    "models/*",
    "packaging/rmm/*",
)


class Segfuse(ConanFile):
    name = "segfuse"
    description = "Exact semi-Markov CRFs, compiled tensor programs, and a trainer"
    license = "Apache-2.0"
    package_type = "shared-library"
    settings = "os", "compiler", "build_type", "arch"
    options = {"command": [True, False]}
    default_options = {"command": True}

    def set_version(self):
        text = load(self, Path(self.recipe_folder, "../../CMakeLists.txt"))
        self.version = re.search(r"project\(segfuse VERSION (\S+)", text).group(1)

    def export(self):
        copy(self, "control", Path(self.recipe_folder, "../debian"), self.export_folder)

    def export_sources(self):
        for pattern in SOURCES:
            copy(self, pattern, Path(self.recipe_folder, "../.."), self.export_sources_folder)

    def layout(self):
        self.folders.build = "build"
        self.folders.generators = "build/generators"

    def system_requirements(self):
        control = load(self, Path(self.recipe_folder, "control"))
        depends = control.split("Build-Depends:\n")[1].split("Standards-Version")[0]
        names = re.findall(r"^ ([a-z0-9.+-]+)", depends, re.MULTILINE)
        Apt(self).install([name for name in names if name != "debhelper-compat"])

    def generate(self):
        toolchain = CMakeToolchain(self, generator="Ninja")
        toolchain.user_presets_path = False
        toolchain.cache_variables["SEGFUSE_TESTS"] = False
        toolchain.cache_variables["SEGFUSE_COMMAND"] = bool(self.options.command)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, Path(self.package_folder, "licenses"))
        CMake(self).install()

    def package_info(self):
        # The library brings a CMake package of its own: segfuse::segfuse, segfuse::doctor.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/segfuse"]
        self.cpp_info.libs = ["segfuse_doctor", "segfuse"]
