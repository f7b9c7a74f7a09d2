# SPDX-License-Identifier: Apache-2.0
"""Storage that fails while a checkpoint is written costs that checkpoint and nothing else: the one before
stands, training goes on, and one line says what and where."""
import ctypes
import os
import random
import re
import subprocess
import time

import pytest
import tiny
from disks import remount


def check_lost(run, lost, says=None):
    """Exactly these steps were aborted, each with one line that names the cause and the directory."""
    aborted = run.aborted()
    assert sorted(aborted) == sorted(lost), run.text()
    for step, lines in aborted.items():
        assert len(lines) == 1, lines
        assert " warn ckpt " in lines[0] and str(run.tiny.ckpt) in lines[0], lines[0]
        assert re.search(says or "", lines[0]), lines[0]
    assert len(re.findall(r"Z (warn|error) ", run.text())) == len(lost), run.text()


def check_lost_at_the_end(run, step, says):
    """All ranks end with 74, the host's disk, and the reason, and each aborted checkpoint has its one line; the last is tried again."""
    assert set(run.codes()) == {74}, run.text()
    last = re.findall(r"Z error .*", run.text())
    assert len(last) == len(run.codes()), run.text()
    for line in last:
        assert re.search(rf"the last checkpoint, of step {step}, was aborted: .*{says}", line), line
        assert str(run.tiny.ckpt) in line, line
    for aborted, lines in run.aborted().items():
        lines = [line for line in lines if "Z error" not in line]
        assert (len(lines) > 1 if aborted == step else len(lines) == 1) and re.search(says, lines[0]) and str(run.tiny.ckpt) in lines[0], run.text()
    assert step in run.aborted(), run.text()


def fill(path):
    with open(path, "wb", buffering=0) as f:
        try:
            while True:
                f.write(bytes(4096))
        except OSError:
            pass


# Of the save of step 4, by path; the calls a save makes there, and what the line then says.
REFUSED = [
    (0, "mkdir", "EROFS", r"rank 0: cannot make .*Read-only file system"),
    (0, "create", "ENOSPC", r"rank 0: shard-00000-of-00002\.safetensors: cannot create: No space left"),
    (0, "write", "EIO", r"rank 0: shard-00000-of-00002\.safetensors: cannot write at byte 0: Input/output"),
    (1, "write", "ENOSPC", r"rank 1: shard-00001-of-00002\.safetensors: cannot write at byte 0: No space"),
    (1, "sync", "EIO", r"rank 1: shard-00001-of-00002\.safetensors: cannot sync: Input/output error"),
    (0, "close", "EIO", r"rank 0: shard-00000-of-00002\.safetensors: cannot close: Input/output error"),
    (0, "rename", "EIO", r"cannot rename \.tmp-step-00000004\.a1 to step-00000004\.a1: Input/output"),
]


@pytest.mark.parametrize("rank, kind, error, says", REFUSED)
def test_a_refused_call_costs_one_checkpoint(home, data, reference, rank, kind, error, says):
    job = tiny.Tiny(home / "job", data)
    run = job.run({rank: tiny.shim(job.ckpt, match="step-00000004", kind=kind, at=1, do=error)})
    assert run.codes() == [0, 0], run.text()
    check_lost(run, [4], says)
    assert run.committed() == [2, 6, 8]
    assert job.final() == reference()
    tiny.check_store(job, [(1, s) for s in run.committed()])
    assert not [n for n in job.names() if "step-00000004" in n], "what is left of it was removed"


