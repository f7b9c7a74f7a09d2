# SPDX-License-Identifier: Apache-2.0
"""What the peers' scripts share: their arguments, their batches, the way steps are timed, and the line they end with.

    peer_NAME.py --size NAME --batch B --tokens FILE [--warm N] [--steps N] [--attention KIND] [--mode KIND] [--cpu]

A step's time is that between the ends of two steps, as weft's own step_ms is: while the host looks for the end of
one, the next is queued already. Every step reads new tokens from the host's memory. The script ends with one line of
JSON; it prints nothing else to stdout.
"""
import argparse
import json
import time

from sizes import HEADER, SIZES


def arguments(attentions, modes):
    a = argparse.ArgumentParser()
    a.add_argument("--size", choices=SIZES, required=True)
    a.add_argument("--batch", type=int, required=True)
    a.add_argument("--tokens", required=True)
    a.add_argument("--warm", type=int, default=10)
    a.add_argument("--steps", type=int, default=20)
    a.add_argument("--attention", choices=attentions, default=attentions[0])
    a.add_argument("--mode", choices=modes, default=modes[0])
    a.add_argument("--cpu", action="store_true")
    return a.parse_args()


def batches(numpy, args):
    """Step n's tokens and what follows each, without end."""
    size, at = SIZES[args.size], 0
    ids = numpy.fromfile(args.tokens, dtype="<u2", offset=HEADER).astype(numpy.int32)
    n = args.batch * size.seq
    assert len(ids) > n, "the batch is larger than the file"
    while True:
        if at + n + 1 > len(ids):
            at = 0
        piece = ids[at : at + n + 1]
        at += n
        yield piece[:-1].reshape(args.batch, size.seq), piece[1:].reshape(args.batch, size.seq)


def timed(queue, wait, args):
    """queue() begins a step and returns what wait() needs to see its end. Milliseconds of those that count, seconds
    until the first one did. One step more is run: each that counts has a next one behind it."""
    began, ends, before = time.perf_counter(), [], queue()
    for _ in range(args.warm + args.steps):
        step = queue()
        wait(before)
        ends.append(time.perf_counter())
        before = step
    wait(before)
    ms = [1000 * (b - a) for a, b in zip(ends, ends[1:])]
    return ms[args.warm - 1 :], ends[args.warm - 1] - began


def report(**values):
    print(json.dumps(values), flush=True)
