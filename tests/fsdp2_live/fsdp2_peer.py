"""PyTorch FSDP2's side: one rank that trains every case of a folder.

    tessera run -n 2 -- python fsdp2_peer.py FOLDER

Rank 0 writes FOLDER/fsdp2.json.
"""
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import live_cases
from live_cases import make_fixtures

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, None: None}


def start_weights(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    weights = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        begin, end = (8 + size + at for at in entry["data_offsets"])
        weights[name] = torch.frombuffer(
            bytearray(data[begin:end]), dtype=torch.float32).view(entry["shape"])
    return weights


def shard(model, fixture, mesh):
    job = fixture["job"]
    policy = MixedPrecisionPolicy(DTYPES[job["param_dtype"]],
                                  DTYPES[job["reduce_dtype"]])
    for name in fixture["wrap"]:
        fully_shard(model.get_submodule(name), mesh=mesh, mp_policy=policy,
                    reshard_after_forward=job["reshard"])


def make_optimizer(options, parameters):
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[options["name"]]
    return kind(parameters, **{k: v for k, v in options.items()
                               if k not in ("name", "max_norm")})


def one_step(model, fixture, step, rank):
    """Backward over this rank's micro-batches; the mean loss of all ranks."""
    job = fixture["job"]
    count, rows = job["micro_batches"], job["rows"]
    total = torch.zeros(())
    for micro in range(count):
        first = (rank * count + micro) * rows
        batch = {k: torch.tensor(v[first:first + rows])
                 for k, v in fixture["batches"][step].items()}
        model.set_requires_gradient_sync(micro == count - 1)
        loss = model.loss(model(model.inputs(batch)), batch) / count
        loss.backward()
        total += loss.detach()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def train(folder, case, mesh):
    fixture = json.loads((folder / f"{case.name}.json").read_text())
    model = live_cases.make_model(case)
    model.load_state_dict(start_weights(folder / fixture["init"]), strict=False)
    for name, parameter in model.named_parameters():
        if name.startswith(tuple(fixture["job"]["frozen"])):
            parameter.requires_grad_(False)
    shard(model, fixture, mesh)
    options = fixture["job"]["optimizer"]
    optimizer = make_optimizer(options, model.parameters())
    max_norm = float("inf") if options["max_norm"] is None else options["max_norm"]
    losses, norms = [], []
    for step in range(len(fixture["batches"])):
        losses.append(one_step(model, fixture, step, dist.get_rank()))
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        norms.append(norm.full_tensor().item())
        optimizer.step()
        optimizer.zero_grad()
    final = {n: make_fixtures.as_lists(p.detach().full_tensor())
             for n, p in model.named_parameters()}
    return {"losses": losses, "grad_norms": norms, "final": final}


def main():
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    results = {case.name: train(folder, case, mesh)
               for case in live_cases.CASES}
    if dist.get_rank() == 0:
        (folder / "fsdp2.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
