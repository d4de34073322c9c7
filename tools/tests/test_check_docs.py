import pathlib
import sys
import unittest

from checker import TOOLS, CheckerTest

sys.path.insert(0, str(TOOLS))
import pages

KEYS = "## At the top\n\n| `title` | string |\n\n## [data]\n\n| `path` | string |\n"


class Docs(CheckerTest):
    checker = "check_docs"

    def test_links(self):
        self.write("docs/a.md", "# A\n\nSee [b](b.md#the-end), [it](#a) and\n![p](images/p.svg).\n")
        self.write("docs/b.md", "# B\n\n## The `end`\n\n<https://x.org> [up](../README.md)\n")
        self.write("docs/images/p.svg", "")
        self.write("README.md", "# R\n\n[a]: docs/a.md\n")
        self.assert_clean()
        self.write("docs/b.md", "# B\n\n## Another end\n")
        self.write("README.md", '# R\n\n[a]: docs/c.md\n<img src="p.svg">\n[x](docs/b.md#ende)\n')
        (self.root / "docs/images/p.svg").unlink()
        self.assert_found(
            "docs/a.md:3: docs/b.md has no heading for #the-end",
            "docs/a.md:4: the link leads to images/p.svg, which does not exist",
            "README.md:3: the link leads to docs/c.md, which does not exist",
            "README.md:4: the link leads to p.svg, which does not exist",
            "README.md:5: docs/b.md has no heading for #ende",
        )

    def test_links_in_code_and_comments_are_none(self):
        self.write("docs/a.md", "`[b](b.md)`\n\n```\n[b](b.md)\n```\n\n<!-- [b](b.md) -->\n")
        self.assert_clean()

    def test_a_link_does_not_leave_the_tree(self):
        self.write("docs/a.md", "[up](../..)\n")
        self.assert_found("docs/a.md:1: the link leads out of the tree, to ../..")

    def test_headings_of_one_name_and_with_links(self):
        self.write("docs/a.md", "# A b\n\n# A b\n\n# [A](#a-b) c?\n\n[x](#a-b-1) [y](#a-c)\n")
        self.assert_clean()
        self.write("docs/a.md", "# A b\n\n```\n# A c\n```\n\n[x](#a-b-1) [y](#a-c)\n")
        self.assert_found(
            "docs/a.md:7: docs/a.md has no heading for #a-b-1",
            "docs/a.md:7: docs/a.md has no heading for #a-c",
        )

    def test_languages(self):
        self.write("docs/a.md", "```sh\nls\n```\n\n```\ntext\n```\n\n```pyhton\nx\n```\n")
        self.assert_found(
            "docs/a.md:9: unknown language 'pyhton'; known are sh, python, cpp, cmake, toml, yaml,"
            " and none"
        )

    def test_indented_code(self):
        self.write("docs/a.md", "A\n\n    b = 1\n\n- item\n\n    its second paragraph\n")
        self.assert_found("docs/a.md:3: indented code; put it into a fence (```)")

    def test_comments_that_no_block_follows(self):
        lost = "<!-- before\nx = 1\n-->\n\ntext\n\n```python\nx\n```\n<!-- a note -->\ntext\n"
        self.write("docs/a.md", lost + "<!-- not run: it is slow -->\n")
        self.assert_found(
            "docs/a.md:1: no block of code follows this comment",
            "docs/a.md:12: no block of code follows this comment",
        )

    def test_words(self):
        self.write("docs/a.md", "It is `told` by\nWhoever has *gone*.\n\n```\ngone\n```\n")
        self.assert_found(
            "docs/a.md:2: the word 'Whoever'; say it in plain words",
            "docs/a.md:2: the word 'gone'; say it in plain words",
        )

    def test_phrases(self):
        right = "There\n  are no sets. It is no longer here. What is it?\n"
        self.write("docs/a.md", "All but\nfor one. " + right + "It is no set.\n")
        self.write("docs/b.md", "A. What is left\nis free. He sees\nto it.\n\n| what is told |\n")
        self.assert_found(
            "docs/a.md:1: the word 'but for'; say it in plain words",
            "docs/a.md:4: the word 'is no set'; say it in plain words",
            "docs/b.md:1: the word 'What ... .'; say it in plain words",
            "docs/b.md:2: the word 'sees to'; say it in plain words",
            "docs/b.md:5: the word 'told'; say it in plain words",
        )

    def test_fragments_and_inversions(self):
        self.write(
            "docs/a.md",
            "A. Else the default.\n\nA. As above.\n\nA. Below it lies b. In a set, b is left.\n\n"
            "It has so many rows, so many\nof them if asked for. The likeliest is left.\n",
        )
        self.assert_found(
            "docs/a.md:1: the word 'Else the default.'; say it in plain words",
            "docs/a.md:3: the word 'As above.'; say it in plain words",
            "docs/a.md:5: the word 'Below it lies'; say it in plain words",
            "docs/a.md:7: the word 'so many'; say it in plain words",
            "docs/a.md:7: the word 'so many'; say it in plain words",
            "docs/a.md:8: the word 'asked for'; say it in plain words",
            "docs/a.md:8: the word 'likeliest'; say it in plain words",
        )

    def test_phrases_in_public_comments(self):
        self.write("include/a.h", "int a;  // all but for one\nint b;  // there is no set\n")
        self.write("python/a.py", '"""It is no set."""\nx = "it is no set"  # if asked for\n')
        self.write("src/a.cpp", "int a;  // all but for one\n")
        self.assert_found(
            "include/a.h:1: the word 'but for'; say it in plain words",
            "python/a.py:1: the word 'is no set'; say it in plain words",
            "python/a.py:2: the word 'asked for'; say it in plain words",
            "python/a.py:2: 'is no set' in a message; say it in plain words",
        )

    def test_words_in_comments(self):
        self.write("src/a.h", 'int gone;  // gone by now\nauto url = "http://told";\n')
        self.write("python/a.py", '"""Text.\n\nWhoever reads.\n"""\ntold = "gone"  # told\n')
        self.assert_found(
            "python/a.py:3: the word 'Whoever'; say it in plain words",
            "python/a.py:5: the word 'told'; say it in plain words",
            "src/a.h:1: the word 'gone'; say it in plain words",
        )

    def test_keys_of_configurations(self):
        self.write("docs/configuration.md", KEYS)
        self.write("docs/a.md", '```toml\ntitle = "x"\n[data]\npath = "x"\n```\n')
        self.assert_clean()
        wrong = '```toml\ntitel = "x"\n[data]\npaht = "x"\n```\n'
        self.write("docs/a.md", wrong + "\n```toml\n=\n```\n")
        result = self.run_checker()
        self.assertIn("docs/a.md:1: docs/configuration.md has no key titel", result.stderr)
        self.assertIn("docs/a.md:1: docs/configuration.md has no key data.paht", result.stderr)
        self.assertIn("docs/a.md:7: no TOML:", result.stderr)

    def test_keys_in_text(self):
        self.write("docs/configuration.md", KEYS)
        self.write("docs/a.md", "`data.path`, `data.path = 1`, `data.h`, `model.load`\n")
        self.assert_clean()
        self.write("docs/a.md", "A\n`data.paht = 1`\n")
        self.assert_found("docs/a.md:2: docs/configuration.md has no key data.paht")

    def test_the_site_names_every_page(self):
        self.write("docs/a.md", "# A\n")
        self.write("docs/b.md", "# B\n")
        self.write("packaging/site/mkdocs.yml", "nav:\n  - One:\n      - a.md\n      - B: b.md\n")
        self.assert_clean()
        self.write("docs/c.md", "# C\n")
        self.assert_found("docs/c.md:1: packaging/site/mkdocs.yml does not name this page")

    def test_messages(self):
        self.write(
            "src/a.cpp",
            'f("{} is no number; "\n  "replace it by --overwrite");  // a comment: "x is no y"\n'
            'g("is no name");\nconstexpr int kMostRows = 3;\nh("there is no file of this name");\n',
        )
        self.write(
            "python/b.py",
            '"""A path is not text here."""\nfail(f"{x} was asked for, expected {y}")\n',
        )
        self.assert_found(
            "src/a.cpp:1: 'is no number' in a message; say it in plain words",
            "src/a.cpp:1: 'by --overwrite' in a message; say it in plain words",
            "src/a.cpp:3: 'is no name' in a message; say it in plain words",
            "src/a.cpp:4: the name kMostRows; a limit is a kMax or a kMin",
            "python/b.py:2: 'asked for' in a message; say it in plain words",
        )

    def test_decisions(self):
        head = "Status: accepted. Date: 2026-11-26.\n\nText.\n"
        self.write("docs/decisions/001-a.md", f"# 001. The first\n\n{head}")
        self.write("docs/decisions/002-b.md", f"# 002. The second\n\n{head}")
        rows = [
            "| [001](001-a.md) | The first | 2026-11-26 | accepted |",
            "| [002](002-b.md) | The second | 2026-11-26 | accepted |",
        ]
        self.write("docs/decisions/index.md", "# Decisions\n\n" + "\n".join(rows) + "\n")
        self.assert_clean()
        self.write("docs/decisions/index.md", f"# Decisions\n\n{rows[0]}\n")
        self.write("docs/decisions/001-a.md", "# The first\n\nText.\n")
        self.write("docs/decisions/004-c.md", f"# 004. The third\n\n{head}")
        self.assert_found(
            "docs/decisions/001-a.md:1: a decision starts with '# NNN. Title', a blank line and"
            " 'Status: accepted. Date: YYYY-MM-DD.'",
            "docs/decisions/002-b.md:1: docs/decisions/index.md lacks its row,"
            " | [002](002-b.md) | The second | 2026-11-26 |",
            "docs/decisions/004-c.md:1: decision 003 was expected here; numbers have no gaps",
        )

    def test_comments_for_tests(self):
        self.write("docs/a.md", "<!-- not run: a text -->\n```\nx\n```\n")
        self.assert_found("docs/a.md:2: comments for tests before a block that no test runs")
        both = "<!-- not run: no -->\n<!-- before\ny = 1\n-->\n\n```python\nx\n```\n"
        self.write("docs/a.md", both)
        self.assert_found("docs/a.md:6: the block is not run, but has code to be run before it")


class Blocks(unittest.TestCase):
    def test_comments_belong_to_the_next_block(self):
        text = (
            "<!-- before\nx = 1\n-->\n\n```python\nprint(x)\n```\n"
            "<!-- not run: it takes hours -->\n```sh\nmake\n```\n"
            "<!-- not run: lost -->\ntext\n\n- item\n\n  ```sh\n  ls\n  ```\n"
        )
        first, second, third = pages.blocks_of(text)
        self.assertEqual(first, pages.Block(6, "python", "print(x)\n", before="x = 1\n"))
        self.assertEqual(second, pages.Block(10, "sh", "make\n", not_run="it takes hours"))
        self.assertEqual(third, pages.Block(18, "sh", "ls\n"))

    def test_pages(self):
        names = pages.page_names(TOOLS.parent)
        self.assertIn(pathlib.Path("README.md"), names)
        self.assertIn(pathlib.Path("docs/tour.md"), names)
