# SPDX-License-Identifier: Apache-2.0
"""weft run by itself: what it remembers, refuses and says, with doubles of both daemons beside a copy of
the client. With real daemons it trains in test_service.py."""
import contextlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import tempfile
import time

import numpy
import pytest
import solo

COORDINATOR = f"""#!/bin/sh
echo coordinator >>"$BIN/starts"
while [ "$1" != --listen ]; do shift; done
exec "{solo.BUILD}/tests/coordinator-double" "$2" "$BIN/told" $(cat "$BIN/words" 2>/dev/null)
"""
WORKER = """#!/bin/sh
echo "worker $*" >>"$BIN/starts"
if [ -f "$BIN/bad" ]; then
    echo "2026-01-02T03:04:05.678Z error worker no cuda device is here" >&2
    echo "2026-01-02T03:04:05.679Z info worker ends" >&2
    exit 78
fi
trap 'echo term >>"$BIN/starts"; exit 0' TERM
while :; do sleep 0.05; done
"""
TELL_READY = 'while [ "$1" != --ready-fd ]; do shift; done; eval "echo here >&$2"\ntrap'


class Bin:
    def __init__(self, place):
        self.place, self.folder = place, place / "bin"
        self.folder.mkdir()
        shutil.copy(solo.WEFT, self.folder / "weft")
        for name, text in (("weft-coordinator", COORDINATOR), ("weft-worker", WORKER)):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        self.sockets = pathlib.Path(tempfile.mkdtemp(prefix="weft-test-"))  # a socket's path is short
        self.env = {**os.environ, "BIN": str(self.folder), "XDG_RUNTIME_DIR": str(self.sockets)}
        self.job = place / "small.yaml"
        self.write_job(30)

    def write_job(self, steps):
        nowhere = {"images": "x", "labels": "y"}
        solo.write_idx(self.place / "x", numpy.zeros((12, 4), numpy.uint8))
        solo.write_idx(self.place / "y", numpy.zeros(12, numpy.uint8))
        self.job.write_text(json.dumps({
            "name": "small", "model": {"program": "mlp", "inputs": 4, "hidden": [8], "classes": 3}, "mesh": {"dp": 2},
            "data": {"train": nowhere, "batch": 12}, "train": {"steps": steps},
        }))  # fmt: skip

    def words(self, *words):
        (self.folder / "words").write_text(" ".join(words))

    def lines(self, name):
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).read_text().splitlines()
        return []

    def popen(self, *args):
        return solo.watch_over(subprocess.Popen(
            [self.folder / "weft", "run", str(self.job), *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=self.env,
        ))  # fmt: skip

    def run(self, *args):
        p = self.popen(*args)
        out, err = p.communicate(timeout=solo.WATCHDOG)
        return solo.Ended(p.returncode, out, err)


@pytest.fixture
def bin(place):
    b = Bin(place)
    yield b
    left = doubles(b)
    for pid in left:
        solo.kill_pid(pid)
    assert not left, "processes left behind"
    behind = list(b.sockets.iterdir())
    shutil.rmtree(b.sockets)
    assert not behind, "sockets left behind"


def doubles(b):
    """Pids of the doubles that name the folder of this test."""
    inside = os.fsencode(str(b.folder))
    pids = [int(n) for n in os.listdir("/proc") if n.isdigit()]
    return [p for p in pids if any(inside in a for a in solo.cmdline(p)[1:]) and solo.alive(p)]


def wait_until(what):
    end = time.monotonic() + solo.WATCHDOG
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_a_run_says_where_all_is_and_the_next_that_its_result_is_gone(bin):
    end = bin.run()
    assert end.code == 0 and "SUCCEEDED" in end.out, end
    assert "/store/small-01234567/metrics.jsonl" in end.out and str(bin.place / ".weft/small") in end.out
    starts = bin.lines("starts")
    assert sum(s == "coordinator" for s in starts) == 1 and starts[-1] == "term"
    assert "--cpu-devices 2" in "".join(starts) and "--own-rights" in "".join(starts)
    again = bin.run()
    # The doubles wrote no checkpoint. With daemons that do it is finished: test_service.py.
    assert again.code == 1 and "was finished, and its result is gone" in again.err and not again.out, again
    assert "/store/small-01234567" in again.err and "--new" in again.err
    assert bin.lines("starts") == starts and len(bin.lines("told")) == 1


def test_a_changed_job_is_refused_and_begun_anew_when_asked(bin):
    assert bin.run().code == 0
    refused = bin.run("-s", "data.batch=24")
    assert refused.code == 2 and "--new" in refused.err and not refused.out, refused
    assert "which differs in data.batch\n" in refused.err, refused
    twice = bin.run("-s", "data.batch=24", "-s", "train.seed=2", "-s", "train.steps=31")
    assert "which differs in data.batch, train.seed\n" in twice.err, twice
    fewer = bin.run("-s", "train.steps=29")
    assert fewer.code == 2 and "train.steps: is 29, and it has come to step 30" in fewer.err, fewer
    assert "was finished" in bin.run().err  # the same job again
    bin.write_job(31)
    assert len(bin.lines("told")) == 1
    assert bin.run("--new").code == 0
    first, second = bin.lines("told")
    assert first != second
    assert len(list((bin.place / ".weft/small").glob("old-*/job"))) == 1


def test_a_changed_job_begins_anew_where_the_first_try_was_refused(bin):
    assert bin.run("-s", "name=refused").code == 2
    again = bin.run("-s", "name=refused", "-s", "data.batch=24")
    assert "it has saved nothing yet: it begins anew with another data.batch\n" in again.err, again
    assert "the job needs more than there is" in again.err, again  # it was asked again
    assert len(list((bin.place / ".weft/refused").glob("old-*/job"))) == 1


def test_a_changed_job_is_refused_after_a_killed_run_since_nobody_knows_how_far_it_came(bin):
    bin.words("break")
    p = bin.popen()
    assert "STARTING" in solo.next_line(p)
    p.kill()
    p.communicate(timeout=solo.WATCHDOG)
    for pid in doubles(bin):
        solo.kill_pid(pid)
    bin.words("SUCCEEDED")
    refused = bin.run("-s", "data.batch=24")
    assert refused.code == 2 and "which differs in data.batch\n" in refused.err, refused
    assert bin.run().code == 0


def test_a_job_that_would_not_compile_leaves_nothing_that_refuses_the_mended_one(bin):
    refused = bin.run("-s", "mesh={tp: 3}", "-s", "resources.devices=3")
    assert refused.code == 2 and "does not divide by 3" in refused.err, refused
    assert not bin.lines("starts") and not (bin.place / ".weft").exists()
    assert bin.run().code == 0


def test_data_that_is_not_there_is_told_by_its_line_and_leaves_nothing(bin):
    (bin.place / "y").unlink()
    refused = bin.run("-s", "data.train.images=z")
    assert refused.code == 2 and not refused.out, refused
    assert refused.err.splitlines() == [
        f"{bin.job}: data.train.images: cannot open {bin.place}/z: No such file or directory",
        f"{bin.job}:1: data.train.labels: cannot open {bin.place}/y: No such file or directory",
    ]
    assert not bin.lines("starts") and not (bin.place / ".weft").exists()
    bin.write_job(30)
    assert bin.run().code == 0


def test_images_are_one_file_each_whatever_its_name_holds(bin):
    refused = bin.run("-s", "data.train.images=x*")  # where there is an x
    told = f"{bin.job}: data.train.images: cannot open {bin.place}/x*: No such file or directory"
    assert refused.code == 2 and refused.err.splitlines() == [told], refused
    (bin.place / "x*").write_bytes((bin.place / "x").read_bytes())
    assert bin.run("-s", "data.train.images=x*").code == 0


def test_a_run_goes_on_where_its_data_is_gone_and_a_new_one_is_refused(bin):
    bin.words("FAILED")
    assert bin.run().code == 1
    (bin.place / "x").unlink()
    again = bin.run()
    assert again.code == 1 and "FAILED" in again.out, again  # its ranks tell what they miss
    refused = bin.run("--new")
    assert refused.code == 2 and "cannot open" in refused.err, refused
    assert not list((bin.place / ".weft/small").glob("old-*"))


@pytest.mark.parametrize("state", ["FAILED", "HELD", "CANCELLED"])
def test_a_job_that_did_not_succeed_ends_with_1_and_is_resumed_by_the_next_run(bin, state):
    bin.words(state)
    end = bin.run()
    assert end.code == 1 and state in end.out, end
    bin.words("SUCCEEDED")
    assert bin.run().code == 0
    assert len([t for t in bin.lines("told") if t.startswith("submit")]) == 1


def test_a_second_run_is_refused_naming_the_first(bin):
    bin.words("break")
    p = bin.popen()
    wait_until(lambda: bin.lines("told"))
    second = bin.run()
    assert second.code == 4 and str(p.pid) in second.err, second
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=solo.WATCHDOG)


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_drains_and_names_the_command_that_goes_on(bin, sig):
    bin.words("break")
    p = bin.popen("-s", "train.seed=3")
    assert "STARTING" in solo.next_line(p)
    p.send_signal(sig)
    out, err = p.communicate(timeout=solo.WATCHDOG)
    assert p.returncode == 130, (out, err)
    assert f"weft run {bin.job} -s 'train.seed=3'" in err
    assert bin.lines("starts")[-1] == "term"
    bin.words("SUCCEEDED")
    assert bin.run("-s", "train.seed=3").code == 0
    assert len(bin.lines("told")) == 1, "it is one job"


