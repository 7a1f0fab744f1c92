"""Ranks as processes: the ways to meet, and the same numbers as torch.distributed.

    test_processes.py WORKER [PEER RANK WORLD_SIZE FILE]

TESSERA_PYTHON names the Python that has torch; it runs this file as a peer.
"""

import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from held_port import held_port  # noqa: E402

WORKER = sys.argv[1]
WORLD_SIZE = 3
DEADLINE = 90  # seconds, for a busy machine


def clean_environment(**more):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    kept = {k: v for k, v in os.environ.items() if k not in names}
    return kept | {"OMP_NUM_THREADS": "1"} | more


def start(command, environment):
    return subprocess.Popen(command, env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def end_all(processes):
    """Output, errors and exit code of each. None is left behind."""
    try:
        ended = [p.communicate(timeout=DEADLINE) for p in processes]
    finally:
        for p in processes:
            p.kill()
    return [(out, err, p.returncode)
            for (out, err), p in zip(ended, processes)]


def run_workers(url, size, rank_in_url=False, **variables):
    processes = []
    for rank in range(size):
        here = f"{url}?rank={rank}&world_size={size}" if rank_in_url else url
        numbers = ["-1", "-1"] if rank_in_url else [str(rank), str(size)]
        processes.append(start([WORKER, here, *numbers],
                               clean_environment(**variables)))
    return end_all(processes)


class Meeting(unittest.TestCase):
    def check(self, results, source):
        for out, err, code in results:
            self.assertEqual(code, 0, out + err)
            self.assertIn("backend gloo, time-out 60000 ms", out)
            self.assertIn("2 float32 all_reduce sum: ", out)
        self.assertIn(f"job found by {source}: 2 ranks", results[0][1])

    def test_at_an_address(self):
        url = f"tcp://127.0.0.1:{held_port()}"
        self.check(run_workers(url, 2, rank_in_url=True), url)

    def test_over_the_interfaces_that_are_named(self):
        url = f"tcp://127.0.0.1:{held_port()}"
        self.check(run_workers(url, 2, GLOO_SOCKET_IFNAME="lo,lo"), url)
        for out, _, code in run_workers(url, 2, GLOO_SOCKET_IFNAME="nosuch0"):
            self.assertNotEqual(code, 0)
            self.assertIn("nosuch0", out)

    def test_at_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "meeting")
            self.check(run_workers(f"file://{path}", 2), f"file://{path}")

    def test_at_a_file_of_an_earlier_job_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "meeting")
            first = start([WORKER, f"file://{path}", "0", "2"],
                          clean_environment())
            second = start([WORKER, f"file://{path}", "0", "2"],
                           clean_environment())
            codes = []
            try:
                out = next(p.communicate(timeout=DEADLINE)[0]
                           for p in self.first_to_end([first, second]))
                codes = [p.poll() for p in (first, second)]
            finally:
                for p in (first, second):
                    p.kill()
                    p.communicate()
            self.assertIn(9, codes)
            self.assertIn("two processes have rank 0", out)

    @staticmethod
    def first_to_end(processes):
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            for p in processes:
                if p.poll() is not None:
                    yield p
                    return
            time.sleep(0.05)

    def test_by_variables_that_options_replace(self):
        variables = {"MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": str(held_port()), "RANK": "7",
                     "WORLD_SIZE": "8"}
        results = end_all([
            start([WORKER, "env://", str(rank), "2"],
                  clean_environment(**variables)) for rank in range(2)])
        self.check(results, "RANK and WORLD_SIZE")


class Failure(unittest.TestCase):
    def test_of_a_rank_ends_the_others_with_its_name(self):
        url = f"tcp://127.0.0.1:{held_port()}"
        begin = time.monotonic()
        results = end_all([
            start([WORKER, url, str(rank), "3", "die"], clean_environment())
            for rank in range(3)])
        self.assertLess(time.monotonic() - begin, 50)  # time-out: 60 s
        self.assertEqual([code for _, _, code in results], [9, 3, 9])
        for rank in (0, 2):
            out = results[rank][0]
            self.assertIn("all_reduce", out)
            self.assertIn("Out of step: rank 1.", out)


