# SPDX-License-Identifier: Apache-2.0
"""Who is to blame, with real processes: kills from outside and a host's full disk cost the job nothing, the
host is avoided while another can take the job, and the job's history says so."""
import contextlib
import subprocess

import cluster
import disks
import pytest
import runs


@pytest.fixture
def spare(place):
    """Two hosts, each of which can take the whole job."""
    c = cluster.Cluster(place, workers=2, devices=2, lease="2s")
    yield c
    c.kill_all()


def submit(c, noise, **changes):
    restart = {"budget": 0, "backoff": ["1s", "1s"]}
    return c.submit(runs.busy_job(c.put_data(noise), 2, **{"train__steps": 300, "restart": restart, **changes}))


def test_a_job_outlives_any_number_of_kills_from_outside(spare, noise):
    job = submit(spare, noise, train__steps=1000)
    for kills in range(5):
        pids = spare.stop_ranks(job, 2, 800, attempt=kills + 1)
        runs.kill_pid(pids[0])
        cluster.go_on(pids)
    done = spare.succeed(job)
    assert done["restarts"] >= 5
    assert "a signal from outside of the job: it counts against host" in spare.why(job)


def test_a_full_disk_under_one_workers_state_sends_the_job_to_the_other(place, noise):
    small = place / "small"
    small.mkdir()
    why = disks.mount(["-t", "tmpfs", "none", str(small)], ["-o", "size=1m,mode=700"])
    if why:
        disks.skip_loudly("no small tmpfs: " + why)
    c = cluster.Cluster(place, start=False, devices=2, lease="2s")
    try:
        (place / "worker-0").symlink_to(small)
        c.start_coordinator()
        c.start_worker(0)
        c.wait_ready()
        with open(small / "filler", "wb", buffering=0) as f, contextlib.suppress(OSError):
            while f.write(b"x" * 512):
                pass
        job = submit(c, noise)
        c.wait(job, ("QUEUED", "STARTING", "RECOVERING"))
        c.start_worker(1)  # until it is there the job waits and tries again, and never fails
        c.succeed(job)
        assert "No space left on device" in c.why(job) and "counts against host w0" in c.why(job)
        assert c.json("status", job)["state"] == "SUCCEEDED"
    finally:
        c.kill_all()
        subprocess.run(["umount", "-l", str(small)], check=False)
