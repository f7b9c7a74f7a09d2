#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a step costs beside its arithmetic, and how a usual network's step is spent.

    steps.py BUILD [ROUNDS]

A run of many steps less a run of few, divided by the difference: starting, joining and the last
checkpoint cancel out. wall: what the loop takes a step; processor: what all threads of all ranks
spend on it; compute: the mean step_ms of the metrics (the program, from its batch to its metrics)
over the same steps; beside: wall - compute. The tiny network has next to no arithmetic, so its rows are the
loop's own cost. "no rows" leaves out metrics.jsonl. Medians of ROUNDS (7).
"""
import json
import os
import pathlib
import random
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

JOB = """name: steps
model: {{program: mlp, inputs: 784, hidden: {hidden}, classes: 10, activation: relu}}
mesh: {{dp: {ranks}}}
data: {{format: idx, train: {{images: images, labels: labels}}, batch: {batch}}}
optimizer: {{kind: adamw, weight_decay: 0.01, clip_norm: 1.0}}
schedule: {{kind: constant, value: 1e-3}}
train: {{steps: {steps}, seed: 1}}
checkpoint: {{every: 1000000, dir: ckpt}}
metrics: {{jsonl: {rows}}}
resources: {{devices: {ranks}, kind: cpu, threads: {threads}, network: {network}}}
"""
# what, hidden, batch, ranks, threads, rows, steps of the short and the long run
CASES = [
    ("tiny", [8], 2, 1, 1, "true", 1000, 11000),
    ("tiny, no rows", [8], 2, 1, 1, "false", 1000, 11000),
    ("tiny", [8], 2, 2, 1, "true", 1000, 11000),
    ("784-512-256-10", [512, 256], 128, 1, 2, "true", 20, 220),
    ("784-512-256-10", [512, 256], 128, 2, 1, "true", 20, 220),
]


def write_data(where):
    count, draw = 10000, random.Random(1)
    (where / "images").write_bytes(struct.pack(">IIII", 0x803, count, 28, 28) + draw.randbytes(count * 784))
    (where / "labels").write_bytes(struct.pack(">II", 0x801, count) + bytes(b % 10 for b in draw.randbytes(count)))


def processor_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(build, where, values, flags=()):
    """Wall and processor seconds of a whole run; flags: of lead-ranks."""
    (where / "job.yaml").write_text(JOB.format(**values))
    for left in ("run", "ckpt"):
        shutil.rmtree(where / left, ignore_errors=True)
    wall, processor = time.monotonic(), processor_s()
    subprocess.run([build / "tests/lead-ranks", where / "run", where / "job.yaml", *flags],
                   env={**os.environ, "WEFT_BACKEND_DIR": str(build)}, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - wall, processor_s() - processor


def compute_us(where, few):
    path = where / "run" / "metrics.jsonl"
    if not path.exists():
        return None
    return 1000 * statistics.mean(json.loads(row)["step_ms"] for row in path.read_text().splitlines()[few:])


def measure(build, where, case):
    what, hidden, batch, ranks, threads, rows, few, many = case
    values = {"hidden": hidden, "batch": batch, "ranks": ranks, "threads": threads, "rows": rows, "network": "encrypted"}
    short = run(build, where, {**values, "steps": few})
    long = run(build, where, {**values, "steps": many})
    wall, processor = (1e6 * (b - a) / (many - few) for a, b in zip(short, long))
    return wall, processor, compute_us(where, few)


def show(case, rounds):
    wall, processor = (statistics.median(r[i] for r in rounds) for i in (0, 1))
    least = min(r[0] for r in rounds)
    compute = None if rounds[0][2] is None else statistics.median(r[2] for r in rounds)
    beside = "-" if compute is None else f"{statistics.median(r[0] - r[2] for r in rounds):.1f}"
    print(f"{case[0]:16} {case[2]:5} {case[3]}x{case[4]} {wall:10.1f} {least:10.1f} {processor:10.1f} "
          f"{'-' if compute is None else format(compute, '.1f'):>10} {beside:>10}")


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    print("microseconds a step; ranks x threads")
    print(f"{'network':16} {'batch':>5} {'':3} {'wall':>10} {'least':>10} {'processor':>10} {'compute':>10} {'beside':>10}")
    with tempfile.TemporaryDirectory(dir=build) as name:
        where = pathlib.Path(name)
        write_data(where)
        for case in CASES:
            show(case, [measure(build, where, case) for _ in range(rounds)])


if __name__ == "__main__":
    main()
