#!/usr/bin/env python3
"""Wraps Markdown prose at 100 columns.

usage: tools/prose.py FILE...

A paragraph or list item with a longer line is filled anew; what has none stays as it is. Tables,
code, headings, HTML, link definitions and pictures stay as they are. Code spans and links are not
broken, so a line may stay longer that has no blank to break it at.
"""

import pathlib
import re
import sys

COLUMNS = 100
_FENCE = re.compile(r"^\s*(```|~~~)")
_KEPT = re.compile(r"^\s*(\||#|<|!\[|\[[^\]]+\]:|---|===)|^ {4,}(?![-*+] |\d+\. )")
_ITEM = re.compile(r"^(\s*(?:[-*+]|\d+\.) +|> )")
_ATOM = re.compile(r"(?:`[^`]*`|!?\[[^\]]*\]\([^)]*\)|\S)+")
_MARKER = re.compile(r"^(?:[-+*>|=]|#+|\d+[.)])$|^[|<>#]|^(?:---|```)")  # what begins something


def _fill(lines):
    """The lines of one paragraph or item as few lines of at most COLUMNS columns."""
    item = _ITEM.match(lines[0])
    first = item.group(0) if item else re.match(r"\s*", lines[0]).group(0)
    other = "> " if first == "> " else " " * len(first)
    text = " ".join([lines[0][len(first) :], *(line.removeprefix(other) for line in lines[1:])])
    filled, line = [], first
    for atom in _ATOM.findall(text):
        empty = line in (first, other)
        if not empty and len(line) + 1 + len(atom) > COLUMNS and not _MARKER.match(atom):
            filled.append(line)
            line, empty = other, True
        line += atom if empty else " " + atom
    return [*filled, line]


def _paragraphs(lines):
    """(lines, prose): groups in order; what is not prose comes line by line."""
    group, fenced = [], False
    for line in lines:
        fence = _FENCE.match(line)
        kept = fenced or fence or not line.strip() or (_KEPT.match(line) and not group)
        table = _KEPT.match(line) and not line.startswith(" ")
        if group and (kept or table or _ITEM.match(line) and not group[0].startswith("> ")):
            yield group, True
            group = []
        if fence:
            fenced = not fenced
        if kept or table:
            yield [line], False
        else:
            group.append(line)
    if group:
        yield group, True


def wrapped(text):
    """The text with its long paragraphs filled anew."""
    out = []
    for lines, prose in _paragraphs(text.split("\n")):
        out += _fill(lines) if prose and any(len(line) > COLUMNS for line in lines) else lines
    return "\n".join(out)


def main():
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        text = path.read_text()
        if wrapped(text) != text:
            path.write_text(wrapped(text))


if __name__ == "__main__":
    main()
