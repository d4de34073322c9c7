"""usage: try_out.py FOLDER [CMAKE OPTION...]

Builds the library of recipe.yaml with rattler-build (py-rattler-build, PyPI), without a channel of
anyone: for each package that the recipe names, a stand-in in a channel below FOLDER says that the
distribution has it. The recipe's own tests run; the package is unpacked into FOLDER/prefix."""

import json
import os
import pathlib
import re
import subprocess
import sys
import zipfile

from rattler_build import EnvironmentIsolation, Stage0Recipe, ToolConfiguration, VariantConfig
from rattler_build.progress import SimpleProgressCallback

HERE = pathlib.Path(__file__).parent
LLVM = "/usr/lib/llvm-19"
# The recipe asks for the libraries of LLVM by their paths.
LINKS = {
    "llvmdev": ["include/llvm", "include/llvm-c", "lib/libLLVM.so.19.1"],
    "clangdev": ["include/clang", "include/clang-c", "lib/libclang-cpp.so.19.1"],
}


def needed():
    """Names and versions of what the recipe's requirements ask for."""
    specs = re.findall(r"^        - ([a-z].*)$", (HERE / "recipe.yaml").read_text(), re.MULTILINE)
    versions = {"gxx_linux-64": "14.0", "sysroot_linux-64": "2.28"}  # those of variants.yaml
    for spec in specs:
        name, _, wanted = spec.partition(" ")
        number = re.search(r"\d[\d.]*", wanted)
        versions[name] = number.group().strip(".") if number else versions.get(name, "1")
    return versions


def stand_ins(folder):
    outputs = []
    for name, version in needed().items():
        script = []
        for path in LINKS.get(name, ()):
            script += [f"mkdir -p $(dirname $PREFIX/{path})", f"ln -s {LLVM}/{path} $PREFIX/{path}"]
        outputs.append({"package": {"name": name, "version": version}, "build": {"script": script}})
    recipe = {"recipe": {"name": "stand-ins", "version": "1"}, "outputs": outputs}
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return folder / "recipe.yaml"


def main(folder, *options):
    folder = pathlib.Path(folder).resolve()
    channel = folder / "channel"
    for variant in Stage0Recipe.from_file(stand_ins(folder / "stand_ins")).render(VariantConfig()):
        variant.run_build(output_dir=channel, channels=[])
    os.environ["CMAKE_ARGS"] = " ".join(options)
    recipe = Stage0Recipe.from_file(HERE / "recipe.yaml")
    library, python = recipe.render(VariantConfig.from_file(HERE / "variants.yaml"))
    print(library, python)
    result = library.run_build(
        tool_config=ToolConfiguration(test_strategy="native"),
        output_dir=channel,
        channels=[channel.as_uri()],
        progress_callback=SimpleProgressCallback(),
        env_isolation=EnvironmentIsolation.NONE,  # for ccache
    )
    (package,) = result.packages
    with zipfile.ZipFile(package) as archive:
        (member,) = (name for name in archive.namelist() if name.startswith("pkg-"))
        archive.extract(member, folder)
    (folder / "prefix").mkdir()
    subprocess.run(["tar", "--zstd", "-xf", folder / member, "-C", folder / "prefix"], check=True)


main(*sys.argv[1:])
