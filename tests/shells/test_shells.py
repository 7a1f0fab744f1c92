"""`tessera completion` in the real zsh and fish (tests/launch has bash):

    test_shells.py TESSERA

scripts/setup test installs both; a shell that is not here is named.
"""
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
import unittest

TESSERA = os.path.abspath(sys.argv.pop(1))
PATH = os.path.dirname(TESSERA) + ":" + os.environ["PATH"]
DEADLINE_S = 30
# What is typed, and what must come of it.
CASES = (
    ("tessera compl", "completion"),
    ("tessera run --nproc", "--nproc-per-node"),
    ("tessera run --rdzv-backend c", "c10d"),
    ("tessera completion z", "zsh"),
    ("tessera checkpoint ver", "verify"),
    ("tessera train --print", "--print-config"),
    ("tessera plan --device cu", "cuda"),
)


def need(shell):
    if not shutil.which(shell):
        print(f"\n*** THERE IS NO {shell} HERE: its completion is not tried ***",
              file=sys.stderr)
        raise unittest.SkipTest(f"no {shell}")


class Zsh:
    """An interactive zsh, as in a terminal."""

    def __init__(self):
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            environment = os.environ | {"PATH": PATH, "TERM": "dumb"}
            os.execvpe("zsh", ["zsh", "-f", "-i"], environment)
        self.send("unsetopt zle_bracketed_paste; PS1='> '\n"
                  "autoload -Uz compinit; compinit -u -D\n"
                  "source <(tessera completion zsh); echo rea''dy\n")
        self.read_until("ready")

    def send(self, text):
        os.write(self.terminal, text.encode())

    def read_until(self, part):
        """What appears, without bells and moves of the cursor."""
        seen, end = "", time.monotonic() + DEADLINE_S
        while part not in seen and time.monotonic() < end:
            if select.select([self.terminal], [], [], 0.1)[0]:
                new = os.read(self.terminal, 4096).decode(errors="replace")
                seen += re.sub(r"[\x00-\x1f]", "", new)
        return seen

    def close(self):
        self.send("\x15exit\n")
        os.close(self.terminal)
        os.waitpid(self.process, 0)


class Completion(unittest.TestCase):
    def test_in_zsh(self):
        need("zsh")
        shell = Zsh()
        self.addCleanup(shell.close)
        for typed, wanted in CASES + (("tessera run -n 2 -- ls /pro", "/proc"),):
            shell.send(typed + "\t")
            self.assertIn(wanted, shell.read_until(wanted), typed)
            shell.send("\x15")  # an empty line again

    def test_in_fish(self):
        need("fish")
        script = "source (tessera completion fish | psub)\n" + "".join(
            f"complete -C '{typed}'; echo ---\n" for typed, _ in CASES)
        done = subprocess.run(
            ["fish", "--no-config", "-c", script], text=True,
            capture_output=True, timeout=DEADLINE_S,
            env=os.environ | {"PATH": PATH})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        offers = done.stdout.split("---\n")
        for (typed, wanted), offered in zip(CASES, offers):
            names = [line.split("\t")[0] for line in offered.splitlines()]
            self.assertIn(wanted, names, typed)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
