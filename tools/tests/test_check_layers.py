import unittest

from checker import CheckerTest

TABLE = """
[modules.base]
public = ["error.h"]
[modules.ir]
may_include = ["base"]
[modules.crf]
may_include = ["base"]
public = ["crf.h"]
[modules.learn]
may_include = ["ir", "base"]
may_include_public = ["crf"]
[modules.cli]
folder = "cli"
may_include_public = ["base", "learn"]
[[libraries]]
name = "CUDA"
headers = ['cuda', 'nccl']
folders = ["src/crf/cuda/"]
"""


class Layers(CheckerTest):
    checker = "check_layers"

    def setUp(self):
        super().setUp()
        self.write("tools/layers.toml", TABLE)
        self.write("include/segfuse/error.h", "#include <string>\n")
        self.write("include/segfuse/crf.h", '#include "segfuse/error.h"\n')
        self.write("src/base/text.h", '#include "segfuse/error.h"\n')
        self.write("src/ir/fusion.h", '#include "base/text.h"\n#include <vector>\n')
        self.write("src/crf/impl.h", '#include "segfuse/crf.h"\n')
        self.write("src/learn/train.cpp", '#include "ir/fusion.h"\n#include "segfuse/crf.h"\n')
        self.write("cli/main.cpp", '#include "segfuse/error.h"\n')

    def test_a_tree_that_follows_the_table_is_clean(self):
        self.assert_clean()

    def test_an_upward_include_is_found(self):
        self.write("src/base/log.cpp", '// first\n#include "ir/fusion.h"\n')
        self.assert_found(
            'src/base/log.cpp:2: base may include nothing of ir, not "ir/fusion.h"'
            " (tools/layers.toml)"
        )

    def test_public_headers_only_means_public_headers_only(self):
        self.write("src/learn/a.cpp", '#include "crf/impl.h"\n')
        self.assert_found(
            "src/learn/a.cpp:1: learn may include only public headers of crf, not"
            ' "crf/impl.h" (tools/layers.toml)'
        )

    def test_a_module_that_shows_some_headers_hides_the_others(self):
        self.write(
            "tools/layers.toml", TABLE.replace("[modules.ir]", '[modules.ir]\nshows = ["build.h"]')
        )
        self.write("src/ir/build.h", '#include "ir/fusion.h"\n')
        self.write("src/learn/train.cpp", '#include "ir/build.h"\n')
        self.assert_clean()
        self.write("src/learn/train.cpp", '#include "ir/build.h"\n#include "ir/fusion.h"\n')
        self.assert_found(
            "src/learn/train.cpp:2: of ir, learn may include only src/ir/build.h, not"
            ' "ir/fusion.h" (tools/layers.toml)'
        )

    def test_a_header_that_is_shown_is_there(self):
        self.write(
            "tools/layers.toml", TABLE.replace("[modules.ir]", '[modules.ir]\nshows = ["gone.h"]')
        )
        self.write("src/learn/train.cpp", "")
        self.assert_found("tools/layers.toml:1: ir shows src/ir/gone.h, which is no file")

    def test_the_command_line_sees_public_headers_of_its_modules_only(self):
        self.write("cli/a.cpp", '#include "base/text.h"\n#include "segfuse/crf.h"\n')
        self.assert_found(
            'cli/a.cpp:1: cli may include only public headers of base, not "base/text.h"'
            " (tools/layers.toml)",
            'cli/a.cpp:2: cli may include nothing of crf, not "segfuse/crf.h" (tools/layers.toml)',
        )

    def test_public_headers_ask_for_no_library_but_the_standard_one(self):
        self.write("include/segfuse/error.h", "#include <fmt/core.h>\n#include <string>\n")
        self.assert_found(
            "include/segfuse/error.h:1: a public header includes the standard"
            " library's headers and ours, not <fmt/core.h>"
        )

    def test_public_headers_include_public_headers_only(self):
        self.write("include/segfuse/crf.h", '#include "base/text.h"\n')
        self.assert_found(
            "include/segfuse/crf.h:1: a public header may not include the private"
            ' header "base/text.h"'
        )

    def test_libraries_stay_in_their_folders(self):
        self.write("src/crf/cuda/a.cpp", "#include <cuda_runtime.h>\n")
        self.assert_clean()
        self.write("src/crf/a.cpp", "#include <nccl.h>\n")
        self.assert_found("src/crf/a.cpp:1: <nccl.h> (CUDA) belongs in src/crf/cuda/ only")

    def test_angle_brackets_are_no_way_around(self):
        self.write("src/base/log.cpp", "#include <ir/fusion.h>\n")
        self.assert_found(
            'src/base/log.cpp:1: base may include nothing of ir, not "ir/fusion.h"'
            " (tools/layers.toml)"
        )

    def test_includes_in_comments_do_not_count(self):
        self.write("src/base/log.cpp", '/*\n#include "ir/fusion.h"\n*/\n// #include "x"\n')
        self.assert_clean()

    def test_cycles_are_shown(self):
        self.write("src/ir/a.h", '#include "ir/b.h"\n')
        self.write("src/ir/b.h", '#include "ir/c.h"\n')
        self.write("src/ir/c.h", '#include "ir/a.h"\n')
        self.assert_found(
            "src/ir/a.h:1: include cycle: src/ir/a.h -> src/ir/b.h -> src/ir/c.h -> src/ir/a.h"
        )

    def test_device_code_is_part_of_the_graph(self):
        kernels = "src/crf/cuda/kernels"
        table = f'embedded = ["{kernels}/"]\n' + TABLE
        self.write("tools/layers.toml", table)
        self.write(f"{kernels}/sum.cuh", '#include "crf/cuda/kernels/load.cuh"\n')
        self.write(f"{kernels}/load.cuh", "")
        self.assert_clean()
        self.write(f"{kernels}/load.cuh", '#include "crf/cuda/kernels/gone.cuh"\n')
        self.assert_found(
            f'{kernels}/load.cuh:1: "crf/cuda/kernels/gone.cuh" is not a file under'
            " include/ or src/"
        )
        self.write(f"{kernels}/load.cuh", '#include "crf/cuda/kernels/sum.cuh"\n')
        self.assert_found(
            f"{kernels}/load.cuh:1: include cycle: {kernels}/load.cuh ->"
            f" {kernels}/sum.cuh -> {kernels}/load.cuh"
        )

    def test_embedded_texts_include_one_another_only(self):
        self.write("tools/layers.toml", 'embedded = ["src/crf/cuda/kernels/"]\n' + TABLE)
        self.write("src/crf/cuda/kernels/sum.cuh", '#include "base/text.h"\n')
        self.assert_found(
            "src/crf/cuda/kernels/sum.cuh:1: texts of src/crf/cuda/kernels/ include"
            ' one another only, not "base/text.h"'
        )

    def test_homeless_and_absent_files_are_found(self):
        self.write("src/new/a.cpp", '#include "base/gone.h"\n')
        self.write("include/segfuse/new.h", "")
        self.assert_found(
            "include/segfuse/new.h:1: this file belongs to no module of tools/layers.toml",
            "src/new/a.cpp:1: this file belongs to no module of tools/layers.toml",
            'src/new/a.cpp:1: "base/gone.h" is not a file under include/ or src/',
        )

    def test_at_most_twenty_eight_public_headers(self):
        names = [f"h{i}.h" for i in range(28)]
        public = ", ".join(f'"{name}"' for name in ["error.h", *names])
        self.write("tools/layers.toml", TABLE.replace('"error.h"', public))
        for name in names:
            self.write(f"include/segfuse/{name}", "")
        self.assert_found("include/segfuse:1: 30 public headers; at most 29")


