"""Trains cases by PyTorch FSDP2: one job of forked ranks for each world size.

    results = train_all(cases)   {seed: outcome, or {"error": text}}

An outcome is that of outcome.h.
"""
import datetime
import functools
import json
import math
import multiprocessing
import tempfile
import time
import traceback
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch.distributed.fsdp import (CPUOffloadPolicy, FSDPModule,
                                    MixedPrecisionPolicy, OffloadPolicy,
                                    fully_shard)
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional as F

import model as models
import values
from cases import is_below

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32,
          "fp64": torch.float64, None: None}
STUCK_S = 90  # a rank that waits longer for another one fails


def data(case, what, turn):
    kind = case[what]
    name = "/".join([what, *map(str, turn)])
    sizes = [case["rows"], case["seq"]]
    if "vocab" in kind:
        return values.whole(name, case["seed"], sizes, kind["vocab"])
    return values.uniform(name, case["seed"], [*sizes, kind["dim"]])


def loss_of(output, target):
    y = output if output.dtype == torch.float64 else output.float()
    if target.is_floating_point():
        return F.mse_loss(y, target.to(y.dtype))
    return F.cross_entropy(y.flatten(0, 1), target.flatten())


def make_optimizer(options, parameters):
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam,
            "adamw": torch.optim.AdamW, "fused_adamw": torch.optim.AdamW}
    return kind[options["name"]](
        parameters, **{k: v for k, v in options.items() if k != "name"})


def local(tensor):
    """This rank's part, as float32 numbers; None for none."""
    if tensor is None:
        return None
    part = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part.detach().float().numpy().copy()


