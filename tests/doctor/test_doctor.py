"""`tessera doctor` as a user runs it:  test_doctor.py TESSERA"""

import json
import os
import resource
import socket
import subprocess
import sys
import threading
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from held_port import held_port  # noqa: E402

TESSERA = sys.argv[1]
DEADLINE = 100  # seconds, for a busy machine
NAMES = ["versions", "launcher", "devices", "machine", "limits",
         "shared memory", "clock", "Gloo", "NCCL", "store"]
RANK_NAMES = ["ranks", "bandwidth", "sharded step", "ranks equal?",
              "sharded bottom-up?", "optimizer after?", "members written?"]
LAUNCHER_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR",
                  "MASTER_PORT", "GLOO_SOCKET_IFNAME")


def run(*words, before=None, **variables):
    environment = {k: v for k, v in os.environ.items()
                   if k not in LAUNCHER_NAMES}
    return subprocess.run(
        [TESSERA, *words], capture_output=True, text=True, timeout=DEADLINE,
        preexec_fn=before, env=environment | {"OMP_NUM_THREADS": "1"}
        | variables)


def checks_of(result):
    report = json.loads(result.stdout)
    return report, {check["name"]: check for check in report["checks"]}


class Doctor(unittest.TestCase):
    def test_finds_nothing_on_a_machine_that_runs_the_other_tests(self):
        result = run("doctor", "--json")
        report, checks = checks_of(result)
        self.assertEqual(list(checks), NAMES + RANK_NAMES)
        failed = {n: c for n, c in checks.items() if c["status"] == "failed"}
        self.assertEqual(failed, {})
        self.assertEqual((report["exit_code"], result.returncode), (0, 0))
        self.assertIn("one process", checks["launcher"]["text"])
        self.assertIn("2 ranks on 1 machine", checks["ranks"]["text"])
        self.assertIn("GB/s", checks["bandwidth"]["text"])
        self.assertIn("LibTorch 2.", checks["versions"]["text"])
        for name in RANK_NAMES[3:]:
            self.assertEqual(checks[name]["status"], "ok", checks[name])

    def test_prints_a_block_to_copy_with_a_line_for_each_check(self):
        result = run("doctor")
        self.assertEqual(result.returncode, 0, result.stdout)
        lines = result.stdout.splitlines()
        self.assertIn("copy from here", lines[0])
        self.assertEqual(lines[-1], "Nothing stands in the way.")
        for name in NAMES + RANK_NAMES:
            self.assertIn(f" {name} ", result.stdout)

    def test_looks_at_the_ranks_of_a_job_and_one_speaks(self):
        result = run("run", "-n", "2", "--", TESSERA, "doctor", "--json")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        _, checks = checks_of(result)  # one object, of rank 0
        self.assertIn("torchrun", checks["launcher"]["text"])
        self.assertIn("rank 0 of 2", checks["launcher"]["text"])
        self.assertIn("found by torchrun (RANK 0, WORLD_SIZE 2",
                      checks["ranks"]["text"])
        self.assertEqual(checks["sharded step"]["status"], "ok")

    def test_says_when_ranks_were_found_by_different_launchers(self):
        port = str(held_port())
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        own = {"RANK": "0", "WORLD_SIZE": "2"}
        mpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
               "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
        other = threading.Thread(
            target=run, args=("doctor", "--json"), kwargs=common | mpi)
        other.start()
        _, checks = checks_of(run("doctor", "--json", **common, **own))
        other.join()
        self.assertEqual(checks["ranks"]["status"], "warning")
        self.assertIn("rank 1 by Open MPI", checks["ranks"]["remedy"])

    def check_failure(self, result, name, exit_code, part):
        self.assertEqual(result.returncode, exit_code, result.stdout)
        report, checks = checks_of(result)
        self.assertEqual(report["exit_code"], exit_code)
        self.assertEqual(checks[name]["status"], "failed")
        self.assertIn(part, checks[name]["text"] + checks[name]["remedy"])
        self.assertNotEqual(checks[name]["remedy"], "")

    def test_names_half_a_set_of_variables(self):
        self.check_failure(run("doctor", "--json", RANK="1"), "launcher", 21,
                           "WORLD_SIZE is unset")

    def test_names_a_store_that_is_not_there(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # and never listens
            port = taken.getsockname()[1]
            self.check_failure(
                run("doctor", "--json", "--store", f"127.0.0.1:{port}"),
                "store", 29, f"port {port}")

    def test_names_an_interface_that_is_not_there(self):
        self.check_failure(
            run("doctor", "--json", GLOO_SOCKET_IFNAME="nosuch0"), "Gloo", 27,
            "GLOO_SOCKET_IFNAME")

    def test_names_a_limit_that_is_too_low(self):
        def lower():
            resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        self.check_failure(run("doctor", "--json", before=lower), "limits", 24,
                           "ulimit -n")

    def test_refuses_words_and_unknown_options(self):
        self.assertEqual(run("doctor", "--", "x").returncode, 2)
        self.assertEqual(run("doctor", "--jsn").returncode, 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
