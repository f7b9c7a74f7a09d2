#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What rows of metrics cost a step: tests/bench/rows.py BUILD [PAIRS]

Pairs of runs in turns, one with the settings of a column, the other with two rows in all. A step's time is that between
the rows of the middle and of the end, so that what the loop does beside its program counts. Shown: the median of the
pairs' ratios and the bounds of 95 % of it (of the order statistics)."""
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import meshes  # noqa: E402
import runs  # noqa: E402

COLUMNS = {"each step": {"log_every": 1}, "each step, detail 100": {"log_every": 1, "detail": 100}}
MODELS = {
    "mlp": (meshes.classifier(), 1200),
    "gpt2": (meshes.decoder("gpt2"), 400),
}


def step_ms(build, place, job, steps, log_every, detail=0):
    for left in ("run", "run-ckpt", "ckpt"):
        shutil.rmtree(place / left, ignore_errors=True)
    job = {**job, "train": {"steps": steps, "seed": 3, "log_every": log_every}, "metrics": {"detail": detail},
           "checkpoint": {"dir": "ckpt"}, "resources": {"threads": 1}}  # fmt: skip
    (place / "job.yaml").write_text(runs.json.dumps(job))
    subprocess.run([build / "tests/lead-ranks", place / "run", place / "job.yaml"], check=True, cwd=place,
                   env={**os.environ, "WEFT_BACKEND_DIR": str(build)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    at = {r["step"]: r["t_ms"] for r in runs.rows_of(place / "run")}
    return (at[steps] - at[steps // 2]) / (steps - steps // 2)


def main():
    build, pairs = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 60
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        meshes.put_classifier(place)
        meshes.put_text(place)
        for name, (job, steps) in MODELS.items():
            ratios, off = {c: [] for c in COLUMNS}, []
            for turn in range(pairs):
                for column, settings in COLUMNS.items():
                    both = [settings, {"log_every": steps // 2}][:: 1 if turn % 2 else -1]
                    ms = [step_ms(build, place, job, steps, **s) for s in both][:: 1 if turn % 2 else -1]
                    ratios[column].append(ms[0] / ms[1])
                    off.append(ms[1])
            for column, of in ratios.items():
                of.sort()
                reach = round(0.98 * len(of) ** 0.5)  # 1.96 standard deviations of the median's rank
                low, high = of[max(0, len(of) // 2 - reach)], of[min(len(of) - 1, len(of) // 2 + reach)]
                print(f"{name:5} {statistics.median(off):7.3f} ms  {column:22} {statistics.median(of):.4f}  {low:.4f} to {high:.4f}  ({len(of)} pairs)", flush=True)


if __name__ == "__main__":
    main()
