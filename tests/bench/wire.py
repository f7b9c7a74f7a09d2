#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs that tensors between hosts are encrypted: all-reduces of two ranks over TCP on the loopback, and
steps of two networks over two hosts of names alone, encrypted and over a trusted network in turns.

    wire.py BUILD [ROUNDS]

GB/s: of the tensor, of which each rank sends and receives as many bytes (half as operands, half as results), so a
core encrypts and decrypts twice that. On one machine both ends share its cores, and the loopback is a copy in
memory: a network that is slower than the cores hides most of this. Medians of ROUNDS (7); beside other work the
processors' time says more than the wall's."""
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import steps  # noqa: E402

NETWORKS = ("trusted", "encrypted")
# what, hidden, batch, steps of the short and the long run
CASES = [("tiny", [8], 2, 1000, 6000), ("784-512-256-10", [512, 256], 128, 20, 220)]


def all_reduces(build, network):
    """{bytes: microseconds}, and the processors' seconds for all of them."""
    before = steps.processor_s()
    out = subprocess.run([build / "tests/bench/bench_allreduce", "2", "ab", network], capture_output=True, text=True, check=True)
    return {int(size): float(us) for size, us in map(str.split, out.stdout.splitlines())}, steps.processor_s() - before


def step_us(build, where, case, network):
    """Of a step: the wall's and the processors' microseconds."""
    _, hidden, batch, few, many = case
    values = {"hidden": hidden, "batch": batch, "ranks": 2, "threads": 1, "rows": "true", "network": network}
    short, long = (steps.run(build, where, {**values, "steps": n}, ["--host", "0:a", "--host", "1:b"]) for n in (few, many))
    return [1e6 * (b - a) / (many - few) for a, b in zip(short, long)]


def row(what, pairs, rate=None):
    """The medians of (trusted, encrypted) pairs of one turn each, and of their ratios."""
    plain, sealed = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    rates = [f"{rate / us / 1e3:.2f}" if rate else "" for us in (plain, sealed)]
    print(f"{what:28} {plain:12.1f} {rates[0]:>6} {sealed:12.1f} {rates[1]:>6} {statistics.median(p[1] / p[0] for p in pairs):6.2f}")


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    reduces = [[all_reduces(build, n) for n in NETWORKS] for _ in range(rounds)]
    print(f"{'':28} {'trusted':>12} {'GB/s':>6} {'encrypted':>12} {'GB/s':>6} {'x':>6}")
    for size in reduces[0][0][0]:
        row(f"all-reduce of {size}, us", [[of[size] for of, _ in turn] for turn in reduces], size)
    row("all of them, processor ms", [[1e3 * used for _, used in turn] for turn in reduces])
    with tempfile.TemporaryDirectory(dir=build) as name:
        where = pathlib.Path(name)
        steps.write_data(where)
        for case in CASES:
            turns = [[step_us(build, where, case, n) for n in NETWORKS] for _ in range(rounds)]
            for i, of in enumerate(("wall", "processor")):
                row(f"step of {case[0]}, {of} us", [[t[i] for t in turn] for turn in turns])


main()
