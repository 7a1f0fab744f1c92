"""One small job, started by every launcher that is here, gives one answer:
launchers_test.py TESSERA TRAIN_TEXT
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from held_port import held_port  # noqa: E402

TESSERA, TRAIN_TEXT = sys.argv.pop(1), sys.argv.pop(1)
DEADLINE_S = 120
# The same number of threads under all, so that all sum in the same order.
ENVIRONMENT = {
    "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"),
    "OMP_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def mpirun_of(name):
    """The launcher of this MPI; None when it is not installed."""
    for command in ("mpirun", "mpirun." + name, "mpiexec." + name):
        path = shutil.which(command)
        if path and is_of(path, name):
            return path
    return None


def is_of(path, name):
    version = subprocess.run([path, "--version"], capture_output=True,
                             text=True, env=ENVIRONMENT, check=False).stdout
    marks = {"openmpi": "Open MPI", "mpich": "HYDRA", "hydra": "HYDRA"}
    return marks[name] in version


class Launchers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        text = "".join(f"{i} and {i * i % 97}, " for i in range(2000))
        for name in ("train.txt", "heldout.txt"):
            (cls.folder / name).write_text(text)
        cls.expected = cls.losses("tessera_run", [TESSERA, "run", "-n", "2", "--"])

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def start(cls, name, launcher, **variables):
        out = cls.folder / name
        command = launcher + [
            TRAIN_TEXT, "--data", str(cls.folder), "--out", str(out),
            "--steps", "4", "--batch", "4", "--seq", "16", "--dim", "16",
            "--layers", "2", "--heads", "2", "--ffn", "32",
            "--sample-bytes", "4", "--print-every", "1"]
        return subprocess.Popen(
            command, env=ENVIRONMENT | variables, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT), out

    @classmethod
    def finish(cls, process, out):
        output, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, output
        result = json.loads((out / "result.json").read_text())
        assert result["world_size"] == 2, result
        assert len(result["losses"]) == 4, result
        return result["losses"], output

    @classmethod
    def losses(cls, name, launcher, **variables):
        return cls.finish(*cls.start(name, launcher, **variables))[0]

    def check(self, name, launcher, source, **variables):
        losses, output = self.finish(*self.start(name, launcher, **variables))
        self.assertEqual(losses, self.expected)
        self.assertIn(f"job found by {source}: 2 ranks", output)

    def test_real_torchrun(self):
        python = os.environ.get("TESSERA_PYTHON")
        self.assertTrue(python, "TESSERA_PYTHON names no Python with torch")
        self.check("torchrun", [
            python, "-m", "torch.distributed.run", "--no-python", "--standalone",
            "--nproc-per-node", "2"], "torchrun")

    def test_real_open_mpi(self):
        mpirun = mpirun_of("openmpi")
        if not mpirun:
            self.skipTest("Open MPI is not installed (Debian: openmpi-bin)")
        self.check("openmpi", [mpirun, "--oversubscribe", "--bind-to", "none",
                               "-n", "2"], "Open MPI")

    def test_real_mpich(self):
        mpiexec = mpirun_of("mpich") or mpirun_of("hydra")
        if not mpiexec:
            self.skipTest("MPICH is not installed (Debian: mpich)")
        self.check("mpich", [mpiexec, "-n", "2", "-genv", "MASTER_PORT",
                             str(held_port())], "MPICH")

    def test_two_launchers_of_one_job(self):
        port = str(held_port())
        nodes = [self.start(f"node_{rank}", [
            TESSERA, "run", "-n", "1", "--nnodes", "2", "--node-rank", str(rank),
            "--master-addr", "127.0.0.1", "--master-port", port, "--"])
            for rank in (0, 1)]
        losses, _ = self.finish(*nodes[0])
        output, _ = nodes[1][0].communicate(timeout=DEADLINE_S)
        self.assertEqual(nodes[1][0].returncode, 0, output)
        self.assertEqual(losses, self.expected)

    def test_a_restart_after_a_crash_meets_at_the_launchers_store(self):
        port = str(held_port())
        crash_once = (
            'if [ "$TORCHELASTIC_RESTART_COUNT$RANK" = 01 ]; then exit 3; fi; '
            'exec "$@"')
        nodes = [self.start(f"again_{rank}", [
            TESSERA, "run", "-n", "1", "--nnodes", "2", "--node-rank", str(rank),
            "--master-addr", "127.0.0.1", "--master-port", port,
            "--max-restarts", "1", "--", "sh", "-c", crash_once, "sh"])
            for rank in (0, 1)]
        losses, output = self.finish(*nodes[0])
        nodes[1][0].communicate(timeout=DEADLINE_S)
        self.assertEqual(nodes[1][0].returncode, 0)
        self.assertIn("restart 1 of 1", output)
        self.assertEqual(losses, self.expected)

    def test_tasks_as_srun_starts_them(self):
        """No Slurm here: its variables as its manual gives them."""
        tasks = [self.start(f"slurm_{rank}", [], SLURM_PROCID=str(rank),
                            SLURM_NTASKS="2", SLURM_LOCALID=str(rank),
                            SLURM_STEP_ID="0", SLURM_JOB_ID=str(os.getpid()),
                            SLURM_STEP_NUM_NODES="1")
                 for rank in (0, 1)]
        losses, output = self.finish(*tasks[0])
        tasks[1][0].communicate(timeout=DEADLINE_S)
        self.assertEqual(tasks[1][0].returncode, 0)
        self.assertEqual(losses, self.expected)
        self.assertIn("job found by Slurm: 2 ranks", output)


if __name__ == "__main__":
    unittest.main()
