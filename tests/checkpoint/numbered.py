"""Saves a trained model and its AdamW thrice: numbered.py FOLDER

    FOLDER/named        a checkpoint with the names of get_state_dict
    FOLDER/numbered     a checkpoint of the optimizer's own state_dict()
    FOLDER/numbered.pt  the same by torch.save
"""

import sys
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

from referee import Block


def main():
    warnings.simplefilter("ignore")
    folder = sys.argv[1]
    torch.manual_seed(11)
    block = Block()
    groups = [
        {"params": [block.up.weight, block.down.weight], "lr": 0.25},
        {"params": [block.up.bias], "weight_decay": 0.5},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.125)
    for _ in range(3):
        optimizer.zero_grad()
        block(torch.randn(4, 3)).pow(2).mean().backward()
        optimizer.step()
    model, named = get_state_dict(block, optimizer)
    dcp.save({"model": model, "optim": named}, checkpoint_id=f"{folder}/named")
    state = {"model": block.state_dict(), "optim": optimizer.state_dict()}
    dcp.save(state, checkpoint_id=f"{folder}/numbered")
    torch.save(state, f"{folder}/numbered.pt")


if __name__ == "__main__":
    main()
