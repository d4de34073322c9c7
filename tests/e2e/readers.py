"""The table of everything that reads a file: tests/readers.tsv; and what docs/data.md says of formats, as unit tests make sure."""

import dataclasses
import pathlib
import re

SOURCE = pathlib.Path(__file__).resolve().parents[2]
DATA = (SOURCE / "docs/data.md").read_text()


@dataclasses.dataclass
class Reader:
    reader: str
    sources: list  # files that parse it
    fuzzer: str
    sentences: tuple  # a test, and words in it
    unmutated: str  # why mutated_test.py leaves it out; empty: it does not


@dataclasses.dataclass
class Format:
    name: str
    endings: list
    read_only: bool


def rows():
    """Of the table: (reader, sources, fuzzer, sentences, remark)."""
    for line in (SOURCE / "tests/readers.tsv").read_text().splitlines():
        if line and not line.startswith("#"):
            fields = line.split("\t")
            yield fields + [""] * (5 - len(fields))


def table():
    """The readers of files that a user may give us."""
    return [Reader(name, sources.split(" "), fuzzer, tuple(sentences.split(": ", 1)), remark)
            for name, sources, fuzzer, sentences, remark in rows() if name != "-"]


def others():
    """Sources that read files of no user: {path: why}."""
    return {sources: remark for name, sources, _, _, remark in rows() if name == "-"}


def formats():
    """The label formats."""
    lines = DATA.split("| `--format` |")[1].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [Format(row[0], re.findall("`([^`]+)`", row[2]), "read only" in row[-1]) for row in cells]


def endings_in(text):
    return re.findall(r"`(\.[a-z0-9]+)`", text)


def audio_endings():
    rows = re.findall(r"^\| (`\..*?) \|", DATA.split("\n## Audio\n")[1].split("\n## ")[0], re.MULTILINE)
    return endings_in("\n".join(rows))


def value_endings():
    return endings_in(DATA.split("\n## Sequences that are not audio\n")[1].split("Parquet is not read")[0])
