#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What fusion is worth (common/compile/program/fuse.h): steps of GPT-2 124M and of a llama of its width, in f32 on one device
of two threads, with train.fuse on and off.

    fuse.py BUILD [ROUNDS [LAYERS]]

On and off take turns ROUNDS (5) times for four steps behind two. Medians of the steps: of the wall, of the processors,
the arena, and processor time by kind of op, largest first: where the time went that fusion saves.
"""
import collections
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import peers

MODELS = {
    "gpt2": "program: gpt2, layers: {layers},",
    "llama": "program: llama, layers: {layers}, embed: 768, heads: 12, kv_heads: 4, head_dim: 64, mlp: 2048, vocab: 50257,",
}


def run(build, job, fuse):
    out = subprocess.run([build / "tests/bench/bench_step", "--warm", "2", "--steps", "4", "--table", "-s",
                          f"train.fuse={fuse}", job], env={**os.environ, "WEFT_BACKEND_DIR": str(build)}, check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    first = re.search(r"median ([\d.]+) ms.*processor ([\d.]+) ms.*arena ([\d.]+) MiB; loss (\S+)", out)
    spent = collections.Counter()
    for line in out.splitlines():
        row = re.match(r"(\w+).*?\s+(\d+)\s+[\d.]+\s+[\d.]+%\s+([\d.]+)\s", line)
        if row:
            spent[row[1]] += float(row[3])
    return (*map(float, first.groups()[:3]), spent, first[4])


def report(model, layers, rows):
    print(f"{model}, {layers} layers")
    print(f"{'':5} {'wall ms':>9} {'processor ms':>13} {'arena MiB':>10} {'loss':>8}")
    for what, measured in rows.items():
        wall, processor, arena = (statistics.median(r[k] for r in measured) for k in range(3))
        print(f"{what:5} {wall:9.0f} {processor:13.0f} {arena:10.1f} {measured[0][4]:>8}")
        kinds = {k for r in measured for k in r[3]}
        median = {k: statistics.median(r[3][k] for r in measured) for k in kinds}
        print("      " + ", ".join(f"{k} {median[k]:.0f}" for k in sorted(kinds, key=median.get, reverse=True)
                                   if median[k] >= 1))


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    rounds, layers = (int(sys.argv[k]) if len(sys.argv) > k else default for k, default in ((2, 5), (3, 12)))
    with tempfile.TemporaryDirectory(dir=build) as name:
        where = pathlib.Path(name)
        peers.write_tokens(where / "train.bin", 1000000)
        for model, text in MODELS.items():
            job = where / f"{model}.yaml"
            job.write_text(peers.gpt2_job(ranks=1, threads=2).replace("program: gpt2,", text.format(layers=layers)))
            rows = {"on": [], "off": []}
            for _ in range(rounds):
                rows["on"].append(run(build, job, "true"))
                rows["off"].append(run(build, job, "false"))
            report(model, layers, rows)


main()
