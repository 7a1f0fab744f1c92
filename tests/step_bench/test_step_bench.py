"""Tests of benchmarks/step_bench: test_step_bench.py STEP_BENCH TESSERA"""
import ast
import json
import subprocess
import sys
import unittest
from pathlib import Path

PEER = Path(__file__).resolve().parents[2] / "benchmarks/peer/fsdp2_bench.py"
JOB = ["--preset", "tiny", "--batch", "2", "--seq", "16", "--warmup", "1",
       "--steps", "3"]


def run(*options, ranks=1, precision="fp32"):
    launcher = [TESSERA, "run", "-n", str(ranks), "--"] if ranks > 1 else []
    done = subprocess.run(
        [*launcher, STEP_BENCH, *JOB, "--precision", precision, *options],
        capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise AssertionError(done.stderr)
    lines = done.stdout.splitlines()
    if len(lines) != 1:
        raise AssertionError(f"{len(lines)} lines instead of one: {lines}")
    return json.loads(lines[0])


def run_peer(*options, ranks, precision="fp32"):
    done = subprocess.run(
        [TESSERA, "run", "-n", str(ranks), "--", TORCH_PYTHON, str(PEER), *JOB,
         "--precision", precision, *options],
        capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def peer_tree():
    return ast.walk(ast.parse(PEER.read_text()))


class StepBench(unittest.TestCase):
    def test_prints_the_fields_of_the_peer_in_its_order(self):
        fields = next(
            [k.arg for k in node.value.keywords] for node in peer_tree()
            if isinstance(node, ast.Assign)
            and getattr(node.targets[0], "id", "") == "out")
        self.assertEqual(list(run()), fields + [
            "graph", "replicas", "float8", "transport", "prefetch", "tight",
            "gather_copy", "norm_in_backward", "step_in_backward"])

    def test_says_what_was_measured(self):
        line = run("--accum", "2", "--no-reshard")
        self.assertEqual(line["peer"], "tessera")
        self.assertEqual((line["world"], line["seq"], line["batch"]), (1, 16, 2))
        self.assertEqual((line["accum"], line["reshard"]), (2, False))
        self.assertGreaterEqual(line["step_s"], line["step_min_s"])
        self.assertAlmostEqual(line["tokens_per_s_per_rank"] * line["step_s"],
                               2 * 16 * 2, delta=0.5)

    def test_has_the_parameters_of_the_peer(self):
        dim, layers, ffn, vocab = 256, 4, 688, 4096
        block = 4 * dim * dim + 3 * dim * ffn + 2 * dim
        self.assertEqual(run()["params"], 2 * vocab * dim + layers * block + dim)

    def test_trains_alike_sharded_or_plain(self):
        # The first loss of random weights: ln 4096, plus half the variance of
        # the logits (256 * 0.02^2), plus or minus four deviations of the mean
        # over 32 tokens.
        for line in run(ranks=2), run("--plain"):
            self.assertAlmostEqual(line["loss_first"], 8.318 + 0.051, delta=0.23)
            self.assertNotEqual(line["loss_last"], line["loss_first"])

    def test_trains_alike_with_fused_kernels_and_recompute(self):
        plain = run()
        for policy in "none", "selective", "block":
            line = run("--kernels", "fused", "--recompute", policy)
            self.assertEqual(line["ac"], policy == "block")
            # Four decimals are printed; sums in another order move the last.
            self.assertAlmostEqual(line["loss_last"], plain["loss_last"],
                                   delta=2e-3)

    def test_has_the_losses_of_the_peer_from_the_same_start(self):
        if not TORCH_PYTHON:
            self.skipTest("no Python that imports torch")
        ours = run("--same-start", ranks=2)["losses"]
        theirs = run_peer("--same-start", ranks=2)["losses"]
        self.assertEqual(len(ours), 4)
        self.assertNotEqual(ours[0], ours[-1])
        for own, other in zip(ours, theirs, strict=True):
            # fp32, with sums in another order.
            self.assertAlmostEqual(own, other, delta=2e-5)

    def test_has_the_losses_of_the_peers_ddp(self):
        if not TORCH_PYTHON:
            self.skipTest("no Python that imports torch")
        # bf16 by autocast on both sides rounds where LibTorch's operators do.
        for precision, delta in ("fp32", 2e-5), ("bf16", 2e-3):
            options = "--ddp", "--same-start", "--accum", "2"
            own = run(*options, ranks=2, precision=precision)
            other = run_peer(*options, ranks=2, precision=precision)
            self.assertEqual((own["peer"], other["peer"]),
                             ("tessera-ddp", "pytorch-ddp"))
            for ours, theirs in zip(own["losses"], other["losses"], strict=True):
                self.assertAlmostEqual(ours, theirs, delta=delta)

    def test_has_the_losses_of_the_peer_in_float16_with_a_scaled_loss(self):
        if not TORCH_PYTHON:
            self.skipTest("no Python that imports torch")
        for ours, theirs in (((), ()),
                             (("--stepping", "unclipped"), ("--unclipped",))):
            own = run("--same-start", *ours, ranks=2, precision="fp16")
            other = run_peer("--same-start", *theirs, ranks=2, precision="fp16")
            self.assertEqual((own["precision"], other["precision"]),
                             ("fp16", "fp16"))
            self.assertNotEqual(own["losses"][0], own["losses"][-1])
            for a, b in zip(own["losses"], other["losses"], strict=True):
                # Eleven bits of products, with sums in another order; bfloat16
                # would be off by 1e-3.
                self.assertAlmostEqual(a, b, delta=2e-4)

    def test_refuses_float16_where_nothing_can_unscale_it(self):
        for options in ("--stepping", "in_backward"), ("--plain",):
            done = subprocess.run(
                [STEP_BENCH, *JOB, "--precision", "fp16", *options],
                capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2)
            self.assertIn("--precision fp16", done.stderr)
        done = subprocess.run([STEP_BENCH, *JOB, "--fp32", "--precision", "fp16"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)

    def test_refuses_an_unknown_preset(self):
        done = subprocess.run([STEP_BENCH, "--preset", "2t"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("124m", done.stderr)


if __name__ == "__main__":
    STEP_BENCH, TESSERA, TORCH_PYTHON = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1])
