"""Tests of benchmarks/overlap: test_overlap.py OVERLAP"""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path


def event(category, name, start, end):
    """Times in milliseconds; a trace has microseconds."""
    return {"ph": "X", "cat": category, "name": name, "ts": start * 1000,
            "dur": (end - start) * 1000, "pid": 0, "tid": 7}


def overlap(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(text)
        return subprocess.run([sys.executable, OVERLAP, str(path)],
                              capture_output=True, text=True, timeout=30)


def lines_of(*events):
    done = overlap(json.dumps({"traceEvents": list(events)}))
    if done.returncode:
        raise AssertionError(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


class Overlap(unittest.TestCase):
    def test_only_what_no_other_kernel_hides_is_exposed(self):
        lines = lines_of(
            event("user_annotation", "ProfilerStep#10", 0, 3),
            event("gpu_user_annotation", "ProfilerStep#10", 1, 21),
            event("kernel", GATHER, 1, 5),      # 2 before the product begins
            event("kernel", "gemm", 3, 8),
            event("kernel", "gemm", 4, 9),      # on another stream
            event("kernel", GATHER, 8, 11),     # 2 after the product
            event("kernel", GATHER, 10, 12),    # beside another: 1 more
            event("gpu_memcpy", "Memcpy", 11.5, 12),  # hides half of it
            event("kernel", "adam", 20, 21))
        self.assertEqual(lines[0], {
            "step": 10, "step_ms": 20.0, "communication_ms": 8.0,
            "exposed_ms": 4.5, "idle_ms": 8.0})
        self.assertEqual(lines[1], {
            "step": "median", "step_ms": 20.0, "communication_ms": 8.0,
            "exposed_ms": 4.5, "idle_ms": 8.0, "exposed_share": 0.225})

    def test_copies_between_gpus_and_meetings_are_communication(self):
        meet = "tessera::cuda::(anonymous namespace)::meet(tessera::cuda::PeerMeeting)"
        lines = lines_of(
            event("user_annotation", "ProfilerStep#1", 0, 3),
            event("gpu_user_annotation", "ProfilerStep#1", 0, 20),
            event("kernel", meet, 0, 4), event("kernel", "gemm", 1, 6),
            event("gpu_memcpy", "Memcpy PtoP (Device -> Device)", 4, 8),
            event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 10, 12))
        self.assertEqual(
            (lines[0]["communication_ms"], lines[0]["exposed_ms"]), (8.0, 3.0))

    def test_without_ranges_on_the_device_a_step_has_the_kernels_up_to_the_next(self):
        lines = lines_of(
            event("user_annotation", "ProfilerStep#4", 0, 2),
            event("user_annotation", "ProfilerStep#5", 10, 12),
            event("kernel", "gemm", 1, 8), event("kernel", GATHER, 6, 9),
            event("kernel", "gemm", 11, 14), event("kernel", GATHER, 14, 20))
        self.assertEqual([(x["step"], x["step_ms"], x["exposed_ms"])
                          for x in lines],
                         [(4, 8.0, 1.0), (5, 9.0, 6.0), ("median", 8.5, 3.5)])

    def test_on_a_cpu_all_of_it_is_exposed(self):
        lines = lines_of(
            event("user_annotation", "ProfilerStep#1", 0, 10),
            event("user_annotation", "FSDP::all_gather (layers.0)", 1, 2),
            event("user_annotation", "FSDP::all_gather_copy_out (layers.0)", 2, 4),
            event("cpu_op", "aten::mm", 4, 8),
            event("user_annotation", "FSDP::root_post_backward_callback", 8, 9))
        self.assertEqual(lines[0], {"step": 1, "step_ms": 10.0,
                                    "communication_ms": 4.0, "exposed_ms": 4.0})

    def test_what_is_no_trace_is_said(self):
        for text in ("", "[]", "{}", json.dumps({"traceEvents": []})):
            done = overlap(text)
            self.assertEqual(done.returncode, 1)
            self.assertIn("overlap: ", done.stderr)
            self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    OVERLAP = sys.argv.pop(1)
    unittest.main()
