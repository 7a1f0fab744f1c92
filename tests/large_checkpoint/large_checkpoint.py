#!/usr/bin/env python3
"""A tensor of more than 4 GiB (zip64), both ways between this library and PyTorch:

    large_checkpoint.py build/dev/bin/large_checkpoint FOLDER

FOLDER is made and removed; it takes 4.4 GB at a time, the programs 9 to 14 GB of
memory. Needs a python3 with torch.
"""
import os
import shutil
import subprocess
import sys
import warnings

import torch
import torch.distributed.checkpoint as dcp

LARGE, SMALL, FACTOR = (4 << 28) + (1 << 24), 1000, 1640531527
PIECE = 1 << 24
NAMES = {"a_before": (SMALL, 1), "b_large": (LARGE, 2), "c_after": (SMALL, 3)}


def values(count, first, begin=0):
    return torch.arange(begin, begin + count, dtype=torch.int32).mul_(FACTOR).add_(first)


def differing(tensor, first):
    """How many pieces are not as they were saved."""
    return sum(
        not torch.equal(piece, values(piece.numel(), first, i * PIECE))
        for i, piece in enumerate(tensor.split(PIECE)))


def of_ours(program, folder):
    subprocess.run([program, "save", folder], check=True)
    state = {name: torch.zeros(n, dtype=torch.int32) for name, (n, _) in NAMES.items()}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    bad = {name: differing(state[name], first) for name, (_, first) in NAMES.items()}
    print("saved here, loaded by PyTorch: pieces that differ:", bad, flush=True)
    return sum(bad.values())


def of_theirs(program, folder):
    dcp.save({name: values(*what) for name, what in NAMES.items()},
             checkpoint_id=folder, no_dist=True)
    print("saved by PyTorch, loaded here: ", end="", flush=True)
    return subprocess.run([program, "check", folder]).returncode


def main():
    warnings.simplefilter("ignore")
    program, folder = os.path.abspath(sys.argv[1]), sys.argv[2]
    os.makedirs(folder)
    failed = 0
    try:
        for name, test in (("ours", of_ours), ("theirs", of_theirs)):
            path = os.path.join(folder, name)
            failed += test(program, path)
            print("bytes:", {file: os.path.getsize(os.path.join(path, file))
                             for file in sorted(os.listdir(path))}, flush=True)
            shutil.rmtree(path)
    finally:
        shutil.rmtree(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