class Numbers(unittest.TestCase):
    def test_are_those_of_torch_distributed(self):
        python = os.environ.get("TESSERA_PYTHON")
        self.assertTrue(python, "set TESSERA_PYTHON to a Python with torch")
        with tempfile.TemporaryDirectory() as folder:
            peers = [start([python, __file__, "-", str(rank),
                            str(WORLD_SIZE), os.path.join(folder, "peer")],
                           clean_environment()) for rank in range(WORLD_SIZE)]
            expected = end_all(peers)
            got = run_workers("file://" + os.path.join(folder, "own"),
                              WORLD_SIZE)
        for rank in range(WORLD_SIZE):
            self.assertEqual(expected[rank][2], 0, expected[rank][1])
            self.assertEqual(got[rank][2], 0, got[rank][0] + got[rank][1])
            own = got[rank][0].splitlines()[1:]  # after the line on the backend
            peer = expected[rank][0].splitlines()
            self.assertGreater(len(peer), 100)
            self.assertEqual(own, peer)


def run_peer(rank, world_size, path):
    import torch
    import torch.distributed as dist

    ops = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
    types = (("float32", torch.float32), ("float64", torch.float64),
             ("bfloat16", torch.bfloat16), ("int64", torch.int64))

    def print_table(group):
        size, own_rank = dist.get_world_size(group), dist.get_rank(group)
        for name, dtype in types:
            print_type(group, size, own_rank, name, dtype)

    def print_type(group, size, own_rank, name, dtype):
        def values(r, numel):
            if dtype == torch.int64:
                return (torch.arange(numel) * 3 + r * 7) % 11 + 1
            i = torch.arange(numel, dtype=torch.float64)
            return (i * 0.37 + r * 1.13 + 0.5).to(dtype)

        def show(call, tensor):
            numbers = "".join(
                f" {x:.17g}" for x in tensor.double().view(-1).tolist())
            print(f"{size} {name} {call}:{numbers}")

        for op_name in ops:
            bitwise = op_name in ("band", "bor", "bxor")
            if bitwise if dtype.is_floating_point else op_name == "avg":
                continue
            op = getattr(dist.ReduceOp, op_name.upper())
            tensor = values(own_rank, 7)
            dist.all_reduce(tensor, op, group)
            show("all_reduce " + op_name, tensor)
            tensor = values(own_rank, 7)
            dist.reduce(tensor, size - 1, op, group)
            if own_rank == size - 1:
                show("reduce " + op_name, tensor)
            inputs = values(own_rank, 4 * size)
            output = torch.zeros(4, dtype=dtype)
            dist.reduce_scatter_tensor(output, inputs, op, group)
            show("reduce_scatter_tensor " + op_name, output)
            dist.reduce_scatter(output, list(inputs.chunk(size)), op, group)
            show("reduce_scatter " + op_name, output)
        own = values(own_rank, 5)
        tensor = own.clone()
        dist.broadcast(tensor, 1, group)
        show("broadcast", tensor)
        parts = [torch.zeros(5, dtype=dtype) for _ in range(size)]
        dist.all_gather(parts, own, group)
        show("all_gather", torch.cat(parts))
        whole = torch.zeros(5 * size, dtype=dtype)
        dist.all_gather_into_tensor(whole, own, group)
        show("all_gather_into_tensor", whole)
        dist.gather(own, parts if own_rank == 1 else None, 1, group)
        if own_rank == 1:
            show("gather", torch.cat(parts))
        dist.scatter(tensor, parts if own_rank == 1 else None, 1, group)
        show("scatter", tensor)
        output = torch.zeros(2 * size, dtype=dtype)
        dist.all_to_all_single(output, values(own_rank, 2 * size), group=group)
        show("all_to_all_single", output)
        rows = size * (size + 1) // 2
        output = torch.zeros(size * (own_rank + 1), 2, dtype=dtype)
        dist.all_to_all_single(
            output, values(own_rank, 2 * rows).view(-1, 2),
            [own_rank + 1] * size, list(range(1, size + 1)), group)
        show("all_to_all_single rows", output)
        sent = dist.isend(own, (own_rank + 1) % size, group, 3)
        dist.recv(tensor, (own_rank + size - 1) % size, group, 3)
        sent.wait()
        show("recv", tensor)

    dist.init_process_group("gloo", init_method="file://" + path, rank=rank,
                            world_size=world_size)
    pair = dist.new_group([0, 1])
    print_table(dist.group.WORLD)
    if rank < 2:
        print_table(pair)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) == 5:
        run_peer(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        unittest.main(argv=sys.argv[:1], verbosity=2)
