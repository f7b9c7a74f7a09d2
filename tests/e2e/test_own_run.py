# SPDX-License-Identifier: Apache-2.0
"""Verbs that ask about a job of weft run: --coordinator names the folder of its state."""
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time

import pytest
import runs


def state_folder(run):
    return run.place / ".weft" / "test"


def ask(run, *words):
    return runs.weft(*words, "--coordinator", str(state_folder(run)))


def start(run, *more):
    return runs.watch_over(subprocess.Popen([runs.WEFT, "run", str(run.file), *more], stdout=subprocess.DEVNULL,
                                            stderr=subprocess.PIPE, text=True))  # fmt: skip


@pytest.fixture
def finished(place, toy):
    run = runs.Run(place, runs.job(toy, 2), "mine")
    assert runs.weft("run", str(run.file)).code == 0
    return run


@pytest.fixture
def living(place, noise):
    """A run that trains on until it is stopped, with a first checkpoint."""
    run = runs.Run(place, runs.busy_job(noise, 1, train__steps=100000), "mine")
    process = start(run)
    assert run.wait_until(lambda: run.stores() and run.checkpoints())
    yield run, process
    process.kill()
    process.communicate(timeout=runs.WATCHDOG)


def assert_at_rest(run):
    assert not (state_folder(run) / "sock").exists()
    assert not runs.processes_naming(run.place)


def test_a_finished_run_is_asked_about_and_leaves_no_process(finished):
    why = ask(finished, "why", "test")
    assert why.code == 0 and "SUCCEEDED at step 30 of 30" in why.out and "goodput" in why.out, why
    assert_at_rest(finished)
    status = json.loads(ask(finished, "status", "test", "--json").out)
    assert status["state"] == "SUCCEEDED" and status["checkpoint_step"] == 30, status
    assert "COMMITTED" in ask(finished, "checkpoints", "test").out
    logs = ask(finished, "logs", "test")
    assert logs.code == 0 and "checkpoint of step 30 committed" in logs.out and "[0] " in logs.out, logs
    lines = json.loads(ask(finished, "logs", "test", "-n", "1", "--rank", "0", "--json").out)
    assert lines["rank"] == 0 and lines["attempt"] == 1 and lines["host"] and lines["text"] in logs.out, lines
    assert ask(finished, "logs", "other").code == 4
    assert "SUCCEEDED" in ask(finished, "watch", "test").out
    (job,) = json.loads(ask(finished, "jobs", "--all", "--json").out)["jobs"]
    assert job["name"] == "test" and job["job"] == status["job"]
    assert len(json.loads(ask(finished, "workers", "--json").out)["workers"]) == 1
    assert_at_rest(finished)
    again = runs.weft("run", str(finished.file), "-s", "train.steps=40", "-s", "tags=[late, lr]")
    assert again.code == 0, again
    (job,) = json.loads(ask(finished, "jobs", "--tag", "lr", "--json").out)["jobs"]
    assert job["tags"] == ["late", "lr"] and job["step"] == 40, job
    assert "tags        late lr\n" in ask(finished, "status", "test").out
    assert json.loads(ask(finished, "jobs", "--tag", "l", "--json").out)["jobs"] == []


def here(run, *words, **env):
    p = subprocess.run([runs.WEFT, *words], cwd=run.place, capture_output=True, text=True, timeout=runs.WATCHDOG, check=False,
                       env={**os.environ, **env})
    return runs.Ended(p.returncode, p.stdout, p.stderr)


def test_in_the_folder_of_a_run_verbs_find_it_by_its_name_alone(finished):
    for words in (["why", "test"], ["status", "test"], ["logs", "test"], ["watch", "test"], ["checkpoints", "test"]):
        end = here(finished, *words)
        assert end.code == 0 and not end.err, end
    assert "SUCCEEDED at step 30 of 30" in here(finished, "why", "test").out
    refused = here(finished, "resume", "test")
    assert refused.code == 4 and "of the `weft run` in this folder" in refused.err and "it has succeeded" in refused.err, refused
    away = here(finished, "why", "test", WEFT_COORDINATOR=f"unix:{finished.place}/none")
    assert away.code == 3, away
    slip = here(finished, "why", "tset", WEFT_COORDINATOR=f"unix:{finished.place}/none")
    assert slip.code == 3 and "to do: name a `weft run` of this folder (test), or a coordinator: " in slip.err, slip


def test_a_finished_run_says_its_result_again(finished):
    again = runs.weft("run", str(finished.file))
    lines = again.out.splitlines()
    assert again.code == 0 and lines[0].startswith("test SUCCEEDED  step 30/30  loss ") and "accuracy " in lines[0], again
    assert lines[1].startswith("test is finished; "), again
    (line,) = runs.weft("run", str(finished.file), "--json").out.splitlines()
    assert json.loads(line)["status"]["eval_accuracy"] > 0, line


