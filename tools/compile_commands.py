"""How the sources of a build are compiled, each by itself, though a folder is compiled as one."""

import dataclasses
import json
import pathlib
import re
import shlex

INCLUDED = re.compile(r'^#include "(.+)"$', re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Command:
    """How `file` is compiled by itself, and all sources that the build compiles with it."""

    file: pathlib.Path
    folder: str
    words: tuple
    batch: tuple

    def compiling(self, file, output):
        """The words for another text in the place of this source."""
        words = list(self.words)
        words[words.index("-o") + 1] = str(output)
        words[words.index("-c") + 1] = str(file)
        return words


def read(build):
    """The commands of a build by the source's resolved path; for a source that several targets
    compile, the first one."""
    commands = {}
    for entry in json.loads((pathlib.Path(build) / "compile_commands.json").read_text()):
        made = pathlib.Path(entry["directory"], entry["file"])
        batch = (made.resolve(),)
        if made.parent.name == "Unity":
            names = INCLUDED.findall(made.read_text())
            batch = tuple(pathlib.Path(name).resolve() for name in names)
        words = shlex.split(entry["command"])
        for file in batch:
            changed = tuple(str(file) if word == entry["file"] else word for word in words)
            commands.setdefault(file, Command(file, entry["directory"], changed, batch))
    return commands
