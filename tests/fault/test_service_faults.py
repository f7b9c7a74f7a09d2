# SPDX-License-Identifier: Apache-2.0
"""Faults under the service, with real processes, through the client: whatever dies, stops or is cut off,
the job ends by itself in the very bits of an undisturbed run, and nothing acknowledged is lost."""
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import threading
import time

import cluster
import disks
import pytest
import runs
from cluster import wait_until

SEEDS = runs.seeds(4, 30)
STEPS = 300


@pytest.fixture(scope="module")
def calm(tmp_path_factory, noise):
    """{tensor: digest} of the same job trained without any disturbance and without daemons."""
    made = runs.busy_job(noise, 2, train__steps=STEPS)
    return runs.train(tmp_path_factory.mktemp("calm"), made, "calm").final()


@pytest.fixture
def one(place):
    c = cluster.Cluster(place, lease="2s")
    yield c
    c.kill_all()


@pytest.fixture
def two(place):
    c = cluster.Cluster(place, workers=2, devices=1, lease="2s")
    yield c
    c.kill_all()


@pytest.fixture
def patient(place):
    """For what is shorter than the lease, however slow the machine."""
    c = cluster.Cluster(place, workers=2, devices=1, lease="60s")
    yield c
    c.kill_all()


def submit(c, noise, **changes):
    return c.submit(runs.busy_job(c.put_data(noise), 2, **{"train__steps": STEPS, **changes}))


def assert_calm(c, job, calm):
    done = c.succeed(job)
    assert c.final(job) == calm, c.why(job)
    verify = c.weft("ckpt", "verify", str(c.store(job)))
    assert verify.code == 0, verify
    fenced = {int(e[8:]) for e in os.listdir(c.store(job)) if e.startswith("attempt-")}
    rows = [row["step"] for row in runs.rows_of(c.store(job))]
    assert rows == list(range(1, done["steps"] + 1)), "each step's row once, by one writer"
    assert max(fenced) == done["attempt"], "no attempt but the coordinator's"
    assert {x.attempt for x in runs.checkpoints_of(c.store(job))} <= fenced
    return done


