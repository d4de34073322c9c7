import sys
import unittest

from checker import TOOLS

sys.path.insert(0, str(TOOLS))
import prose


class Prose(unittest.TestCase):
    def test_short_paragraphs_stay(self):
        text = "One.\nTwo.\n\n- a\n  b\n"
        self.assertEqual(prose.wrapped(text), text)

    def test_a_paragraph_is_filled_and_an_item_keeps_its_indent(self):
        words = " ".join(["word"] * 25)
        first, rest = " ".join(["word"] * 20), " ".join(["word"] * 5)
        self.assertEqual(prose.wrapped(f"{words}\n"), f"{first}\n{rest}\n")
        item = " ".join(["word"] * 19)
        self.assertEqual(
            prose.wrapped(f"- {words}\n- b\n"), f"- {item}\n  " + " ".join(["word"] * 6) + "\n- b\n"
        )

    def test_code_spans_and_links_stay_whole(self):
        for whole in ("`a code span of words`", "[a link of words](to/there.md)"):
            self.assertEqual(prose.wrapped("x" * 80 + f" {whole} y\n"), "x" * 80 + f"\n{whole} y\n")

    def test_no_line_begins_with_what_begins_a_list(self):
        self.assertEqual(prose.wrapped("x" * 98 + " a - b\n"), "x" * 98 + " a -\nb\n")

    def test_an_item_ends_where_the_next_begins(self):
        words = " ".join(["word"] * 20)
        self.assertEqual(
            prose.wrapped(f"1. {words}\n2. {words}\n| a | b |\n"),
            f"1. {words[:-5]}\n   word\n2. {words[:-5]}\n   word\n| a | b |\n",
        )


if __name__ == "__main__":
    unittest.main()
