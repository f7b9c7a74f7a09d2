#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a progress thread is worth (worker/collective/progress_thread.c): GPT-2's width on two ranks of one thread, and an
all-reduce beside something else.

    progress.py BUILD [ROUNDS [LAYERS]]

On and off take turns ROUNDS (5) times for four steps behind two. Medians of the steps: of the wall, of the
processors, and what rank 0 waits for collectives.
"""
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import peers


def run(build, job, progress):
    env = {**os.environ, "WEFT_BACKEND_DIR": str(build), "WEFT_PROGRESS": progress}
    out = subprocess.run([build / "tests/bench/bench_step", "--warm", "2", "--steps", "4", "--table", job], env=env,
                         check=True, stdout=subprocess.PIPE, text=True).stdout
    waits = [float(line.split()[3]) for line in out.splitlines() if line.startswith("wait ")]
    wall, processor = re.search(r"median ([\d.]+) ms.*processor ([\d.]+) ms", out).groups()
    return float(wall), float(processor), sum(waits)


def steps(build, where, mesh, rounds, layers):
    job = where / "job.yaml"
    job.write_text(peers.gpt2_job(ranks=2, threads=1).replace("{dp: 2}", mesh)
                   .replace("program: gpt2,", f"program: gpt2, layers: {layers},"))
    rows = {"off": [], "on": []}
    for _ in range(rounds):
        for what, measured in rows.items():
            measured.append(run(build, job, what))
    for what, measured in rows.items():
        wall, processor, waits = (statistics.median(r[k] for r in measured) for k in range(3))
        print(f"{mesh:11} {what:4} {wall:9.0f} {processor:13.0f} {waits:9.0f}", flush=True)


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    rounds, layers = (int(sys.argv[k]) if len(sys.argv) > k else default for k, default in ((2, 5), (3, 3)))
    print(f"{layers} layers, {rounds} rounds\n{'mesh':11} {'':4} {'wall ms':>9} {'processor ms':>13} {'waits ms':>9}")
    with tempfile.TemporaryDirectory(dir=build) as name:
        where = pathlib.Path(name)
        peers.write_tokens(where / "train.bin", 1000000)
        for mesh in ("{dp: 2}", "{fsdp: 2}", "{tp: 2}"):
            steps(build, where, mesh, rounds, layers)
    for hosts, named in (("aa", "one host"), ("ab", "two hosts, loopback TCP")):
        for what in ("off", "on") * 2:
            print(f"all-reduce, {named}, {what}", flush=True)
            subprocess.run([build / "tests/bench/bench_allreduce", "beside", hosts], check=True,
                           env={**os.environ, "WEFT_PROGRESS": what})


main()
