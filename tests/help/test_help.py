"""What --help says of every command, frozen in golden/:

    test_help.py TESSERA [--update]

A difference is a change that users see: look at it, run with --update, and put a
line in CHANGELOG.md.
"""
import re
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESSERA = sys.argv.pop(1)
GOLDEN = Path(__file__).parent / "golden"


def help_of(words):
    done = subprocess.run([TESSERA, *words, "--help"], capture_output=True,
                          text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), (words, done)
    return done.stdout


def subcommands(text):
    """The names under "Subcommands:"."""
    found = re.search(r"^Subcommands:\n((?:  .*\n)*)", text, re.M)
    return re.findall(r"^  (\w+)", found[1], re.M) if found else []


def all_help():
    """{"tessera": text, "tessera run": text, ...}"""
    texts = {}
    level = [()]
    with ThreadPoolExecutor(2) as pool:
        while level:
            for words, text in zip(level, pool.map(help_of, level)):
                texts[" ".join(("tessera",) + words)] = text
            level = [tuple(name.split()[1:]) + (sub,)
                     for name in [" ".join(("tessera",) + w) for w in level]
                     for sub in subcommands(texts[name])]
    return texts


def file_of(name):
    return GOLDEN / (name.replace(" ", "-") + ".txt")


class HelpTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.texts = all_help()

    def test_is_that_of_the_golden_files(self):
        self.assertGreaterEqual(len(self.texts), 12)
        self.assertEqual(sorted(p.name for p in GOLDEN.iterdir()),
                         sorted(file_of(name).name for name in self.texts))
        for name, text in self.texts.items():
            with self.subTest(name):
                self.assertEqual(text, file_of(name).read_text(), __doc__)


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        GOLDEN.mkdir(exist_ok=True)
        for old in GOLDEN.iterdir():
            old.unlink()
        for name, text in all_help().items():
            file_of(name).write_text(text)
    else:
        unittest.main(argv=sys.argv[:1], verbosity=2)