def test_any_one_call_of_a_save_that_fails_is_survived(home, data, reference):
    """Whatever call it is, and whether the checkpoint of step 6 is then committed or aborted, it says so,
    the run comes to its end with the right numbers and so does the directory."""
    calls = [c for c in tiny.enumerate_save(tiny.Tiny(home / "calls", data), 6) if c[1] != "read"]
    chosen = calls if tiny.LONG else random.Random(11).sample(calls, 12)
    for number, kind, path in chosen:
        job = tiny.Tiny(home / str(number), data)
        run = job.run({0: tiny.shim(job.ckpt, arm="step-00000006", at=number, do="EIO")})
        where = f"call {number}, {kind} {path}\n{run.text()}"
        assert run.codes() == [0, 0], where
        assert set(run.aborted()) <= {6} and all(len(x) == 1 for x in run.aborted().values()), where
        assert sorted(run.committed() + list(run.aborted())) == [2, 4, 6, 8], where
        assert job.final() == reference(), where
        tiny.check_store(job, [(1, s) for s in run.committed()])


# The shim's slow call takes longer than a rank may stand still.
SLOW = [(0, "sync", "step-00000004", 1), (1, "sync", "step-00000004", 1), (0, "rename", "step-00000002", 2)]


@pytest.mark.parametrize("rank, kind, match, at", SLOW)
def test_slow_storage_is_waited_for(home, data, reference, rank, kind, match, at):
    """A save that every rank waits for, or a deletion that rank 0 is left with, is no hang."""
    job = tiny.Tiny(home / "job", data)
    run = job.run({rank: tiny.shim(job.ckpt, match=match, kind=kind, at=at, do="slow")}, "-s", "restart.hang_after=2s")
    assert run.codes() == [0, 0], run.text()
    assert run.committed() == [2, 4, 6, 8] and not run.aborted(), run.text()
    assert job.final() == reference()


def test_rows_of_metrics_that_find_no_room_are_lost_and_nothing_else(home, data, reference):
    job = tiny.Tiny(home / "job", data)
    run = job.run({0: tiny.shim(job.dir, match="metrics.jsonl", kind="write", at="4+", do="ENOSPC")})
    assert run.codes() == [0, 0], run.text()
    told = re.findall(r"Z (?:warn|error) .*", run.text())
    assert len(told) == 1 and re.search("warn metrics .*from step 4 on: .*No space left", told[0]), run.text()
    shards, losses = job.final()
    assert (shards, losses) == (reference()[0], reference()[1][:3])


@pytest.mark.parametrize("which", ["ckpt", "run/metrics.jsonl"])
def test_writes_cut_short_are_finished(home, data, reference, which):
    job = tiny.Tiny(home / "job", data)
    run = job.run({r: tiny.shim(job.home, match=which, kind="write", at="1+", do="short") for r in (0, 1)})
    assert run.codes() == [0, 0], run.text()
    assert run.committed() == [2, 4, 6, 8] and job.final() == reference()


@pytest.mark.parametrize("error", ["ENOSPC", "short"])
def test_rows_of_metrics_that_cannot_be_written_cost_nothing_else(home, data, reference, error):
    """A row cut short is finished; one that is refused is missing, and the next ones are whole."""
    job = tiny.Tiny(home / "job", data)
    faults = tiny.shim(job.dir, match="metrics.jsonl", kind="write", at=3, do=error)
    run = job.run({0: faults})
    assert run.codes() == [0, 0] and run.committed() == [2, 4, 6, 8], run.text()
    shards, losses = job.final()
    assert shards == reference()[0]
    if error == "short":
        assert losses == reference()[1]
    else:
        assert losses == [row for row in reference()[1] if row[0] != 3]
        lines = re.findall(r"Z warn metrics .*", run.text())
        assert len(lines) == 2 and "No space left on device" in lines[0] and "rows lost: 1" in lines[1]