def interrupt_once_it_says(p, says):
    line = next((line for line in iter(lambda: solo.next_line(p), "") if says(line)), None)
    assert line, "it ended, or was killed, before it said so"
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=solo.WATCHDOG)
    return line


def test_a_folder_that_takes_no_state_is_told(bin):
    (bin.place / ".weft").touch()
    end = bin.run()
    assert end.code == 1 and "to do: make the job file's folder one that you may write to" in end.err, end


def test_why_a_job_waits_is_told_once_its_host_is_there(bin):
    bin.words("QUEUED")
    alone = interrupt_once_it_says(bin.popen(), lambda line: line.startswith("small QUEUED"))
    assert "words of the coordinator" not in alone, alone
    (bin.folder / "weft-worker").write_text(WORKER.replace("trap", TELL_READY))
    assert interrupt_once_it_says(bin.popen(), lambda line: "QUEUED  step 30/30" in line and "words" in line)


def test_a_reason_from_before_its_host_was_known_is_never_told(bin):
    """The double takes the job for one that waits, and 300 ms later it has ended: a coordinator whose
    status of before the worker attached arrives after that."""
    bin.words("waits")
    (bin.folder / "weft-worker").write_text(WORKER.replace("trap", TELL_READY))
    p = bin.popen()
    waits = ""
    while "QUEUED" not in waits:
        waits = solo.next_line(p)
        assert waits
    p.send_signal(signal.SIGSTOP)  # a busy machine: it reads late what it was told in time
    time.sleep(2.5)
    p.send_signal(signal.SIGCONT)
    out, err = p.communicate(timeout=solo.WATCHDOG)
    assert p.returncode == 0 and "SUCCEEDED" in out and "QUEUED" not in out, (out, err)
    assert "words of the coordinator" not in waits, waits


