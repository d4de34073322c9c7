"""README and docs: shell and C++ code runs, page by page; all commands and options are described."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import tool

sys.path.insert(0, str(tool.SOURCE / "tools"))
import command_reference
import pages

# Blocks that say that they cannot run here.
NOT_RUN = {"sh": 21, "cpp": 5}
LIBRARY = os.environ.get("SEGFUSE_LIBRARY", str(tool.SOURCE / "build/lib/libsegfuse.so"))
COMPILER = os.environ.get("SEGFUSE_CXX", "c++")


def blocks_in(language):
    """{page: blocks of that language}, pages without one left out."""
    found = {}
    for name in pages.page_names(tool.SOURCE):
        blocks = pages.blocks_of((tool.SOURCE / name).read_text())
        if blocks := [block for block in blocks if block.language == language]:
            found[str(name)] = blocks
    return found


def run_shell(page, blocks, folder):
    """Runs the blocks in a folder that has examples/ and the command; the first failure, or None."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/segfuse").symlink_to(tool.SEGFUSE)
    shutil.copytree(tool.SOURCE / "examples", folder / "examples")
    environment = {"SEGFUSE_TEST_DATA": str(tool.SOURCE.parent / "shared/data"), **os.environ,
                   "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    for block in blocks:
        if block.not_run:
            continue
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.before + block.code], cwd=folder,
            env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )
        if result.returncode != 0:
            return f"{page}:{block.line}: exit code {result.returncode}\n{block.code}{result.stderr}"
    return None


def program_of(blocks_of_pages):
    """A C++ program that runs the blocks, each page in a function, each block in a scope within the
    one before; lines are those of the pages. Where the machine lacks something, the page ends."""
    includes, functions, calls = ["#include <segfuse/error.h>"], [], []
    for page, blocks in blocks_of_pages.items():
        run = [block for block in blocks if not block.not_run]
        body = [f"void page_{len(calls)}() try {{"]
        for block in run:
            body += ["{", f'#line 1 "{page} before line {block.line}"', *block.before.split("\n")]
            body += [f'#line {block.line} "{page}"', *block.code.split("\n")]
        body.append("}" * len(run) + "} catch (const segfuse::DeviceError&) {}")
        includes += [line for line in body if line.startswith("#include")]
        functions += ["" if line.startswith("#include") else line for line in body]
        calls.append(f"  page_{len(calls)}();")
    main = ['#line 1 "main"', "int main() {", *calls, "}"]
    return "\n".join([*dict.fromkeys(includes), *functions, *main]) + "\n"


class Shell(unittest.TestCase):
    def test_pages(self):
        for page, blocks in blocks_in("sh").items():
            with self.subTest(page), tempfile.TemporaryDirectory(prefix="segfuse-docs-") as folder:
                self.assertIsNone(run_shell(page, blocks, pathlib.Path(folder)))

    def test_a_wrong_block_is_noticed(self):
        text = "```sh\nsegfuse info\n```\n\n```sh\nsegfuse trian x | cat\n```\n"
        with tempfile.TemporaryDirectory(prefix="segfuse-docs-") as folder:
            failure = run_shell("a.md", pages.blocks_of(text), pathlib.Path(folder))
        self.assertIn("a.md:6: exit code 2", failure)
        self.assertIn("did you mean 'train'", failure)


