"""Prints the names that PyTorch's state dict functions give, one `case key` a line.

The model and its optimizer are those of tests/checkpoint/block.h.
"""

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict as sd
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))
        self.up = nn.Linear(3, 5)
        self.down = nn.Linear(5, 7)
        self.register_buffer("offset", torch.zeros(3))


def keys(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from keys(item, (*path, str(key)))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for key, item in enumerate(value):
            yield from keys(item, (*path, str(key)))
    else:
        yield ".".join(path)


def show(case, state):
    for key in sorted(keys(state)):
        print(case, key)


def main():
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    block = fully_shard(Block(), mesh=init_device_mesh("cpu", (1,)))
    groups = [
        {"params": [block.up.weight, block.down.weight]},
        {"params": [block.up.bias]},
    ]
    optimizer = torch.optim.AdamW(groups)

    def options(**fields):
        return sd.StateDictOptions(**fields)

    show("model", sd.get_model_state_dict(block))
    show("full", sd.get_model_state_dict(block, options=options(full_state_dict=True)))
    show("optimizer", sd.get_optimizer_state_dict(block, optimizer))
    show("flat", sd.get_optimizer_state_dict(
        block, optimizer, options=options(flatten_optimizer_state_dict=True)))
    show("with_prefix", sd.get_model_state_dict(block, submodules={block.down}))
    show("without_prefix", sd.get_model_state_dict(
        block, submodules={block.down}, options=options(keep_submodule_prefixes=False)))
    block.down.bias.requires_grad_(False)
    show("trainable", sd.get_model_state_dict(
        block, options=options(ignore_frozen_params=True)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