def test_a_refusal_names_the_runs_folder_and_no_coordinator(bin):
    end = bin.run("-s", "name=refused")
    assert end.code == 2, end
    assert end.err.splitlines()[1:] == [
        "weft run: the job needs more than there is",
        f"  where: {bin.place}/.weft/refused",
        "  to do: change the job as it says, or start over with --new (the old state is kept aside)",
    ]


def test_what_a_job_cannot_help_is_not_told_to_be_changed_in_it(bin):
    end = bin.run("-s", "name=full")
    assert end.code == 4, end
    assert end.err.splitlines()[1:] == [
        "weft run: read only: disk full", f"  where: {bin.place}/.weft/full",
        "  to do: put that right, then run the same command again",
    ]


def test_the_command_that_goes_on_is_quoted_for_a_shell(bin):
    bin.words("break")
    bin.job = bin.job.rename(bin.place / "a job.yaml")
    name = "name='small'"
    p = bin.popen("-s", name)
    assert "STARTING" in solo.next_line(p)
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=solo.WATCHDOG)
    said = next(line for line in err.splitlines() if line.startswith("to go on: "))
    assert shlex.split(said.removeprefix("to go on: ")) == [str(bin.folder / "weft"), "run", str(bin.job), "-s", name]


def test_a_second_interruption_ends_at_once(bin):
    bin.words("break")
    stubborn = WORKER.replace("exit 0' TERM", "' TERM")
    (bin.folder / "weft-worker").write_text(stubborn)
    p = bin.popen()
    assert "STARTING" in solo.next_line(p)
    p.send_signal(signal.SIGINT)
    wait_until(lambda: "term" in bin.lines("starts"))
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=solo.WATCHDOG)
    assert p.returncode == 130


def test_an_interruption_waits_for_no_plan(bin):
    """A client waits 90 s for a job to be planned."""
    bin.words("plans")
    p = bin.popen()
    wait_until(lambda: bin.lines("told"))
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 130 and "to go on: " in err, err
    bin.words("SUCCEEDED")
    assert bin.run().code == 0
    assert len(set(bin.lines("told"))) == 1, "it is one request"


def test_a_killed_coordinator_is_started_again_and_the_run_goes_on(bin):
    bin.words("break")
    p = bin.popen("--json")
    for _ in range(4):
        assert solo.next_line(p)
    bin.words("SUCCEEDED")
    for pid in doubles(bin):
        if b"coordinator-double" in solo.cmdline(pid)[0]:
            solo.kill_pid(pid)
    out, err = p.communicate(timeout=solo.WATCHDOG)
    assert p.returncode == 0, (out, err)
    assert bin.lines("starts").count("coordinator") == 2 and len(bin.lines("told")) == 1


def test_a_submission_without_an_answer_is_repeated_with_its_request(bin):
    bin.words("mute")
    p = bin.popen()
    wait_until(lambda: bin.lines("told"))
    p.kill()
    p.communicate()
    for pid in doubles(bin):  # they know no lifeline
        solo.kill_pid(pid)
    bin.words("SUCCEEDED")
    assert bin.run().code == 0
    told = bin.lines("told")
    assert len(told) >= 2 and len(set(told)) == 1


def test_a_daemon_that_gives_up_ends_the_run_naming_its_log(bin):
    (bin.folder / "bad").touch()
    bin.words("break")  # the job goes on meanwhile
    end = bin.run()
    assert end.code == 1 and "weft-worker ended with 78: no cuda device is here;" in end.err and "worker.log" in end.err, end
