import importlib.machinery
import importlib.util
import sys
import unittest

from checker import TOOLS, CheckerTest


def load(name):
    sys.path.insert(0, str(TOOLS))
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader(name, str(TOOLS / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    sys.modules[name] = module
    loader.exec_module(module)
    return module


budgets = load("check_budgets")


def found(text):
    return [(f.name, f.first, f.last) for f in budgets.functions_of(text)]


class FunctionFinder(unittest.TestCase):
    def test_free_functions_and_members(self):
        text = """#include <x>
namespace a {
int f(int x) { return x; }
struct S {
 public:
  int g() const noexcept {
    return 1;
  }
};
}  // namespace a
"""
        self.assertEqual(found(text), [("f", 3, 3), ("g", 6, 8)])

    def test_the_length_starts_at_the_template_line(self):
        text = "template <class T = int>\nauto f(T x)\n    -> std::vector<T> {\n}\n"
        self.assertEqual(found(text), [("f", 1, 4)])

    def test_constructors_with_braced_initialisers(self):
        text = "A::A(int x)\n    : a_{x}, b_(x),\n      c_{{1, 2}} {\n  go();\n}\nvoid g() {}\n"
        self.assertEqual(found(text), [("A::A", 1, 5), ("g", 6, 6)])

    def test_a_constructor_with_round_initialisers(self):
        self.assertEqual(found("A::A(int x) noexcept : a_(x) {\n}\n"), [("A::A", 1, 2)])

    def test_operators_destructors_and_tests(self):
        text = """bool operator==(A a, A b) { return true; }
A& A::operator=(A&& other) noexcept {
}
A::~A() {
}
int F::operator()(int x) const { return x; }
TEST(Suite, Name) {
}
"""
        self.assertEqual(
            [name for name, _, _ in found(text)],
            ["operator==", "operator=", "A::~A", "operator()", "TEST(Suite, Name)"],
        )

    def test_initialisers_and_types_are_no_functions(self):
        text = """constexpr Info kAll[] = {
    {1, "a"}, {f(2), "b"}};
enum class E : int { kA, kB };
std::atomic<int> x{0};
alignas(64) struct S { int x; };
const auto table = make({1, 2}, [] { return 3; });
int g(std::vector<int> v = {1, 2}) { return 0; }
"""
        self.assertEqual(found(text), [("g", 7, 7)])

    def test_lambdas_belong_to_their_function(self):
        text = "void f() {\n  auto g = [&](int x) {\n    return x;\n  };\n}\n"
        self.assertEqual(found(text), [("f", 1, 5)])
        self.assertEqual(found("const auto f = [](int x) {\n  return x;\n};\n"), [("f", 1, 3)])

    def test_braces_in_literals_comments_and_macros_do_not_count(self):
        text = """void f() {
  char c = '{';  // {
  int n = 1'000'000;
  g("}\\"}{", R"x(}" }})x", L'}');  /* { */
#define OPEN \\
  {
}
void g() {}
"""
        self.assertEqual(found(text), [("f", 1, 7), ("g", 8, 8)])

    def test_extern_c(self):
        self.assertEqual(
            found('extern "C" {\nvoid f(int) {\n}\n}\nextern "C" int g() {\n}\n'),
            [("f", 2, 3), ("g", 5, 6)],
        )

    def test_sources_of_this_tree_are_seen_whole(self):
        names = [name for name, _, _ in found((TOOLS / "../src/base/thread_pool.cpp").read_text())]
        self.assertIn("ThreadPool::run", names)
        self.assertIn("serve", names)


def function_of(lines, name="f"):
    return f"void {name}() {{\n" + "  g();\n" * (lines - 2) + "}\n"


class Budgets(CheckerTest):
    checker = "check_budgets"

    def setUp(self):
        super().setUp()
        self.write("tools/waivers.toml", 'kernels = ["src/crf/cpu/"]\n')

    def waive(self, entry):
        self.write("tools/waivers.toml", f"kernels = []\n[[waiver]]\n{entry}\n")

    def test_long_functions_are_found(self):
        self.write("src/a.cpp", function_of(2) * 30 + function_of(100))
        self.assert_clean()
        self.write("src/a.cpp", function_of(2) * 30 + function_of(101))
        self.assert_found("src/a.cpp:61: function f has 101 lines; at most 100")

    def test_more_than_one_in_twenty_over_the_usual_length(self):
        self.write("src/a.cpp", function_of(2) * 19 + function_of(41, "g"))
        self.assert_clean()
        self.write("src/a.cpp", function_of(2) * 18 + function_of(41, "g") + function_of(40))
        self.assert_clean()
        self.write("src/a.cpp", function_of(2) * 18 + function_of(41, "g"))
        self.assert_found("src/a.cpp:37: function g has 41 lines; more than 5 % are over 40")

    def test_kernels_may_be_longer(self):
        self.write("src/crf/cpu/a.cpp", function_of(2) * 30 + function_of(150))
        self.assert_clean()
        self.write("src/crf/cpu/a.cpp", function_of(2) * 30 + function_of(151))
        self.assert_found("src/crf/cpu/a.cpp:61: kernel f has 151 lines; at most 150")

    def test_a_waiver_serves_one_function(self):
        self.write("src/a.cpp", function_of(2) * 30 + function_of(101))
        self.waive('file = "src/a.cpp"\nfunction = "f"\nreason = "one table, read as a whole"')
        self.assert_clean()

    def test_waivers_without_use_or_reason_are_refused(self):
        self.write("src/a.cpp", function_of(2))
        self.waive('file = "src/a.cpp"\nfunction = "f"\nreason = "one table, read as a whole"')
        self.assert_found("tools/waivers.toml:1: the waiver of f in src/a.cpp is not needed")
        self.waive('file = "src/a.cpp"\nreason = "long"')
        self.assertIn("a reason in words", self.run_checker().stderr)

    def test_file_lengths(self):
        self.write("src/a.h", "\n" * 351)
        self.write("src/a.cpp", "\n" * 801)
        for i in range(30):
            self.write(f"src/b{i}/b.cpp", "\n")
        self.assert_found(
            "src/a.h:1: this file has 351 lines; at most 350",
            "src/a.cpp:1: this file has 801 lines; at most 800",
        )

    def test_columns(self):
        self.write("src/a.cpp", "int x;\n// " + "\u00e4" * 97 + "\n")
        self.assert_clean()
        self.write("src/a.cpp", "int x;\n// " + "x" * 98 + "\n")
        self.assert_found("src/a.cpp:2: 101 columns; at most 100")

    def test_folders(self):
        for i in range(20):
            self.write(f"src/crf/a{i}.cpp", "")
        self.write("src/crf/cpu/b.cpp", "")
        self.write("src/crf/notes.md", "")
        self.assert_clean()
        self.write("src/crf/a.h", "")
        self.assert_found("src/crf:1: this folder has 21 sources; at most 20")
        self.waive('file = "src/crf/"\nof = "files"\nreason = "it is divided with the next one"')
        self.assert_clean()

    def test_headers_that_a_source_includes(self):
        for i in range(40):
            self.write(f"src/part{i // 10}/h{i}.h", f'#include "part{(i + 1) // 10}/h{i + 1}.h"\n')
        self.write("src/part4/h40.h", '#include <vector>\n// #include "part4/h41.h"\n')
        self.write("src/part4/h41.h", "")
        self.write(
            "src/a.cpp", '#include "part1/h1.h"\n#include "part2/h2.h"\n#include "part0/h1.h"\n'
        )
        self.assert_clean()
        self.write("src/a.cpp", '#include "part0/h0.h"\n')
        self.assert_found(
            "src/a.cpp:1: this file includes 41 headers of ours, directly or not; at most 40"
        )
        self.waive('file = "src/a.cpp"\nof = "includes"\nreason = "all of it is one table"')
        self.assert_clean()

    def test_prose(self):
        long = "word " * 20 + "end"
        table = "| " + "cell " * 30 + "|"
        code = "    " + "code " * 30 + "\n\n```\n" + "code " * 30 + "\n```"
        self.write("docs/a.md", f"{table}\n\n{code}\n\n" + "x" * 101 + "\n\n" + "w " * 50 + "\n")
        self.assert_clean()
        self.write("docs/a.md", f"Short.\n{long}\n")
        self.write("README.md", f"- {long}\n")
        self.assert_found(
            "docs/a.md:2: 103 columns; at most 100; tools/format wraps it",
            "README.md:1: 105 columns; at most 100; tools/format wraps it",
        )


if __name__ == "__main__":
    unittest.main()
