# SPDX-License-Identifier: Apache-2.0
"""A database whose bytes were changed, or that is an older copy. The coordinator starts, or it ends with 78 and says what
to do; it never ends with a code for which a supervisor starts it again and again."""
import random
import shutil
import sqlite3
import subprocess
import time

import cluster
import pytest
import runs

REMEDY = "put a copy of it back, or move weft.db and its -wal and -shm away and start again"
PAGE = 4096


@pytest.fixture(scope="module")
def kept(tmp_path_factory, noise):
    """The state of a coordinator that has ended: jobs with events and checkpoints, in one file without a log."""
    c = cluster.Cluster(tmp_path_factory.mktemp("kept"))
    try:
        for i in range(6):
            c.succeed(c.submit(runs.job(c.put_data(noise), 1, f"job-{i}", train__steps=4)))
    finally:
        c.stop()
    db = sqlite3.connect(c.place / "coordinator" / "weft.db")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    return c.place / "coordinator"


def start(state):
    """(exit code, what it said) of a coordinator that is asked to stop as soon as it serves."""
    with open(state / "said", "w+b") as said:
        p = runs.watch_over(subprocess.Popen([cluster.COORDINATOR, "--state", state, "--listen", f"unix:{state}/s"],
                                             stdout=said, stderr=said))
        end = time.monotonic() + runs.WATCHDOG
        while p.poll() is None and b"listens on" not in (state / "said").read_bytes():
            assert time.monotonic() < end
            time.sleep(0.01)
        p.terminate()
        return p.wait(runs.WATCHDOG), (state / "said").read_text(errors="replace")


def damage(rng, data):
    """One of: a page of zeros, of noise, a few bytes within a page, the head, the end cut off."""
    page = rng.randrange(len(data) // PAGE) * PAGE
    how = rng.choice(["zeros", "noise", "bytes", "head", "cut"])
    if how == "zeros":
        data[page : page + PAGE] = bytes(PAGE)
    elif how == "noise":
        data[page : page + PAGE] = rng.randbytes(PAGE)
    elif how == "bytes":
        for _ in range(16):
            data[page + rng.randrange(PAGE)] ^= rng.randrange(1, 256)
    elif how == "head":
        at = rng.randrange(100)
        data[at : at + 8] = rng.randbytes(8)
    else:
        del data[page + rng.randrange(PAGE) :]
    return f"{how} at page {page // PAGE}"


def test_a_damaged_database_ends_with_what_to_do_and_is_not_started_again(place, kept):
    ends = []
    for seed in runs.seeds(24, 400):
        state = place / str(seed)
        shutil.copytree(kept, state)
        data = bytearray((kept / "weft.db").read_bytes())
        what = damage(random.Random(seed), data)
        (state / "weft.db").write_bytes(data)
        code, said = start(state)
        assert code in (0, 78), (seed, what, code, said)
        assert code == 0 or REMEDY in said or "has version" in said, (seed, what, said)
        ends.append(code)
        shutil.rmtree(state)
    assert ends.count(78) > len(ends) // 3, "hardly any damage was found"


def test_a_damaged_page_that_no_start_reads_is_found_at_the_start(place, kept):
    """The history of a job is read when somebody asks for it, perhaps weeks later."""
    state = place / "state"
    shutil.copytree(kept, state)
    db = sqlite3.connect(state / "weft.db")
    try:
        pages = [p for (p,) in db.execute("SELECT pageno FROM dbstat WHERE name = 'event' AND pagetype = 'leaf'")]
    except sqlite3.OperationalError:  # a library without that table
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'event'").fetchone()
        pages = [root]
    db.close()
    data = bytearray((state / "weft.db").read_bytes())
    data[(pages[-1] - 1) * PAGE : pages[-1] * PAGE] = b"\xff" * PAGE
    (state / "weft.db").write_bytes(data)
    code, said = start(state)
    assert code == 78 and "weft.db is damaged" in said and REMEDY in said, said


def test_an_older_copy_of_the_database_says_which_jobs_it_no_longer_knows(place, noise):
    c = cluster.Cluster(place, lease="2s")
    try:
        data = c.put_data(noise)
        first = c.submit(runs.job(data, 1, "first", train__steps=4))
        c.succeed(first)
        old = c.copy_database()
        c.wait_ready()
        second = c.submit(runs.job(data, 1, "second", train__steps=4))
        c.succeed(second)
        c.set_database(old)
        assert "weft.db is an older copy" in c.coordinator.text()
        held = c.wait(second, ("HELD",))
        assert held["found"] and held["checkpoint_step"] == 4, held
        assert "is an older copy that does not know it" in c.why(second)
        assert c.status(first)["state"] == "SUCCEEDED"
    finally:
        c.kill_all()