class Rank:
    """One rank's training of one case."""

    def __init__(self, case, mesh):
        self.case, self.rank, self.world = case, mesh.get_rank(), mesh.size()
        self.model = models.make_model(case)
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                p.copy_(values.start(name, case["seed"], p.shape))
        self.model.to(DTYPES[case["dtype"]])
        for name, p in self.model.named_parameters():
            p.requires_grad_(not is_below(name, case["frozen"]))
        self.ignored = {p for n, p in self.model.named_parameters()
                        if is_below(n, case["ignored"])}
        self.placements = {p: Shard(case["placements"][n])
                           for n, p in self.model.named_parameters()
                           if n in case["placements"]}
        for unit in case["units"]:
            self.shard(unit, mesh)
        self.parameters = dict(self.model.named_parameters())

    def shard(self, unit, mesh):
        policy = MixedPrecisionPolicy(
            DTYPES[unit["param_dtype"]], DTYPES[unit["reduce_dtype"]],
            DTYPES[unit["output_dtype"]], unit["cast_inputs"])
        found = [self.model.get_submodule(n) for n in unit["modules"]]
        offload = (CPUOffloadPolicy(pin_memory=False)
                   if self.case["offload"] else OffloadPolicy())
        fully_shard(found if len(found) > 1 else found[0], mesh=mesh,
                    mp_policy=policy, reshard_after_forward=unit["reshard"],
                    ignored_params=self.ignored, offload_policy=offload,
                    shard_placement_fn=self.placements.get)

    def forward(self, turn):
        x = data(self.case, "input", turn)
        if x.is_floating_point():
            x = x.to(DTYPES[self.case["dtype"]])
        x.requires_grad_(self.case["input_gradients"])
        return x, loss_of(self.model(x), data(self.case, "target", turn))

    def set_up_backward(self, last):
        sync = self.case["sync"]
        self.model.set_requires_gradient_sync(last or sync != "last")
        if last or sync != "last":
            self.model.set_requires_all_reduce(last or sync == "each")
        self.model.set_reshard_after_backward(
            last or not self.case["keep_after_backward"])

    def backwards(self, step):
        """The mean loss, and the gradient of the first input."""
        case, loss, gradient = self.case, 0.0, None
        count, forwards = case["micro_batches"], case["forwards"]
        for b in range(count):
            self.set_up_backward(last=b == count - 1)
            total, inputs = torch.zeros(()), []
            for f in range(forwards):
                x, one = self.forward((step, self.rank, b * forwards + f))
                inputs.append(x)
                total = total + one * (1 / count / forwards)
            total.backward()
            loss += total.item()
            gradient = inputs[0].grad if b == 0 else gradient
        for p in self.parameters.values():  # in the same order on every rank
            if p in self.ignored and p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad.div_(self.world)
        return loss, gradient

    def clip(self):
        """The norm before; FSDP2 takes sharded and plain gradients apart."""
        kind = float(self.case["norm_type"])
        if kind == math.inf:
            return self.clip_by_largest()
        sharded, plain = [], []
        for p in self.parameters.values():
            (sharded if isinstance(p, DTensor) else plain).append(p)
        if self.case["max_norm"] is not None:
            trained = [p for p in self.parameters.values()
                       if p.grad is not None]
            norm = torch.nn.utils.clip_grad_norm_(
                trained, self.case["max_norm"], kind)
            return self.whole(norm)
        norms = [self.whole(torch.nn.utils.get_total_norm(
            [p.grad for p in part if p.grad is not None], kind))
            for part in (sharded, plain)]
        return torch.linalg.vector_norm(torch.tensor(norms), kind).item()

    def clip_by_largest(self):
        """By hand: FSDP2 fails on ranks that own nothing of a parameter."""
        grads = [p.grad.to_local() if isinstance(p, DTensor) else p.grad
                 for p in self.parameters.values() if p.grad is not None]
        norm = torch.stack([g.abs().max().double() for g in grads
                            if g.numel()] + [torch.zeros((), dtype=torch.double)]).max()
        dist.all_reduce(norm, dist.ReduceOp.MAX)
        if self.case["max_norm"] is not None:
            scale = torch.clamp(self.case["max_norm"] / (norm + 1e-6), max=1)
            for g in grads:
                g.mul_(scale.to(g.dtype))
        return norm.item()

    @staticmethod
    def whole(norm):
        return (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()

    def freeze(self, step):
        # Parameters that an evaluation has left whole would not see it.
        for m in self.model.modules():
            if self.case["freezing"] and isinstance(m, FSDPModule):
                m.reshard()
        for when, prefix, on in self.case["freezing"]:
            for name, p in self.parameters.items():
                if when == step and is_below(name, [prefix]):
                    p.requires_grad_(on)

    def train(self):
        case = self.case
        optimizer = make_optimizer(case["optimizer"],
                                   list(self.parameters.values()))
        kept = {"losses": [], "evaluations": [], "norms": [], "gradients": [],
                "inputs": []}
        for step in range(case["steps"]):
            self.freeze(step)
            loss, gradient = self.backwards(step)
            kept["losses"].append(loss)
            kept["inputs"].append(local(gradient))
            kept["gradients"].append(
                {n: local(p.grad) for n, p in self.parameters.items()})
            kept["norms"].append(self.clip())
            optimizer.step()
            optimizer.zero_grad(set_to_none=case["set_to_none"])
            evaluated = 0.0
            if case["evaluate"]:
                with torch.no_grad():
                    evaluated = self.forward((step, self.rank, 0))[1].item()
            kept["evaluations"].append(evaluated)
        kept["weights"] = {n: local(p) for n, p in self.parameters.items()}
        kept["plain"] = {n for n, p in self.parameters.items()
                         if not isinstance(p, DTensor)}
        kept["num_shards"] = case["mesh"][-1]
        kept["placements"] = case["placements"]
        return kept


def joined(parts, name, how):
    """All ranks' parts of a tensor as a list of numbers, or None. The first
    ranks are the first replica."""
    had = [part is not None for part in parts]
    if not any(had):
        return None
    if not all(had):
        raise AssertionError(f"only some ranks have a gradient of {name}")
    if name in how["plain"]:
        return parts[0].ravel().tolist()
    return numpy.concatenate(
        parts[:how["num_shards"]],
        axis=how["placements"].get(name, 0)).ravel().tolist()


def outcome(ranks):
    """One outcome out of what each rank kept. Shards are rows, in rank order."""
    first = ranks[0]
    mean = {key: [sum(step) / len(ranks)
                  for step in zip(*(rank[key] for rank in ranks))]
            for key in ("losses", "evaluations")}
    tensors = lambda pick: {
        name: joined([pick(rank)[name] for rank in ranks], name, first)
        for name in pick(first)}
    return {
        **mean, "norms": first["norms"],
        "gradients": [tensors(lambda rank, s=s: rank["gradients"][s])
                      for s in range(len(first["gradients"]))],
        "inputs": [x if x is None else x.ravel().tolist()
                   for x in first["inputs"]],
        "weights": tensors(lambda rank: rank["weights"])}


def outcome_or_error(ranks):
    errors = [rank["error"] for rank in ranks if "error" in rank]
    if errors:
        return {"error": errors[0]}
    try:
        return outcome(ranks)
    except AssertionError as error:
        return {"error": str(error)}


def run_rank(rank, world, cases, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", rank=rank, world_size=world,
        store=dist.FileStore(str(folder / "store"), world),
        timeout=datetime.timedelta(seconds=STUCK_S))
    make_mesh = functools.cache(lambda shape: dist.init_device_mesh(
        "cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape):]))
    for case in cases:
        try:
            kept = Rank(case, make_mesh(tuple(case["mesh"]))).train()
        except Exception:  # noqa: BLE001: the report of this case
            kept = {"error": traceback.format_exc(limit=-4)}
            (folder / f"error_{rank}").write_text(kept["error"])
        ranks = [None] * world
        dist.gather_object(kept, ranks if rank == 0 else None)
        if rank == 0:
            with (folder / "results").open("a") as file:
                file.write(json.dumps([case["seed"], outcome_or_error(ranks)]))
                file.write("\n")
    dist.barrier()
    dist.destroy_process_group()


def run_job(world, cases, deadline_s):
    """{seed: outcome}: of all cases, or of those up to one that got stuck."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranks = [fork.Process(target=run_rank, daemon=True,
                              args=(rank, world, cases, folder))
                 for rank in range(world)]
        for rank in ranks:
            rank.start()
        end = time.monotonic() + deadline_s
        for rank in ranks:
            rank.join(max(0, end - time.monotonic()))
            rank.kill()
        path = folder / "results"
        lines = path.read_text().splitlines() if path.exists() else []
        results = dict(json.loads(line) for line in lines)
        if len(results) < len(cases):
            errors = [p.read_text() for p in folder.glob("error_*")]
            stuck = cases[len(results)]["seed"]
            results[stuck] = {"error": "\n".join(["FSDP2 got stuck", *errors])}
    return results


def train_world(world, cases, deadline_s):
    results = {}
    while len(results) < len(cases):
        results |= run_job(world, cases[len(results):], deadline_s)
    return results


def train_all(cases, deadline_s):
    """Blocks, world size after world size."""
    results = {}
    for world in (4, 3, 2, 1):
        results |= train_world(
            world, [c for c in cases if c["world"] == world
                    and c["without_fsdp2"] is None], deadline_s)
    return results
