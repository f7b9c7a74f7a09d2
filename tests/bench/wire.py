#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs that tensors between hosts are encrypted: all-reduces of two ranks over TCP on the loopback, and
steps of two networks over two hosts of names alone, encrypted and over a trusted network in turns.

    wire.py BUILD [ROUNDS]

GB/s: of the tensor, of which each rank sends and receives as many bytes (half as operands, half as results), so a
core encrypts and decrypts twice that. On one machine both ends share its cores, and the loopback is a copy in
memory: a network that is slower than the cores hides most of this. Medians of ROUNDS (7)."""
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
    """{bytes: microseconds}"""
    out = subprocess.run([build / "tests/bench/bench_allreduce", "2", "ab", network], capture_output=True, text=True, check=True)
    return {int(size): float(us) for size, us in map(str.split, out.stdout.splitlines())}


def step_us(build, where, case, network):
    _, hidden, batch, few, many = case
    values = {"hidden": hidden, "batch": batch, "ranks": 2, "threads": 1, "rows": "true", "network": network}
    short, long = (steps.run(build, where, {**values, "steps": n}, ["--host", "0:a", "--host", "1:b"])[0] for n in (few, many))
    return 1e6 * (long - short) / (many - few)


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    reduces = [{n: all_reduces(build, n) for n in NETWORKS} for _ in range(rounds)]
    print(f"{'all-reduce, bytes':20} {'trusted us':>12} {'GB/s':>6} {'encrypted us':>12} {'GB/s':>6} {'x':>6}")
    for size in reduces[0]["trusted"]:
        plain, sealed = (statistics.median(r[n][size] for r in reduces) for n in NETWORKS)
        print(f"{size:<20} {plain:12.1f} {size / plain / 1e3:6.2f} {sealed:12.1f} {size / sealed / 1e3:6.2f} {sealed / plain:6.2f}")
    print(f"{'a step, us':20} {'trusted':>12} {'':6} {'encrypted':>12} {'':6} {'x':>6}")
    with tempfile.TemporaryDirectory(dir=build) as name:
        where = pathlib.Path(name)
        steps.write_data(where)
        for case in CASES:
            took = [[step_us(build, where, case, n) for n in NETWORKS] for _ in range(rounds)]
            plain, sealed = (statistics.median(t[i] for t in took) for i in (0, 1))
            print(f"{case[0]:20} {plain:12.1f} {'':6} {sealed:12.1f} {'':6} {sealed / plain:6.2f}")


main()
