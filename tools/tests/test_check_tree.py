import unittest

from checker import CheckerTest


class Tree(CheckerTest):
    checker = "check_tree"

    def test_forbidden_calls(self):
        self.write("src/a.cpp", "int f() {\n  return ::fork();\n}\nint g = std::system(x);\n")
        self.write("tests/b.cpp", "auto* p = popen(x, y);\n")
        self.assert_found(
            "src/a.cpp:2: fork() is not allowed here; use segfuse/spawn.h",
            "src/a.cpp:4: system() is not allowed here; use segfuse/spawn.h",
            "tests/b.cpp:1: popen() is not allowed here; use segfuse/spawn.h",
        )

    def test_calls_in_comments_strings_and_other_names_are_fine(self):
        self.write("src/a.cpp", '// fork()\nauto s = "system(x)";\nx.fork();\nmy_fork();\n')
        self.assert_clean()

    def test_spawn_itself_and_tests_of_forked_children_may(self):
        self.write("src/base/os/spawn.cpp", "int e = posix_spawnp(a, b);\n")
        self.write("tests/unit/comm/a.cpp", "int e = fork();\n")
        self.assert_clean()
        self.write("src/base/os/other.cpp", "int e = posix_spawnp(a, b);\nint f = execve(a);\n")
        self.assert_found(
            "src/base/os/other.cpp:1: posix_spawnp() is not allowed here; use segfuse/spawn.h",
            "src/base/os/other.cpp:2: execve() is not allowed here; use segfuse/spawn.h",
        )

    def test_bare_system_calls(self):
        self.write("src/a.cpp", "syscall(SYS_clone, 0);\nsyscall(__NR_execve, a);\nSYS_read;\n")
        self.write("src/comm/registered/copy_on_fork.cpp", "syscall(SYS_clone, 0);\n")
        self.assert_found(
            "src/a.cpp:1: clone() is not allowed here; use segfuse/spawn.h",
            "src/a.cpp:2: execve() is not allowed here; use segfuse/spawn.h",
        )

    def test_defaults_over_operations(self):
        self.write(
            "src/a.cpp",
            "int f(Op op) {\n  switch (op) {\n    case ir::Op::add: return 1;\n"
            "    default: return 0;\n  }\n}\n"
            "int g(Op op) {\n  switch (as<MovementOp>(op)) {\n"
            "    case ir::MovementOp::take: {\n      return 1;\n    }\n"
            "    default: throw InternalError(0);\n  }\n}\n",
        )
        self.assert_found(
            "src/a.cpp:4: default: over Op has to throw, or to say beside it"
            " ('// any other: ...') why it is right for each operation to come",
            "src/a.cpp:12: no default: over the operations of a class; name them all",
        )

    def test_defaults_that_throw_or_say_why(self):
        self.write(
            "src/a.cpp",
            "switch (op) {\n  case Op::add: return 1;\n"
            "  default: return 0;  // any other: nothing is saved\n}\n"
            "switch (op) {\n  case Op::add: return 1;\n  default: throw 1;\n}\n"
            "switch (dtype) {\n  case DType::kF32: return 1;\n  default: return 0;\n}\n",
        )
        self.assert_clean()

    def test_python(self):
        self.write("tools/a.py", "os.fork()\n")
        self.write("bench/plain", "#!/usr/bin/env python3\nsubprocess.run(x)\n")
        self.assert_clean()
        self.write("bench/run", "#!/usr/bin/env python3\nos.system(x)\n")
        self.write("python/a.py", "run(x, preexec_fn=f)\n")
        self.assert_found(
            "bench/run:2: os.system() is not allowed here; use subprocess.run",
            "python/a.py:1: preexec_fn is not allowed here; use subprocess.run",
        )

    def test_places_are_there(self):
        self.write("src/a.cpp", "int place(int x);\n")
        row = "| Where? | `{}` | `{}` | there |\n"
        self.write("docs/where.md", row.format("src/a.cpp", "place"))
        self.assert_clean()
        self.write("docs/where.md", row.format("src/a.cpp", "put") + row.format("src/b.cpp", "x"))
        self.assert_found(
            "docs/where.md:1: src/a.cpp has no 'put'",
            "docs/where.md:2: there is no file src/b.cpp",
        )

    def test_mutants_have_their_texts(self):
        self.write("src/a.cpp", "int a = 1;\nint b = 2;\nint c = 2;\n")
        one = '[[mutant]]\nname = "{0}"\nfile = "src/a.cpp"\nfrom = "{0}"\nto = ""\n'
        self.write("tests/mutants/a.toml", one.format("= 1"))
        self.assert_clean()
        self.write("tests/mutants/a.toml", one.format("= 2") + one.format("= 3"))
        self.assert_found(
            "tests/mutants/a.toml: the text of '= 2' occurs 2 times in src/a.cpp, not once",
            "tests/mutants/a.toml: the text of '= 3' occurs 0 times in src/a.cpp, not once",
        )

    def test_loose_ends_need_an_issue_number(self):
        self.write("src/a.cpp", "// TODO(#12): faster\n// FIXME #3\n")
        self.assert_clean()
        self.write("docs/a.md", "first\nTODO: write this\n")
        self.assert_found(
            "docs/a.md:2: a loose end without an issue number; write it as (#12) behind the word"
        )

    def test_machine_paths(self):
        self.write("tools/a", "cd /root/x\n")
        self.write("cmake/a.cmake", "set(x ../work/y)\n")
        self.assert_found("tools/a:1: a path of somebody's machine")

    def test_blanks_tabs_and_line_ends(self):
        self.write("src/a.cpp", "int x; \n\tint y;\nint z;")
        self.write("README.md", "a\r\n")
        self.write("Makefile", "a:\n\tb\n")
        self.assert_found(
            "src/a.cpp:1: blanks at the end of the line",
            "src/a.cpp:2: tab; use blanks",
            "src/a.cpp:3: no line end at the end of the file",
            "README.md:1: carriage return; lines end with LF alone",
        )

    def test_text_is_utf8_and_fixtures_may_be_anything(self):
        self.write("tests/error/bad.lab", b"\xff\r\n\t")
        self.assert_clean()
        self.write("src/a.cpp", b"// \xff\n")
        self.assert_found("src/a.cpp:1: not UTF-8 at byte 3")


if __name__ == "__main__":
    unittest.main()