class Cpp(unittest.TestCase):
    def compiled(self, blocks, folder):
        source, program = pathlib.Path(folder) / "pages.cpp", pathlib.Path(folder) / "pages"
        source.write_text(program_of(blocks))
        library = pathlib.Path(LIBRARY)
        command = [COMPILER, "-std=c++20", "-Wno-unused", f"-I{tool.SOURCE / 'include'}", source, "-o", program,
                   library, f"-Wl,-rpath,{library.parent}"]
        return subprocess.run(command, capture_output=True, text=True, check=False), program

    def test_pages(self):
        with tempfile.TemporaryDirectory(prefix="segfuse-docs-") as folder:
            result, program = self.compiled(blocks_in("cpp"), folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            ran = subprocess.run([program], capture_output=True, text=True, check=False)
            self.assertEqual(ran.returncode, 0, ran.stderr)

    def test_a_wrong_block_is_noticed(self):
        text = "\n```cpp\nint x = no_such_name;\n```\n"
        with tempfile.TemporaryDirectory(prefix="segfuse-docs-") as folder:
            result, _ = self.compiled({"a.md": pages.blocks_of(text)}, folder)
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(result.stderr, r"a\.md:3:\d+: error: .*no_such_name")


class Pages(unittest.TestCase):
    def test_use_it_in_the_readme_is_run_in_every_language(self):
        text = (tool.SOURCE / "README.md").read_text()
        section = text.split("\n## Use it\n")[1].split("\n## ")[0]
        blocks = pages.blocks_of(section)
        self.assertEqual([block.language for block in blocks], ["sh", "python", "cmake", "cpp"])
        self.assertEqual([block.not_run for block in blocks], [""] * 4)

    def test_few_blocks_do_not_run(self):
        for language, count in NOT_RUN.items():
            skipped = [f"{page}:{block.line}: {block.not_run}" for page, blocks in blocks_in(language).items()
                       for block in blocks if block.not_run]
            print(f"{language}: {len(skipped)} blocks are not run", *skipped, sep="\n  ")
            self.assertEqual(len(skipped), count, language)

    def test_every_command_and_option_is_in_the_reference(self):
        self.maxDiff = None
        self.assertEqual((tool.SOURCE / command_reference.PAGE).read_text(), command_reference.page(tool.SEGFUSE),
                         "write it again: tools/command_reference.py")

    def test_lines_of_use_name_options_that_exist(self):
        known = command_reference.options_by_command(tool.SEGFUSE)
        lines = 0
        for language in ("", "sh"):
            for page, blocks in blocks_in(language).items():
                for block in blocks:
                    for line in re.findall(r"^segfuse (?!-)(?:.*\\\n)*.*$", block.code, re.MULTILINE):
                        lines += 1
                        self.check_line(f"{page}:{block.line}", line, known)
        self.assertGreater(lines, 20)

    def test_every_command_has_examples_with_options_that_exist(self):
        known = command_reference.options_by_command(tool.SEGFUSE)
        for words, text in command_reference.commands_of(tool.SEGFUSE):
            name = " ".join(words)
            if "subcommands" in command_reference.sections_of(text) and words:
                continue  # a group; its commands have them
            with self.subTest(name):
                examples = re.split(r"\nExamples?:\n", text)[1:]
                self.assertEqual(len(examples), 1, f"segfuse {name} --help lacks an example")
                self.assertIn(f"segfuse {name}".rstrip(), examples[0])
                for line in re.findall(r"^  (segfuse (?!-).*)$", examples[0], re.MULTILINE):
                    self.check_line(f"segfuse {name} --help", line, known)

    def test_a_wrong_option_is_noticed(self):
        known = command_reference.options_by_command(tool.SEGFUSE)
        self.check_line("a.md:1", "segfuse doctor fork PID [--all] [--html PAGE]  # --none", known)
        for line in ("segfuse decode --bset", "segfuse doctor frok PID", "segfuse trian x"):
            with self.assertRaises(AssertionError):
                self.check_line("a.md:1", line, known)

    def check_line(self, where, line, known):
        words = re.split(r" (?:#|--|&&|>) ", line)[0].split()[1:]
        group = any(name.startswith(words[0] + " ") for name in known)
        command = " ".join(words[:2]) if group else words[0]
        self.assertIn(command, known, f"{where}: {line}")
        for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join(words)):
            self.assertIn(option, known[command], f"{where}: {line}")


if __name__ == "__main__":
    unittest.main()
