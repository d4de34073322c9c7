"""The stub of the extension and the extension agree, and the package's own hints hold together."""

import ast
import inspect
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import segfuse
from segfuse import _native

PACKAGE = pathlib.Path(segfuse.__file__).parent


def parameters_of_stub(node):
    names = [argument.arg for argument in node.args.args]
    return [name for name in names if name != "self"]


def stub_functions(body):
    """name -> the parameter lists of its overloads."""
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(parameters_of_stub(node))
    return found


def parameters_of_native(function):
    """From the signatures in the docstring, which nanobind writes."""
    lists = []
    for signature in re.findall(r"\w+\((.*)\) -> ", function.__doc__):
        depth, names, current = 0, [], ""
        for char in signature + ",":
            depth += (char in "[(") - (char in "])")
            if char == "," and depth == 0:
                names.append(current.split(":")[0].strip())
                current = ""
            else:
                current += char
        lists.append([name for name in names if name not in ("self", "")])
    return lists


def public(names):
    return {name for name in names if not name.startswith("_") or name == "__version__"}


def test_the_stub_agrees_with_the_extension():
    tree = ast.parse((PACKAGE / "_native.pyi").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = stub_functions(tree.body)
    assert set(functions) | set(classes) | {"__version__"} == public(dir(_native))
    for name, overloads in functions.items():
        assert parameters_of_native(getattr(_native, name)) == overloads, name
    for name, node in classes.items():
        native = getattr(_native, name)
        if name == "DurationFamily":
            members = [child.targets[0].id for child in node.body]
            assert members == [member.name for member in native]
            continue
        methods = stub_functions(node.body)
        assert set(methods) - {"__init__"} == public(vars(native)), name
        for method, overloads in methods.items():
            member = getattr(native, method)
            if not isinstance(member, property):
                assert parameters_of_native(member) == overloads, f"{name}.{method}"


def test_every_public_function_is_documented_and_hinted():
    for name in segfuse.__all__:
        member = getattr(segfuse, name)
        if name in ("IGNORE", "__version__"):
            continue
        assert member.__doc__, name
        if inspect.isfunction(member):
            hints = member.__annotations__
            assert set(inspect.signature(member).parameters) | {"return"} == set(hints), name
            for parameter in inspect.signature(member).parameters:
                assert re.search(rf"\b{parameter}\b", member.__doc__), f"{name}: {parameter}"


def test_mypy(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    command = [sys.executable, "-m", "mypy", "--ignore-missing-imports", "--follow-imports=silent"]
    command += ["--no-incremental", "--cache-dir=/dev/null", "--no-site-packages", "segfuse"]
    shutil.copytree(PACKAGE, tmp_path / "segfuse")  # away from the packages beside it
    run = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr
