"""What goes wrong with a training run: test_bad_days.py TESSERA FAULT_RANK

Each bad day ends with an exit code of its own and one clear sentence, in time,
and leaves no process behind. tests/trainer and tests/launch have more.
"""
import fcntl
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from held_port import held_port  # noqa: E402

TESSERA, FAULT_RANK = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
TIMEOUT_S = 3  # of collectives, where a test waits for it
GRACE_S = 5    # that a hang may take longer
START_S = 60   # for programs to start on a busy machine
BUSY_S = 8     # that it may take to run what is due
LAUNCHER = re.compile(r"^(RANK|WORLD_SIZE|LOCAL_.*|MASTER_.*|TORCHELASTIC.*|"
                      r"PET_.*|OMPI_.*|SLURM_.*)$")

CONFIG = """
[data]
tokens = "text.tok"
[model]
dim = 16
layers = 1
heads = 2
ffn = 24
seq = 8
[train]
steps = 12
batch = 2
[output]
print_every = 4
"""


def environment(**variables):
    return {k: v for k, v in os.environ.items() if not LAUNCHER.match(k)} | {
        "OMP_NUM_THREADS": "1"} | variables


def descendants(process):
    found = []
    try:
        for child in Path(f"/proc/{process}/task").glob("*/children"):
            for pid in child.read_text().split():
                found += [int(pid)] + descendants(pid)
    except (FileNotFoundError, ProcessLookupError):
        pass  # a thread or a process that has ended meanwhile
    return found


def alive(process):
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "text.txt").write_text("the cat sat on the mat. " * 40)
        self.run_tessera("prepare", "text.txt", "--validation", "0.2", "-o",
                         "text.tok")
        (self.folder / "train.toml").write_text(CONFIG)

    def run_tessera(self, *words, code=0, **variables):
        done = subprocess.run(
            [TESSERA, *words], cwd=self.folder, text=True, capture_output=True,
            timeout=START_S, env=environment(**variables))
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def train(self, *words, code=0, **variables):
        return self.run_tessera("train", "train.toml", *words, code=code,
                                **variables)

    def fails(self, code, sentence, *words, **variables):
        """One line that says it, and no more than one."""
        error = self.train(*words, code=code, **variables).stderr
        said = [l for l in error.splitlines() if l.startswith("tessera train")]
        self.assertEqual(len(said), 1, error)
        self.assertIn(sentence, said[0])
        return error


class Config(Case):
    def test_a_wrong_line_is_named_with_file_line_and_nearest_key(self):
        for line, sentence in (
                ("[train]\nsteps = 12\nbatchsize = 3\n", "train.toml:3: "),
                ("[train]\nsteps = \"many\"\n", "train.toml:2: "),
                ("[train]\nstep = 3\n", "did you mean 'train.steps'?"),
                ("[trian]\nsteps = 3\n", "did you mean 'train.steps'?"),
                ("[train\n", "train.toml:1"),
                ("[data]\ntokens = 'text.tok'\n[model]\nheads = 3\n", "heads")):
            (self.folder / "train.toml").write_text(line)
            self.fails(2, sentence)

    def test_a_config_that_is_not_there_is_named(self):
        (self.folder / "train.toml").unlink()
        self.fails(2, "'train.toml' cannot be read")


class Data(Case):
    def test_a_cut_or_foreign_token_file_is_named(self):
        whole = (self.folder / "text.tok").read_bytes()
        for content in (whole[:-7], whole[:60], whole[:5000], b"",
                        b"just text, and no tokens" * 400):
            (self.folder / "text.tok").write_bytes(content)
            self.fails(11, "text.tok")

    def test_a_token_file_that_is_not_there_is_named(self):
        self.fails(10, "'none.tok'", "--data.tokens=none.tok")
        self.fails(10, "'none.tok'", "--data.held_out=none.tok")


class Disk(Case):
    def test_a_full_disk_while_logging_ends_the_run_and_leaves_whole_lines(self):
        disk = self.folder / "disk"
        disk.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", disk],
            capture_output=True, text=True)
        if mounted.returncode != 0:
            reason = "NO TMPFS CAN BE MOUNTED HERE: " + mounted.stderr.strip()
            print(f"\n*** {reason}: a full disk is tried by a limit on the "
                  "size of files alone, in tests/trainer ***", file=sys.stderr)
            self.skipTest(reason)
        try:
            self.fails(20, "metrics.jsonl' cannot be written (No space left",
                       "--train.steps=100000", "--output.folder=disk/run",
                       "--checkpoint.enabled=false",
                       "--output.tensorboard=false")
            lines = (disk / "run/metrics.jsonl").read_text().splitlines()
            self.assertGreater(len(lines), 12)
            for line in lines:
                self.assertTrue(line.startswith("{") and line.endswith("}"))
        finally:
            subprocess.run(["umount", disk], check=True)


class Peers(Case):
    def setUp(self):
        super().setUp()
        with open(self.folder / "train.toml", "a") as config:
            config.write(f"[distributed]\ntimeout_seconds = {TIMEOUT_S}\n")

    def in_time(self, start):
        self.assertLess(time.monotonic() - start, START_S / 2 + TIMEOUT_S + GRACE_S)

    def test_a_store_that_nobody_holds_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # and never listens
            port = str(taken.getsockname()[1])
            start = time.monotonic()
            error = self.fails(71, "127.0.0.1", RANK="1", WORLD_SIZE="2",
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            self.assertIn(port, error)
            self.in_time(start)

    def test_a_host_without_an_address_is_named(self):
        start = time.monotonic()
        self.fails(71, "no-such-host.invalid", RANK="1", WORLD_SIZE="2",
                   MASTER_ADDR="no-such-host.invalid", MASTER_PORT="29500")
        self.in_time(start)

    def test_a_rank_that_never_comes_is_named(self):
        port = str(held_port())
        start = time.monotonic()
        self.fails(71, "rank 1", RANK="0", WORLD_SIZE="2",
                   MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        self.in_time(start)

    def test_a_taken_port_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            self.fails(71, port, RANK="0", WORLD_SIZE="2",
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            done = self.run_tessera("run", "-n", "2", "--master-port", port,
                                    "--", "true", code=121)
            self.assertIn(port, done.stderr)


class Devices(Case):
    def test_are_never_guessed(self):
        # CPU ranks take what their device needs, and say it; NCCL needs CUDA.
        done = self.run_tessera("run", "-n", "2", "--", TESSERA, "train",
                                "train.toml")
        self.assertIn("gloo", (done.stdout + done.stderr).lower())


class Terminal(Case):
    def test_a_closed_terminal_ends_the_run_well(self):
        main, terminal = pty.openpty()

        def take_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        run = subprocess.Popen(
            [TESSERA, "run", "-n", "2", "--", TESSERA, "train", "train.toml",
             "--train.steps=1000000"], cwd=self.folder, stdin=terminal,
            stdout=terminal, stderr=terminal, preexec_fn=take_terminal,
            env=environment())
        os.close(terminal)
        seen = b""
        while b"\nstep" not in seen:
            seen += os.read(main, 4096)
        ranks = descendants(run.pid)
        self.assertGreaterEqual(len(ranks), 2)
        os.close(main)
        self.assertEqual(run.wait(START_S), 0)
        self.assertEqual([p for p in ranks if alive(p)], [])
        self.assertTrue((self.folder / "run/model.safetensors").exists())


PHASES = ("weights", "forward", "backward", "optimizer", "evaluation", "save")
KINDS = {  # exit code of the job, and what is said
    "throw": (1, "made to fail in "), "memory": (24, "out of memory"),
    "die": (3, "exited with code 3"), "stop": (71, "rank 1")}
RANK_TIMEOUT_S = 10  # in fault_rank
KILL_AFTER_S = 8


class Faults(unittest.TestCase):
    """Rank 1 fails in each way in each phase."""

    def run_fault(self, kind, phase):
        job = subprocess.Popen(
            [TESSERA, "run", "-n", "2", "--kill-after", str(KILL_AFTER_S), "--",
             FAULT_RANK, kind, phase], text=True, env=environment(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        output = ""
        for line in job.stdout:
            output += line
            if line == "failing\n":
                break
        start, ranks = time.monotonic(), descendants(job.pid)
        try:
            more, error = job.communicate(timeout=START_S)
        except subprocess.TimeoutExpired:
            job.kill()
            more, error = job.communicate()
            error += "\nDEADLINE"
        return (kind, phase, job.returncode, output + more + error,
                time.monotonic() - start, [p for p in ranks if alive(p)])

    def test_end_all_ranks_in_time_and_are_named(self):
        cases = [(kind, phase) for kind in KINDS for phase in PHASES]
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda case: self.run_fault(*case), cases))
        for kind, phase, code, text, seconds, left in results:
            with self.subTest(f"{kind} in {phase}"):
                expected, sentence = KINDS[kind]
                self.assertEqual(code, expected, text)
                self.assertIn("failing\n", text)
                self.assertIn(sentence, text)
                self.assertIn("rank 1", text)
                self.assertLess(
                    seconds, RANK_TIMEOUT_S + GRACE_S + KILL_AFTER_S + BUSY_S,
                    text)
                self.assertEqual(left, [], text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
