# SPDX-License-Identifier: Apache-2.0
"""How soon a job steps in a real Slurm of four nodes on this machine (tests/support/slurm.py), from what its log and rows say:
a task's start to the first step, preemption to the save and from the next start to a step, the leader's loss likewise.
usage: slurm.py [ROUNDS], with WEFT_BUILD set; nothing else should run here."""
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/e2e")]
os.environ["WEFT_LONG"] = "1"
import runs  # noqa: E402
import slurm  # noqa: E402
import test_slurm  # noqa: E402


def await_row(job, seconds):
    """Waits for a row of metrics that is newer than that time; when it was written."""
    while True:
        rows = [r["t_ms"] for s in job.run.stores() if (s / "metrics.jsonl").exists() for r in runs.rows_of(s)]
        newer = [t for t in rows if t > seconds * 1000]
        if newer:
            return min(newer) / 1000
        time.sleep(0.005)


def await_state(cluster, job, state, restarts):
    cluster.await_job(job.id, lambda j: j["JobState"] == state and j["Restarts"] == str(restarts))
    return time.time()


def measure(cluster, data, place, how):
    run = runs.Run(place, runs.busy_job(data, 4, train__steps=10**6), "mine")
    job = test_slurm.Submitted(cluster, run)
    times = {"task start to first step": -await_state(cluster, job, "RUNNING", 0)}
    times["task start to first step"] += await_row(job, 0)
    job.await_step(50)
    at = time.time()
    if how == "preempted":
        cluster.call("sbatch", "-p", "high", "-N4", "-o", "/dev/null", "--wrap=true")
        times["preemption to saved and queued again"] = await_state(cluster, job, "PENDING", 1) - at
    else:
        cluster.kill_node("n0")
        cluster.mark_down("n0")
        times["loss of the leader's node to queued again"] = await_state(cluster, job, "PENDING", 1) - at
        cluster.resume_node("n0")
    start = await_state(cluster, job, "RUNNING", 1)
    stepping = await_row(job, start)
    times[f"{how}: next start to stepping"] = stepping - start
    times[f"{how}: to stepping, with Slurm's wait of {slurm.CRED_S} s"] = stepping - at
    cluster.call("scancel", job.id)
    cluster.await_end(job.id)
    cluster.await_idle()
    return times


def main():
    all_times = {}
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        (place / "slurm").mkdir()
        cluster = slurm.Slurm(place / "slurm")
        try:
            for i in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
                for how in ("preempted", "leader lost"):
                    at = place / f"{how.replace(' ', '-')}-{i}"
                    at.mkdir()
                    for what, s in measure(cluster, runs.noise_set(at), at, how).items():
                        all_times.setdefault(what, []).append(round(s, 2))
        finally:
            cluster.stop()
    print(json.dumps({w: {"median_s": round(statistics.median(t), 2), "all_s": t} for w, t in all_times.items()}, indent=1))


main()
