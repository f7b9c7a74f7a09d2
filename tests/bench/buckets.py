#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What buckets are worth (common/compile/program/bucket.h) and how large they had best be: steps of GPT-2s on {dp: 2},
{dp: 4}, {fsdp: 2} and {fsdp: 4}, ranks of one thread, by resources.bucket.

    buckets.py BUILD [ROUNDS]

The sizes take turns ROUNDS (5) times for eight steps behind two. Of each: launches a step, and the medians of the
wall, of the processors, and of what rank 0 waits for collectives.
"""
import itertools
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import peers

SIZES = [0, 1, 4, 16, 64]  # MiB
MODELS = {
    "12 layers of 64": ("layers: 12, embed: 64, heads: 4, vocab: 512", 512),
    "6 layers of 256": ("layers: 6, embed: 256, heads: 4, vocab: 512", 512),
    "124M's width, 3 layers": ("layers: 3", peers.VOCAB),
}


def run(build, job, size):
    out = subprocess.run([build / "tests/bench/bench_step", "--warm", "2", "--steps", "8", "--table",
                          "-s", f"resources.bucket={size}", job],
                         env={**os.environ, "WEFT_BACKEND_DIR": str(build)}, check=True, stdout=subprocess.PIPE,
                         text=True).stdout
    waits = [float(line.split()[3]) for line in out.splitlines() if line.startswith("wait ")]
    first = re.search(r"median ([\d.]+) ms.*processor ([\d.]+) ms.*loss (\S+)", out)
    return float(first[1]), float(first[2]), sum(waits), first[3]


def count_launches(build, job, size):
    plan = subprocess.run([build / "weft", "plan", "-s", f"resources.bucket={size}", job], check=True, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return re.search(r"in (\d+) launch", plan)[1]


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory(dir=build) as name:
        where = pathlib.Path(name)
        for what, (sizes, vocab) in MODELS.items():
            peers.write_tokens(where / "train.bin", 1000000, vocab)
            for axis, ranks in itertools.product(("dp", "fsdp"), (2, 4)):
                job = where / "job.yaml"
                job.write_text(peers.gpt2_job(ranks=ranks, threads=1)
                               .replace("program: gpt2,", f"program: gpt2, {sizes},").replace("{dp:", f"{{{axis}:"))
                rows = {size: [] for size in SIZES}
                for _ in range(rounds):
                    for size in SIZES:
                        rows[size].append(run(build, job, size))
                print(f"{what}, {{{axis}: {ranks}}}, {rounds} rounds")
                print(f"{'MiB':>4} {'launches':>8} {'wall ms':>9} {'processor ms':>13} {'waits ms':>9} {'loss':>8}")
                for size, measured in rows.items():
                    wall, processor, waits = (statistics.median(r[k] for r in measured) for k in range(3))
                    print(f"{size:4} {count_launches(build, job, size):>8} {wall:9.2f} {processor:13.2f} {waits:9.2f} "
                          f"{measured[0][3]:>8}", flush=True)


main()
