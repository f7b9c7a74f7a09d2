#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What metrics cost a step: tests/bench/rows.py BUILD [PAIRS] [MODEL…]

In each turn a model is trained once without (four rows in all, no detail, no sink) and once with each column's settings, in an
order that changes from turn to turn. A step's time is that from the row of the first quarter to the last, so what the
loop does beside its program counts; processor time is that of the whole run, with its worker and sinks, over its steps. Shown:
the median of the turns' ratios and its bounds of 95 % (of the order statistics)."""
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import meshes  # noqa: E402
import runs  # noqa: E402

ALL = {"metrics": {"detail": 100, "sinks": ["tensorboard"]}}
# Detail comes twenty times as often as 100 would ask for where a run has but 40 steps.
OFTEN = {"metrics": {"detail": 5, "sinks": ["tensorboard"]}}
GPT = {"program": "gpt2", "layers": 6, "embed": 384, "heads": 6, "seq": 128, "vocab": 256}
MODELS = {
    "mlp 784-512-512-10, batch 64": (
        {"model": {"program": "mlp", "hidden": [512, 512]}, "data": {"train": {"images": "i", "labels": "l"}, "batch": 64}}, 400,
        {"every 10, detail 100, tensorboard": (10, ALL), "every 1, detail 100, tensorboard": (1, ALL)}),
    "gpt2, 6 layers of 384, 128 tokens": (
        {"model": GPT, "data": {"format": "tokens", "train": {"tokens": "tokens"}, "batch": 1}}, 40,
        {"every 1, detail 5, tensorboard": (1, OFTEN)}),
}  # fmt: skip


def measure(build, place, job, steps, log_every, more):
    """Milliseconds of a step: by the clock, and of processors."""
    for left in ("ckpt", ".weft"):
        shutil.rmtree(place / left, ignore_errors=True)
    job = {"name": "bench", "optimizer": {"kind": "adamw"}, **job, "train": {"steps": steps, "seed": 3, "log_every": log_every},
           "checkpoint": {"dir": "ckpt"}, "resources": {"threads": 1}, **more}  # fmt: skip
    (place / "job.yaml").write_text(runs.json.dumps(job))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([build / "weft", "run", place / "job.yaml"], check=True, cwd=place,
                   env={**os.environ, "WEFT_BACKEND_DIR": str(build)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    (store,) = [p for p in (place / "ckpt").iterdir() if p.is_dir()]
    at = {r["step"]: r["t_ms"] for r in map(runs.json.loads, (store / "metrics.jsonl").open())}
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return (at[steps] - at[steps // 4]) / (steps - steps // 4), 1000 * cpu / steps


def show(model, off, ratios):
    for column, pairs in ratios.items():
        for k, word in enumerate(("clock", "processors")):
            of = sorted(p[k] for p in pairs)
            reach = round(0.98 * len(of) ** 0.5)  # 1.96 standard deviations of the median's rank
            low, high = of[max(0, len(of) // 2 - reach)], of[min(len(of) - 1, len(of) // 2 + reach)]
            ms = statistics.median(o[k] for o in off)
            print(f"{model:34} {ms:8.3f} ms  {column:34} {word:10} {statistics.median(of):.4f}  {low:.4f} to {high:.4f}  ({len(of)} pairs)", flush=True)


def main():
    build, pairs = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 60
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        rng = numpy.random.default_rng(1)
        runs.write_idx(place / "i", rng.integers(0, 256, (4096, 28, 28), dtype=numpy.uint8))
        runs.write_idx(place / "l", rng.integers(0, 10, 4096, dtype=numpy.uint8))
        meshes.put_text(place)
        for model, (job, steps, columns) in MODELS.items():
            if sys.argv[3:] and not any(word in model for word in sys.argv[3:]):
                continue
            ratios, off = {c: [] for c in columns}, []
            for turn in range(pairs):
                order = [None, *columns]
                order = order[turn % len(order) :] + order[: turn % len(order)]
                got = {c: measure(build, place, job, steps, *(columns[c] if c else (steps // 4, {}))) for c in order}
                off.append(got[None])
                for c in columns:
                    ratios[c].append([got[c][k] / got[None][k] for k in (0, 1)])
                if turn % 20 == 19 or turn == pairs - 1:
                    show(model, off, ratios)


if __name__ == "__main__":
    main()
