# SPDX-License-Identifier: Apache-2.0
"""What the daemons cost and how fast they act, on one machine through the client: submit → first step,
rank killed → noticed → next step, idle CPU of both daemons, and the daemons' cost to a rank's step.

    service.py BUILD [ROUNDS]"""
import os
import pathlib
import statistics
import sys
import tempfile
import time

os.environ["WEFT_BUILD"] = os.path.abspath(sys.argv[1])
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

import cluster  # noqa: E402
import runs  # noqa: E402

ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 7


def cpu_s(pid):
    """CPU time of all its threads; schedstat counts nanoseconds."""
    return sum(int(t.read_text().split()[0]) for t in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def page(c, job, attempt, rank=0):
    """A rank's page, read from the file itself: no daemon is in the measurement."""
    try:
        raw = (c.place / "weft" / "runs" / f"{job}.a{attempt}" / f"page-{rank:04d}").read_bytes()
    except OSError:
        return None
    return runs.Page(raw) if len(raw) >= runs.Page.LAYOUT.size and raw[:4] == b"tfew" else None


def until(what):
    end = time.monotonic() + runs.WATCHDOG
    while time.monotonic() < end:
        value = what()
        if value:
            return value
        time.sleep(0.0005)
    raise AssertionError("waited in vain")


def spread(values):
    return f"median {statistics.median(values):7.1f} ms   (min {min(values):.1f}, max {max(values):.1f}, {len(values)} runs)"


def first_step(c, data):
    start = time.monotonic()
    job = c.submit(runs.job(data, 2, train__steps=200))
    until(lambda: (p := page(c, job, 1)) and p.step >= 1 or done(c, job))
    ms = (time.monotonic() - start) * 1e3
    c.succeed(job)
    return ms


def done(c, job, step=200):
    """Its checkpoint of the last step is there: the page went with the run."""
    return any(c.ckpt.glob(f"*{job[:8]}/step-{step:08d}.a1"))


def next_step(c, data):
    job = c.submit(runs.busy_job(data, 2, train__steps=100000))
    c.wait(job, ("RUNNING",), step=30)
    attempt = c.status(job)["attempt"]
    victim, other = c.rank_pids()[:2]
    at = time.monotonic()
    runs.kill_pid(victim)
    until(lambda: not runs.alive(other))
    noticed = (time.monotonic() - at) * 1e3
    restored = until(lambda: runs.checkpoints_of(c.store(job)))[-1].step
    until(lambda: (p := page(c, job, attempt + 1)) and p.step > restored)
    ms = (time.monotonic() - at) * 1e3
    c.weft("cancel", job)
    c.wait(job, ("CANCELLED",))
    return noticed, ms


def daemons(c):
    return {"coordinator": c.coordinator.pid, "worker": c.workers[0].pid}


def idle(c, seconds=10):
    before = {n: cpu_s(p) for n, p in daemons(c).items()}
    time.sleep(seconds)
    return {n: 100 * (cpu_s(p) - before[n]) / seconds for n, p in daemons(c).items()}


def share(c, data, seconds=5):
    """CPU time of the daemons beside that of the ranks they run: what else the machine does is not in it."""
    job = c.submit(runs.busy_job(data, 2, train__steps=100000, checkpoint={}))
    c.wait(job, ("RUNNING",), step=10)
    ranks = c.rank_pids()
    before = [cpu_s(p) for p in (*daemons(c).values(), *ranks)]
    step = page(c, job, 1).step
    time.sleep(seconds)
    spent = [cpu_s(p) - b for p, b in zip((*daemons(c).values(), *ranks), before)]
    steps = page(c, job, 1).step - step
    c.weft("cancel", job)
    c.wait(job, ("CANCELLED",))
    return spent[0], spent[1], sum(spent[2:]), steps / seconds


def step_ms(rows):
    return statistics.median(r["step_ms"] for r in rows[20:])


def alone(place, data, i):
    run = runs.Run(place, runs.busy_job(data, 2, train__steps=3000, checkpoint={"dir": "ckpt"}), f"alone-{i}")
    run.finish()
    return step_ms(run.metrics())


def served(c, data, i):
    job = c.submit(runs.busy_job(data, 2, name=f"served-{i}", train__steps=3000, checkpoint={}))
    while not done(c, job, 3000):  # asked of the disk: a client in a loop takes a tenth of a core
        time.sleep(0.1)
    c.succeed(job)
    return step_ms(runs.rows_of(c.store(job)))


def cost_to_steps(c, place, data, rounds=9):
    """step_ms of the same job under the daemons and alone, in turns; a ratio each."""
    ratios = []
    for i in range(rounds):
        if i % 2:
            under, bare = served(c, c.put_data(data), i), alone(place, data, i)
        else:
            bare, under = alone(place, data, i), served(c, c.put_data(data), i)
        ratios.append(under / bare)
    return ratios


def main():
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        place = pathlib.Path(folder)
        os.environ["XDG_RUNTIME_DIR"] = folder  # the ranks' pages lie beneath
        (place / "set").mkdir()
        noise = runs.noise_set(place / "set")
        c = cluster.Cluster(place)
        data = c.put_data(noise)
        try:
            c.succeed(c.submit(runs.job(data, 2)))  # warm: binaries and data are in memory
            print("submit → first step        ", spread([first_step(c, data) for _ in range(ROUNDS)]), flush=True)
            both = [next_step(c, data) for _ in range(ROUNDS)]
            print("rank killed → others end   ", spread([b[0] for b in both]))
            print("rank killed → next step    ", spread([b[1] for b in both]), flush=True)
            for name, percent in idle(c).items():
                print(f"idle {name:<12} {percent:.3f} % of a core")
            coordinator, worker, ranks, rate = share(c, data)
            print(f"CPU time beside 2 ranks at {rate:.0f} steps/s: coordinator {100 * coordinator / ranks:.2f} %, "
                  f"worker {100 * worker / ranks:.2f} % of theirs", flush=True)
            ratios = cost_to_steps(c, place, noise)
            print(f"step under daemons / alone  {statistics.median(ratios):.3f}   "
                  f"({', '.join(f'{r:.3f}' for r in sorted(ratios))})")
        finally:
            c.kill_all()


main()
