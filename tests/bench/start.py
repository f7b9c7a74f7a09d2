#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""From exec of lead-ranks to the first finished step of its ranks, in a fresh DIR each time.

    start.py BUILD [RUNS]

The job is the demo's network over 2 ranks (and 1), on 10,000 random images. It has one step, so
its only metrics row is written when that step is done; the times are those the file system keeps
of files that mark the way (to about 4 ms: its clock's tick), so that nothing watches the ranks
while they start. The final checkpoint comes after the last time taken. Medians of RUNS (20) after
one run that is not counted, and the least.
"""
import os
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

JOB = """name: start
model: {{program: mlp, inputs: 784, hidden: [256, 128], classes: 10, activation: relu}}
mesh: {{dp: {ranks}}}
data: {{format: idx, train: {{images: images, labels: labels}}, batch: 128}}
optimizer: {{kind: adamw, weight_decay: 0.01, clip_norm: 1.0}}
schedule: {{kind: constant, value: 1e-3}}
train: {{steps: 1, seed: 1}}
checkpoint: {{every: 1000, dir: ckpt}}
resources: {{devices: {ranks}, kind: cpu, threads: 1}}
"""

# What is done when the file is there (BORN) or written for the last time (WRITTEN).
BORN, WRITTEN = 0, 1
MARKS = [
    ("state", BORN, "job parsed, store made, attempt fenced and durable"),
    ("attempt-1/page-{last:04d}", BORN, "ranks spawned, the last one assigned"),
    ("metrics.jsonl", BORN, "compiled, memory touched, weights drawn, data mapped"),
    ("metrics.jsonl", WRITTEN, "all ready, first step done, its row written"),
]


def write_data(where):
    count, draw = 10000, random.Random(1)
    (where / "images").write_bytes(struct.pack(">IIII", 0x803, count, 28, 28) + draw.randbytes(count * 784))
    (where / "labels").write_bytes(struct.pack(">II", 0x801, count) + bytes(b % 10 for b in draw.randbytes(count)))


def stamps(path):
    return [float(t) for t in subprocess.check_output(["stat", "-c", "%.9W %.9Y", path], text=True).split()]


def start(build, where, ranks):
    job = where / "job.yaml"
    job.write_text(JOB.format(ranks=ranks))
    for left in ("run", "ckpt"):
        shutil.rmtree(where / left, ignore_errors=True)
    begun = time.time()
    subprocess.run([build / "tests/lead-ranks", where / "run", job],
                   env={**os.environ, "WEFT_BACKEND_DIR": str(build)}, stdout=subprocess.DEVNULL, check=True)
    return [1000 * (stamps(where / "run" / name.format(last=ranks - 1))[which] - begun) for name, which, _ in MARKS]


def report(runs, ranks):
    print(f"{ranks} ranks: exec to first finished step {statistics.median(r[-1] for r in runs):.0f} ms "
          f"(least {min(r[-1] for r in runs):.0f}, most {max(r[-1] for r in runs):.0f}, {len(runs)} runs)")
    for i, (_, _, what) in enumerate(MARKS):
        took = [r[i] - (r[i - 1] if i else 0) for r in runs]
        print(f"  {max(0, statistics.median(took)):6.0f} ms (least {max(0, min(took)):.0f})  {what}")


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    with tempfile.TemporaryDirectory(dir=build) as name:
        where = pathlib.Path(name)
        write_data(where)
        for ranks in (2, 1):
            start(build, where, ranks)
            report([start(build, where, ranks) for _ in range(count)], ranks)


main()
