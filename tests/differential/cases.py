"""Random cases: a small model, how it is sharded, and how it is trained.

    make_case(17)   the same on every machine, JSON

What a case says (model.h describes the models):

  world           ranks; mesh: [shards], or [replicas, shards]
  dtype           of the parameters: "fp32", "fp64", "bf16"
  input, target   {"dim": d} floats or {"vocab": v} tokens, [rows, seq(, dim)]
  units           calls of fully_shard in their order, the root last
  placements      {parameter: the dim along which it is cut}
  ties            [first, second]: two names of one parameter
  frozen, ignored prefixes of parameter names
  freezing        [step, prefix, whether it requires gradients from then on]
  micro_batches   backwards in a step; sync: "each" reduces, or the "last", or
                  each sums over shards and the last over replicas too
  keep_after_backward   full parameters stay until the last backward of a step
  forwards        before each backward
  optimizer, max_norm, norm_type, set_to_none
  evaluate        a forward without gradients after each step
  input_gradients of the float inputs are compared too
  offload         shards in host memory, not pinned
  meta, prefetch, poison   Tessera's alone: no number may depend on them
  without_fsdp2   why FSDP2 cannot be asked, or null

FSDP2 2.11 is not asked for what it is known to do wrong:

  - parameters tied across two calls lose their tie;
  - recompute around units of another compute dtype than their surroundings';
  - a unit wholly frozen at its first use and unfrozen later, under a policy;
  - a unit that has never run, under a policy with a reduce_dtype of its own, makes
    backward without synchronisation raise;
  - a matrix that is frozen between steps inside a recomputed block: the next forward
    still takes it for trained, the second run does not, multiplies otherwise, and
    raises;
  - it clips no ignored parameter together with shards: one that is frozen at first
    and unfrozen later raises;
  - the largest gradient as norm, where a rank owns nothing of a parameter: fsdp2.py
    takes that norm by hand.

Nor is Tessera asked for a parameter of a unit with an output_dtype that is tied
to one outside: reading it there is refused.

What FSDP2 refuses is not generated: clipping sharded and plain gradients together,
a bare ModuleList as a unit, ignored parameters inside a unit of another dtype,
another dim than 0 that ranks do not divide, or with resharding to some ranks.
"""
import random

PARAMETERS = {
    "linear": lambda n: [("m.weight", (n["out"], n["in"]))]
    + [("m.bias", (n["out"],))] * n["bias"],
    "embedding": lambda n: [("m.weight", (n["vocab"], n["dim"]))],
    "layer_norm": lambda n: [("m.weight", (n["dim"],)),
                             ("m.bias", (n["dim"],))],
    "rms_norm": lambda n: [("weight", (n["dim"],))],
    "scale": lambda n: [("weight", (n["dim"],)), ("shift", (n["dim"],))],
    "conv1d": lambda n: [("m.weight", (n["out"], n["in"], n["kernel"]))]
    + [("m.bias", (n["out"],))] * n["bias"],
    "conv2d": lambda n: [
        ("m.weight", (n["channels"], 1, n["kernel"], n["kernel"]))]
    + [("m.bias", (n["channels"],))] * n["bias"],
    "attention": lambda n: [(f"{p}.weight", (n["dim"], n["dim"]))
                            for p in "qkvo"],
    "swiglu": lambda n: [("gate.weight", (n["hidden"], n["dim"])),
                         ("up.weight", (n["hidden"], n["dim"])),
                         ("down.weight", (n["dim"], n["hidden"]))],
    "activation": lambda n: [],
}
STYLES = ["sequence", "residual", "sum", "side", "spare", "twice"]


def is_below(name, prefixes):
    return any(name == p or name.startswith(p + ".") for p in prefixes)


def walk(node, path=""):
    """(path, node) of all nodes, children before parents."""
    for i, child in enumerate(node.get("nodes", [])):
        yield from walk(child, f"{path}.list.{i}" if path else f"list.{i}")
    yield path, node


def parameters(model):
    """{name: sizes} of all leaves, ties not regarded."""
    return {f"{path}.{key}": sizes for path, node in walk(model)
            if node["type"] != "block"
            for key, sizes in PARAMETERS[node["type"]](node)}


