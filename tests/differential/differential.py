"""Trains random cases by Tessera, by PyTorch FSDP2 and by one process of plain
LibTorch, and prints in which they are not the same.

    differential.py PROGRAM --first 1 --count 200    PROGRAM: bin/differential
    differential.py PROGRAM --first 17 --count 1 --show    the case too

cases.py says what a case is. Exit code 1 when a case has findings. Seeds 20000 to
25199 have been run, beside the 200 of test_differential.py.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: ranks fill the cores

import cases  # noqa: E402
import compare  # noqa: E402
import fsdp2  # noqa: E402

BATCH = 200  # cases in one job


def train(program, batch, deadline_s):
    """{seed: {"tessera": outcome, "plain": outcome, "fsdp2": outcome}}"""
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "cases.json", Path(folder) / "out.json"
        given.write_text(json.dumps(batch))
        job = subprocess.Popen([program, str(given), str(out)])
        try:
            peers = fsdp2.train_all(batch, deadline_s)
            code = job.wait(deadline_s)
        finally:
            job.kill()
            job.wait()
        if code:
            raise RuntimeError(f"{program} ended with {code}")
        ours = json.loads(out.read_text())
    return {case["seed"]: {**ours[str(case["seed"])],
                           "fsdp2": peers.get(case["seed"])} for case in batch}


def findings(case, outcomes):
    others = ["plain"] + ["fsdp2"] * (case["without_fsdp2"] is None)
    return [text for other in others
            for text in compare.findings(case, outcomes, other)]


def settle(program, case, outcomes, deadline_s):
    """The findings that are more than rounding."""
    found = findings(case, outcomes)
    if not found or not compare.may_be_rounding(case, outcomes):
        return found
    apart = compare.furthest(outcomes["tessera"], outcomes["plain"])
    for finer, near, share in compare.FINER:
        again = train(program, [finer(case)], deadline_s)[case["seed"]]
        if not compare.agrees(again, near, share, apart):
            return found
    print(f"seed {case['seed']}: rounding that the model blows up, for it "
          f"agrees in fp64: {'; '.join(found)}", flush=True)
    return []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--deadline", type=float, default=1800, metavar="S",
                        help=f"seconds for {BATCH} cases")
    parser.add_argument("--show", action="store_true", help="print each case")
    given = parser.parse_args()
    bad = 0
    for first in range(given.first, given.first + given.count, BATCH):
        begin = time.monotonic()
        end = min(first + BATCH, given.first + given.count)
        batch = [cases.make_case(seed) for seed in range(first, end)]
        outcomes = train(given.program, batch, given.deadline)
        for case in batch:
            if given.show:
                print(json.dumps(case, indent=1))
            found = settle(given.program, case, outcomes[case["seed"]],
                           given.deadline)
            bad += bool(found)
            for text in found:
                print(f"seed {case['seed']}: {text}")
        print(f"seeds {first} to {end - 1}: "
              f"{time.monotonic() - begin:.0f} s; {bad} with findings so far",
              flush=True)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
