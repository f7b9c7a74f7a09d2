#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How long the stages of a pipeline wait and what they keep, under each schedule: what `weft plan` says of a gpt2 whose
layers divide evenly, beside the formulas of common/compile/program/schedule.h. Nothing is run and no clock is read, so
that this table is the same everywhere.

    pipelines.py BUILD

Columns: of p stages and m microbatches with v chunks a stage the share of time that stages wait; the same by hand, in
units of a stage's forward (backward 2, or 1 and 1 for the gradients of weights): waits / (3m + waits); how often 1f1b's
that is; the most that a stage has under way, in microbatches of a whole stage; the same by hand; and what the plan
keeps for it on the stage that keeps the most. Exit 1: a number is not its formula's.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

JOB = """name: stages
model: {program: gpt2, layers: 64, embed: 64, heads: 4, seq: 64, vocab: 256, vocab_multiple: 256}
data: {format: tokens, train: {tokens: train.bin}, batch: 32}
optimizer: {kind: adamw}
schedule: {kind: constant, value: 3e-4}
train: {steps: 1}
"""
KINDS = [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 4), ("circular", 2), ("circular", 4),
         ("zero_bubble", 1)]  # fmt: skip


def by_hand(kind, p, m, v):
    """Waits, and chunks of microbatches under way, of an m that fills the pipeline."""
    waits = (p - 1) if kind == "zero_bubble" else 3 * (p - 1) / v
    under_way = {"interleaved": min(2 * (p - 1) + (v - 1) * p + 1, v * m), "gpipe": m, "circular": v * m}
    return waits / (3 * m + waits), under_way.get(kind, p)


def plan(build, job, kind, p, m, v):
    chunks = ["-s", f"pipeline.chunks={v}"] if v > 1 else []
    out = subprocess.run([build / "weft", "plan", job, "--json", "-s", f"mesh={{pp: {p}}}", "-s",
                          f"train.microbatches={m}", "-s", f"pipeline.schedule={kind}", *chunks],
                         stdout=subprocess.PIPE, text=True, check=True).stdout  # fmt: skip
    return json.loads(out)


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        job = pathlib.Path(name) / "stages.yaml"
        job.write_text(JOB)
        print(f"{'stages':>6} {'m':>3}  {'schedule':12} {'chunks':>6} {'waits':>7} {'by hand':>8} {'of 1f1b':>8} {'under way':>10} "
              f"{'by hand':>8} {'kept MiB':>9}")
        for p, m in ((4, 8), (4, 16), (8, 16), (8, 32)):
            for kind, v in KINDS:
                said = plan(build, job, kind, p, m, v)
                waits, under_way = said["pipeline"]["bubble"], said["pipeline"]["peak_stash"]
                want, most = by_hand(kind, p, m, v)
                fine = abs(waits - want) < 1e-6 and under_way == most
                kept = max(stage["stash"] for stage in said["memory_by_stage"]) / 2**20
                print(f"{p:6} {m:3}  {kind:12} {v:6} {100 * waits:6.1f}% {100 * want:7.1f}% {waits / by_hand('1f1b', p, m, 1)[0]:8.2f} "
                      f"{under_way / v:10.2f} {most / v:8.2f} {kept:9.1f}{'' if fine else '  WRONG'}")
                wrong += not fine
    return wrong > 0


sys.exit(main())
