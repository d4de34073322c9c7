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

This page is the reference of the command `segfuse`: all commands, with their arguments, options and
examples. To learn how to use the commands, read [command_line.md](command_line.md) first. It also
explains the [exit codes](command_line.md#exit-codes). The [glossary](glossary.md) explains terms
such as *tier* and *rank*.

`segfuse COMMAND --help` prints the same text. (`tools/command_reference.py` writes this page from
it.)
"""
NOTATION = """## How to read the tables

- An argument without dashes is positional: write its value, in the order of the line above the
  table.
- The word after an option names the kind of value that it takes: `TEXT`, `INT` (a whole number) or
  `FLOAT` (a number). An option without such a word is a switch.
- Write a value as `--option VALUE` or `--option=VALUE`.
- `...` means that several values are possible. Repeat an option for each of its values. In
  commands of the doctor, `pid...`, `file...` and `command...` may be the words of a command to run;
  otherwise write one process id or one file.
- The column *default* shows the value that is used without the option, or *required*. If it is
  empty and the meaning names no default, the option is off unless you give it.
- Every command also accepts the [options of all commands](#options-of-all-commands).
"""
COMMON_HEAD = """## Options of all commands

Every command accepts these options. You can also set an option by its environment variable; the
option has priority. An option with two names, such as `--quiet`, `--no-quiet`, is a switch that the
second name turns off.
"""
GUIDES = {  # the page that shows the command in use
    "train": "training.md",
    "eval": "measures.md",
    "decode": "decoding.md",
    "align": "alignment.md",
    "stream": "streaming.md",
    "compare": "measures.md#two-runs-side-by-side",
    "study": "measures.md#several-trainings-of-one-configuration",
    "learncurve": "measures.md#several-trainings-of-one-configuration",
    "compile": "command_line.md#compile-and-run-programs",
    "run": "command_line.md#compile-and-run-programs",
    "synth": "data.md#synthetic-corpora",
    "init": "data.md",
    "config": "configuration.md",
    "models": "models.md",
    "doctor memory": "memory.md#segfuse-doctor-memory",
    "doctor fork": "doctor.md#doctor-fork",
    "doctor kernel": "doctor.md#doctor-kernel",
    "doctor numerics": "doctor.md#doctor-numerics",
    "doctor streams": "doctor.md#doctor-streams",
    "doctor determinism": "doctor_pytorch.md#runs-that-differ",
    "doctor ranks": "distributed.md#when-a-rank-is-lost",
}
CODE = re.compile(
    r"`[^`]+`"  # as the help has it
    r"|(?<![\w-])--(?:[a-z][a-z-]*(?:=[\w.]+)?|(?=[ .;,]))"  # options
    r"|(?<=')\S[^']*[?|][^']*(?=')|\{\"[^}]*\}|\[[a-z]+\]"  # orders, JSON, sections
    r"|\S*[\^*$~]\S*[^\s,;:)]"  # patterns and paths
    r"|\b[A-Z]+(?:_[A-Z]+)+\b"  # environment variables
    r"|\b[a-z]+_[a-z0-9_]+\b|\bafter:\w+|\b(?:training|model)\.[a-z]+\b(?!=)"  # names
    r"|\b[a-z]+(?:\.[a-z_]+)?=[\w.,]+|\b[A-Z]+=\S*\w"  # settings
    # files
    r"|\b(?:\w+/)*(?:\w+\.)*\w+\.(?:json|csv|html|txt|lab|md|toml|npy|safetensors|\*)(?!\w)"
)
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
    """The text in a table."""
    return _prose(text).replace("|", r"\|")


def _prose(text):
    """A text with its names as code, and the rest without a meaning in Markdown."""
    parts, at = [], 0
    for found in CODE.finditer(text):
        parts += [_plain(text[at : found.start()]), f"`{found.group(0).strip('`')}`"]
        at = found.end()
    prose = "".join([*parts, _plain(text[at:])]).replace("'`", "`").replace("`'", "`")
    return prose[:1].upper() + prose[1:]


def _plain(text):
    return re.sub(r"([*_\[\]])", r"\\\1", text).replace("<", "&lt;")


def _kind(left):
    """The kind of an argument's value, with a blank before it; empty for a switch."""
    found = re.search(r" (TEXT|INT|UINT|FLOAT)\b", left)
    several = " ..." if " ..." in left else ""
    return f" {found.group(1).removeprefix('U')}{several}" if found else ""


def _argument(left):
    kind = _kind(left)
    names = names_of(left)
    if not names[0].startswith("-"):
        return f"`{names[0]}{'...' if '...' in kind else ''}`"
    return ", ".join(f"`{name}{kind}`" for name in names)


def _default(left):
    if default := default_of(left):
        return f"`{default}`"
    return "required" if "REQUIRED" in left else ""


def _meaning(left, meaning):
    if choices := choices_of(left, meaning):
        meaning += f"; values: {', '.join(choices)}"
    return _cell(meaning)


def _table(rows):
    lines = ["| argument or option | default | meaning |", "|---|---|---|"]
    for left, meaning in rows:
        lines.append(f"| {_argument(left)} | {_default(left)} | {_meaning(left, meaning)} |")
    return "\n".join(lines) + "\n"


def _common_table(rows):
    """The options of all commands, with what the help has in brackets in columns."""
    lines = ["| option | default | environment variable | meaning |", "|---|---|---|---|"]
    for left, meaning in rows:
        default = _default(left)
        if shown := re.search(r" \[=(\w+)\]$", meaning):
            default, meaning = f"`{shown.group(1)}`", meaning[: shown.start()]
        variable = ""
        if shown := re.search(r" \[([A-Z_]+)\]$", meaning):
            variable, meaning = f"`{shown.group(1)}`", meaning[: shown.start()]
        if bare := re.match(r"--[a-z-]+\{(\w+)\}", left):
            meaning += f"; without a value: {bare.group(1)}"
        lines.append(f"| {_argument(left)} | {default} | {variable} | {_cell(meaning)} |")
    return "\n".join(lines) + "\n"


def _index(commands):
    """A row for each command that does something."""
    lines = ["| command | does |", "|---|---|"]
    for words, text in commands:
        if words and "subcommands" not in sections_of(text):
            name = " ".join(words)
            anchor = f"segfuse-{'-'.join(words)}"
            lines.append(f"| [`{name}`](#{anchor}) | {_cell(text.split(chr(10))[0])} |")
    return "\n".join(lines) + "\n"


def _notes_and_examples(text):
    """What follows the options of all commands: sentences, then examples."""
    end = text.partition("\nOptions of all commands:\n")[2].partition("\n\n")[2]
    notes, _, examples = re.split(r"(^Examples?:\n)", end, maxsplit=1, flags=re.MULTILINE)
    parts = []
    if notes.strip():
        parts.append(_prose(" ".join(notes.split())) + "\n")
    lines = [line.removeprefix("  ") for line in examples.split("\n") if line.startswith("  ")]
    return [*parts, "\n".join(["```", *lines, "```"]) + "\n"]


def _command(words, text):
    """The parts of a command's section."""
    name = " ".join(words)
    sections = sections_of(text)
    lines = text.split("\n")
    parts = [f"## segfuse {name}\n"]
    if "subcommands" in sections:
        names = [f"`segfuse {name} {below}`" for below, _ in sections["subcommands"]]
        return [*parts, lines[0] + ".\n", "Its commands: " + ", ".join(names) + ".\n"]
    guide = GUIDES.get(name, "")
    more = f" See [{guide.split('#')[0]}]({guide})." if guide else ""
    parts.append(lines[0] + "." + more + "\n")
    usage = next(line for line in lines if line.startswith("Usage: "))
    parts.append(f"```\n{usage.removeprefix('Usage: ')}\n```\n")
    rows = sections.get("positionals", []) + sections.get("options", [])
    rows = [row for row in rows if "--help" not in names_of(row[0])]
    if rows:
        parts.append(_table(rows))
    notes = _notes_and_examples(text)
    title = "Examples:\n" if notes[-1].count("\n") > 3 else "Example:\n"
    return [*parts, *notes[:-1], title, notes[-1]]


def page(command):
    """The whole page."""
    commands = list(commands_of(command))
    rows = sections_of(commands[0][1])["options"]
    rows = [row for row in rows if "--help" not in names_of(row[0])]
    parts = [HEAD, _index(commands), NOTATION, COMMON_HEAD, _common_table(rows)]
    for words, text in commands[1:]:
        parts += _command(words, text)
    return prose.wrapped("\n".join(parts))


def main():
    command = sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/cli/segfuse"
    (ROOT / PAGE).write_text(page(command))


if __name__ == "__main__":
    main()
