"""The cases that both sides train, and the files that carry them.

A case is a file CASE.json of the form of tests/fixtures/fsdp2 (model, wrap, init,
batches), start weights in CASE.safetensors, and under "job" how it is trained:

  optimizer       "adamw" or "sgd", with the options of make_fixtures.py
  param_dtype, reduce_dtype   "bf16", "fp32" or null
  reshard         reshard_after_forward: true, false or null (the default)
  frozen          prefixes of parameter names that do not require a gradient
  micro_batches   backwards in a step; all but the last without synchronization
"""
import dataclasses
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fixtures/fsdp2"))
import make_fixtures  # noqa: E402

WORLD, ROWS, STEPS = 2, 3, 8  # ROWS: of a rank in one micro-batch


@dataclasses.dataclass
class Case:
    name: str
    model: str
    optimizer: str = "adamw"
    wrap: list[str] | None = None
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    reshard: bool | None = None
    frozen: list[str] = dataclasses.field(default_factory=list)
    micro_batches: int = 1


BF16 = {"param_dtype": "bf16", "reduce_dtype": "fp32"}
CASES = [
    Case("llama", "llama"),
    Case("llama_sgd", "llama", "sgd"),
    Case("llama_bf16", "llama", **BF16),
    Case("llama_all_bf16", "llama", param_dtype="bf16"),
    Case("llama_resharded", "llama", "sgd", reshard=True, micro_batches=2),
    Case("llama_kept", "llama", "sgd", reshard=False),
    Case("llama_one_unit", "llama", "sgd", wrap=[""]),
    Case("accumulated", "llama", "sgd", micro_batches=3),
    Case("accumulated_bf16", "llama", "sgd", micro_batches=2, **BF16),
    Case("frozen", "llama", frozen=["embed_tokens", "layers.0", "norm"]),
    Case("frozen_inside", "llama", frozen=["layers.0.q_proj",
                                           "layers.1.input_layernorm"]),
    Case("uneven", "mlp"),
    Case("uneven_bf16", "mlp", "sgd", **BF16),
    Case("tied", "tied_lm"),
    Case("tied_bf16", "tied_lm", "sgd", **BF16),
]


def random_weights(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name and name.endswith("weight"):
            parameter.copy_(1 + 0.1 * noise)
        elif parameter.dim() == 1:
            parameter.copy_(0.1 * noise)
        elif "embed" in name:
            parameter.copy_(0.5 * noise)
        else:
            parameter.copy_(noise / parameter.shape[1] ** 0.5)


def random_batches(case, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = WORLD * ROWS * case.micro_batches
    if case.model == "mlp":
        return [{"x": torch.randn(rows, 7, generator=generator),
                 "y": torch.randn(rows, 1, generator=generator)}
                for _ in range(STEPS)]
    config = (make_fixtures.TIED if case.model == "tied_lm"
              else make_fixtures.LLAMA)
    return [{"tokens": torch.randint(0, config["vocab"],
                                     (rows, config["seq"] + 1),
                                     generator=generator)}
            for _ in range(STEPS)]


def make_model(case):
    return make_fixtures.MODELS[case.model]()


def write_cases(folder):
    for seed, case in enumerate(CASES, 1000):
        model = make_model(case)
        with torch.no_grad():
            random_weights(model, seed)
        init = f"{case.name}.safetensors"
        make_fixtures.write_safetensors(
            str(folder / init),
            {n: p.detach() for n, p in model.named_parameters()})
        text = json.dumps({
            "model": case.model,
            "wrap": model.wrap if case.wrap is None else case.wrap,
            "init": init,
            "batches": [{k: v.tolist() for k, v in batch.items()}
                        for batch in random_batches(case, seed)],
            "job": {**dataclasses.asdict(case),
                    "rows": ROWS,
                    "optimizer": {"name": case.optimizer,
                                  **make_fixtures.OPTS[case.optimizer]}},
        })
        (folder / f"{case.name}.json").write_text(text)
    (folder / "cases.json").write_text(json.dumps([c.name for c in CASES]))
