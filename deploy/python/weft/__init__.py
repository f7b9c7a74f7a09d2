# SPDX-License-Identifier: Apache-2.0
"""weft from Python: submit and run jobs, watch them, read their metrics, open their checkpoints.

    import weft

    job = weft.submit("gpt.yaml", {"train.steps": 500, "name": "long"})
    for update in weft.watch(job):
        if update.report:
            print(update.report["step"], update.report["loss"])
    weft.metrics(job).to_pandas().plot(x="step", y=["loss", "eval_loss"])
    params = weft.load("ckpt/long-1f2e3d4c")          # {"layers/0/norm1/weight": array, …}

Everything but load() is the program `weft` with --json: it is looked for at $WEFT, then on PATH. What its
members mean is in coordinator/cli/README.md, "The JSON contract". No package is needed; load() wants numpy (or
torch), Metrics.to_pandas() wants pandas.
"""

from weft.checkpoint import Checkpoint, load
from weft.client import Job, Metrics, Update, WeftError, jobs, metrics, run, status, submit, watch

__all__ = [
    "Checkpoint",
    "Job",
    "Metrics",
    "Update",
    "WeftError",
    "jobs",
    "load",
    "metrics",
    "run",
    "status",
    "submit",
    "watch",
]
