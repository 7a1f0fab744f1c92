"""Compares checkpoints with one that torch wrote, by torch's own loader.

    python referee.py EXPECTED GOT...

Each is loaded into the state dict of an FSDP2 model and its AdamW: names, dtypes,
shapes and values must be those of EXPECTED. The first GOT is also continued for
one step, as an optimizer that was never saved would.
"""

import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, init_device_mesh


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))
        self.up = nn.Linear(3, 5)
        self.down = nn.Linear(5, 7)
        self.register_buffer("offset", torch.zeros(3))

    def forward(self, x):
        return self.down(torch.relu(self.up(x))) * self.gain


def target():
    block = fully_shard(Block(), mesh=init_device_mesh("cpu", (1,)))
    groups = [
        {"params": [block.up.weight, block.down.weight], "lr": 7.0},
        {"params": [block.up.bias], "weight_decay": 7.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=7.0)
    model_state, optimizer_state = get_state_dict(block, optimizer)
    return block, optimizer, {"model": model_state, "optim": optimizer_state}


def flatten(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flatten(item, (*path, key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for key, item in enumerate(value):
            yield from flatten(item, (*path, key))
    else:
        if isinstance(value, DTensor):
            value = value.full_tensor()
        if isinstance(value, torch.Tensor):
            value = value.clone()  # it may be the live parameter
        yield path, value


def load(folder):
    block, optimizer, state = target()
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        block, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
    )
    return block, optimizer, dict(flatten(state))


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and a == b


def compare(expected, got, folder):
    assert expected.keys() == got.keys(), (folder, expected.keys() ^ got.keys())
    for key, value in expected.items():
        assert same(value, got[key]), (folder, key, value, got[key])


def continued(block, optimizer):
    x = torch.arange(12, dtype=torch.float32).reshape(4, 3) / 4
    block(x).pow(2).mean().backward()
    optimizer.step()
    return dict(flatten(block.state_dict()))


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    expected_folder, *folders = sys.argv[1:]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    expected_block, expected_optimizer, expected = load(expected_folder)
    expected_metadata = FileSystemReader(expected_folder).read_metadata()
    after = None
    for folder in folders:
        block, optimizer, got = load(folder)
        compare(expected, got, folder)
        metadata = FileSystemReader(folder).read_metadata()
        assert metadata.planner_data == expected_metadata.planner_data, folder
        if after is None:
            after = continued(expected_block, expected_optimizer)
            compare(after, continued(block, optimizer), folder)
    with tempfile.NamedTemporaryFile() as file:
        dcp_to_torch_save(folders[0], file.name)
        nested = torch.load(file.name, weights_only=True)
        assert nested["optim"]["param_groups"][0]["betas"] == (0.9, 0.999)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