class Models:
    """Draws models."""

    def __init__(self, rng):
        self.rng = rng
        self.dim = rng.choice([3, 4, 5, 6, 8])

    def chance(self, probability):
        return self.rng.random() < probability

    def leaf(self):
        rng, dim = self.rng, self.dim
        kind = rng.choice(["linear", "linear", "layer_norm", "rms_norm",
                           "scale", "conv1d", "conv2d", "attention", "swiglu",
                           "activation"])
        bias = self.chance(0.5)
        return {"type": kind, **{
            "linear": lambda: {"in": dim, "out": dim, "bias": bias},
            "layer_norm": lambda: {"dim": dim},
            "rms_norm": lambda: {"dim": dim},
            "scale": lambda: {"dim": dim},
            "conv1d": lambda: {"in": dim, "out": dim, "bias": bias,
                               "kernel": rng.choice([1, 3])},
            "conv2d": lambda: {"channels": rng.choice([1, 2, 3]),
                               "kernel": 3, "bias": bias},
            "attention": lambda: {"dim": dim, "heads": rng.choice(
                [h for h in (1, 2, 3) if dim % h == 0])},
            "swiglu": lambda: {"dim": dim, "hidden": rng.choice([2, 5, 7])},
            "activation": lambda: {"name": rng.choice(
                ["gelu", "silu", "tanh", "relu"])},
        }[kind]()}

    def block(self, style, nodes):
        return {"type": "block", "style": style, "nodes": nodes,
                "recompute": self.chance(0.25)}

    def mlp(self):
        hidden = self.rng.choice([1, 3, 7, 9])
        first = {"type": "linear", "in": self.dim, "out": hidden,
                 "bias": self.chance(0.5)}
        second = {"type": "linear", "in": hidden, "out": self.dim,
                  "bias": self.chance(0.5)}
        activation = {"type": "activation", "name": "gelu"}
        return self.block(self.rng.choice(["sequence", "residual"]),
                          [first, activation, second])

    def node(self, depth):
        kind = self.rng.random()
        if depth == 0 or kind < 0.35:
            return self.leaf()
        if kind < 0.6:
            return self.mlp()
        nodes = [self.node(depth - 1) for _ in range(self.rng.randint(1, 3))]
        return self.block(self.rng.choice(STYLES), nodes)

    def model(self, source, target):
        nodes = []
        if "vocab" in source:
            nodes.append({"type": "embedding", "vocab": source["vocab"],
                          "dim": self.dim})
        elif source["dim"] != self.dim:
            nodes.append({"type": "linear", "in": source["dim"],
                          "out": self.dim, "bias": self.chance(0.5)})
        nodes += [self.node(2) for _ in range(self.rng.randint(1, 4))]
        if self.chance(0.3):
            nodes.append({"type": "layer_norm", "dim": self.dim})
        nodes.append({"type": "linear", "in": self.dim,
                      "out": target.get("vocab") or target["dim"],
                      "bias": self.chance(0.3)})
        return {**self.block("sequence", nodes), "recompute": False}


def draw_data(rng):
    target = (rng.choice([{"vocab": rng.choice([5, 11, 13])},
                          {"dim": rng.choice([1, 2, 4])}]))
    if "vocab" in target and rng.random() < 0.7:
        return dict(target), target
    return rng.choice([{"vocab": 7}, {"dim": rng.choice([3, 4, 7])}]), target


def draw_units(rng, model):
    """[[path, ...], ...], children before parents; [""] last."""
    units, taken = [], set()
    for path, node in walk(model):
        if not path:
            continue
        chance = 0.35 if node["type"] == "block" else 0.12
        if node.get("style") in ("sequence", "residual", "twice"):
            below = [f"{path}.list.{i}" for i in range(len(node["nodes"]))]
            free = [i for i in range(len(below) - 1)
                    if not {below[i], below[i + 1]} & taken]
            if free and rng.random() < 0.15:
                i = rng.choice(free)
                units.append([below[i], below[i + 1]])
                taken |= set(units[-1])
        if rng.random() < chance:
            units.append([path])
            taken.add(path)
    ends = ["list.0", f"list.{len(model['nodes']) - 1}"]
    if not set(ends) & taken and rng.random() < 0.2:
        units.append(ends)
    return units + [[""]]


def owner_of(name, units):
    """The index of the unit that takes the parameter `name`."""
    return next(i for i, paths in enumerate(units)
                if "" in paths or is_below(name, paths))


def draw_ties(rng, model, units, policy):
    """Pairs of equal matrices; FSDP2 needs both in one unit, and Tessera where a
    unit has an output_dtype."""
    tieable = {f"{path}.m.weight" for path, node in walk(model)
               if node["type"] in ("linear", "embedding")}
    names = [n for n in parameters(model) if n in tieable]
    sizes = parameters(model)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1:]
             if sizes[a] == sizes[b]]
    if not pairs or rng.random() < 0.6:
        return []
    inside = [p for p in pairs
              if owner_of(p[0], units) == owner_of(p[1], units)]
    allowed = inside or ([] if policy == "own" else pairs)
    return [list(rng.choice(allowed))] if allowed else []


