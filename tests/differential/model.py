"""Models out of a case's JSON, as model.h describes them."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Leaf(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, x):
        return self.m(x)


class RmsNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-3) * self.weight


class Scale(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.shift = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * self.weight + self.shift


class Conv1d(Leaf):
    def forward(self, x):
        return self.m(x.transpose(1, 2)).transpose(1, 2)


class Conv2d(Leaf):
    def forward(self, x):
        return self.m(x.unsqueeze(1)).sum(1)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def split(self, x):
        return x.view(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)

    def forward(self, x):
        q, k, v = (self.split(p(x)) for p in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(2, 3)) / float(x.size(2))
        mixed = torch.matmul(torch.softmax(scores, -1), v)
        return self.o(mixed.transpose(1, 2).reshape(x.shape))


class SwiGlu(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Activation(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.function = {"gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh,
                         "relu": F.relu}[name]

    def forward(self, x):
        return self.function(x)


class Block(nn.Module):
    def __init__(self, node):
        super().__init__()
        self.style, self.recompute = node["style"], node["recompute"]
        self.list = nn.ModuleList(make_node(n) for n in node["nodes"])

    def forward(self, x):
        if self.recompute:
            return checkpoint(self.styled, x, use_reentrant=False)
        return self.styled(x)

    def sequence(self, x):
        for node in self.list:
            x = node(x)
        return x

    def styled(self, x):
        if self.style == "sequence":
            return self.sequence(x)
        if self.style == "residual":
            return x + self.sequence(x)
        if self.style == "twice":
            return self.sequence(self.sequence(x))
        total = self.list[0](x)
        for node in self.list[1:] if self.style != "spare" else ():
            other = node(x)
            if self.style == "sum":
                total = total + other
        return total


def conv1d(node):
    return nn.Conv1d(node["in"], node["out"], node["kernel"],
                     padding=node["kernel"] // 2, bias=node["bias"])


def conv2d(node):
    return nn.Conv2d(1, node["channels"], node["kernel"],
                     padding=node["kernel"] // 2, bias=node["bias"])


MAKERS = {
    "block": Block,
    "linear": lambda n: Leaf(nn.Linear(n["in"], n["out"], bias=n["bias"])),
    "embedding": lambda n: Leaf(nn.Embedding(n["vocab"], n["dim"])),
    "layer_norm": lambda n: Leaf(nn.LayerNorm(n["dim"])),
    "rms_norm": lambda n: RmsNorm(n["dim"]),
    "scale": lambda n: Scale(n["dim"]),
    "conv1d": lambda n: Conv1d(conv1d(n)),
    "conv2d": lambda n: Conv2d(conv2d(n)),
    "attention": lambda n: Attention(n["dim"], n["heads"]),
    "swiglu": lambda n: SwiGlu(n["dim"], n["hidden"]),
    "activation": lambda n: Activation(n["name"]),
}


def make_node(node):
    return MAKERS[node["type"]](node)


def make_model(case):
    model = make_node(case["model"])
    for first, second in case["ties"]:
        owner, _, key = second.rpartition(".")
        setattr(model.get_submodule(owner), key, model.get_parameter(first))
    return model
