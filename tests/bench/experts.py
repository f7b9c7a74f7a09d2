#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What experts cost: a small mixtral (4 layers of width 256, 8 experts of 512 of which a token passes 2, 8 × 128 tokens,
f32), and PyTorch's eager step of the same model.

    experts.py BUILD [ROUNDS [STEPS]]

1. On {ep: 2}, a thread each, beside a llama on {dp: 2} whose hidden layer is as wide as two experts: the same active
   FLOPs but for the router's. The share of the step in routing (who, which place, there and back, the router) and in
   all-to-alls, in processor time; in wall time on a machine that others use a rank also waits for one that does not run.
2. On one device of two threads, beside PyTorch eager: a loop over experts that takes the tokens of each (nothing is
   dropped), and all experts in one batched product over places (capacity 2, as weft's), with one and two threads.

Contestants take turns, ROUNDS (5) times for STEPS (4) steps behind two; medians of a step. TORCH_PYTHON is an
interpreter with torch (default BUILD/torch/bin/python); without one the second part is left out, and that is said.
"""
import collections
import os
import pathlib
import re
import statistics
import struct
import subprocess
import sys
import tempfile

import numpy

VOCAB, EXPERTS, WARM = 1024, 8, 2
JOB = """name: experts
model: {{{model}, layers: 4, embed: 256, heads: 8, kv_heads: 8, seq: 128, vocab: 1024, vocab_multiple: 1024}}
mesh: {{{mesh}}}
data: {{format: tokens, train: {{tokens: train.bin}}, batch: 8}}
optimizer: {{kind: adamw, betas: [0.9, 0.95], weight_decay: 0.1, clip_norm: 1.0}}
schedule: {{kind: constant, value: 3e-4}}
train: {{steps: 1000}}
resources: {{devices: {devices}, threads: {threads}}}
"""
MIXTRAL = f"program: mixtral, mlp: 512, experts: {EXPERTS}, choices: 2, capacity: 2.0"
DENSE = "program: llama, mlp: 1024"
ROUTING = {"topk", "topk_grad", "slots", "dispatch", "combine", "slot_dot", "softmax", "softmax_grad", "div"}


def kind_of(row):
    """What a row of the table is a part of: routing, all-to-alls, or the rest."""
    name, extents = row.split()[0], re.findall(r"(\d+)x(\d+)x(\d+)", row)
    if "all_to_all" in row or name == "copy":  # which packs what goes out
        return "all-to-alls"
    routes = name in ROUTING or any(str(EXPERTS) in e for e in extents)
    return "routing" if routes else "swaps" if name == "scale" else "rest"


class Weft:
    def __init__(self, build, where, name, **settings):
        self.name, self.program = name, build / "tests/bench/bench_step"
        self.job = where / f"{re.sub('[^a-z]', '', name)}.yaml"
        self.job.write_text(JOB.format(**settings))
        self.env = {**os.environ, "WEFT_BACKEND_DIR": str(build)}
        self.rows, self.spent = [], collections.defaultdict(list)

    def take_turn(self, steps):
        out = subprocess.run([self.program, "--warm", str(WARM), "--steps", str(steps), "--table", self.job], check=True,
                             env=self.env, stdout=subprocess.PIPE, text=True).stdout
        self.rows.append(tuple(map(float, re.search(r"median ([\d.]+) ms.*processor ([\d.]+) ms", out).groups())))
        spent = collections.Counter()
        for line in out.splitlines()[2:]:
            row = re.match(r"(.+?)\s+\d+\s+[\d.]+\s+[\d.]+%\s+([\d.]+)\s+[\d.]+%", line)
            if row:
                spent[kind_of(row[1])] += float(row[2])
        for kind in ("routing", "swaps", "all-to-alls"):
            self.spent[kind].append(spent[kind] / sum(spent.values()))


class Torch:
    def __init__(self, python, how, threads):
        self.name, self.args = f"PyTorch, {how}, {threads} threads", [python, "--how", how, "--threads", str(threads)]
        self.rows = []

    def take_turn(self, steps):
        script = pathlib.Path(__file__).parent / "experts_torch.py"
        out = subprocess.run([self.args[0], script, *self.args[1:], "--warm", str(WARM), "--steps", str(steps)],
                             check=True, env={**os.environ, "OMP_WAIT_POLICY": "passive"}, stdout=subprocess.PIPE,
                             text=True).stdout  # fmt: skip
        rows = [tuple(map(float, line.split())) for line in out.splitlines()]
        self.rows.append(tuple(statistics.median(r[k] for r in rows) for k in range(2)))


def report(contestants):
    """The first is what the others are told beside, turn by turn."""
    print(f"{'':32} {'wall ms':>8} {'processor ms':>13} {'× wall':>7} {'× processor':>12}   of the first, median of turns")
    for c in contestants:
        ratio = [statistics.median(a[k] / b[k] for a, b in zip(c.rows, contestants[0].rows)) for k in range(2)]
        print(f"{c.name:32} {statistics.median(r[0] for r in c.rows):8.1f} {statistics.median(r[1] for r in c.rows):13.1f} "
              f"{ratio[0]:7.2f} {ratio[1]:12.2f}")


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    rounds, steps = (int(sys.argv[k]) if len(sys.argv) > k else default for k, default in ((2, 5), (3, 4)))
    python = os.environ.get("TORCH_PYTHON", str(build / "torch/bin/python"))
    with tempfile.TemporaryDirectory(dir=build) as name:
        where = pathlib.Path(name)
        ids = numpy.random.default_rng(0).integers(0, VOCAB, 200000).astype("<u2")
        head = struct.pack("<3i", 20240520, 1, len(ids)).ljust(1024, b"\0")
        (where / "train.bin").write_bytes(head + ids.tobytes())
        two = {"devices": 2, "threads": 1}
        pair = [Weft(build, where, "dense, {dp: 2}", model=DENSE, mesh="dp: 2", **two),
                Weft(build, where, "experts, {ep: 2}", model=MIXTRAL, mesh="ep: 2", **two)]
        alone = [Weft(build, where, "weft, 2 threads", model=MIXTRAL, mesh="dp: 1", devices=1, threads=2)]
        if pathlib.Path(python).exists():
            alone += [Torch(python, how, n) for how in ("loop", "batched") for n in (1, 2)]
        for _ in range(rounds):
            for c in pair:
                c.take_turn(steps)
        report(pair)
        for kind, shares in pair[1].spent.items():
            print(f"  {kind:12} {100 * statistics.median(shares):5.1f} % of the experts' step")
        for _ in range(rounds):
            for c in alone:
                c.take_turn(steps)
        print()
        report(alone)
        if len(alone) == 1:
            print("LEFT OUT  PyTorch: TORCH_PYTHON says where it is")


main()