def test_a_held_run_that_is_resumed_says_who_continues_it(living):
    run, process = living
    assert here(run, "hold", "test").code == 0
    process.communicate(timeout=runs.WATCHDOG)
    end = here(run, "resume", "test")
    assert end.code == 0 and "it waits for `weft run` of its job file, which continues it" in end.out, end
    assert "the same command continues it" in here(run, "why", "test").out


def test_steps_that_are_not_finite_at_the_end_fail_the_run_and_are_in_its_history(place, toy):
    run = runs.Run(place, runs.job(toy, 1, train__steps=9, schedule__value=1e6, optimizer__kind="sgd"), "mine")
    end = runs.weft("run", str(run.file))
    assert end.code == 65 and "FAILED" in end.out and not run.checkpoints(), end
    why = ask(run, "why", "test")
    assert re.search(r"not finite for \d steps in a row, up to the last, 9", why.out), why
    assert re.search(r" dropped .* its update is dropped \(\d so far\)", why.out), why


def test_since_in_a_history_is_since_the_line_above(finished):
    times = [e["t_ms"] for e in json.loads(ask(finished, "why", "test", "--json").out)["events"]]
    lines = ask(finished, "why", "test").out.splitlines()
    head = next(n for n, line in enumerate(lines) if " SINCE " in line)
    end = lines[head].index(" SINCE ") + len(" SINCE")
    shown = [line[:end].split()[-1] for line in lines[head + 1 : head + 1 + len(times)]]
    gaps = [0, *(after - before for before, after in zip(times, times[1:]))]
    assert [s for s, gap in zip(shown, gaps) if gap < 9900] == [f"{gap / 1000:.1f}s" for gap in gaps if gap < 9900]


def test_a_run_that_is_under_way_is_asked_in_its_own_coordinator(living):
    run, process = living
    status = json.loads(ask(run, "status", "test", "--json").out)
    assert status["state"] == "RUNNING" and status["hosts"], status
    assert "every rank is ready" in ask(run, "why", "test").out
    logs = ask(run, "logs", "test")
    assert logs.code == 0 and "step" in logs.out, logs
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=runs.WATCHDOG)
    assert process.returncode == 130
    told = ask(run, "why", "test")
    assert told.code == 0 and "QUEUED" in told.out and "the same command continues it" in told.out, told


def test_a_killed_run_is_asked_about_at_once_and_continues_afterwards(living):
    run, process = living
    process.kill()
    process.communicate(timeout=runs.WATCHDOG)
    why = ask(run, "why", "test")
    assert why.code == 0 and "every rank is ready" in why.out, why
    again = start(run)
    saved = run.checkpoints()[-1].step
    assert run.wait_until(lambda: run.checkpoints()[-1].step > saved)
    again.send_signal(signal.SIGINT)
    _, err = again.communicate(timeout=runs.WATCHDOG)
    assert again.returncode == 130, err


def test_a_verb_that_is_killed_leaves_nothing_that_keeps_the_run_from_going_on(finished):
    acting = runs.watch_over(subprocess.Popen([runs.WEFT, "resume", "test", "--coordinator", str(state_folder(finished))],
                                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))  # fmt: skip
    while not (state_folder(finished) / "sock").exists() and acting.poll() is None:
        time.sleep(0.001)
    acting.kill()
    acting.wait(timeout=runs.WATCHDOG)
    assert ask(finished, "why", "test").code == 0
    again = runs.weft("run", str(finished.file), "-s", "train.steps=40")
    assert again.code == 0, again


def interrupt(process):
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=runs.WATCHDOG)
    assert process.returncode == 130, err


def test_a_run_continues_in_the_folder_that_it_was_moved_or_copied_to(place, noise):
    (place / "first").mkdir()
    run = runs.Run(place / "first", runs.busy_job(noise, 1, train__steps=100000), "mine")
    process = start(run)
    assert run.wait_until(lambda: run.stores() and run.checkpoints())
    interrupt(process)
    saved = run.checkpoints()[-1].step
    (place / "first").rename(place / "second")
    moved = runs.Run(place / "second", runs.busy_job(noise, 1, train__steps=saved + 40), "mine")
    end = runs.weft("run", str(moved.file))
    assert end.code == 0 and f"its folder was {place}/first\n" in end.err, end
    assert moved.checkpoints()[-1].step == saved + 40 and moved.checkpoints()[-1].manifest["parent"]["step"] == saved
    assert not (place / "first").exists()
    shutil.copytree(place / "second", place / "third", symlinks=True)
    copied = runs.Run(place / "third", moved.job, "mine")
    again = runs.weft("run", str(copied.file))
    assert again.code == 0 and "is finished" in again.out and f"{place}/third/mine-ckpt" in again.out, again
    longer = runs.weft("run", str(copied.file), "-s", f"train.steps={saved + 80}")
    assert longer.code == 4 and "is a copy" in longer.err, longer
    (place / "second").rename(place / "aside")
    longer = runs.weft("run", str(copied.file), "-s", f"train.steps={saved + 80}")
    assert longer.code == 0 and f"its folder was {place}/second\n" in longer.err, longer
    assert copied.checkpoints()[-1].step == saved + 80 and not (place / "second").exists()


