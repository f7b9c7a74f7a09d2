# SPDX-License-Identifier: Apache-2.0
"""What each stage of lease.sh does, in which order, and how long each turn is expected to take. Pure: no clock.

A stage is a list of turns, what shows the most first, so that it is useful wherever it is cut. What is expected of a
first turn is COSTS', a guess until a GPU was seen; of a later one it is what the first took, less what that spent
before its first counted step, with the guess of a warm start in its place (expected_s).
"""
from dataclasses import dataclass

BUDGETS = {"a": 560, "b": 480, "nccl": 170, "tests": 560, "sanitize": 560, "3": 560, "4a": 560, "4b": 560, "4c": 560, "sweep": 200, "expected": 60}  # seconds of a stage; its command ends in ten more
AGAIN = "second turns"  # of a size: of those that had one, the fastest peer first (second_turns)
SWIFT = "weft, any order"  # who takes turns with the peers
IN_ORDER = "bf16, in order"  # of ops: as in a deterministic job


@dataclass(frozen=True)
class Sweep:
    """Ops that are timed under a switch's values, with SCRATCH MiB in the plan."""
    only: str  # bench_ops' --only
    fixed: str  # precision.deterministic
    switch: str
    offered: tuple  # MiB
    less: int  # with --tiny that part of each


SCRATCH = 2048  # as much as the gradient of all heads of 124M takes if its sums are in order
ATTENTION_GRADS = "attention_grad,attention_packed_grad"  # of heads apart, and of heads in the rows of one product
SWEPT = {
    "attention_grad": Sweep(ATTENTION_GRADS, "true", "WEFT_CUDA_ATTENTION_SCRATCH", (256, 2048, 512, 1024), 64),
    "products": Sweep("linear,matmul", "false", "WEFT_CUDA_SCRATCH", (32, 128, 64, 8), 8),
}


@dataclass(frozen=True)
class Cost:
    """Seconds: until the first counted step, with nothing on disk and with what compilers and choices left there; and
    all others. What trains nothing has but the others."""
    cold: float
    warm: float
    rest: float


@dataclass(frozen=True)
class Took:
    """Seconds of a turn: all of it, and until its first counted step."""
    all: float
    start: float = 0


# Part, what: weft and its ops; contestants whose name continues behind a comma cost what those without it do. Libraries:
# cuBLASLt's 542 MB, cuDNN's engines, 275, and NCCL's 218, from a disk of 80 MB/s. Of ops: some fifty are timed for a quarter of a
# second each, their products' choices are on disk from the training before them. Tests: what it takes to begin with them.
COSTS = {
    ("device", "libraries"): Cost(0, 0, 13), ("list-124m", "bf16"): Cost(0, 0, 5), ("ops-124m", "bf16"): Cost(0, 0, 35),
    ("124m", "weft"): Cost(13, 4, 8), ("124m", SWIFT): Cost(13, 4, 8), ("124m", "weft, early"): Cost(4, 4, 8), ("124m", "weft, again"): Cost(4, 4, 8),
    ("124m", "PyTorch"): Cost(75, 25, 15), ("124m", "PyTorch, autotuned"): Cost(150, 35, 15),
    ("124m", "llm.c"): Cost(6, 4, 12), ("124m", "JAX"): Cost(60, 20, 12),
    ("1558m", SWIFT): Cost(30, 15, 16), ("1558m", "PyTorch"): Cost(150, 50, 25), ("1558m", "llm.c"): Cost(10, 6, 18),
    ("1558m", "JAX"): Cost(150, 50, 25), ("ops-1558m", "bf16"): Cost(0, 0, 60),
    ("llama-1b", SWIFT): Cost(30, 15, 16), ("llama-1b", "PyTorch"): Cost(90, 35, 22),
    ("llama-1b", "PyTorch, autotuned"): Cost(150, 40, 22), ("ops-llama-1b", "bf16"): Cost(0, 0, 70),
    ("sweep-124m", "attention_grad"): Cost(0, 0, 12), ("sweep-124m", "products"): Cost(0, 0, 20),
    **{("tests", what): Cost(0, 0, 10) for what in ("ops", "memcheck", "racecheck", "trainings", "killed", "faults")},
    ("tests", "nccl"): Cost(0, 0, 40),
}  # fmt: skip
LIBRARIES = ("device", "libraries")
STAGES = {
    "a": [LIBRARIES, ("124m", SWIFT), ("124m", "weft"), ("ops-124m", "bf16"), ("ops-124m", IN_ORDER), ("tests", "ops"), ("tests", "trainings"), ("tests", "nccl")],
    "b": [LIBRARIES, ("124m", "weft"), ("124m", "weft, again"), ("124m", "weft, ops apart"), ("124m", SWIFT), ("124m", "PyTorch"),
          ("124m", SWIFT), ("124m", "llm.c"), ("124m", SWIFT), ("tests", "memcheck, fused"), ("124m", AGAIN)],
    "nccl": [LIBRARIES, ("tests", "nccl")],
    "tests": [("tests", "ops"), ("124m", "weft"), ("124m", "weft, again"), ("124m", "weft, early, in order"), ("124m", "weft, ops apart"),
              ("124m", "weft, heads apart"), ("124m", "weft, own attention"), ("124m", SWIFT), ("tests", "trainings"),
              ("tests", "killed"), ("tests", "faults"), ("tests", "nccl")],
    "sanitize": [("tests", "memcheck"), ("tests", "racecheck")],
    "3": [("124m", SWIFT), ("124m", "PyTorch"), ("124m", "weft, early"), ("124m", "llm.c"), ("124m", SWIFT),
          ("124m", "JAX"), ("124m", "PyTorch, autotuned"), ("124m", AGAIN)],
    "4a": [("1558m", SWIFT), ("1558m", "PyTorch"), ("1558m", SWIFT), ("1558m", "llm.c"), ("ops-1558m", "bf16"), ("1558m", AGAIN)],
    "4b": [("llama-1b", SWIFT), ("llama-1b", "PyTorch"), ("llama-1b", SWIFT), ("ops-llama-1b", "bf16"),
           ("llama-1b", "PyTorch, autotuned"), ("llama-1b", AGAIN)],
    "4c": [("1558m", SWIFT), ("1558m", "JAX"), ("1558m", AGAIN)],
    "expected": [("list-124m", "bf16")],
    "sweep": [("124m", SWIFT), ("124m", "weft, heads apart, any order")] + [("sweep-124m", f"{kind}, {mib}") for kind in SWEPT for mib in SWEPT[kind].offered],
}  # fmt: skip


def cost_of(part, what):
    return COSTS.get((part, what)) or COSTS[part, what.split(",")[0]]


def expected_s(cost, before):
    """Of a turn; `before`: what the same took the time before, None if there was none."""
    if before is None:
        return cost.cold + cost.rest
    return min(before.all, before.all - before.start + cost.warm)


def second_turns(turns, before):
    """Who is to have a second turn, in order, each between two of weft's; `before`: who had the last one. `turns`: of each
    contestant its turns' median milliseconds. A goal is a ratio to the fastest peer: it comes first."""
    once = {who: ms[0] for who, ms in turns.items() if len(ms) == 1 and not who.startswith("weft")}
    order = [who for peer in sorted(once, key=once.get) for who in (SWIFT, peer)] + [SWIFT]
    return [] if not once else order[1:] if before == SWIFT else order
