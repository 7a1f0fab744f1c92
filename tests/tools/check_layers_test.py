"""tools/check_layers on small trees: each breach is named, good trees pass."""

import pathlib
import subprocess
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_layers"
HEADER = "#pragma once\n"


def run(files, stream="stdout"):
    """The exit status and the lines that the tool prints for these files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        done = subprocess.run([TOOL, "--root", folder], capture_output=True,
                              text=True, timeout=60)
    return done.returncode, getattr(done, stream).splitlines()


def function_of(num_lines):
    return "int f() {\n" + "  g();\n" * (num_lines - 2) + "}\n"


class CheckLayers(unittest.TestCase):
    def assert_passes(self, files):
        self.assertEqual(
            run(files), (0, ["check_layers: the tree keeps its rules"]))

    def assert_breaks(self, files, *expected):
        status, lines = run(files)
        self.assertEqual(lines, list(expected))
        self.assertEqual(status, 1)

    def test_a_tree_that_keeps_the_rules_passes(self):
        self.assert_passes({
            "tessera/base/error.h": HEADER,
            "tessera/base/environment.cpp": "char* a = std::getenv(\"A\");\n",
            "tessera/shard/unit.cpp": '#include "tessera/base/error.h"\n'
                                      '#include "tessera/shard/unit.h"\n',
            "tessera/shard/unit.h": HEADER,
            "tessera/tessera.h": HEADER + '#include "tessera/shard/unit.h"\n',
            "cli/main.cpp": '#include "tessera/tessera.h"\n'
                            '#include "cli/run/run.h"\n',
            "cli/run/run.h": HEADER,
            "tests/cli/run_test.cpp": '#include "cli/run/run.h"\n',
        })

    def test_a_lower_layer_may_not_include_a_higher_one(self):
        self.assert_breaks(
            {"tessera/mesh/a.cpp": '\n#include "tessera/shard/unit.h"\n'},
            "tessera/mesh/a.cpp:2: layers: mesh/ (layer 4) includes shard/ "
            "(layer 6)")

    def test_folders_of_one_layer_may_not_include_each_other(self):
        self.assert_breaks(
            {"tessera/shard/a.cpp": '#include "tessera/optim/adamw.h"\n'},
            "tessera/shard/a.cpp:1: layers: shard/ (layer 6) includes optim/ "
            "(layer 6)")

    def test_a_folder_without_a_layer_is_named(self):
        self.assert_breaks(
            {"tessera/misc/a.cpp": '#include "tessera/base/error.h"\n'},
            "tessera/misc/a.cpp:1: layers: tessera/misc/ is in no layer")

    def test_the_library_may_not_include_programs(self):
        self.assert_breaks(
            {"tessera/base/a.cpp": '#include "cli/run/run.h"\n'},
            "tessera/base/a.cpp:1: layers: the library includes cli/")

    def test_the_library_may_not_include_its_table_of_contents(self):
        self.assert_breaks(
            {"tessera/base/a.cpp": '#include "tessera/tessera.h"\n'},
            "tessera/base/a.cpp:1: layers: includes tessera/tessera.h, which "
            "includes everything; name the header")

    def test_programs_may_not_include_tests(self):
        self.assert_breaks(
            {"cli/main.cpp": '#include "tests/comm/ranks.h"\n'},
            "cli/main.cpp:1: layers: cli/ includes tests/")

    def test_getenv_outside_its_home_is_found_but_not_in_comments(self):
        self.assert_breaks(
            {"tessera/comm/a.cpp": '// getenv\nauto a = "getenv";\n'
                                   'auto b = getenv("B");\n'},
            "tessera/comm/a.cpp:3: environment: getenv stands in "
            "tessera/base/environment.cpp alone")

    def test_a_header_needs_its_guard_first_and_defines_no_macro(self):
        self.assert_breaks(
            {"tessera/base/a.h": "// A header.\n#define A 1\n"},
            "tessera/base/a.h:1: headers: does not begin with #pragma once",
            "tessera/base/a.h:2: headers: defines a macro")

    def test_a_header_and_its_source_are_measured_together(self):
        files = {"tessera/base/a.h": HEADER + "\n" * 199,
                 "tessera/base/a.cpp": "\n" * 200}
        self.assert_passes(files)
        files["tessera/base/a.cpp"] += "\n"
        status, lines = run(files)
        self.assertEqual(status, 1)
        self.assertRegex(lines[0], "size: pair of 401 lines, 400 at most")

    def test_a_function_may_have_sixty_lines(self):
        self.assert_passes({"tessera/base/a.cpp": function_of(60)})
        self.assert_breaks(
            {"tessera/base/a.cpp": "namespace t {\n" + function_of(61) + "}\n"},
            "tessera/base/a.cpp:2: size: function of 61 lines, 60 at most")

    def test_a_class_with_many_short_functions_is_no_long_function(self):
        self.assert_passes({"tessera/base/a.cpp":
                            "class A : public B {\n" + function_of(40) +
                            function_of(40) + "};\n"})

    def test_a_constructor_with_a_list_of_initializers_is_measured(self):
        body = "A::A(int x)\n    : x_{x}, y_{1} {\n" + "  g();\n" * 60 + "}\n"
        self.assert_breaks(
            {"tessera/base/a.cpp": body},
            "tessera/base/a.cpp:1: size: function of 63 lines, 60 at most")

    def test_an_exception_allows_its_size_and_no_more(self):
        name = "tools/size_exceptions.txt"
        entry = "function tessera/base/a.cpp 70 one table, read top to bottom\n"
        self.assert_passes({name: entry, "tessera/base/a.cpp": function_of(70)})
        self.assert_breaks(
            {name: entry, "tessera/base/a.cpp": function_of(71)},
            "tessera/base/a.cpp:1: size: function of 71 lines, 70 at most")

    def test_an_exception_that_is_too_high_is_noted(self):
        name = "tools/size_exceptions.txt"
        entry = "function tessera/base/a.cpp 70 one table, read top to bottom\n"
        for size, expected in ((62, "has 62 lines now"),
                               (10, "needs no exception")):
            files = {name: entry, "tessera/base/a.cpp": function_of(size)}
            self.assert_passes(files)
            self.assertEqual(
                run(files, "stderr")[1],
                [f"note: {name}:1: function tessera/base/a.cpp {expected}; "
                 "tools/check_layers --shrink"])

    def test_shrink_lowers_and_drops_exceptions_but_raises_none(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "tools").mkdir()
            (root / "cli").mkdir()
            for name, size in (("a", 65), ("b", 10), ("c", 80)):
                (root / f"cli/{name}.cpp").write_text(function_of(size))
            list_file = root / "tools/size_exceptions.txt"
            list_file.write_text("# why\n" + "".join(
                f"function cli/{name}.cpp 70 a table\n" for name in "abc"))
            done = subprocess.run([TOOL, "--root", folder, "--shrink"],
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual(list_file.read_text(),
                             "# why\nfunction cli/a.cpp 65 a table\n"
                             "function cli/c.cpp 70 a table\n")
        self.assertEqual(done.stdout, "cli/c.cpp:1: size: function of 80 "
                         "lines, 70 at most\n")
        self.assertEqual(done.returncode, 1)

    def test_an_exception_gives_its_reason(self):
        self.assert_breaks(
            {"tools/size_exceptions.txt": "pair tessera/base/a 500\n"},
            "tools/size_exceptions.txt:1: size: not `pair|function NAME LINES "
            "why`")

    def test_paths_of_a_machine_and_registry_hosts_are_found_anywhere(self):
        self.assert_breaks(
            {"docs/a.md": "see /" + "root/x\n", "scripts/a": "pypi" + ".org\n"},
            "docs/a.md:1: portability: names a path of one machine",
            "scripts/a:1: portability: names a registry host")

    def test_what_git_ignores_is_not_looked_at(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            subprocess.run(["git", "init", "-q", folder], check=True)
            (root / ".gitignore").write_text("/build/\n")
            (root / "build").mkdir()
            (root / "build" / "a.md").write_text("/" + "root/x\n")
            done = subprocess.run([TOOL, "--root", folder], timeout=60)
        self.assertEqual(done.returncode, 0)


if __name__ == "__main__":
    unittest.main()