def test_a_run_that_was_killed_before_it_knew_its_job_finds_it_after_a_move(place, noise):
    (place / "first").mkdir()
    run = runs.Run(place / "first", runs.busy_job(noise, 1, train__steps=100000), "mine")
    process = start(run)
    assert run.wait_until(lambda: run.stores() and run.checkpoints())
    interrupt(process)
    saved = run.checkpoints()[-1].step
    record = state_folder(run) / "job"
    kept = ("request", "hash", "base")
    record.write_text("".join(line if line.split()[0] in kept else line.split()[0] + " \n"
                              for line in record.read_text().splitlines(keepends=True)))  # fmt: skip
    (place / "first").rename(place / "second")
    moved = runs.Run(place / "second", runs.busy_job(noise, 1, train__steps=saved + 40), "mine")
    end = runs.weft("run", str(moved.file))
    assert end.code == 0 and f"its folder was {place}/first\n" in end.err, end
    assert moved.checkpoints()[-1].step == saved + 40 and len(moved.stores()) == 1
    assert len(json.loads(ask(moved, "jobs", "--all", "--json").out)["jobs"]) == 1


def test_the_copy_of_a_folder_may_be_asked_and_does_not_continue_beside_it(living):
    run, process = living
    interrupt(process)
    (run.place / "copy").mkdir()
    copy = runs.Run(run.place / "copy", run.job, "mine")
    shutil.copytree(run.place / ".weft", copy.place / ".weft", symlinks=True)
    shutil.copytree(run.place / "mine-ckpt", copy.place / "mine-ckpt")
    saved = run.checkpoints()[-1].step
    original = start(run)
    assert run.wait_until(lambda: run.checkpoints()[-1].step > saved)
    attempt = json.loads(ask(run, "status", "test", "--json").out)["attempt"]
    assert ask(copy, "why", "test").code == 0
    refused = runs.weft("run", str(copy.file))
    assert refused.code == 4 and f"is a copy: its job continues in {run.place} alone" in refused.err, refused
    status = json.loads(ask(run, "status", "test", "--json").out)
    assert status["state"] == "RUNNING" and status["attempt"] == attempt, status
    interrupt(original)
    assert runs.weft("run", str(copy.file), "--new", "-s", "train.steps=40").code == 0


def test_a_run_that_failed_names_the_verb_that_prints_its_history(place, toy):
    home = place / "it's a folder"  # that a shell would not take for one word
    home.mkdir()
    run = runs.Run(home, runs.job(toy, 2), "mine")
    (home / "taken").touch()
    end = runs.weft("run", str(run.file), "-s", "checkpoint.dir=taken/ckpt")
    (line,) = (line for line in end.out.splitlines() if line.startswith("history "))
    words = shlex.split(line)
    assert end.code == 78 and words[1:] == ["weft", "why", "test", "--coordinator", str(state_folder(run))], end
    told = runs.weft(*words[2:])
    assert told.code == 0 and "Not a directory" in told.out, told


def test_what_is_no_folder_of_a_run_is_refused(finished):
    end = runs.weft("why", "test", "--coordinator", str(finished.place))
    assert end.code == 2 and "is no folder of `weft run`" in end.err, end
    end = ask(finished, "submit", str(finished.file))
    assert end.code == 2 and "has that run's job alone" in end.err, end
    (state_folder(finished) / "weft.db").rename(finished.place / "kept.db")
    end = ask(finished, "why", "test")
    assert end.code == 2 and "weft.db: No such file" in end.err, end
    assert_at_rest(finished)
    end = runs.weft("why", "test", "--coordinator", f"{finished.place}/none/.weft/test")
    assert end.code == 2 and "none/.weft/test: No such file or directory" in end.err, end


