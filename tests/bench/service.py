# SPDX-License-Identifier: Apache-2.0
"""What the daemons cost and how fast they act, on one machine through the client: submit → first step,
rank killed → noticed → next step, idle CPU of both daemons, and the daemons' cost to a rank's step.

    service.py BUILD [ROUNDS]"""
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

os.environ["WEFT_BUILD"] = os.path.abspath(sys.argv[1])
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

import cluster  # noqa: E402
import solo  # noqa: E402

ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 7
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid):
    f = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(f[11]) + int(f[12])) / TICKS


def page(c, epoch, rank=0):
    """The newest page of a rank, read from the file itself: no daemon is in the measurement."""
    for path in c.place.glob(f"worker-*/**/page-{rank:04d}"):
        if f"e{epoch}" in str(path):
            raw = path.read_bytes()
            if len(raw) >= solo.Page.LAYOUT.size and raw[:4] == b"tfew":
                return solo.Page(raw)
    return None


def until(what):
    end = time.monotonic() + solo.WATCHDOG
    while time.monotonic() < end:
        value = what()
        if value:
            return value
        time.sleep(0.0005)
    raise AssertionError("waited in vain")


def spread(values):
    return f"median {statistics.median(values):7.1f} ms   (min {min(values):.1f}, max {max(values):.1f}, {len(values)} runs)"


def first_step(c, data):
    job = solo.job(data, 2, train__steps=200)
    start = time.monotonic()
    job_id = c.submit(job)
    until(lambda: (p := page(c, 1)) and p.step >= 1 and p.pid in c.rank_pids() or done(c, job_id))
    ms = (time.monotonic() - start) * 1e3
    c.succeed(job_id)
    return ms


def done(c, job):
    return c.status(job)["state"] == "SUCCEEDED"


def next_step(c, data):
    job_id = c.submit(solo.busy_job(data, 2, train__steps=100000))
    c.wait(job_id, ("RUNNING",), step=30)
    epoch = c.status(job_id)["epoch"]
    victim, other = c.rank_pids()[:2]
    at = time.monotonic()
    solo.kill_pid(victim)
    until(lambda: not solo.alive(other))
    noticed = (time.monotonic() - at) * 1e3
    restored = c.status(job_id)["checkpoint"]["step"] or 0
    until(lambda: (p := page(c, epoch + 1)) and p.step > restored)
    ms = (time.monotonic() - at) * 1e3
    c.weft("cancel", job_id)
    c.wait(job_id, ("CANCELLED",))
    return noticed, ms


def idle(c, seconds=10):
    pids = {"coordinator": c.coordinator.pid, "worker": c.workers[0].pid}
    before = {n: cpu_s(p) for n, p in pids.items()}
    time.sleep(seconds)
    return {n: 100 * (cpu_s(p) - before[n]) / seconds for n, p in pids.items()}


def cost_to_steps(c, place, data, rounds=3):
    """step_ms of the same job under the daemons and alone, interleaved; the ratio of the medians."""
    ratios = []
    for i in range(rounds):
        def medians(rows):
            return statistics.median(r["step_ms"] for r in rows[20:])

        run = solo.Run(place, solo.busy_job(data, 2, train__steps=300, checkpoint={"dir": "ckpt"}), f"alone-{i}")
        run.finish()
        alone = medians(run.metrics())
        j = solo.busy_job(c.put_data(data), 2, name=f"served-{i}", train__steps=300, checkpoint={"dir": "."})
        job_id = c.submit(j)
        c.succeed(job_id)
        served = medians([json.loads(x) for x in (c.store(job_id) / "metrics.jsonl").read_text().splitlines()])
        ratios.append(served / alone)
    return ratios


def main():
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        place = pathlib.Path(folder)
        (place / "set").mkdir()
        noise = solo.noise_set(place / "set")
        c = cluster.Cluster(place)
        data = c.put_data(noise)
        try:
            c.succeed(c.submit(solo.job(data, 2)))  # warm: binaries and data are in memory
            print("submit → first step        ", spread([first_step(c, data) for _ in range(ROUNDS)]))
            both = [next_step(c, data) for _ in range(ROUNDS)]
            print("rank killed → others end   ", spread([b[0] for b in both]))
            print("rank killed → next step    ", spread([b[1] for b in both]))
            for name, percent in idle(c).items():
                print(f"idle {name:<12} {percent:.2f} % of a core")
            ratios = cost_to_steps(c, place, noise)
            print(f"step under daemons / alone  {statistics.median(ratios):.3f}   ({', '.join(f'{r:.3f}' for r in ratios)})")
        finally:
            c.kill_all()


main()
