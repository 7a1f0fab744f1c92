"""Writes files for the test of torch files, and compares what came of them.

    python referee.py write FOLDER
    python referee.py check FOLDER FIXTURES

`check` expects in FOLDER, for each NAME.pt that `write` made, NAME (a checkpoint
made of it) and NAME-again.pt (made of that), and for each fixture NAME-fixture.pt.
"""

import collections
import pathlib
import sys
import tempfile
import warnings

import torch
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

FIXTURES = ["plain_all_dtypes", "optimizer_adamw_w2", "many_keys", "fsdp2_w2_uneven"]
OLD = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64,
    torch.complex128,
]
NEW = [
    torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e5m2fnuz,
    torch.float8_e4m3fnuz, torch.float8_e8m0fnu, torch.uint16, torch.uint32,
    torch.uint64, torch.complex32,
]


def filled(dtype, shape):
    count = torch.Size(shape).numel()
    width = torch.empty((), dtype=dtype).element_size()
    numbers = torch.arange(count * width, dtype=torch.int64) % 2
    if dtype != torch.bool:
        numbers = torch.arange(count * width, dtype=torch.int64) * 7 % 251
    data = numbers.to(torch.uint8)
    return torch.frombuffer(bytearray(data.tolist()), dtype=dtype).reshape(shape) \
        if count else torch.empty(shape, dtype=dtype)


def dtypes():
    shapes = [(), (1,), (3,), (2, 3), (0, 4), (2, 1, 3, 2)]
    return {
        str(dtype): {str(i): filled(dtype, shape) for i, shape in enumerate(shapes)}
        for dtype in OLD + NEW
    }


def nested():
    base = torch.arange(24, dtype=torch.float32)
    shared = torch.ones(3)
    return {
        "epoch": 3, "big": 1 << 80, "rate": 0.1, "flag": True, "nothing": None,
        "text": "Größe 😀", "bytes": b"\x00\xff", "pair": (1, (2.5, "x")),
        "numbers": [1, 2, 3], "empty list": [], "a.b": {"c.d": torch.tensor(5)},
        "list": [torch.zeros(2), {"q": 5, "t": torch.ones(1)}, 7],
        "transposed": base.reshape(4, 6).t(), "slice": base[3:20:2],
        "expanded": torch.ones(1).expand(4), "last": base.reshape(2, 3, 2, 2).to(
            memory_format=torch.channels_last),
        "shared": [shared, shared], "conj": torch.tensor([1 + 2j, 3 - 4j]).conj(),
        "neg": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        "parameter": nn.Parameter(torch.ones(2, 2)),
        "ordered": collections.OrderedDict(z=torch.zeros(1), a=1),
    }


def module():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).state_dict()


def optimizer():
    model = nn.Linear(3, 2)
    adam = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    adam.step()
    state = adam.state_dict()
    state["state"] = {str(k): v for k, v in state["state"].items()}
    return {"optim": state, "model": model.state_dict()}


def write(folder):
    for make in (dtypes, nested, module, optimizer):
        torch.save(make(), folder / f"{make.__name__}.pt")
    torch.serialization.set_crc32_options(False)
    torch.save(module(), folder / "unchecked.pt")
    torch.serialization.set_crc32_options(True)
    torch.save({"a": torch.ones(1)}, folder / "old.bad",
               _use_new_zipfile_serialization=False)
    torch.save({"pair": (1, torch.ones(1))}, folder / "pair.bad")
    torch.save({"device": torch.device("cpu")}, folder / "device.bad")
    torch.save(torch.ones(1), folder / "nameless.bad")
    torch.jit.save(torch.jit.script(nn.Linear(1, 1)), folder / "script.bad")


def raw(tensor):
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(
        torch.uint8).tolist()


def same(a, b, path):
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor), path
        assert (a.dtype, a.shape) == (b.dtype, b.shape), (path, a.dtype, b.dtype)
        assert raw(a.detach()) == raw(b.detach()), path
    elif isinstance(a, dict):
        assert list(map(str, a)) == list(map(str, b)) or set(a) == set(b), (path, a, b)
        for key, value in a.items():
            same(value, b[key], f"{path}.{key}")
    elif isinstance(a, list):
        assert isinstance(b, list) and len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{path}.{i}")
    else:
        assert type(a) is type(b) and a == b, (path, a, b)


def from_checkpoint(folder):
    with tempfile.NamedTemporaryFile() as file:
        dcp_to_torch_save(folder, file.name)
        # Python writes empty bytes in a way that weights_only refuses.
        return torch.load(file.name, weights_only=False)


def check(folder, fixtures):
    for path in sorted(folder.glob("*.pt")):
        name = path.stem
        if name.endswith("-again") or name.endswith("-fixture"):
            continue
        expected = torch.load(path, weights_only=True)
        same(expected, torch.load(folder / f"{name}-again.pt", weights_only=True), name)
        same(expected, from_checkpoint(folder / name), name + " as checkpoint")
    for name in FIXTURES:
        got = torch.load(folder / f"{name}-fixture.pt", weights_only=True)
        same(from_checkpoint(fixtures / name), got, name)


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder = pathlib.Path(sys.argv[2])
    if sys.argv[1] == "write":
        write(folder)
    else:
        check(folder, pathlib.Path(sys.argv[3]))


if __name__ == "__main__":
    main()