@pytest.mark.mounts
def test_a_disk_that_is_full_for_the_metrics_spoils_no_other_row(home, data, reference, tmpfs):
    """The run's folder is full from step 4 on: the row that meets the end of a page is written in part,
    and stays so. Once there is room again rows are whole."""
    job = tiny.Tiny(home / "job", data, steps=40, every=20)
    tmpfs(job.dir, "size=4m")
    run = job.start({0: tiny.shim(job.dir, match="metrics.jsonl", kind="write", at="4+", do="stop")})
    stops = 0
    while run.wait_stopped():
        stops += 1
        if stops == 1:
            fill(job.dir / "filler")
        if stops == 35:
            (job.dir / "filler").unlink()
        run.resume()
    assert run.wait() == [0, 0] and run.committed() == [20, 40], run.text()
    rows = job.losses()
    assert 10 < len(rows) < 40 and set(rows) < set(reference(40)[1]) and rows[-1][0] == 40
    assert job.final()[0] == reference(40)[0]
    lines = re.findall(r"Z warn metrics .*", run.text())
    assert len(lines) == 2 and "No space left on device" in lines[0] and f"rows lost: {40 - len(rows)}" in lines[1]


@pytest.mark.mounts
def test_a_disk_too_small_for_the_last_save_ends_the_run_with_70(home, data, reference, tmpfs):
    """Two checkpoints fit, a third one beside them does not; more room and the same command finish the job."""
    big = tiny.Tiny(home / "measure", data)
    assert big.run().codes() == [0, 0]
    one = sum(4096 * -(-p.stat().st_size // 4096) for p in big.path(1, 8).iterdir()) // 1024
    job = tiny.Tiny(home / "job", data, patience="1s")
    tmpfs(job.ckpt, f"size={2 * one + one // 2 + 16}k")
    run = job.run()
    check_lost_at_the_end(run, 8, "No space left on device")
    assert run.committed() == [2, 4] and sorted(run.aborted()) == [6, 8]
    tiny.check_store(job, [(1, 2), (1, 4)])
    assert remount(job.ckpt, f"size={8 * one}k") == ""
    tiny.check_continues(job, [(1, 2), (1, 4)], reference())


@pytest.mark.mounts
def test_the_last_save_waits_for_room_while_the_ranks_hold_the_state(home, data, reference, tmpfs):
    big = tiny.Tiny(home / "measure", data)
    assert big.run().codes() == [0, 0]
    one = sum(4096 * -(-p.stat().st_size // 4096) for p in big.path(1, 8).iterdir()) // 1024
    job = tiny.Tiny(home / "job", data)
    tmpfs(job.ckpt, f"size={2 * one + one // 2 + 16}k")
    run = job.start()
    run.wait_until(lambda: len(run.aborted().get(8, [])) > 1)
    assert remount(job.ckpt, f"size={8 * one}k") == ""
    assert run.wait() == [0, 0] and run.committed() == [2, 4, 8], run.text()
    assert job.final() == reference()


class Full:
    """Not a block is left."""
    options, says = "size=4m", "No space left on device"

    def begin(self, job):
        fill(job.ckpt / "filler")

    def end(self, job):
        (job.ckpt / "filler").unlink()


class NoInodes(Full):
    """There is room, but not for one more file."""
    options, says = "size=4m,nr_inodes=64", "No space left on device"

    def begin(self, job):
        (job.ckpt / "fillers").mkdir()
        try:
            for i in range(64):
                (job.ckpt / "fillers" / str(i)).touch()
        except OSError:
            pass

    def end(self, job):
        for one in (job.ckpt / "fillers").iterdir():
            one.unlink()


class ReadOnly:
    options, says = "size=4m", "Read-only file system"

    def begin(self, job):
        for _ in range(500):  # a rank that is writing keeps it busy
            if remount(job.ckpt, "bind,ro") == "":
                return
            time.sleep(0.01)
        raise AssertionError("the file system stays busy")

    def end(self, job):
        assert remount(job.ckpt, "bind,rw") == ""


class Vanished:
    """Somebody renames the directory that the ranks hold open."""
    options, says = None, "No such file or directory"

    def begin(self, job):
        job.ckpt.rename(job.home / "elsewhere")

    def end(self, job):
        (job.home / "elsewhere").rename(job.ckpt)


def exchange(a, b):
    """At once: there is no moment at which one of them is missing."""
    here, exchanging = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(here, os.fsencode(a), here, os.fsencode(b), exchanging):
        raise OSError(ctypes.get_errno(), "renameat2", str(a))


class Replaced:
    """Another directory stands in the place of the one that the ranks hold open."""
    options, says = None, "was replaced by another"

    def begin(self, job):
        (job.home / "other" / job.store().name).mkdir(parents=True)
        exchange(job.ckpt, job.home / "other")

    def end(self, job):
        exchange(job.ckpt, job.home / "other")
        subprocess.run(["rm", "-r", str(job.home / "other")], check=True)


@pytest.mark.mounts
@pytest.mark.parametrize("fault", [Full, NoInodes, ReadOnly, Vanished, Replaced])
@pytest.mark.parametrize("lifted", [True, False])
def test_a_fault_of_the_storage_while_training(home, data, reference, tmpfs, fault, lifted):
    """Rank 0 stops before it writes a step's row, which comes before the step's checkpoint: at step 4 the
    fault comes, at step 8 it goes. The save of step 10 is the last."""
    job, fault = tiny.Tiny(home / "job", data, steps=10), fault()
    if fault.options:
        tmpfs(job.ckpt, fault.options)
    run = job.start({0: tiny.shim(job.dir, match="metrics.jsonl", kind="write", at="4+", do="stop")})
    for step in range(4, 11):
        assert run.wait_stopped(), run.text()
        if step == 4:
            fault.begin(job)
        if step == 8 and lifted:
            fault.end(job)
        run.resume()
    if not lifted:  # the ranks hold the state and try again, until somebody has no patience
        run.wait_until(lambda: len(run.aborted().get(10, [])) > 1)
        run.terminate()
    codes = run.wait()
    lost = set(run.aborted())
    assert {4, 6} <= lost and len(run.committed()) == len(set(run.committed())), run.text()
    if lifted:  # rank 1 may have met the fault at step 8 before it went
        check_lost(run, lost, fault.says)
        assert codes == [0, 0] and 10 not in lost, run.text()
        assert set(run.committed()) == {2, 4, 6, 8, 10} - lost, run.text()
        assert job.final() == reference(10)
    else:
        check_lost_at_the_end(run, 10, fault.says)
        assert run.committed() == [2] and lost == {4, 6, 8, 10}, run.text()
        assert [step for step, *_ in job.losses()] == list(range(1, 11)), "training went on to its end"
        fault.end(job)
        tiny.check_store(job, [(1, 2)])
        tiny.check_continues(job, [(1, 2)], reference(10))


def test_a_directory_that_is_deleted_is_made_again_for_the_next_save(home, data, reference):
    job = tiny.Tiny(home / "job", data)
    run = job.start({0: tiny.shim(job.dir, match="metrics.jsonl", kind="write", at=4, do="stop")})
    assert run.wait_stopped()
    while job.ckpt.exists():  # rank 1 may still be writing there
        subprocess.run(["rm", "-rf", str(job.ckpt)], capture_output=True)
    run.resume()
    run.wait()
    assert run.codes() == [0, 0] and 8 in run.committed(), run.text()
    assert "it is made again" in run.text() and job.final() == reference()
    again = job.run()
    assert again.codes() == [0, 0] and again.is_finished()


def test_a_checkpoint_that_cannot_be_read_is_not_used(home, data, reference):
    """The disk gives EIO for the newest: the one before it is taken, with a line."""
    job = tiny.Tiny(home / "job", data)
    run = job.run({0: tiny.shim(job.ckpt, arm="tmp-step-00000008", at=1, do="kill")})
    assert run.committed() == [2, 4, 6]
    unread = tiny.shim(job.ckpt, match="step-00000006.a1/shard-00001", kind="read", at="1+", do="EIO")
    again = job.run(leader=unread)
    assert again.codes() == [0, 0], again.text()
    assert re.search(r"checkpoint of step 6 is damaged: .*shard-00001.*Input/output", again.printed())
    assert job.restored() == 4 and job.final() == reference()