POLICY = {"param_dtype": None, "reduce_dtype": None, "output_dtype": None,
          "cast_inputs": True}


def uniform_policies(rng, dtype, units):
    """One policy for all units; inputs are cast at the root at the latest."""
    param = {"fp32": ["bf16", "bf16", None], "bf16": [None, "fp32"],
             "fp64": ["fp32", None]}[dtype]
    policy = {"param_dtype": rng.choice(param),
              "reduce_dtype": rng.choice([None, "fp32", "bf16"]),
              "output_dtype": None}
    policies = [{**policy, "cast_inputs": rng.random() < 0.8} for _ in units]
    policies[-1]["cast_inputs"] = True
    policies[-1]["output_dtype"] = rng.choice([None, "fp32"])
    return policies


def enclosing(units, i):
    """The index of the unit around unit i."""
    return next(j for j in range(i + 1, len(units))
                if "" in units[j]
                or all(is_below(p, units[j]) for p in units[i]))


def own_policies(rng, units):
    """Each unit its own dtypes; outputs are what the unit around it computes
    with. A list casts only its first inputs and last outputs, so it has the
    dtype of its surroundings. Only a named param_dtype casts inputs."""
    policies = [dict(POLICY) for _ in units]
    for i in reversed(range(len(units))):
        outer = (policies[enclosing(units, i)]["param_dtype"]
                 if i + 1 < len(units) else "fp32")
        own = outer if len(units[i]) > 1 else rng.choice(["fp32", "bf16"])
        policies[i]["param_dtype"] = own
        policies[i]["reduce_dtype"] = rng.choice([None, "fp32", "bf16"])
        if own != outer:
            policies[i]["output_dtype"] = outer
    return policies


def draw_policies(rng, dtype, units):
    kind = rng.choice(["none", "none", "uniform", "uniform", "own"])
    if kind == "uniform":
        return kind, uniform_policies(rng, dtype, units)
    if kind == "own" and dtype == "fp32":
        return kind, own_policies(rng, units)
    return "none", [dict(POLICY) for _ in units]


def stop_recompute_around(model, units):
    for path, node in walk(model):
        inside = any(is_below(p, [path]) and p != path
                     for paths in units for p in paths)
        if inside and node["type"] == "block":
            node["recompute"] = False


def draw_optimizer(rng):
    decay = rng.choice([0.0, 0.1])
    if rng.random() < 0.5:
        momentum = rng.choice([0.0, 0.9])
        return {"name": "sgd", "lr": 0.05, "momentum": momentum,
                "nesterov": momentum > 0 and rng.random() < 0.5,
                "weight_decay": decay}
    # A large eps keeps rounding from deciding the sign of a step.
    return {"name": rng.choice(["adam", "adamw", "fused_adamw"]), "lr": 0.01,
            "eps": 1e-2, "weight_decay": decay}


def draw_prefixes(rng, model, kept, chance):
    """Some nodes, or single parameters, none of them in `kept`."""
    if rng.random() > chance:
        return []
    paths = [path for path, _ in walk(model) if path] + list(parameters(model))
    paths = [p for p in paths if not any(is_below(k, [p]) for k in kept)
             and not is_below(p, kept)]
    return rng.sample(paths, min(len(paths), rng.randint(1, 3)))


def draw_freezing(rng, model, kept, frozen):
    changes = []
    for prefix in draw_prefixes(rng, model, kept, 0.15):
        changes.append([rng.randint(1, 2), prefix, False])
    for prefix in frozen:
        if rng.random() < 0.2:
            changes.append([rng.randint(1, 2), prefix, True])
    return changes


def wholly_frozen(case, units):
    """Units without a trainable parameter at first."""
    trains = {owner_of(n, units) for n in parameters(case["model"])
              if not is_below(n, case["frozen"])}
    return set(range(len(units))) - trains


def never_run(model, units):
    """The units none of whose parameters are used in any forward."""
    idle = [f"{path}.list.{i}".removeprefix(".")
            for path, node in walk(model) if node.get("style") == "spare"
            for i in range(1, len(node["nodes"]))]
    owners = {}
    for name in parameters(model):
        owners.setdefault(owner_of(name, units), []).append(name)
    return {owner for owner, names in owners.items()
            if all(is_below(name, idle) for name in names)}