def submit_and_stop(c, noise, **changes):
    """A job whose ranks stand, stopped, with half of its steps left, and their pids."""
    return c.submit_and_stop(lambda: submit(c, noise, **changes), 2, STEPS // 2)


# ---- kill -9 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_anywhere_it_ends_in_the_same_bits(two, noise, calm, seed):
    rng = random.Random(seed)
    job = submit(two, noise)
    out = cluster.Lookout(two, job)
    for _ in range(2):
        victim = rng.choice(["rank", "worker", "coordinator"])
        step = rng.randint(1, STEPS - 20)
        s = two.wait(job, ("RUNNING", "SUCCEEDED"), step=None)
        if s["state"] == "SUCCEEDED":
            break
        two.wait(job, ("RUNNING", "SUCCEEDED"), step=min(step, STEPS - 20))
        print(f"seed {seed}: kill -9 of a {victim} about step {step}")
        if victim == "rank":
            living = two.rank_pids()
            for pid in rng.sample(living, min(1, len(living))):
                runs.kill_pid(pid)
        else:
            (two.coordinator if victim == "coordinator" else rng.choice(two.workers)).kill()
        time.sleep(rng.random() * 0.3)
    assert_calm(two, job, calm)
    out.end()


@pytest.fixture(scope="module")
def calm_short(tmp_path_factory, noise):
    run = runs.Run(tmp_path_factory.mktemp("calm-short"), runs.busy_job(noise, 2, train__steps=40), "calm")
    run.finish()
    return run.final()


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_at_any_moment_of_its_life(two, noise, calm_short, seed):
    """Also before the first step, while the last checkpoint is written, and all of it at once."""
    rng = random.Random(1000 + seed)
    job = submit(two, noise, train__steps=40)
    out = cluster.Lookout(two, job)
    for _ in range(3):
        time.sleep(rng.choice([0.02, 0.2, 0.6]) * rng.random())
        victims = rng.sample(["rank", "coordinator", 0, 1], rng.choice([1, 1, 2, 4]))
        print(f"seed {seed}: kill -9 of {victims} in {two.status_or_none(job)}")
        for v in victims:
            if v == "rank":
                for pid in two.rank_pids()[: rng.randint(1, 2)]:
                    runs.kill_pid(pid)
            else:
                (two.coordinator if v == "coordinator" else two.workers[v]).kill()
    assert_calm(two, job, calm_short)
    out.end()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_is_kept_when_the_coordinator_is_killed(one, noise, calm_short, seed):
    """Each act is answered, and at that very moment the coordinator dies."""
    rng = random.Random(seed)
    job = submit(one, noise, train__steps=40)
    one.coordinator.kill()
    for verb, states in (("hold", ("HELD", "SUCCEEDED")), ("resume", ("RUNNING", "SUCCEEDED")), ("hold", ("HELD", "SUCCEEDED"))):
        one.wait_ready()
        time.sleep(rng.random() * 0.3)
        end = one.weft(verb, job)
        one.coordinator.kill()
        if end.code == 0:
            s = one.wait(job, states)
        else:
            assert end.code == 4, end  # it had ended already
            s = one.wait(job, ("SUCCEEDED",))
        if s["state"] == "SUCCEEDED":
            break
    one.wait_ready()
    if one.status(job)["state"] == "HELD":
        assert one.weft("resume", job).code == 0
        one.coordinator.kill()
    assert_calm(one, job, calm_short)


@pytest.mark.parametrize("seed", runs.seeds(2, 10))
def test_a_preemption_continues_when_the_coordinator_is_killed(one, noise, calm, calm_short, seed):
    """A job of higher priority takes the devices; both end in their own bits."""
    rng = random.Random(seed)
    low, pids = submit_and_stop(one, noise, name="low")
    high = submit(one, noise, name="high", train__steps=40, resources={"priority": 50})
    cluster.go_on(pids)
    time.sleep(rng.random() * 0.4)
    one.coordinator.kill()
    one.wait_ready()
    time.sleep(rng.random() * 0.4)
    (one.workers[0] if seed % 2 else one.coordinator).kill()
    assert_calm(one, high, calm_short)
    assert_calm(one, low, calm)


def test_of_many_submits_none_is_lost_or_doubled_by_kills(one, toy):
    """Each with a request of its own, repeated until it is answered, while the coordinator dies again and again."""
    rng = random.Random(5 + runs.SEED)
    path = one.place / "many.yaml"
    path.write_text(json.dumps({**runs.job(one.put_data(toy), 2, name="many", train__steps=5), "checkpoint": {"dir": "."}}))
    jobs = []
    for i in range(len(SEEDS) * 3):
        p = one.popen("submit", str(path), "--request", f"{i + 1:032x}", "--json")
        time.sleep(rng.random() * 0.04)
        one.coordinator.kill()
        out, _ = p.communicate(timeout=runs.WATCHDOG)
        end = None
        while end is None or end.code == 3:
            end = one.weft("submit", str(path), "--request", f"{i + 1:032x}", "--json")
        assert end.code == 0, end
        if p.returncode == 0:
            assert json.loads(out)["job"] == json.loads(end.out)["job"]
        jobs.append(json.loads(end.out)["job"])
    one.wait_ready()
    assert sorted(j["job"] for j in one.json("jobs", "--all")["jobs"]) == sorted(jobs)
    assert len(set(jobs)) == len(jobs)
    for job in jobs:
        one.succeed(job)


@pytest.mark.parametrize("who", ["worker", "coordinator"])
def test_asked_to_stop_it_saves_and_continues_later(one, noise, calm, who):
    """SIGTERM: a worker drains its ranks with a checkpoint; a coordinator leaves them alone."""
    job, pids = submit_and_stop(one, noise)
    daemon = one.workers[0] if who == "worker" else one.coordinator
    before = one.attempts(job)
    threading.Timer(0.3, cluster.go_on, (pids,)).start()
    assert daemon.stop() == 0
    if who == "worker":
        assert not one.attempts(job)
        saved = max(c.step for c in runs.checkpoints_of(one.store(job)))
        assert one.wait(job, ("QUEUED",))["checkpoint_step"] == saved
    else:
        assert one.attempts(job) == before
    daemon.up()
    done = assert_calm(one, job, calm)
    assert done["attempt"] == (2 if who == "worker" else 1)


def test_training_continues_while_the_coordinator_is_away(one, noise, calm):
    job, pids = submit_and_stop(one, noise)
    before = one.wait(job, ("RUNNING",))
    at = one.page(pids[0]).step
    one.coordinator.down()
    cluster.go_on(pids)
    end = time.monotonic() + runs.WATCHDOG
    while one.page(pids[0]).step < at + 10:
        assert time.monotonic() < end, "the ranks stand still without their coordinator"
        time.sleep(0.01)
    assert one.rank_pids() == pids
    one.coordinator.up()
    done = assert_calm(one, job, calm)
    assert done["attempt"] == before["attempt"] and done["restarts"] == 0


def test_a_killed_reader_changes_nothing(one, noise, calm):
    job, pids = submit_and_stop(one, noise)
    readers = [one.popen("watch", job), one.popen("logs", job, "-f")]
    cluster.go_on(pids)
    time.sleep(0.3)
    for r in readers:
        r.kill()
        r.communicate()
    done = assert_calm(one, job, calm)
    assert done["restarts"] == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_submit_killed_at_any_moment_leaves_no_job_or_one(one, toy, seed):
    rng = random.Random(seed)
    path = one.place / "maybe.yaml"
    path.write_text(json.dumps({**runs.job(one.put_data(toy), 2, name="maybe"), "checkpoint": {"dir": "."}}))
    request = f"{seed:032x}"
    p = one.popen("submit", str(path), "--request", request)
    time.sleep(rng.random() * 0.05)
    p.kill()
    p.communicate()
    assert len(one.json("jobs", "--all")["jobs"]) <= 1
    end = one.weft("submit", str(path), "--request", request, "--json")
    assert end.code == 0, end
    assert [j["job"] for j in one.json("jobs", "--all")["jobs"]] == [json.loads(end.out)["job"]]


def test_weft_run_killed_leaves_no_process_and_continues(place, noise, calm):
    run = runs.Run(place, runs.busy_job(noise, 2, train__steps=STEPS), "run")
    for at_once in (False, True, True):
        p = subprocess.Popen([runs.WEFT, "run", str(run.file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seen = len(run.checkpoints())
        run.wait_until(lambda: len(run.checkpoints()) > seen or p.poll() is not None)  # noqa: B023
        p.kill()
        p.wait()
        if not at_once:
            run.wait_until(lambda: not runs.processes_naming(place))
    end = runs.weft("run", str(run.file))
    assert end.code == 0, end
    assert run.final() == calm


# ---- stopped processes ---------------------------------------------------------------------------


def rank_of(pid):
    """By the progress page that it has mapped."""
    return int(re.search(r"/page-(\d+)", pathlib.Path(f"/proc/{pid}/maps").read_text())[1])


@pytest.mark.parametrize("which", [0, 1] if runs.LONG else [1])
@pytest.mark.parametrize("mesh", [{"dp": 2}, {"pp": 2}], ids=str)
def test_a_stopped_rank_is_named_and_the_job_continues(one, noise, calm, mesh, which):
    job, pids = submit_and_stop(one, noise, restart__hang_after="3s", mesh=mesh)
    pid = pids[which]
    rank = rank_of(pid)
    cluster.go_on([p for p in pids if p != pid])
    one.wait(job, ("RECOVERING", "STARTING", "RUNNING", "SUCCEEDED"))
    if "pp" in mesh:
        one.succeed(job)
    else:
        assert_calm_other_job(one, job, calm)
    told = [e for e in one.events(job) if "hangs" in e["text"]]
    assert told and told[0]["rank"] == rank and "w0" in (told[0]["host"] + told[0]["text"]), told
    assert not runs.alive(pid)


def assert_calm_other_job(c, job, calm):
    """hang_after is in the job, not in the numbers."""
    c.succeed(job)
    assert c.final(job) == calm, c.why(job)


@pytest.mark.parametrize("longer", [False, True], ids=["shorter than the lease", "longer"])
@pytest.mark.parametrize("who", ["worker", "coordinator"])
def test_a_stopped_daemon_is_survived(request, noise, calm, who, longer):
    two = request.getfixturevalue("two" if longer else "patient")
    job, pids = submit_and_stop(two, noise)
    daemon = two.workers[1] if who == "worker" else two.coordinator
    out = cluster.Lookout(two, job)
    daemon.kill(signal.SIGSTOP)
    cluster.go_on(pids)
    if longer and who == "coordinator":
        end = two.weft("status", job)
        assert end.code == 3 and "not reached" in end.err, end
    time.sleep(4.5 if longer else 0.7)
    daemon.kill(signal.SIGCONT)
    done = assert_calm(two, job, calm)
    out.end()
    if who == "coordinator" or not longer:
        assert done["restarts"] == 0, two.why(job)
    else:
        assert any("w1" in (e["host"] or e["text"]) and "not heard" in e["text"] for e in two.events(job)), two.why(job)
    assert {w["state"] for w in two.json("workers")["workers"]} == {"ready"}, "the host comes back by itself"


# ---- the database --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deleted", "restored from an old copy"])
def test_a_lost_database_costs_no_checkpoint_and_attempts_still_grow(one, noise, how):
    first, pids = submit_and_stop(one, noise, name="first")
    old = one.copy_database()
    runs.kill_pid(pids[0])
    cluster.go_on(pids)
    done = one.succeed(first)
    before = {c.path.name for c in runs.checkpoints_of(one.store(first))}
    one.set_database(None if how == "deleted" else old)
    if how == "deleted":  # the folder tells of the job; whether it is wanted is a person's word
        held = one.wait(first, ("HELD",))
        assert held["checkpoint_step"] == STEPS and held["attempt"] == done["attempt"]
        assert one.weft("resume", first).code == 4
        assert one.weft("adopt", first).code == 0 and one.weft("resume", first).code == 0
    again = one.succeed(first)  # it runs again from what the directory holds
    assert again["attempt"] > done["attempt"]
    assert {c.path.name for c in runs.checkpoints_of(one.store(first))} >= {max(before)}
    second = submit(one, noise, name="second")
    one.succeed(second)


@pytest.mark.parametrize("copied", ["never", "before it was placed", "an attempt ago"])
def test_the_database_is_lost_under_a_living_attempt(one, noise, calm, copied):
    """The ranks work for a coordinator that has never heard of them, or heard of others."""
    old = None
    for _ in range(20):
        if copied == "before it was placed":
            one.workers[0].down()
        job = submit(one, noise)
        if copied == "before it was placed":
            old = one.copy_database()
            one.workers[0].up()
        pids, lived = one.stop_ranks(job, 2, STEPS // 2), 1
        if pids and copied == "an attempt ago":
            one.wait(job, ("RUNNING",))
            old, lived = one.copy_database(), 2
            runs.kill_pid(pids[0])
            cluster.go_on(pids)
            pids = one.stop_ranks(job, 2, STEPS // 2, lived)
        if pids:
            break
        cluster.go_on(one.rank_pids())
        one.succeed(job)
    one.wait(job, ("RUNNING",))
    out = cluster.Lookout(one, job)
    one.set_database(old)
    cluster.go_on(pids)
    if copied == "never":
        one.wait(job, ("HELD",))  # found again by its folder
        assert one.weft("adopt", job).code == 0 and one.weft("resume", job).code == 0
    done = one.succeed(job)
    out.end()
    assert done["attempt"] > lived, one.why(job)
    assert one.final(job) == calm, one.why(job)


@contextlib.contextmanager
def small_disk(place):
    """A cluster whose coordinator's state lies on a disk of 32 MB: no running job fills it by itself."""
    disk = place / "small"
    disk.mkdir()
    if why := disks.mount(["-t", "tmpfs", "none", str(disk)], ["-o", "size=32m,mode=700"]):
        disks.skip_loudly("no small tmpfs: " + why)
    c = cluster.Cluster(place, start=False)
    try:
        (place / "coordinator").symlink_to(disk)
        yield c, disk / "filler"
    finally:
        c.kill_all()
        subprocess.run(["umount", "-l", str(disk)], check=False)


def fill_disk(filler):
    with open(filler, "ab", buffering=0) as f, contextlib.suppress(OSError):
        while f.write(b"x" * 4096):
            pass


def submit_until_refused(c, place, job, first):
    """Ids of what was acknowledged, and what the refusal said."""
    acknowledged = []
    for i in range(first, first + 200):
        path = place / f"j{i}.yaml"
        path.write_text(json.dumps({**job, "name": f"j{i}", "checkpoint": {"dir": "."}}))
        end = c.weft("submit", str(path), "--json")
        if end.code:
            return acknowledged, end
        acknowledged.append(json.loads(end.out)["job"])
    raise AssertionError("the disk was never full")


def test_a_full_disk_under_the_database_is_said_and_acknowledges_nothing_that_is_not_durable(place, toy):
    with small_disk(place) as (c, filler):
        c.start_coordinator()
        c.wait_ready(0)
        job = runs.job(c.put_data(toy), 2)
        fill_disk(filler)
        acknowledged, refused = submit_until_refused(c, place, job, 0)
        assert refused.code == 4 and "read only: disk full" in refused.err, refused
        told = c.json("jobs", "--all")
        assert told["notice"].startswith("read only: disk full") and "read only" in c.weft("workers").out
        assert {j["job"] for j in told["jobs"]} == set(acknowledged)
        for j in acknowledged:
            assert c.json("status", j)["text"].startswith("read only: disk full")
            assert "read only" in c.json("why", j)["next"] and c.json("why", j)["events"]
            assert c.weft("cancel", j).code == 4
        filler.unlink()
        wait_until(lambda: c.json("jobs")["notice"] is None)
        assert {j["job"] for j in c.json("jobs", "--all")["jobs"]} == set(acknowledged)
        for j in acknowledged:
            assert c.weft("cancel", j).code == 0
        assert not c.coordinator.codes, c.logs_text()  # one process all along


def test_a_coordinator_that_starts_on_a_full_disk_can_be_read_and_continues_by_itself(place, toy):
    with small_disk(place) as (c, filler):
        c.start_coordinator()
        c.wait_ready(0)
        job = runs.job(c.put_data(toy), 2)
        acknowledged = [c.submit(job)]
        c.coordinator.down()  # killed: its log is still to be read
        (filler.parent / "weft.db-shm").unlink()  # the log's index, as after a power loss
        fill_disk(filler)
        c.coordinator.up()
        wait_until(lambda: c.ready() == 0)
        acknowledged += submit_until_refused(c, place, job, 0)[0]
        told = c.json("jobs", "--all")
        assert {j["job"] for j in told["jobs"]} == set(acknowledged)
        assert told["notice"].startswith("read only: disk full")
        filler.unlink()
        wait_until(lambda: c.json("jobs")["notice"] is None)
        assert c.weft("cancel", acknowledged[0]).code == 0
        assert c.coordinator.codes == [-signal.SIGKILL], c.logs_text()


def test_a_coordinator_that_cannot_write_at_its_start_is_read_too_and_takes_its_ranks_back(place, noise):
    with small_disk(place) as (c, filler):
        c.start_coordinator()
        c.start_worker(0)
        c.wait_ready()
        job = c.submit(runs.busy_job(c.put_data(noise), 2, train__steps=100000))
        c.wait(job, ("RUNNING",), step=3)
        pids = c.rank_pids()
        fill_disk(filler)
        wait_until(lambda: c.json("jobs")["notice"])
        c.coordinator.down()
        c.coordinator.up()  # its first rows find no room, and a worker attaches at once
        wait_until(lambda: c.status_or_none(job) and c.json("jobs")["notice"])
        assert c.weft("cancel", job).code == 4 and c.rank_pids() == pids
        filler.unlink()
        wait_until(lambda: c.json("jobs")["notice"] is None)
        wait_until(lambda: c.status(job)["state"] == "RUNNING")
        assert c.rank_pids() == pids and c.weft("cancel", job).code == 0
        assert c.coordinator.codes == [-signal.SIGKILL], c.logs_text()


def test_ranks_train_on_while_the_coordinator_s_disk_is_full(place, noise):
    with small_disk(place) as (c, filler):
        c.start_coordinator()
        c.start_worker(0)
        c.wait_ready()
        job = c.submit(runs.busy_job(c.put_data(noise), 2, train__steps=100000))
        before = c.wait(job, ("RUNNING",), step=3)
        pids = c.rank_pids()
        watching = runs.watch_over(c.popen("watch", job))
        assert runs.next_line(watching)
        fill_disk(filler)
        wait_until(lambda: c.json("jobs")["notice"])  # the next checkpoint's row finds no room
        assert c.rank_pids() == pids
        filler.unlink()
        wait_until(lambda: c.json("jobs")["notice"] is None)
        after = c.wait(job, ("RUNNING",), step=before["step"] + 1)
        wait_until(lambda: c.status(job)["checkpoint_step"] > after["step"])  # saves go on too
        assert c.status(job)["attempt"] == before["attempt"] and c.rank_pids() == pids
        assert c.weft("hold", job).code == 0
        out, err = watching.communicate(timeout=runs.WATCHDOG)  # it got the rest from the database that was opened again
        assert "HELD" in out and "succeeded" not in out and not c.coordinator.codes, (out, err, c.logs_text())


# ---- identities ----------------------------------------------------------------------------------


def test_of_two_workers_with_one_copied_identity_the_first_is_fenced(one, noise, calm):
    job, pids = submit_and_stop(one, noise)
    shutil.copytree(one.place / "worker-0", one.place / "worker-1", ignore=shutil.ignore_patterns("*.sock", "lock", "ranks.lock"))
    cluster.go_on(pids)
    one.start_worker(1)
    assert one.workers[0].wait_end() == 76
    assert_calm(one, job, calm)
