import unittest

from checker import CheckerTest


class Prose(CheckerTest):
    checker = "check_prose"

    def test_what_is_found_and_where(self):
        self.write("docs/a.md", "# Very very\n\nIt is `x` is\nplain: 4 x 4 x 4.\n\n| is is |\n")
        self.assert_clean()
        self.write(
            "README.md", "# R\n\n```sh\nvery very\n```\n\nIt goes on\nfor ever, and it is is so.\n"
        )
        self.assert_found(
            "README.md:8: 'for ever' is archaic. (archaism)",
            "README.md:8: There's a lexical illusion in 'is is' - a phrase is repeated."
            " (lexical_illusions)",
        )


if __name__ == "__main__":
    unittest.main()
