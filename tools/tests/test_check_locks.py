import json
import pathlib
import unittest

from checker import TOOLS, CheckerTest

SOURCE = """#include "base/mutex.h"
namespace segfuse {{
class Counter {{
 public:
  void add() {{
    {lock}
    ++count_;
  }}

 private:
  Mutex mutex_;
  int count_ SEGFUSE_GUARDED_BY(mutex_) = 0;
}};
void use(Counter& counter) {{ counter.add(); }}
}}  // namespace segfuse
"""


class Locks(CheckerTest):
    checker = "check_locks"

    def prepare(self, lock, batch=False):
        self.write("src/base/mutex.h", (TOOLS.parent / "src/base/mutex.h").read_text())
        self.write("src/a.cpp", SOURCE.format(lock=lock))
        root = pathlib.Path(self.root).resolve()
        file = f"{root}/src/a.cpp"
        if batch:
            self.write("src/b.cpp", "// nothing\n")
            text = f'#include "{root}/src/b.cpp"\n\n#include "{root}/src/a.cpp"\n'
            self.write("build/Unity/unity_src_cxx.cxx", text)
            file = f"{root}/build/Unity/unity_src_cxx.cxx"
        command = f"c++ -std=c++20 -I{root}/src -o a.o -c {file}"
        entry = {"directory": str(root), "file": file, "command": command}
        self.write("build/compile_commands.json", json.dumps([entry]))

    def test_a_lock_that_is_held(self):
        self.prepare("const MutexLock lock(mutex_);")
        self.assert_clean()

    def test_a_missing_lock(self):
        for batch in (False, True):
            with self.subTest(batch=batch):
                self.prepare("", batch)
                self.assert_missing()

    def assert_missing(self):
        result = self.run_checker()
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stdout, "locks: 0 passed, 1 failed\n")
        self.assertIn("writing variable 'count_' requires holding mutex 'mutex_'", result.stderr)


if __name__ == "__main__":
    unittest.main()
