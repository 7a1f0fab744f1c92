"""How far two outcomes of one case may be from each other, and whether they are.

Distances are relative to the largest loss, norm or gradient of the step, or the
largest weight: a gradient that is zero in theory is rounding alone.
"""
import json
import math

# What is left between two right answers is the order of sums over ranks and
# rows (rounding of 2^-24 in fp32), fed back through three steps, and kernels
# that take another path where memory is aligned otherwise.
EXACT = {"losses": 1e-5, "evaluations": 1e-5, "norms": 2e-5, "gradients": 2e-5,
         "inputs": 2e-5, "weights": 1e-5}
# bfloat16 rounds to 2^-9: of sums over ranks, whose order Gloo and Tessera
# choose otherwise, of the weights themselves where they are bfloat16, and of
# all that follows from them.
ROUNDED = {"losses": 0.03, "evaluations": 0.05, "norms": 0.06,
           "gradients": 0.06, "inputs": 0.06, "weights": 0.02}
# One process computes all in fp32 where a policy computes in bfloat16. Wrong
# division would still show: it is off by the number of ranks.
UNLIKE = {"losses": 0.15, "evaluations": 0.15, "norms": 0.4, "gradients": 0.4,
          "inputs": 0.4, "weights": 0.06}
# Some models blow bfloat16's rounding up. How much is seen from how far FSDP2 is
# from one process: Tessera may be as far from FSDP2, and twice as far from one
# process.
BLOWN_UP = {"fsdp2": 1, "plain": 2}


# A model may blow rounding up further, by a LayerNorm of nearly equal numbers,
# say. So much is forgiven where the same case in fp64 agrees with one process
# nearly; outcomes hold gradients and weights as fp32. Losses show least of it,
# though a bfloat16 weight one step of rounding away can be a tenth of a loss that
# three steps of AdamW have made a sixth, and more of an evaluation after them. The
# gradient behind a LayerNorm of numbers that one factor scales is rounding alone.
BLOWN_UP_AT_MOST = {"fp32": {}, "bf16": {"losses": 0.1, "evaluations": 0.5}}
BLOWN_UP_OTHERS = {"fp32": 1e-2, "bf16": 4}
DOUBLE = {"losses": 1e-10, "evaluations": 1e-10, "norms": 1e-10,
          "gradients": 3e-7, "inputs": 3e-7, "weights": 3e-7}


GRADIENTS = "norms", "gradients", "inputs"


def has_bf16(case):
    return case["dtype"] == "bf16" or any(
        unit[key] == "bf16" for unit in case["units"]
        for key in ("param_dtype", "reduce_dtype"))


def may_be_rounding(case, outcomes):
    """Whether the same case in fp64 shall decide; a failure is none."""
    if any("error" in (one or {}) for one in outcomes.values()):
        return False
    dtypes = {case["dtype"]} | {
        unit[key] for unit in case["units"]
        for key in ("param_dtype", "reduce_dtype", "output_dtype")}
    apart = furthest(outcomes["tessera"], outcomes["plain"])
    dtype = "bf16" if "bf16" in dtypes else "fp32"
    rounds = dtypes - {"fp64", None}
    return rounds and rounds <= {"fp32", "bf16"} and bool(apart) and all(
        far < BLOWN_UP_AT_MOST[dtype].get(key, BLOWN_UP_OTHERS[dtype])
        for key, (far, _) in apart.items())


def in_double(case):
    text = json.dumps(case)
    for dtype in '"fp32"', '"bf16"':
        text = text.replace(dtype, '"fp64"')
    return json.loads(text)


def more_finely(case):
    """The same casts, one dtype up."""
    text = json.dumps(case).replace('"fp32"', '"fp64"')
    return json.loads(text.replace('"bf16"', '"fp32"'))


# How the same case must agree where rounding is smaller, and how nearly: one dtype up
# it is so by 2^-15 or less, and what it makes of a result by a two-thousandth.
FINER = [(in_double, DOUBLE, 0),
         (more_finely, {key: 10 * near for key, near in EXACT.items()}, 1 / 2000)]


def agrees(outcomes, near, share=0, before=None):
    """Whether all is as near as `near` says, or `share` of how far gradients
    were `before`."""
    apart = furthest(outcomes["tessera"], outcomes["plain"])
    were = share * max((before or {}).get(key, (0, ""))[0] for key in GRADIENTS)
    return bool(apart) and all(
        far <= max(near[key], were if key in GRADIENTS else 0)
        for key, (far, _) in apart.items())


def tolerances(case, other, outcomes):
    if not has_bf16(case):
        return EXACT
    same_dtypes = other == "fsdp2" or case["dtype"] == "bf16"
    near = ROUNDED if same_dtypes else UNLIKE
    seen = furthest(outcomes["fsdp2"], outcomes["plain"])
    return {key: max(near[key], BLOWN_UP[other] * seen.get(key, (0, ""))[0])
            for key in near}


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


def furthest(got, expected):
    """{key: (distance, where)}, the largest; empty when one has failed."""
    found = {}
    if got is None or "error" in got or "error" in expected:
        return found
    for key, far, where in distances(got, expected):
        if math.isfinite(far) and far >= found.get(key, (0, ""))[0]:
            found[key] = far, where
    return found


def findings(case, outcomes, other):
    """Sentences: what is further apart than it may be."""
    got, expected = outcomes["tessera"], outcomes[other]
    for who, outcome in (("Tessera", got), (other, expected)):
        if "error" in outcome:
            return [f"{who} failed: {outcome['error'].strip()}"]
    near = tolerances(case, other, outcomes)
    found = {}
    for key, far, where in distances(got, expected):
        if far > near[key] and far > found.get(key, (0, ""))[0]:
            found[key] = far, where
    return [f"{key} are {far:.2g} apart from {other}'s ({where}); "
            f"allowed: {near[key]:.2g}" for key, (far, where) in found.items()]
