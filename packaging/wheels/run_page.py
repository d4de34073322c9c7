"""Runs the shell and Python code of a page with what is installed, without a test framework.

usage: python run_page.py PAGE FOLDER. It works in FOLDER. Python code that needs PyTorch or JAX is
left out, since neither is installed where packaging/wheels/try runs.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import pages


def run_python(page: Path, block: pages.Block, names: dict) -> None:
    exec(compile(block.before, f"{page} before line {block.line}", "exec"), names)
    # Lines of a traceback are those of the page.
    exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)


def main() -> None:
    page = Path(sys.argv[1]).resolve()
    os.chdir(sys.argv[2])
    names = {"__name__": "__main__"}
    done = {"sh": 0, "python": 0}
    left_out = 0
    for block in pages.blocks_of(page.read_text()):
        if block.language not in done:
            continue
        elsewhere = block.language == "python" and re.search(
            r"\b(torch|jax)\b", block.before + block.code
        )
        if block.not_run or elsewhere:
            left_out += 1
            continue
        done[block.language] += 1
        if block.language == "python":
            run_python(page, block, names)
        else:
            shell = ["bash", "-euo", "pipefail", "-c", block.before + block.code]
            code = subprocess.run(shell, stdin=subprocess.DEVNULL, check=False).returncode
            if code != 0:
                sys.exit(f"{page}:{block.line}: exit code {code}\n{block.code}")
    print(
        f"page {page.name}: {done['sh']} blocks of shell and {done['python']} of Python ran, "
        f"{left_out} left out"
    )
    if not any(done.values()):
        sys.exit(f"{page}: none of its code was run")


main()
