# SPDX-License-Identifier: Apache-2.0
"""A process is killed, or the power goes, at every system call of one save. Then the invariants of the
checkpoint directory hold, and the next run comes to the numbers of a run that was never disturbed."""
import hashlib
import random
import signal
import subprocess

import pytest
import tiny

STEP = 6  # of eight, saved every two, two kept: its save also deletes the checkpoint of step 2


def sample(calls, few):
    """All of them in a full run; otherwise the renames, what is right after, and a few others."""
    if tiny.LONG:
        return calls
    sharp = [i for i, c in enumerate(calls) if c[1] == "rename"]
    chosen = {j for i in sharp for j in (i, i + 1) if j < len(calls)}
    others = [i for i in range(len(calls)) if i not in chosen]
    chosen |= set(random.Random(3).sample(others, min(few, len(others))))
    return [calls[i] for i in sorted(chosen)]


@pytest.fixture(scope="module")
def calls(shared, data):
    """Rank → the calls of its part of the save of STEP."""
    found = {}
    for rank in (0, 1):
        job = tiny.Tiny(shared / f"calls-{rank}", data)
        found[rank] = tiny.enumerate_save(job, STEP, rank)
    return found


def test_the_shim_sees_a_whole_save(calls):
    """Were it blind to a call, no test below could die there."""
    kinds = [kind for _, kind, _ in calls[0]]
    for kind in ("mkdir", "create", "write", "sync", "close", "rename", "unlink"):
        assert kind in kinds
    assert [p.rsplit("/", 1)[1] for _, k, p in calls[0] if k == "create"] == [
        "shard-00000-of-00002.safetensors", "MANIFEST.json", "COMMIT"]
    assert kinds.count("rename") == 2, "the commit, and the checkpoint of step 2 to the trash"
    assert [k for _, k, p in calls[1]].count("create") == 1
    assert "rename" not in [k for _, k, _ in calls[1]], "only the writer commits"


def acknowledged(run, attempt):
    return [(attempt, step) for step in run.committed()]


def kill_at(job, rank, call, reference):
    number, kind, path = call
    run = job.run({rank: tiny.shim(job.ckpt, arm=f"step-{STEP:08d}", at=number, do="kill")})
    where = f"rank {rank} killed before call {number}, {kind} {path}"
    assert run.codes()[rank] == 128 + signal.SIGKILL, f"{where}: {run.codes()}"
    assert run.codes()[1 - rank] == 69, f"{where}: {run.codes()}\n{run.text()}"
    known = acknowledged(run, 1)
    assert known[:2] == [(1, 2), (1, 4)]
    tiny.check_store(job, known)
    after = tiny.check_continues(job, known, reference)
    tiny.check_store(job, known + acknowledged(after, 2))


@pytest.mark.parametrize("rank, few", [(0, 12), (1, 5)])
def test_killed_at_a_call_of_a_save(home, data, reference, calls, rank, few):
    for i, call in enumerate(sample(calls[rank], few)):
        kill_at(tiny.Tiny(home / str(i), data), rank, call, reference())


def cut_power(disk, home, data, call, reference, name):
    """Both ranks, the checkpoints and the run's folder are on a disk that stops taking anything at one call
    of rank 0, with nothing flushed that was not fsynced; then it is mounted again."""
    job = tiny.Tiny(disk.path / name, data, outputs=home / f"out-{name}")
    run = job.start({0: tiny.shim(job.ckpt, arm=f"step-{STEP:08d}", at=call[0], do="power")})
    run.wait()
    assert run.codes()[0] == 128 + signal.SIGKILL, f"{call}: {run.codes()}\n{run.text()}"
    assert disk.down(), "the disk is still in use"
    disk.up()
    known = acknowledged(run, 1)
    assert known[:2] == [(1, 2), (1, 4)], run.text()
    tiny.check_store(job, known)
    tiny.check_continues(job, known, reference, whole_metrics=False)


def test_power_lost_at_a_call_of_a_save(disk, home, data, reference, calls):
    chosen = calls[0]
    if not tiny.LONG:
        commit = next(i for i, c in enumerate(calls[0]) if c[1] == "rename")
        chosen = [calls[0][i] for i in (commit - 5, commit - 1, commit, commit + 1, commit + 2, commit + 3)]
    for i, call in enumerate(chosen):
        cut_power(disk, home, data, call, reference(), str(i))


def test_power_lost_after_the_end_keeps_everything_acknowledged(disk, home, data, reference):
    job = tiny.Tiny(disk.path / "job", data, outputs=home / "out")
    run = job.run()
    assert run.codes() == [0, 0] and run.committed() == [2, 4, 6, 8]
    shards = job.final()[0]
    subprocess.run(["xfs_io", "-x", "-c", "shutdown", str(disk.path)], check=True)
    assert disk.down()
    disk.up()
    tiny.check_store(job, acknowledged(run, 1))
    assert job.committed()[-1] == (1, 8)
    again = job.run()
    assert again.codes() == [0, 0] and again.is_finished()
    kept = {p.name: hashlib.sha256(p.read_bytes()).hexdigest()
            for p in job.path(1, 8).iterdir() if p.name.startswith("shard-")}
    assert kept == shards == reference()[0]
