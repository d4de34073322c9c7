"""Everything that reads a file stands in one table, with a fuzzer, sentences for what is malformed, and damaged inputs."""

import re
import unittest

import readers

READS = re.compile(r"\b(read_file|parse_json|sf_open|TomlReader::parse|FileMap \w+|ifstream \w+|read_pickle|open_first\w*)\(")


def text_of(path):
    return (readers.SOURCE / path).read_text()


class ReadersTest(unittest.TestCase):
    def test_every_source_that_reads_a_file_is_in_the_table(self):
        known = set(readers.others())
        for reader in readers.table():
            known.update(reader.sources)
        for folder in ("src", "cli"):
            for path in sorted((readers.SOURCE / folder).rglob("*.cpp")):
                name = str(path.relative_to(readers.SOURCE))
                if name not in known and READS.search(path.read_text()):
                    self.fail(f"{name} reads a file, and tests/readers.tsv does not say which reader that is")

    def test_the_table_is_true(self):
        self.assertEqual(len({reader.reader for reader in readers.table()}), len(readers.table()))
        targets = text_of("tests/fuzz/CMakeLists.txt")
        for path, why in readers.others().items():
            with self.subTest(source=path):
                self.assertTrue((readers.SOURCE / path).is_file())
                self.assertTrue(why)
        for reader in readers.table():
            with self.subTest(reader=reader.reader):
                for source in reader.sources:
                    self.assertTrue((readers.SOURCE / source).is_file(), source)
                self.assertTrue(f"segfuse_fuzz({reader.fuzzer} " in targets, reader.fuzzer)
                test, words = reader.sentences
                self.assertTrue(words in text_of(test), f"{test} has no {words}")

    def test_every_format_is_in_the_table_and_its_fuzzer(self):
        names = {reader.reader: reader for reader in readers.table()}
        wanted = [("labels " + one.name, one.endings) for one in readers.formats() if one.name != "wfdb"]
        wanted += [("wfdb .hea", [".hea"])]
        wanted += [("audio " + ending, [ending]) for ending in readers.audio_endings() if ending != ".hea"]
        wanted += [("values " + ending, [ending]) for ending in readers.value_endings()]
        self.assertGreater(len(wanted), 40)
        for name, endings in wanted:
            with self.subTest(reader=name):
                self.assertIn(name, names)
                fuzzer = text_of(f"tests/fuzz/fuzz_{names[name].fuzzer}.cpp")
                self.assertTrue(any(f'"x{ending}"' in fuzzer for ending in endings), (names[name].fuzzer, endings))


if __name__ == "__main__":
    unittest.main()
