"""What the checkers share: the files of the tree and C++ text without comments and literals."""

import argparse
import pathlib
import re
import sys

CPP_FOLDERS = ("src", "include", "cli", "python", "tests", "bench", "examples")
OURS = ("src", "include", "cli", "python")  # what is shipped
TEXT_FOLDERS = CPP_FOLDERS + ("cmake", "docs", "tools", ".ci")
CPP_SUFFIXES = (".h", ".cpp", ".cu", ".cuh", ".def")
HEADER_SUFFIXES = (".h", ".cuh")


def parse_root(description, arguments=None):
    """The --root option that every checker has; the tests point it at small trees."""
    parser = argparse.ArgumentParser(description=description)
    default = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--root", type=pathlib.Path, default=default, help="tree to check")
    return parser.parse_args(arguments).root.resolve()


def files_in(root, folders, suffixes=None):
    """Sorted files below the folders (caches aside), as paths relative to root."""
    found = []
    for folder in folders:
        for path in (root / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                if suffixes is None or path.suffix in suffixes:
                    found.append(path.relative_to(root))
    return sorted(found)


def report(name, errors, summary):
    """Prints 'file:line: sentence' for each error and exits with the checker's verdict."""
    for error in errors:
        print(error, file=sys.stderr)
    if errors:
        print(f"{name}: {len(errors)} problem{'s' if len(errors) > 1 else ''}", file=sys.stderr)
        sys.exit(1)
    print(f"{name}: {summary}")


_LITERALS = re.compile(
    r"//(?:[^\n\\]|\\.)*"  # a line comment, continued by a backslash at its end
    r"|/\*.*?\*/"
    r'|\b(?:u8|[uUL])?R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)"'
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|(?<![0-9a-fA-F])'(?:[^'\\\n]|\\.)+'",  # not the separators of 1'000
    re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", re.MULTILINE | re.DOTALL)


def _blank(match):
    text = match.group(0)
    blanked = re.sub(r"[^\n]", " ", text)
    if text[0] in "\"'RuUL" and len(text) > 1:  # a literal stays visible as a token
        return '"' + blanked[1:-1] + '"'
    return blanked


def without_literals(text):
    """C++ text whose comments are blanks and whose literals are empty; lines and columns stay."""
    return _LITERALS.sub(_blank, text)


def without_directives(text):
    """Blanks preprocessor lines, with what they continue on; call after without_literals."""
    return _DIRECTIVE.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


def includes_of(text):
    """(line, name, quoted) of each include that is not inside a comment."""
    code = without_literals(text).splitlines()
    for match in _INCLUDE.finditer(text):
        line = line_of(text, match.start())
        if "include" in code[line - 1]:
            yield line, match.group(1) or match.group(2), match.group(1) is not None


def resolve(root, name):
    """The file of ours that an include means, relative to root, or None."""
    for folder in OURS:
        if (root / folder / name).is_file():
            return (root / folder / name).relative_to(root)
    return None
