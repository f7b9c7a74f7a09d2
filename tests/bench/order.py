#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What overlap is worth (common/compile/program/order.h): GPT-2 124M's width, parameters cut on two ranks of one thread, with
gathers a layer ahead and reductions a layer behind, and with each waited for where it is read.

    order.py BUILD [ROUNDS [LAYERS]]

On and off take turns ROUNDS (5) times for four steps behind two. Medians of the steps: of the wall, of the
processors, and what rank 0 waits for collectives; and the arena, which pays for it.
"""
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import peers


def run(build, job, option):
    out = subprocess.run([build / "tests/bench/bench_step", "--warm", "2", "--steps", "4", "--table", *option, job],
                         env={**os.environ, "WEFT_BACKEND_DIR": str(build)}, check=True, stdout=subprocess.PIPE,
                         text=True).stdout
    waits = [float(line.split()[3]) for line in out.splitlines() if line.startswith("wait ")]
    first = re.search(r"median ([\d.]+) ms.*processor ([\d.]+) ms.*arena ([\d.]+) MiB; loss (\S+)", out)
    return (*map(float, first.groups()[:3]), sum(waits), first[4])


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    rounds, layers = (int(sys.argv[k]) if len(sys.argv) > k else default for k, default in ((2, 5), (3, 12)))
    with tempfile.TemporaryDirectory(dir=build) as name:
        where = pathlib.Path(name)
        peers.write_tokens(where / "train.bin", 1000000)
        job = where / "job.yaml"
        job.write_text(peers.gpt2_job(ranks=2, threads=1).replace("{dp: 2}", "{fsdp: 2}")
                       .replace("program: gpt2,", f"program: gpt2, layers: {layers},"))
        rows = {"on": [], "off": []}
        for _ in range(rounds):
            rows["on"].append(run(build, job, []))
            rows["off"].append(run(build, job, ["--as-read"]))
    print(f"{layers} layers, {{fsdp: 2}}, {rounds} rounds")
    print(f"{'':4} {'wall ms':>9} {'processor ms':>13} {'waits ms':>9} {'arena MiB':>10} {'loss':>8}")
    for what, measured in rows.items():
        wall, processor, arena, waits = (statistics.median(r[k] for r in measured) for k in range(4))
        print(f"{what:4} {wall:9.0f} {processor:13.0f} {waits:9.0f} {arena:10.1f} {measured[0][4]:>8}")


main()
