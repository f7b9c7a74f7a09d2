# SPDX-License-Identifier: Apache-2.0
"""weft run: what it remembers, refuses and says, and what becomes of it where a terminal stands still, stops it or
goes. What is asked about it afterwards is in test_own_run.py; that it survives anything in test_run_storm.py."""
import json
import os
import pty
import shlex
import shutil
import signal
import subprocess
import time

import pytest
import runs


def start(run, *more, **how):
    return runs.watch_over(subprocess.Popen([runs.WEFT, "run", str(run.file), *more], stdin=subprocess.DEVNULL, text=True,
                                            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": hear_hang_ups, **how}))  # fmt: skip


def hear_hang_ups():  # whatever started the tests
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def weft_run(run, *more):
    return runs.weft("run", str(run.file), *more)


def ask(run, verb, *words):
    return runs.weft(verb, "test", "--coordinator", str(state_folder(run)), *words)


def state_folder(run):
    return run.place / ".weft/test"


def status(run):
    return json.loads(ask(run, "status", "--json").out)


def process_state(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()[0]


@pytest.fixture
def small(place, toy):
    return runs.Run(place, runs.job(toy, 2), "mine")


@pytest.fixture
def busy(place, noise):
    """Trains on until it is stopped."""
    run = runs.Run(place, runs.busy_job(noise, 2, train__steps=100000, restart={"hang_after": "1s"}), "mine")
    yield run
    assert not runs.processes_naming(place)


def await_first_checkpoint(run, process):
    assert run.wait_until(lambda: process.poll() is not None or (run.stores() and run.checkpoints()))
    assert process.poll() is None, process.communicate()


def end_of(process, sig=None):
    if sig is not None:
        process.send_signal(sig)
    out, err = process.communicate(timeout=runs.WATCHDOG)
    return runs.Ended(process.returncode, out, err)


# ---- what it remembers and refuses ---------------------------------------------------------------


def test_a_run_says_where_all_is_and_the_next_that_its_result_is_gone(small):
    end = weft_run(small)
    (store,) = small.stores()
    assert end.code == 0 and "SUCCEEDED" in end.out and f"{store}/metrics.jsonl" in end.out, end
    assert f"{state_folder(small)}/worker/jobs" in end.out and "history" not in end.out, end
    before = (state_folder(small) / "log").read_text()
    assert "listens on" in before and "attached to" in before and "listens on" not in end.err
    assert "is finished" in weft_run(small).out
    shutil.rmtree(store)
    again = weft_run(small)
    assert again.code == 1 and "was finished, and its result is gone" in again.err and not again.out, again
    assert str(store) in again.err and "--new" in again.err
    assert (state_folder(small) / "log").read_text() == before, "nothing was started for it"


def test_a_changed_job_is_refused_and_starts_again_when_asked(small):
    assert weft_run(small).code == 0
    refused = weft_run(small, "-s", "train.seed=2")
    assert refused.code == 2 and "--new" in refused.err and not refused.out, refused
    assert "which differs in train.seed\n" in refused.err, refused
    twice = weft_run(small, "-s", "model.hidden=[9]", "-s", "train.seed=2", "-s", "train.steps=31")
    assert "which differs in model.hidden, train.seed\n" in twice.err, twice
    fewer = weft_run(small, "-s", "train.steps=29")
    assert fewer.code == 2 and "train.steps: is 29, and it has come to step 30" in fewer.err, fewer
    assert "is finished" in weft_run(small).out  # the same job again
    assert weft_run(small, "-s", "train.seed=2", "--new").code == 0
    assert len(small.stores()) == 2
    assert len(list(state_folder(small).glob("old-*/job"))) == 1


def test_a_changed_job_is_refused_after_a_killed_run_since_nobody_knows_how_far_it_came(busy):
    process = start(busy)
    await_first_checkpoint(busy, process)
    assert end_of(process, signal.SIGKILL).code == -signal.SIGKILL
    refused = weft_run(busy, "-s", "train.seed=2")
    assert refused.code == 2 and "which differs in train.seed\n" in refused.err, refused
    assert weft_run(busy, "-s", f"train.steps={busy.checkpoints()[-1].step + 20}").code == 0


def test_the_checkpoints_of_a_run_are_found_by_its_name_before_it_ends(busy):
    process = start(busy)
    await_first_checkpoint(busy, process)
    export = ("export", busy.job["name"], "--to", "npz")
    meanwhile = runs.weft(*export, "meanwhile", cwd=busy.place)
    assert end_of(process, signal.SIGKILL).code == -signal.SIGKILL
    killed = runs.weft(*export, "killed", cwd=busy.place)
    assert (meanwhile.code, killed.code) == (0, 0), (meanwhile, killed)


def test_a_job_that_would_not_compile_leaves_nothing_that_refuses_the_mended_one(small):
    refused = weft_run(small, "-s", "mesh={tp: 3}", "-s", "resources.devices=3")
    assert refused.code == 2 and "does not divide by 3" in refused.err, refused
    assert not (small.place / ".weft").exists()
    assert weft_run(small).code == 0


def test_data_that_is_not_there_is_reported_by_its_line_and_leaves_nothing(small, toy):
    small.job["data"]["train"]["labels"] = "nowhere"
    small.save_job(small.job)
    refused = weft_run(small, "-s", "data.train.images=z")
    line = next(n for n, text in enumerate(small.file.read_text().splitlines(), 1) if '"nowhere"' in text)
    assert refused.code == 2 and not refused.out, refused
    assert refused.err.splitlines() == [
        f"{small.file}: data.train.images: cannot open {small.place}/z: No such file or directory",
        f"{small.file}:{line}: data.train.labels: cannot open {small.place}/nowhere: No such file or directory",
    ]
    assert not (small.place / ".weft").exists()
    small.job["data"]["train"]["labels"] = toy.train["labels"]
    small.save_job(small.job)
    assert weft_run(small).code == 0


def test_images_are_one_file_each_whatever_its_name_holds(small, toy):
    shutil.copy(toy.train["images"], small.place / "x")
    refused = weft_run(small, "-s", "data.train.images=x*")  # where there is an x
    said = f"{small.file}: data.train.images: cannot open {small.place}/x*: No such file or directory"
    assert refused.code == 2 and refused.err.splitlines() == [said], refused
    (small.place / "x").rename(small.place / "x*")
    assert weft_run(small, "-s", "data.train.images=x*").code == 0


def test_a_run_continues_where_its_data_is_gone_and_a_new_one_is_refused(small, toy):
    shutil.copy(toy.train["images"], small.place / "x")
    assert weft_run(small, "-s", "data.train.images=x").code == 0
    (small.place / "x").unlink()
    longer = ("-s", "data.train.images=x", "-s", "train.steps=40")
    again = weft_run(small, *longer)
    assert again.code == 66 and "FAILED" in again.out and "cannot open" in again.out, again  # its ranks say what they miss
    refused = weft_run(small, *longer, "--new")
    assert refused.code == 2 and "cannot open" in refused.err, refused
    assert not list(state_folder(small).glob("old-*"))


@pytest.mark.parametrize("verb, state", [("hold", "HELD"), ("cancel", "CANCELLED")])
def test_a_job_that_a_person_stopped_ends_with_78_and_is_resumed_by_the_next_run(busy, verb, state):
    """No other code keeps systemd and Slurm from starting it again at once, which would resume it."""
    process = start(busy)
    await_first_checkpoint(busy, process)
    assert ask(busy, verb).code == 0
    end = end_of(process)
    assert end.code == 78 and state in end.out and "history" in end.out, end
    again = weft_run(busy, "-s", f"train.steps={status(busy)['step'] + 20}")
    assert again.code == 0 and len(busy.stores()) == 1, again


def test_a_second_run_is_refused_naming_the_first(busy):
    process = start(busy)
    await_first_checkpoint(busy, process)
    second = weft_run(busy)
    assert second.code == 4 and str(process.pid) in second.err, second
    assert status(busy)["state"] == "RUNNING"
    assert end_of(process, signal.SIGTERM).code == 130


def test_a_folder_that_takes_no_state_is_reported(small):
    (small.place / ".weft").touch()
    end = weft_run(small)
    assert end.code == 1 and "to do: make room, or make the job file's folder one that you may write to" in end.err, end


def test_what_cannot_start_here_ends_the_run_and_says_why(small):
    alone = small.place / "bin"
    alone.mkdir()
    shutil.copy(runs.WEFT, alone / "weft")
    end = subprocess.run([alone / "weft", "run", str(small.file)], capture_output=True, text=True, timeout=runs.WATCHDOG,
                         env={**os.environ, "PATH": "/usr/bin"})  # fmt: skip
    assert end.returncode == 1 and "weft-rank is neither beside this program" in end.stderr, end
    assert f"  where: {state_folder(small)}\n" in end.stderr, end
    assert weft_run(small).code == 0, "it is the same job"


# ---- interrupted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_saves_and_names_the_command_that_continues_it(busy, sig):
    busy.file = busy.file.rename(busy.place / "a job.yaml")
    change = ("-s", "train.seed=3", "-s", "name='test'", "--grace", "2m")
    process = start(busy, *change)
    await_first_checkpoint(busy, process)
    end = end_of(process, sig)
    (line,) = (line for line in end.err.splitlines() if line.startswith("to continue: "))
    assert end.code == 130 and shlex.split(line)[2:] == [runs.WEFT, "run", str(busy.file), *change], end
    stopped = status(busy)
    assert stopped["state"] == "QUEUED" and stopped["step"] == stopped["checkpoint_step"], stopped
    assert busy.checkpoints()[-1].step == stopped["step"]
    assert weft_run(busy, *change, "-s", f"train.steps={stopped['step'] + 20}").code == 0
    assert len(busy.stores()) == 1, "it is one job"


def test_a_hang_up_that_is_ignored_ends_nothing(busy):
    process = start(busy, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))  # as nohup does
    await_first_checkpoint(busy, process)
    process.send_signal(signal.SIGHUP)
    saved = busy.checkpoints()[-1].step
    assert busy.wait_until(lambda: busy.checkpoints()[-1].step > saved + 20)
    assert end_of(process, signal.SIGINT).code == 130


def test_a_second_interruption_ends_at_once(busy):
    process = start(busy)
    await_first_checkpoint(busy, process)
    os.kill(runs.ranks_of(process)[0], signal.SIGSTOP)  # it will not save
    process.send_signal(signal.SIGINT)
    line = ""
    while "saving and stopping" not in line:
        line = process.stderr.readline()
        assert line
    assert process.poll() is None
    assert end_of(process, signal.SIGINT).code == 130


def test_ranks_end_with_a_run_that_is_killed(busy):
    process = start(busy)
    await_first_checkpoint(busy, process)
    ranks = runs.ranks_of(process)
    assert len(ranks) == 2 and end_of(process, signal.SIGKILL).code == -signal.SIGKILL
    assert busy.wait_until(lambda: not [r for r in ranks if runs.alive(r)])


def test_a_database_that_cannot_be_written_ends_the_run_and_the_same_command_continues_it(busy):
    failing = {"LD_PRELOAD": str(runs.BUILD / "libfaultshim.so"), "FAULT_DIR": str(state_folder(busy).resolve()),
               "FAULT_KIND": "sync", "FAULT_MATCH": "weft.db-wal", "FAULT_AT": "30+", "FAULT_DO": "EIO"}  # fmt: skip
    end = end_of(start(busy, env={**os.environ, **failing}))
    assert end.code == 1 and "weft.db" in end.err and f"  where: {state_folder(busy)}\n" in end.err, end
    assert not runs.processes_naming(busy.place)
    assert " error coordinator " in (state_folder(busy) / "log").read_text()
    saved = busy.checkpoints()[-1].step
    assert weft_run(busy, "-s", f"train.steps={saved + 20}").code == 0 and len(busy.stores()) == 1


# ---- terminals -----------------------------------------------------------------------------------


def test_a_pager_that_does_not_read_holds_up_neither_training_nor_ctrl_c(busy):
    process = start(busy, "--json")
    await_first_checkpoint(busy, process)

    def stands_still():  # the thread that prints
        threads = os.listdir(f"/proc/{process.pid}/task")
        return any("pipe_write" in open(f"/proc/{process.pid}/task/{t}/wchan").read() for t in threads)

    assert busy.wait_until(stands_still)
    saved = busy.checkpoints()[-1].step
    assert busy.wait_until(lambda: busy.checkpoints()[-1].step > saved + 50)
    assert status(busy)["state"] == "RUNNING" and stands_still()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=runs.WATCHDOG) == 130
    stopped = status(busy)
    assert stopped["state"] == "QUEUED" and stopped["step"] == stopped["checkpoint_step"], stopped
    process.communicate()


def test_ctrl_z_stops_run_and_ranks_and_no_hang_is_seen_when_they_continue(busy):
    """hang_after is 1 s. In a process group of its own, as a shell starts it."""
    process = start(busy, preexec_fn=os.setpgrp)
    await_first_checkpoint(busy, process)
    everybody = [process.pid, *runs.ranks_of(process)]
    for seconds in (4, 1.5, 1.2):
        process.send_signal(signal.SIGTSTP)
        assert busy.wait_until(lambda: [process_state(p) for p in everybody] == ["T"] * 3)
        stood = busy.checkpoints()[-1].step
        time.sleep(seconds)
        assert busy.checkpoints()[-1].step == stood
        os.killpg(process.pid, signal.SIGCONT)
        assert busy.wait_until(lambda: process.poll() is not None or busy.checkpoints()[-1].step > stood)
    now = status(busy)
    assert now["state"] == "RUNNING" and now["attempt"] == 1 and now["restarts"] == 0, now
    end = end_of(process, signal.SIGINT)
    assert end.code == 130 and "hang" not in end.out, end


def test_a_terminal_that_goes_ends_the_run_with_a_checkpoint(busy):
    ours, theirs = pty.openpty()

    def take_terminal():
        hear_hang_ups()
        os.setsid()
        os.close(os.open(os.ttyname(0), os.O_RDWR))  # which makes it the session's

    process = runs.watch_over(subprocess.Popen([runs.WEFT, "run", str(busy.file)], stdin=theirs, stdout=theirs, stderr=theirs,
                                               preexec_fn=take_terminal))  # fmt: skip
    os.close(theirs)
    await_first_checkpoint(busy, process)
    os.close(ours)
    assert process.wait(timeout=runs.WATCHDOG) == 130
    stopped = status(busy)
    assert stopped["state"] == "QUEUED" and stopped["step"] == stopped["checkpoint_step"], stopped
