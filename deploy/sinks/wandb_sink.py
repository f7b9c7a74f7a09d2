#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A sink of weft for Weights & Biases, through its package.

    weft-worker --sink 'wandb=/opt/venv/bin/python /usr/share/weft/sinks/wandb_sink.py --project NAME'

The job's attempts are one run, whose id is the job's. WANDB_MODE=offline leaves files in STORE/wandb, for `wandb sync`."""
import argparse
import json
import math
import os
import sys

REPORTED_EVERY = 100
NO_CURVE = {"step", "attempt", "t_ms", "nonfinite", "detail"}


def numbers_of(row):
    for key, value in row.items():
        if key in NO_CURVE or key in ("prompt", "samples") or isinstance(value, (str, bool)):
            continue
        if isinstance(value, list):
            yield from ((f"{key}/{i}", x) for i, x in enumerate(value) if isinstance(x, (int, float)))
        elif value is not None:
            yield key, value
        elif key in (row.get("nonfinite") or []):
            yield key, math.nan
    for group, values in (row.get("detail") or {}).get("groups", {}).items():
        yield from ((f"detail/{name}/{group}", x) for name, x in values.items() if x is not None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", default="weft")
    a = parser.parse_args()
    reports = os.fdopen(os.dup(1), "w")  # the package prints on standard output too
    os.dup2(2, 1)
    print(0, file=reports, flush=True)  # from here on a row counts as stored when it is reported
    header = json.loads(sys.stdin.readline())
    if os.path.islink(os.path.join(header["store"], "wandb")):
        sys.exit("STORE/wandb is a link, which is not followed")
    import wandb

    run = wandb.init(project=a.project, id=header["job"] or None, name=header["name"], resume="allow", dir=header["store"],
                     config=header["resolved"], settings=wandb.Settings(console="off"))
    taken = 0
    for line in sys.stdin:
        taken += 1
        try:
            row = json.loads(line)
            values = dict(numbers_of(row))
            if row.get("samples"):
                values["samples"] = wandb.Table(columns=["text"], data=[[(row.get("prompt") or "") + s] for s in row["samples"]])
            run.log(values, step=row["step"])
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            print(f"left out a line that is no row: {e}", file=sys.stderr)
        if taken % REPORTED_EVERY == 0:  # the package has them, and writes them by itself
            print(taken, file=reports, flush=True)
    run.finish()
    print(taken, file=reports, flush=True)


main()
