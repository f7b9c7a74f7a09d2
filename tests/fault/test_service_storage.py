# SPDX-License-Identifier: Apache-2.0
"""Checkpoint storage without room, or removed: status, jobs and watch say so, and since when, until there is
room again."""
import contextlib
import os
import pathlib
import subprocess
import time

import cluster
import pytest
import runs
from cluster import wait_until


@pytest.fixture
def small(place, tmpfs):
    """A cluster whose checkpoint root is a disk of 64 MB, and a file that fills it."""
    tmpfs(place / "ckpt", "size=64m")
    c = cluster.Cluster(place)
    yield c, c.ckpt / "filler"
    c.kill_all()


def fill(filler):
    with open(filler, "ab", buffering=0) as f, contextlib.suppress(OSError):
        while f.write(b"x" * 4096):
            pass


class Watch:
    def __init__(self, c, job, path):
        self.path = path
        self.p = subprocess.Popen([runs.WEFT, "watch", job], stdin=subprocess.DEVNULL, stdout=open(path, "wb"),
                                  env={**os.environ, **c.env})

    def line_with(self, word):
        return wait_until(lambda: [line for line in self.path.read_text().splitlines()[:-1] if word in line])[0]


def row_of(c, job):
    return next(line for line in c.weft("jobs", "--all").out.splitlines() if line.startswith(job[:12]))


def test_a_removed_checkpoint_folder_costs_its_checkpoints_and_is_reported(place, noise):
    """The job goes on, its rows of metrics are all there at the end, and nobody has to read a log to know."""
    c = cluster.Cluster(place)
    spec = runs.busy_job(c.put_data(noise), 2, train__steps=4000, checkpoint={"every": 100, "keep": 3})

    def submit():
        job = c.submit(spec)
        wait_until(lambda: c.status(job)["checkpoint_step"])
        return job

    job, pids = c.submit_and_stop(submit, 2, 2000)
    watch = Watch(c, job, place / "early")
    store = c.json("checkpoints", job)["store"]
    subprocess.run(["rm", "-r", store], check=True)
    cluster.go_on(pids)
    removed = wait_until(lambda: [e for e in c.events(job) if e["kind"] == "removed"])
    assert "somebody removed " + store in removed[0]["text"], removed
    assert "removed" in watch.line_with("somebody removed ")
    wait_until(lambda: c.status(job)["checkpoint_step"])
    for told in (c.weft("status", job).out, row_of(c, job)):
        assert "somebody removed " + store in told, told
    assert {k["state"] for k in c.json("checkpoints", job)["checkpoints"]} >= {"LOST", "COMMITTED"}
    c.succeed(job)
    watch.p.wait(runs.WATCHDOG)
    assert len([e for e in c.events(job) if e["kind"] == "removed"]) == 1
    assert "somebody removed " in c.weft("status", job).out
    rows = [row["step"] for row in runs.rows_of(pathlib.Path(store))]
    assert rows == list(range(1, 4001))
    c.stop()


@pytest.mark.mounts
def test_storage_without_room_is_said_everywhere_until_there_is_room(small, noise, place):
    c, filler = small
    job = c.submit(runs.busy_job(c.put_data(noise), 2, train__steps=1000000))
    wait_until(lambda: c.status(job)["checkpoint_step"])
    told = c.weft("status", job).out + row_of(c, job)
    assert c.status(job)["unsaved"] == 0 and "not saved" not in told
    watch = Watch(c, job, place / "early")
    before = 1000 * time.time()
    fill(filler)
    first = wait_until(lambda: (s := c.status(job))["unsaved"] and s)
    assert before - 1 <= first["unsaved_since_ms"] <= 1000 * time.time() and "No space left on device" in first["unsaved_why"]
    later = wait_until(lambda: (s := c.status(job))["unsaved"] > first["unsaved"] and s)
    assert later["unsaved_since_ms"] == first["unsaved_since_ms"] and later["unsaved_for_ms"] >= first["unsaved_for_ms"]
    c.coordinator.kill()
    c.coordinator.wait_start(2)
    wait_until(lambda: c.weft("status", job).code == 0)
    c.wait(job, ("RUNNING",))
    assert c.status(job)["unsaved_since_ms"] == first["unsaved_since_ms"]
    told = c.weft("status", job).out
    assert "not saved   since " in told and "No space left on device" in told, told
    assert "not saved for " in row_of(c, job) and "No space left on device" in row_of(c, job)
    late = Watch(c, job, place / "late")  # whoever comes only now sees it too
    for w in (watch, late):
        assert "No space left on device" in w.line_with("not saved since ")
    saved = c.status(job)["checkpoint_step"]
    filler.unlink()
    wait_until(lambda: c.status(job)["checkpoint_step"] > saved)
    assert c.status(job)["unsaved"] == 0
    assert "not saved" not in c.weft("status", job).out + row_of(c, job)
    last = Watch(c, job, place / "last")
    assert "not saved" not in last.line_with("RUNNING")
    assert c.weft("cancel", job).code == 0
    for w in (watch, late, last):
        w.p.wait(runs.WATCHDOG)
        assert "not saved" not in w.path.read_text().splitlines()[-1]
    assert "not saved" not in last.path.read_text()
