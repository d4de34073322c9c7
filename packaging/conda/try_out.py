"""usage: try_out.py FOLDER PYTHON [CMAKE OPTION...]

Builds the packages of recipe.yaml with rattler-build (py-rattler-build, PyPI), without a channel of
anyone: for each package that the recipe names, a stand-in in a channel below FOLDER says that the
distribution has it. That of Python is a virtual environment of the interpreter PYTHON, and those of
Python's packages have what pip installs. The recipe's own tests run; the library is unpacked into
FOLDER/prefix."""

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
# Python's packages, which pip has.
PIP = ("nanobind", "numpy", "pip", "scikit-build-core")
PYTHON_VERSION = re.search(r"python: \[(\S+)\.\*", (HERE / "variants.yaml").read_text()).group(1)


def needed():
    """The names that the recipe's requirements have: version, and the words that ask for it."""
    specs = re.findall(r"^        - ([a-z].*)$", (HERE / "recipe.yaml").read_text(), re.MULTILINE)
    # Those of variants.yaml.
    found = {"gxx_linux-64": ("14.0", ""), "sysroot_linux-64": ("2.28", "")}
    for spec in specs:
        name, _, wanted = spec.partition(" ")
        number = re.search(r"\d[\d.]*", wanted)
        if number or name not in found:
            found[name] = (number.group().strip(".") if number else "1", wanted)
    found["python"] = (PYTHON_VERSION, "")
    return found


def stand_ins(folder, python):
    folder.mkdir(parents=True)
    outputs = []
    for name, (version, wanted) in needed().items():
        build = {"script": []}
        for path in LINKS.get(name, ()):
            build["script"] += [
                f"mkdir -p $(dirname $PREFIX/{path})",
                f"ln -s {LLVM}/{path} $PREFIX/{path}",
            ]
        if name == "python":
            build["string"] = "0_cpython"  # what variants.yaml asks for
            build["script"] = [f"{python} -m venv --without-pip $PREFIX"]
        if name in PIP:
            # Here and not in the script, where pip has no index; beside the recipe, not in it.
            fetched = folder.parent / "pip" / name
            command = [python, "-m", "pip", "install", "-q", "--target", fetched, name + wanted]
            subprocess.run(command, check=True)
            place = f"$PREFIX/lib/python{PYTHON_VERSION}"
            build["script"] = [f"mkdir -p {place}", f"cp -r {fetched} {place}/site-packages"]
        outputs.append({"package": {"name": name, "version": version}, "build": build})
    recipe = {"recipe": {"name": "stand-ins", "version": "1"}, "outputs": outputs}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return folder / "recipe.yaml"


def unpack(package, folder, prefix):
    with zipfile.ZipFile(package) as archive:
        (member,) = (name for name in archive.namelist() if name.startswith("pkg-"))
        archive.extract(member, folder)
    prefix.mkdir()
    subprocess.run(["tar", "--zstd", "-xf", folder / member, "-C", prefix], check=True)


def main(folder, python, *options):
    folder = pathlib.Path(folder).resolve()
    channel = folder / "channel"
    # What is built sees this environment: ccache, pip's settings.
    common = {"output_dir": channel, "env_isolation": EnvironmentIsolation.NONE}
    recipe = Stage0Recipe.from_file(stand_ins(folder / "stand_ins", python))
    for variant in recipe.render(VariantConfig()):
        variant.run_build(channels=[], **common)
    os.environ["CMAKE_ARGS"] = " ".join(options)
    recipe = Stage0Recipe.from_file(HERE / "recipe.yaml")
    variants = recipe.render(VariantConfig.from_file(HERE / "variants.yaml"))
    print(*variants)
    library, _ = [
        variant.run_build(
            tool_config=ToolConfiguration(test_strategy="native"),
            channels=[channel.as_uri()],
            progress_callback=SimpleProgressCallback(),
            **common,
        )
        for variant in variants
    ]
    unpack(*library.packages, folder, folder / "prefix")


main(*sys.argv[1:])
