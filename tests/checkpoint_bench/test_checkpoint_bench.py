"""Tests of benchmarks/checkpoint_bench: test_checkpoint_bench.py BENCH TESSERA"""
import ast
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PEER = Path(__file__).resolve().parents[2] / "benchmarks/peer/dcp_bench.py"


class CheckpointBench(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            job = [BENCH, "--preset", "1m", "--layers", "2", "--rounds", "2",
                   "--async-saves", "4", "--dir", f"{folder}/ckpt",
                   "--raw-gb", "0.01", "--train-tokens", "16"]
            done = subprocess.run([TESSERA, "run", "-n", "2", "--", *job],
                                  capture_output=True, text=True, timeout=120)
            cls.left = os.listdir(folder)
        if done.returncode:
            raise AssertionError(done.stderr)
        cls.line, = (json.loads(line) for line in done.stdout.splitlines())

    def test_prints_the_fields_of_the_peer_in_its_order(self):
        fields = next(
            [k.arg for k in node.value.keywords]
            for node in ast.walk(ast.parse(PEER.read_text()))
            if isinstance(node, ast.Assign)
            and getattr(node.targets[0], "id", "") == "out")
        self.assertEqual(list(self.line), fields)

    def test_says_what_was_measured(self):
        dim, layers, ffn, vocab = 128, 2, 352, 256
        block = 4 * dim * dim + 3 * dim * ffn + 2 * dim
        params = 2 * vocab * dim + layers * block + dim
        self.assertAlmostEqual(self.line["gb"], 12 * params / 1e9, delta=1e-3)
        self.assertEqual((self.line["world"], self.line["layers"]), (2, 2))
        self.assertEqual((self.line["raw_gb"], self.line["train_tokens"]), (0.01, 16))
        self.assertAlmostEqual(
            self.line["load_of_raw"],
            self.line["load_gbps"] / self.line["raw_read_gbps"], delta=0.02)
        for name, count in (("save_s", 2), ("load_s", 2),
                            ("async_request_s", 4), ("async_stall_s", 4)):
            self.assertEqual(len(self.line[name]), count)
        for name in "raw_write_gbps", "raw_read_gbps", "step_s", "host_mib":
            self.assertGreater(self.line[name], 0)

    def test_leaves_nothing(self):
        self.assertEqual(self.left, [])


if __name__ == "__main__":
    BENCH, TESSERA = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
