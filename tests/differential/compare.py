"""How far two outcomes of one case may be from each other, and whether they are.

Distances are relative to the largest loss, norm or gradient of the step, or the
largest weight: a gradient that is zero in theory is rounding alone.
"""
import math

# What is left between two right answers is the order of sums over ranks and
# rows (rounding of 2^-24 in fp32), fed back through three steps, and kernels
# that take another path where memory is aligned otherwise.
EXACT = {"losses": 1e-5, "evaluations": 1e-5, "norms": 2e-5, "gradients": 2e-5,
         "inputs": 2e-5, "weights": 1e-5}
# bfloat16 rounds to 2^-9: of sums over ranks, whose order Gloo and Tessera
# choose otherwise, of the weights themselves where they are bfloat16, and of
# all that follows from them.
ROUNDED = {"losses": 0.02, "evaluations": 0.02, "norms": 0.06,
           "gradients": 0.06, "inputs": 0.06, "weights": 0.02}
# One process computes all in fp32 where a policy computes in bfloat16.
UNLIKE = {"losses": 0.06, "evaluations": 0.06, "norms": 0.2, "gradients": 0.25,
          "inputs": 0.25, "weights": 0.06}


def has_bf16(case):
    return case["dtype"] == "bf16" or any(
        unit[key] == "bf16" for unit in case["units"]
        for key in ("param_dtype", "reduce_dtype"))


def tolerances(case, other):
    if not has_bf16(case):
        return EXACT
    same_dtypes = other == "fsdp2" or case["dtype"] == "bf16"
    return ROUNDED if same_dtypes else UNLIKE


def largest(values):
    return max((abs(v) for v in values), default=0.0)


def distance(got, expected, scale):
    """The largest difference over `scale`; infinite for unlike shapes or NaN."""
    if (got is None) != (expected is None):
        return math.inf
    if got is None:
        return 0.0
    if len(got) != len(expected):
        return math.inf
    worst = 0.0
    for g, e in zip(got, expected):
        if g is None or e is None or not math.isfinite(g - e):
            return math.inf
        worst = max(worst, abs(g - e))
    return worst / max(scale, 1e-6)


def named_distances(got, expected):
    """(distance, name) for tables of tensors."""
    scale = largest(largest(v) for v in expected.values() if v)
    if set(got) != set(expected):
        yield math.inf, f"other names: {set(got) ^ set(expected)}"
    for name in got.keys() & expected.keys():
        yield distance(got[name], expected[name], scale), name


def distances(got, expected):
    """(key, distance, where)."""
    for key in "losses", "evaluations", "norms":
        for step, (g, e) in enumerate(zip(got[key], expected[key],
                                          strict=True)):
            yield key, distance([g], [e], abs(e or 0)), f"step {step}"
    for step, (g, e) in enumerate(zip(got["inputs"], expected["inputs"],
                                      strict=True)):
        yield "inputs", distance(g, e, largest(e or [])), f"step {step}"
    for step, (g, e) in enumerate(zip(got["gradients"], expected["gradients"],
                                      strict=True)):
        for far, name in named_distances(g, e):
            yield "gradients", far, f"step {step}, {name}"
    for far, name in named_distances(got["weights"], expected["weights"]):
        yield "weights", far, name


def findings(case, got, expected, other):
    """Sentences: what is further apart than it may be."""
    for who, outcome in (("Tessera", got), (other, expected)):
        if "error" in outcome:
            return [f"{who} failed: {outcome['error'].strip()}"]
    near = tolerances(case, other)
    found = {}
    for key, far, where in distances(got, expected):
        if far > near[key] and far > found.get(key, (0, ""))[0]:
            found[key] = far, where
    return [f"{key} are {far:.2g} apart from {other}'s ({where}); "
            f"allowed: {near[key]:.2g}" for key, (far, where) in found.items()]
