"""Every command of README.md, run as it stands there:

    test_readme.py FOLDER_OF_PROGRAMS README.md TORCHRUN TRAIN_TEXT
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAMS, README, TORCHRUN, TRAIN_TEXT = (
    os.path.abspath(sys.argv.pop(1)) for _ in range(4))
ROOT = Path(README).parent
DEADLINE_S = 120

# Commands that are not run here, and why.
ELSEWHERE = {
    "scripts/quickstart": "sets up, builds and trains for minutes; its parts have "
                          "tests of their own",
    "scripts/test": "runs this test",
    "benchmarks/compare": "measures for minutes; test_step_bench runs its parts",
}
PROGRAM_NAMES = ("tessera", "torchrun", "scripts/", "benchmarks/", "mpirun",
                 "srun", "cmake", "ctest")


def fenced_commands(text):
    """The lines of ```sh blocks without their comments."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S):
        for line in block.splitlines():
            if command := re.sub(r"\s+#.*", "", line).strip():
                yield command


def inline_commands(text):
    """What stands in `...` in the text and begins with a program."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    for command in re.findall(r"`([^`]+)`", text):
        command = " ".join(command.split())
        if command.startswith(PROGRAM_NAMES) and "/tessera" not in command:
            if " " in command and "(" not in command:
                yield command


def reason_elsewhere(command):
    return ELSEWHERE.get(command.split()[0])


class ReadmeTest(unittest.TestCase):
    """A folder with what the README supposes: a text, the examples, and a
    program ./train of the user's own."""

    @classmethod
    def setUpClass(cls):
        cls.text = Path(README).read_text()
        cls.folder = Path(tempfile.mkdtemp())
        line = "It is a truth universally acknowledged, {} times of {}.\n"
        (cls.folder / "novels.txt").write_text(
            "".join(line.format(i, i * i % 89) for i in range(2000)))
        (cls.folder / "other.txt").write_text(line * 200)
        (cls.folder / "examples").symlink_to(ROOT / "examples")
        train = cls.folder / "train"
        train.write_text(
            "#!/bin/sh\n"
            "cp novels.txt train.txt; cp novels.txt heldout.txt\n"
            f"exec {TRAIN_TEXT} --data . --out own --steps 2 --batch 2 "
            "--seq 16 --dim 16 --layers 1 --heads 2 --ffn 32 --sample-bytes 4\n")
        train.chmod(0o755)
        (cls.folder / "bin").mkdir()
        (cls.folder / "bin" / "torchrun").symlink_to(TORCHRUN)
        cls.environment = {
            k: v for k, v in os.environ.items()
            if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
        } | {"PATH": f"{PROGRAMS}:{cls.folder}/bin:{os.environ['PATH']}"}

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def run_command(self, command):
        """A training run is told to end as soon as it has learnt something,
        which leaves the folder that the next command reads."""
        trains = " tessera train " in f" {command} "
        process = subprocess.Popen(
            ["bash", "-c", "exec " + command], cwd=self.folder,
            errors="replace",  # a young model writes any bytes
            env=self.environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)
        output = ""
        if trains:
            for line in process.stdout:
                output += line
                if line.startswith("step"):
                    process.send_signal(signal.SIGTERM)
                    break
        try:
            output += process.communicate(timeout=DEADLINE_S)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            output += process.communicate()[0] + "\nDEADLINE"
        self.assertEqual(process.returncode, 0, f"{command}\n{output}")
        return output

    def test_every_command_works_as_written(self):
        commands = list(fenced_commands(self.text))
        self.assertGreaterEqual(len(commands), 5, "the README was not read")
        for command in commands:
            if reason := reason_elsewhere(command):
                print(f"not run here: {command}: {reason}", file=sys.stderr)
                continue
            output = self.run_command(command)
            self.assertNotEqual(output, "", command)

    def test_commands_within_sentences_work_too(self):
        commands = [c for c in inline_commands(self.text)
                    if not reason_elsewhere(c)]
        launchers = {c.split()[0] for c in commands}
        self.assertLessEqual({"tessera", "torchrun"}, launchers, commands)
        for command in commands:
            if "./train" in command:
                self.run_command(command)
        others = [c for c in commands if "./train" not in c]
        fenced = list(fenced_commands(self.text))
        for command in others:  # names of commands that stand in a block
            self.assertTrue(any(f" {command} " in f" {f} " for f in fenced),
                            f"'{command}' is in no block and was not run")

    def test_what_is_not_run_is_there(self):
        for command in ELSEWHERE:
            self.assertTrue(os.access(ROOT / command, os.X_OK), command)
            self.assertIn(command, self.text)


if __name__ == "__main__":
    unittest.main()
