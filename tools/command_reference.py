#!/usr/bin/env python3
"""Writes docs/commands.md, the reference of all commands and options, from what --help prints.

usage: tools/command_reference.py [COMMAND]    (default: build/cli/segfuse)
"""

import pathlib
import re
import subprocess
import sys

import prose

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = "docs/commands.md"
HEAD = """# Commands and options

This page lists every command with its options, as `--help` prints them
(`tools/command_reference.py` writes it). [command_line.md](command_line.md) shows the commands in
use, and `segfuse COMMAND --help` gives examples. [glossary.md](glossary.md) explains terms such as
*tier* and *rank*.
"""
SECTION = re.compile(r"^(Positionals|Options|Subcommands|Options of all commands):$", re.IGNORECASE)
COMMON = "options of all commands"
ROW = re.compile(r"^  (\S.*?)(?:  +(\S.*))?$")
CONTINUED = re.compile(r"^ {10,}(\S.*)$")


def help_of(command, words):
    run = subprocess.run([command, *words, "--help"], capture_output=True, text=True, check=True)
    return run.stdout


def sections_of(text):
    """{section in lower case: [(left column, meaning)]} of a help text."""
    sections, rows = {}, []
    for line in text.split("\n"):
        if heading := SECTION.match(line):
            rows = sections.setdefault(heading.group(1).lower(), [])
        elif (more := CONTINUED.match(line)) and rows:
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {more.group(1)}".strip())
        elif row := ROW.match(line):
            # A left column that fills its width has one blank behind it.
            left, meaning = row.group(1), row.group(2) or ""
            if not meaning and len(line) > 30 and line[29] == " ":
                left, meaning = line[2:29].strip(), line[30:]
            rows.append((left, meaning))
        elif line and not line.startswith(" "):
            rows = []  # usage, examples, exit codes
    return sections


def names_of(left):
    """The names in a left column: of an option both, without values and types."""
    names = re.sub(r"\{[^}]*\}", "", left.split(" ")[0]).split(",")
    return [name for name in names if name]


def default_of(left):
    found = re.search(r"\b[A-Z]+(?:=(\S+)| \[(\S+)\])", left)
    return (found.group(1) or found.group(2)) if found else ""


def choices_of(left, meaning):
    """The values of an option that takes one of a few, if its meaning does not name them."""
    found = re.search(r"[A-Z]:\{([^}]*)\}", left)
    names = found.group(1).split(",") if found else []
    return [] if all(re.search(rf"\b{name}\b", meaning) for name in names) else names


def commands_of(command, words=()):
    """(words, help text) of each command, in the order of the help."""
    text = help_of(command, words)
    yield words, text
    for name, _ in sections_of(text).get("subcommands", []):
        yield from commands_of(command, (*words, name))


def options_by_command(command):
    """{'doctor fork': its options and those of all commands, with their dashes}."""
    common, found = set(), {}
    for words, text in commands_of(command):
        sections = sections_of(text)
        own = {n for left, _ in sections.get("options", []) for n in names_of(left)}
        if not words:
            common = own
        found[" ".join(words)] = own | common
    return found


def _cell(text):
    """The text in a table, without a meaning in Markdown."""
    return re.sub(r"([|*_\[\]])", r"\\\1", text).replace("<", "&lt;")


def _table(rows):
    lines = ["| argument | default | meaning |", "|---|---|---|"]
    for left, meaning in rows:
        names = ", ".join(f"`{name}`" for name in names_of(left))
        default = f"`{default_of(left)}`" if default_of(left) else ""
        if choices := choices_of(left, meaning):
            meaning += f"; values: {', '.join(choices)}"
        lines.append(f"| {names} | {default} | {_cell(meaning)} |")
    return "\n".join(lines) + "\n"


def page(command):
    """The whole page."""
    parts = [HEAD]
    for words, text in commands_of(command):
        sections = sections_of(text)
        if not words:
            rows = [row for row in sections["options"] if "--help" not in names_of(row[0])]
            parts += ["## Options of all commands\n", _table(rows)]
            continue
        lines = text.split("\n")
        parts += [f"## segfuse {' '.join(words)}\n", lines[0] + ".\n"]
        if "subcommands" in sections:
            names = [f"`segfuse {' '.join((*words, name))}`" for name, _ in sections["subcommands"]]
            parts.append("Its commands: " + ", ".join(names) + ".\n")
            continue
        usage = next(line for line in lines if line.startswith("Usage: "))
        parts.append(f"```\n{usage.removeprefix('Usage: ')}\n```\n")
        rows = sections.get("positionals", []) + sections.get("options", [])
        rows = [row for row in rows if "--help" not in names_of(row[0])]
        if rows:
            parts.append(_table(rows))
    return prose.wrapped("\n".join(parts))


def main():
    command = sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/cli/segfuse"
    (ROOT / PAGE).write_text(page(command))


if __name__ == "__main__":
    main()
