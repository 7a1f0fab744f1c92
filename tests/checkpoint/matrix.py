"""One state, saved and loaded by torch in every layout.

    python matrix.py write FOLDER
    python matrix.py check GOT...

`write` saves the state of a model and its AdamW to FOLDER/LAYOUT for each layout:
plain, FSDP2 at 1 to 4 ranks, tensor parallel, and both (strided shards). `check`
loads each GOT in each layout and compares it, bit by bit, with that state.
"""

import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint import state_dict as sd
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module,
)

LAYOUTS = {"plain": 1, "fsdp1": 1, "fsdp2": 2, "fsdp3": 3, "fsdp4": 4, "tp2": 2,
           "fsdp_tp": 4}
AGAIN = "-again"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))
        self.up = nn.Linear(3, 5)
        self.down = nn.Linear(5, 7)
        self.register_buffer("offset", torch.arange(3.0))

    def forward(self, x):
        return self.down(torch.relu(self.up(x))) * self.gain


def optimizer_of(block):
    return torch.optim.AdamW([
        {"params": [block.up.weight, block.down.weight], "lr": 0.01},
        {"params": [block.up.bias], "lr": 0.001, "weight_decay": 0.0},
    ])


def laid_out(layout):
    block = Block()
    ranks = LAYOUTS[layout]
    tensor_parallel = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if layout.startswith("fsdp_tp"):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
        parallelize_module(block, mesh["tp"], tensor_parallel)
        fully_shard(block, mesh=mesh["fsdp"])
    elif layout.startswith("fsdp"):
        fully_shard(block, mesh=init_device_mesh("cpu", (ranks,)))
    elif layout.startswith("tp"):
        parallelize_module(block, init_device_mesh("cpu", (ranks,)), tensor_parallel)
    return block, optimizer_of(block)


def get(block, optimizer, full):
    return sd.get_state_dict(
        block, optimizer, options=sd.StateDictOptions(full_state_dict=full))


def put(block, optimizer, model, optim):
    sd.set_state_dict(
        block, optimizer, model_state_dict=model, optim_state_dict=optim)


def trained():
    torch.manual_seed(1)
    block = Block()
    optimizer = optimizer_of(block)
    for step in range(2):
        x = torch.arange(12.0).reshape(4, 3) / 4 + step
        block(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return block, optimizer


def as_saved(state):
    return {"model": state[0], "optim": state[1]}


def load(layout, path):
    block, optimizer = laid_out(layout)
    target = as_saved(get(block, optimizer, full=False))
    dcp.load(target, checkpoint_id=path)
    put(block, optimizer, target["model"], target["optim"])
    return block, optimizer


def write(layout, folder):
    loaded = trained() if layout == "plain" else load(layout, f"{folder}/plain")
    dcp.save(as_saved(get(*loaded, full=False)), checkpoint_id=f"{folder}/{layout}")


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def check(layout, *paths):
    expected = as_saved(get(*trained(), full=True))
    for path in paths:
        loaded = load(layout, path)
        if layout == "fsdp_tp":
            # 2.11 cannot gather uneven strided shards: saved, and then checked plain.
            dcp.save(as_saved(get(*loaded, full=False)), checkpoint_id=path + AGAIN)
            continue
        got = as_saved(get(*loaded, full=True))
        assert same(expected, got), (layout, path)


def run(rank, body, layout, store, arguments):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ranks = LAYOUTS[layout]
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    body(layout, *arguments)
    dist.destroy_process_group()


def on_ranks(body, layout, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(
            run, (body, layout, os.path.join(folder, "store"), arguments),
            nprocs=LAYOUTS[layout], start_method="fork")


def main():
    paths = sys.argv[2:]
    for layout in LAYOUTS:
        on_ranks({"write": write, "check": check}[sys.argv[1]], layout, *paths)
    if sys.argv[1] == "check":
        on_ranks(check, "plain", *[path + AGAIN for path in paths])


if __name__ == "__main__":
    main()