def reason_against_fsdp2(case, units, policy):
    for first, second in case["ties"]:
        if owner_of(first, units) != owner_of(second, units):
            return "tied across units"
    for _, prefix, on in case["freezing"]:
        owners = {owner_of(n, units) for n in parameters(case["model"])
                  if is_below(n, [prefix])}
        if on and policy != "none" and owners & wholly_frozen(case, units):
            return "a frozen unit unfrozen under a policy"
    if case["sync"] == "last" and case["micro_batches"] > 1 and any(
            case["units"][i]["reduce_dtype"] not in (
                None, case["units"][i]["param_dtype"])
            for i in never_run(case["model"], units)):
        return "a unit that never runs, without sync under a policy"
    if case["max_norm"] is not None and any(
            on and is_below(name, [prefix]) and is_below(name, case["ignored"])
            for _, prefix, on in case["freezing"]
            for name in parameters(case["model"])):
        return "clips gradients of ignored parameters with those of shards"
    recomputed = [path for path, node in walk(case["model"])
                  if node.get("recompute")]
    products = [path for path, node in walk(case["model"])
                if node["type"] in ("linear", "attention", "swiglu")
                and not node.get("bias") and is_below(path, recomputed)]
    if any(not on and is_below(name, [prefix]) and is_below(name, products)
           for _, prefix, on in case["freezing"]
           for name in parameters(case["model"])):
        return "a matrix frozen between steps inside a recomputed block"
    sizes = parameters(case["model"])
    if any(dim > 0 and sizes[name][dim] % case["mesh"][-1]
           for name, dim in case["placements"].items()):
        return "cut along a dim that ranks do not divide"
    return None


def draw_mesh(rng, world):
    """HSDP, one time in three."""
    if rng.random() > 0.35:
        return [world]
    shards = rng.choice([s for s in (1, 2, 3, 4) if world % s == 0])
    return [world // shards, shards]


def draw_placements(rng, model, ties, units):
    """Dims for some matrices."""
    if rng.random() > 0.25 or any(
            isinstance(unit["reshard"], int) and unit["reshard"] > 1
            for unit in units):
        return {}
    tied = {second for _, second in ties}
    return {name: rng.randrange(len(sizes))
            for name, sizes in parameters(model).items()
            if len(sizes) > 1 and name not in tied and rng.random() < 0.7}


def parts_of(shards):
    """Numbers of ranks that keep full parameters together after forward."""
    return [n for n in range(2, shards) if shards % n == 0]


def make_case(seed):
    rng = random.Random(seed)
    source, target = draw_data(rng)
    model = Models(rng).model(source, target)
    units = draw_units(rng, model)
    dtype = rng.choices(["fp32", "bf16", "fp64"], [70, 18, 12])[0]
    policy, policies = draw_policies(rng, dtype, units)
    if policy == "own":
        stop_recompute_around(model, units)
    ties = draw_ties(rng, model, units, policy)
    world = rng.choices([1, 2, 3, 4], [15, 30, 25, 30])[0]
    mesh = draw_mesh(rng, world)
    head = f"list.{len(model['nodes']) - 1}"
    kept = [head] + [name for pair in ties for name in pair]
    frozen = draw_prefixes(rng, model, kept, 0.3)
    ignored = draw_prefixes(rng, model, kept, 0.15 * (policy == "none"))
    plain_trains = any(not is_below(n, frozen) for n in parameters(model)
                       if is_below(n, ignored))
    case = {
        "seed": seed,
        "world": world, "mesh": mesh,
        "steps": 3, "rows": rng.choice([1, 2, 3]),
        "seq": rng.choice([1, 2, 4]),
        "dtype": dtype, "input": source, "target": target, "model": model,
        "units": [{"modules": paths, "reshard": rng.choice(
            [None, None, True, False, *parts_of(mesh[-1])]), **one}
            for paths, one in zip(units, policies, strict=True)],
        "ties": ties, "frozen": frozen, "ignored": ignored,
        "freezing": draw_freezing(rng, model, kept + ignored, frozen),
        "micro_batches": rng.choice([1, 1, 2, 3]),
        "sync": rng.choice(["last", "last", "each", "last_all_reduce"]),
        "keep_after_backward": rng.random() < 0.3,
        "forwards": rng.choice([1, 1, 1, 2]),
        "optimizer": draw_optimizer(rng),
        "max_norm": None if plain_trains else rng.choice([None, 0.1, 1.0]),
        "norm_type": rng.choice([2, 2, 2, 1, 3, "inf"]),
        "set_to_none": rng.random() < 0.7,
        "evaluate": rng.random() < 0.3,
        "input_gradients": "dim" in source and rng.random() < 0.4,
        "offload": rng.random() < 0.1,
        "meta": rng.random() < 0.3,
        "prefetch": rng.choice([0, 0, 1, 2]),
        "poison": rng.random() < 0.3,
    }
    case["placements"] = draw_placements(rng, model, ties, case["units"])
    case["without_fsdp2"] = reason_against_fsdp2(case, units, policy)
    return case