PYTHON = """
[modules.python]
folder = "python"
[python]
folder = "python/package"
[[python.layers]]
name = "base"
modules = ["_native", "_errors"]
[[python.layers]]
name = "crf"
modules = ["crf._call", "crf._value", "crf"]
may_import = ["base"]
[[python.layers]]
name = "compile"
modules = ["trace", "compiled"]
may_import = ["base"]
[[python.layers]]
name = "package"
modules = ["__init__"]
may_import = ["crf", "compile", "base"]
"""


class PythonLayers(CheckerTest):
    checker = "check_layers"

    def setUp(self):
        super().setUp()
        self.write("tools/layers.toml", PYTHON)
        self.module("_native.pyi", "def run() -> None: ...\n")
        self.module("_errors.py", "import sys\n")
        self.module("crf/_call.py", "from .. import _native\nfrom .._errors import Error\n")
        self.module("crf/_value.py", "import numpy\nfrom ._call import Call\n")
        self.module("crf/__init__.py", "from ._value import Value\n")
        self.module("trace.py", "import package._errors\n")
        self.module("compiled.py", "from . import _native, trace\n")
        self.module("__init__.py", "from . import crf\nfrom .compiled import compile\n")

    def module(self, path, text):
        self.write(f"python/package/{path}", text)

    def test_a_package_that_follows_the_table_is_clean(self):
        self.assert_clean()

    def test_an_upward_import_in_a_layer_is_found_with_its_cycle(self):
        self.module("crf/_call.py", "import math\nfrom . import _value\n")
        self.assert_found(
            "python/package/crf/_call.py:2: package.crf._call is below package.crf._value and may"
            " not import it (tools/layers.toml)",
            "python/package/crf/_value.py:1: import cycle: python/package/crf/_value.py ->"
            " python/package/crf/_call.py -> python/package/crf/_value.py",
        )

    def test_an_import_of_another_layer_is_found(self):
        self.module("trace.py", "from .crf._value import Value\n")
        self.module("crf/__init__.py", "import package.compiled\n")
        self.assert_found(
            "python/package/trace.py:1: compile may import nothing of crf, not package.crf._value"
            " (tools/layers.toml)",
            "python/package/crf/__init__.py:1: crf may import nothing of compile, not"
            " package.compiled (tools/layers.toml)",
        )

    def test_the_package_itself_is_above_its_modules(self):
        self.module("trace.py", "from . import something\n")
        self.assert_found(
            "python/package/trace.py:1: compile may import nothing of package, not package"
            " (tools/layers.toml)",
            "python/package/__init__.py:1: import cycle: python/package/__init__.py ->"
            " python/package/compiled.py -> python/package/trace.py ->"
            " python/package/__init__.py",
        )

    def test_imports_inside_functions_are_found(self):
        self.module("compiled.py", "class A:\n  def f(self):\n    from .trace import x\n")
        self.assert_found(
            "python/package/compiled.py:3: package.trace is imported inside a"
            " function, not at the top"
        )

    def test_other_packages_may_be_imported_anywhere(self):
        self.module("compiled.py", "def f():\n  import torch\n  from packages import x\n")
        self.assert_clean()

    def test_imports_for_type_checkers_are_free(self):
        self.module(
            "trace.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
            "  from .compiled import Compiled\nelse:\n  import sys\n",
        )
        self.assert_clean()

    def test_homeless_and_absent_modules_are_found(self):
        self.module("new.py", "")
        (self.root / "python/package/compiled.py").unlink()
        self.module("__init__.py", "")
        self.assert_found(
            "python/package/new.py:1: this module belongs to no layer of tools/layers.toml",
            "tools/layers.toml:1: there is no module package.compiled",
        )


if __name__ == "__main__":
    unittest.main()
