# SPDX-License-Identifier: Apache-2.0
"""A machine that stands still in the middle of a save, long enough to be taken for dead, and comes back after
another attempt has begun: its rank 0 commits nothing any more, and harms nothing."""
import random
import re
import shutil

import tiny

STEP = 6


def stop_old(job, number):
    run = job.start({0: tiny.shim(job.ckpt, arm=f"step-{STEP:08d}", at=number, do="stop")})
    assert run.wait_stopped(), run.text()
    run.stop_leader()
    return run


def check_zombie(job, number, what, reference):
    old = stop_old(job, number)
    new = job.run()
    assert new.codes() == [0, 0], f"{what}: {new.text()}"
    fenced = [one for one in job.committed() if one[0] == 1]
    before, final = job.step_hashes(), job.final()
    assert final == reference, what

    old.resume()
    old.wait()
    assert old.codes()[0] != 0, f"{what}: {old.text()}"
    assert [one for one in job.committed() if one[0] == 1] == fenced, f"{what}: a stale attempt committed"
    assert job.step_hashes() == before and job.final() == reference, what
    assert max(old.committed(), default=0) <= STEP, old.text()
    tiny.check_store(job, [(2, step) for step in new.committed()])
    again = job.run()
    assert again.codes() == [0, 0] and again.is_finished(), what
    assert job.step_hashes() == before, what
    return old


def test_an_old_attempt_stopped_at_a_call_of_a_save_commits_nothing(home, data, reference):
    calls = [c for c in tiny.enumerate_save(tiny.Tiny(home / "calls", data), STEP) if c[1] != "read"]
    rename = next(i for i, c in enumerate(calls) if c[1] == "rename")
    chosen = range(len(calls))
    if not tiny.LONG:
        chosen = sorted({rename, rename + 1, *random.Random(23).sample(range(rename), 2)})
    for i in chosen:
        number, kind, path = calls[i]
        job = tiny.Tiny(home / str(number), data)
        old = check_zombie(job, number, f"stopped before call {number}, {kind} {path}", reference())
        if i == rename:
            assert re.search(rf"checkpoint of step {STEP} aborted: attempt 1 is over: attempt 2 has begun", old.text(0)), old.text()
        shutil.rmtree(job.home)


def test_a_temporary_directory_is_never_taken_for_a_checkpoint(home, data, reference):
    """Whole, sealed and of the newest step, but never given its final name."""
    job = tiny.Tiny(home / "job", data)
    calls = tiny.enumerate_save(tiny.Tiny(home / "calls", data), STEP)
    commit = next(number for number, kind, _ in calls if kind == "rename")
    run = job.run({0: tiny.shim(job.ckpt, arm=f"step-{STEP:08d}", at=commit, do="kill")})
    assert run.committed() == [2, 4]
    tmp = job.store() / f".tmp-step-{STEP:08d}.a1"
    assert {p.name for p in tmp.iterdir()} >= {"MANIFEST.json", "COMMIT"}
    code, listed = tiny.ls(job.store())
    assert [(c["step"], c["committed"]) for c in listed] == [(6, False), (4, True), (2, True)]
    again = job.run()
    assert again.codes() == [0, 0] and job.restored() == 4 and job.final() == reference()
    assert not tmp.exists()