def test_a_verb_that_acts_waits_for_a_run_that_begins_or_ends(finished):
    lock = (state_folder(finished) / "lock").open()
    fcntl.flock(lock, fcntl.LOCK_EX)
    asking = runs.watch_over(subprocess.Popen([runs.WEFT, "cancel", "test", "--coordinator", str(state_folder(finished))],
                                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))  # fmt: skip
    time.sleep(0.5)
    assert asking.poll() is None, asking.communicate()
    assert ask(finished, "status", "test").code == 0  # who reads waits for nobody
    lock.close()
    _, err = asking.communicate(timeout=runs.WATCHDOG)
    assert asking.returncode == 4 and "it has succeeded" in err, err


def test_a_run_is_asked_by_a_path_longer_than_any_address(place, toy):
    home = place / ("x" * 100) / ("y" * 100) / ("z" * 100)
    home.mkdir(parents=True)
    run = runs.Run(home, runs.job(toy, 1), "mine")
    assert runs.weft("run", str(run.file)).code == 0
    why = ask(run, "why", "test")
    assert why.code == 0 and "SUCCEEDED" in why.out, why


def test_a_refusal_names_the_folder_and_a_command_that_helps_there(finished):
    end = ask(finished, "resume", "test")
    assert end.code == 4 and f"where: the coordinator of {state_folder(finished)} (from" in end.err, end
    assert "to do: `weft run` with more train.steps, or with --from-step, does" in end.err, end


def test_a_run_continues_in_a_folder_whose_name_holds_line_breaks(place, toy):
    home = place / "first\nstate QUEUED\n\n last"
    home.mkdir()
    run = runs.Run(home, runs.job(toy, 1), "mine")
    assert runs.weft("run", str(run.file)).code == 0
    again = runs.weft("run", str(run.file))
    assert again.code == 0 and "is finished" in again.out, again
    longer = runs.weft("run", str(run.file), "-s", "train.steps=40")
    assert longer.code == 0 and "its folder was" not in longer.err, longer
    assert run.checkpoints()[-1].step == 40


def test_a_cancelled_run_continues_and_says_what_it_was(living):
    run, process = living
    interrupt(process)
    assert ask(run, "cancel", "test").code == 0
    again = start(run)
    assert again.stderr.readline()  # the devices
    assert again.stderr.readline() == "it was CANCELLED: queued again\n"
    saved = run.checkpoints()[-1].step
    assert run.wait_until(lambda: run.checkpoints()[-1].step > saved)
    interrupt(again)


@pytest.mark.parametrize("file, cut", [("job", 0), ("job", 60), ("resolved", None)])
def test_a_run_whose_record_is_damaged_does_not_start_again_by_mistake(finished, file, cut):
    record = state_folder(finished) / file
    record.unlink() if cut is None else record.write_bytes(record.read_bytes()[:cut])
    end = runs.weft("run", str(finished.file), "-s", "train.steps=40")
    assert end.code == 4 and f"is damaged: {state_folder(finished)}/job or resolved\n" in end.err and "--new" in end.err, end
    (saved,) = finished.stores()
    end = runs.weft("run", str(finished.file), "--new")
    assert end.code == 0 and len(finished.stores()) == 2 and saved in finished.stores(), end
    (aside,) = state_folder(finished).glob("old-*")
    assert (aside / "weft.db").exists()


def test_a_resume_before_a_held_job_has_its_new_text_only_delays_that(place, noise):
    """A changed run looks at its data, holds its job, looks at the checkpoints (the second look at a MANIFEST) and submits:
    a person may resume the job between. It trains on until the new text is there: for under 300 steps."""
    run = runs.Run(place, runs.busy_job(noise, 1, train__steps=100000), "mine")
    process = start(run)
    assert run.wait_until(lambda: run.stores() and run.checkpoints())
    process.send_signal(signal.SIGINT)
    assert process.wait(runs.WATCHDOG) == 130
    steps, gate = run.checkpoints()[-1].step + 300, place / "gate"
    looks = {"LD_PRELOAD": str(runs.BUILD / "libfaultshim.so"), "FAULT_DIR": str(place / "mine-ckpt"), "FAULT_KIND": "open",
             "FAULT_MATCH": "MANIFEST", "FAULT_AT": "2", "FAULT_DO": "wait", "FAULT_UNTIL": str(gate)}
    changed = runs.watch_over(subprocess.Popen([runs.WEFT, "run", str(run.file), "-s", f"train.steps={steps}"], text=True,
                                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, **looks}))  # fmt: skip
    run.wait_until(lambda: '"HELD"' in ask(run, "status", "test", "--json").out)
    assert ask(run, "resume", "test").code == 0
    gate.touch()
    err = changed.communicate(timeout=runs.WATCHDOG)[1]
    assert changed.returncode == 0 and "with a changed job" in err, err
    assert run.checkpoints()[-1].step == steps
