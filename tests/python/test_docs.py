"""The Python code in README and docs runs, page by page, against the installed package."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import pages

BLOCKS = {
    str(name): [b for b in pages.blocks_of((ROOT / name).read_text()) if b.language == "python"]
    for name in pages.page_names(ROOT)
}
NOT_RUN = 4  # blocks that say that they cannot run here


@pytest.mark.parametrize("page", [name for name, blocks in BLOCKS.items() if blocks])
def test_page(page, tmp_path, monkeypatch):
    """Blocks of a page share their names; each begins with what the comment before it does."""
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in BLOCKS[page] if not block.not_run]
    for library in ("torch", "jax"):
        if any(f"import {library}" in b.before + b.code for b in blocks):
            pytest.importorskip(library)
    names = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block.before, f"{page} before line {block.line}", "exec"), names)
        # Lines of a traceback are those of the page.
        code = "\n" * (block.line - 1) + block.code
        exec(compile(code, str(ROOT / page), "exec"), names)


def test_blocks_are_found_and_few_do_not_run():
    blocks = [block for page in BLOCKS.values() for block in page]
    assert len(blocks) > 10
    assert sum(bool(block.not_run) for block in blocks) == NOT_RUN


def test_a_wrong_block_is_noticed(tmp_path, monkeypatch):
    page = (
        "# A\n\n```python\nx = 1\n```\n\n```python\nimport segfuse\nsegfuse.no_such_name(x)\n```\n"
    )
    monkeypatch.setitem(BLOCKS, "wrong.md", pages.blocks_of(page))
    with pytest.raises(AttributeError, match="no_such_name") as failure:
        test_page("wrong.md", tmp_path, monkeypatch)
    assert failure.traceback[-2].lineno + 1 == 9 or failure.traceback[-1].lineno + 1 == 9
