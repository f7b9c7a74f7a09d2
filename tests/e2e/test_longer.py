# SPDX-License-Identifier: Apache-2.0
"""A job that goes on with other settings: trained longer, at another rate, in another layout. What would
make it another training is refused."""
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess

import cluster
import pytest
import runs
from allocation import Allocation

LONGER = {"train__steps": 40, "schedule__value": 0.01, "checkpoint__every": 20}


def by_hand(place, data):
    """A run of 40 steps at the first rate that is cut off at step 20 and goes on at the second."""
    run = runs.train(place, runs.job(data, 1, train__steps=40, checkpoint__every=20), "byhand")
    run.forget(20)
    run.carry_on_as(runs.job(data, 1, **LONGER))
    run.finish()
    return run


def assert_went_on(run, place, data):
    newest = run.checkpoints()[-1]
    assert newest.step == 40 and newest.manifest["parent"]["step"] == 20
    (change,) = newest.manifest["changes"]
    assert change["step"] == 20
    assert "train.steps from 20 to 40" in change["what"] and "schedule.value from 0.05 to 0.01" in change["what"]
    hand = by_hand(place, data)
    assert newest.tensors() == hand.final()
    return hand


def test_all_ranks_of_a_finished_run_are_trained_longer_on_another_mesh(place, toy):
    run = runs.train(place, runs.job(toy, 1, train__steps=20), "mine")
    run.carry_on_as(runs.job(toy, 2, **LONGER))
    run.finish()
    assert len(run.losses()) == 40 and run.checkpoints()[-1].manifest["mesh"] == {"dp": 2}


ANOTHER = {
    "seed": ({"train__seed": 4}, "train.seed"),
    "model": ({"model__hidden": [32, 8]}, "model.hidden"),
}


@pytest.mark.parametrize("changes, keys", ANOTHER.values(), ids=ANOTHER)
def test_another_training_is_refused_naming_its_keys(place, toy, changes, keys):
    run = runs.Run(place, runs.job(toy, 1, train__steps=20), "mine")
    assert runs.weft("run", str(run.file)).code == 0
    run.carry_on_as(runs.job(toy, 1, **LONGER, **changes))
    end = runs.weft("run", str(run.file))
    assert end.code == 2 and f"differs in {keys}\n" in end.err and "--new" in end.err, end
    assert run.checkpoints()[-1].step == 20


def test_fewer_steps_than_are_done_are_refused_and_nothing_changes(place, toy):
    run = runs.Run(place, runs.job(toy, 1, train__steps=20), "mine")
    assert runs.weft("run", str(run.file)).code == 0
    run.carry_on_as(runs.job(toy, 1, train__steps=10))
    end = runs.weft("run", str(run.file))
    assert end.code != 0 and "step 20 already" in end.err and run.checkpoints()[-1].step == 20, end


# ---- weft run, and a served job ------------------------------------------------------------------


def test_weft_run_trains_longer_at_another_rate(place, toy):
    run = runs.Run(place, runs.job(toy, 1, train__steps=20), "mine")
    first = runs.weft("run", str(run.file))
    assert first.code == 0, first
    events = re.findall(r"^[0-9:.]+  [A-Z]+ (\w+)", first.out, re.M)  # all of them, however soon they happened
    assert events[:4] == ["submitted", "placed", "begun", "started"] and events[-1] == "succeeded", first
    run.carry_on_as(runs.job(toy, 1, train__seed=4, **LONGER))
    refused = runs.weft("run", str(run.file))
    assert refused.code == 2 and "differs in train.seed\n" in refused.err and "--new" in refused.err, refused
    run.carry_on_as(runs.job(toy, 1, **LONGER))
    end = runs.weft("run", str(run.file))
    assert end.code == 0, end
    (told,) = (line for line in end.err.splitlines() if "changed job" in line)
    assert told.startswith("it continues from step 20 with a changed job: ") and "train.steps from 20 to 40" in told, end
    assert "schedule.value from 0.05 to 0.01" in told, end
    assert_went_on(run, place, toy)
    again = runs.weft("run", str(run.file))
    assert again.code == 0 and "is finished; with more train.steps it continues" in again.out, again


def test_a_run_whose_first_try_trained_nothing_starts_again_as_another_training(place, toy):
    run = runs.Run(place, runs.job(toy, 2), "mine")
    (place / "taken").touch()
    first = runs.weft("run", str(run.file), "-s", "checkpoint.dir=taken/ckpt")
    assert first.code == 78 and "Not a directory" in first.out + first.err, first
    end = runs.weft("run", str(run.file), "-s", "train.seed=4")
    assert end.code == 0 and "it has saved nothing yet: it starts again with another train.seed" in end.err, end
    end = runs.weft("run", str(run.file), "-s", "train.seed=5")
    assert end.code == 2 and "which differs in train.seed" in end.err, end


def test_in_an_allocation_another_seed_is_refused_without_words_of_a_flag_that_it_refuses(place, toy):
    run = runs.Run(place, runs.job(toy, 1, train__steps=20), "mine")
    a = Allocation(run, 1)
    a.start()
    codes, ends = a.codes()
    assert codes == [0], ends
    a.start("-s", "train.seed=5")
    codes, (end,) = a.codes()
    assert codes == [78] and "differs in train.seed" in end.err and "--new" not in end.err, end
    (store,) = run.stores()
    assert f"move {store.parent}/test-xxxxxxxx away to start over" in end.err and store.name.startswith("test-"), end
    store.rename(place / "aside")
    a.start("-s", "train.seed=5")
    assert a.codes()[0] == [0]


def test_a_changed_run_whose_checkpoints_are_gone_is_refused_until_they_are_back(place, toy):
    run = runs.Run(place, runs.job(toy, 1, train__steps=20), "mine")
    assert runs.weft("run", str(run.file)).code == 0
    (store,) = run.stores()
    store.rename(place / "aside")
    run.carry_on_as(runs.job(toy, 1, train__steps=30))
    end = runs.weft("run", str(run.file))
    told = "test has changed and was to continue from step 20, and its checkpoints are gone"
    assert end.code == 1 and told in end.err and "--new" in end.err and not store.exists(), end
    (place / "aside").rename(store)
    assert runs.weft("run", str(run.file)).code == 0
    newest = run.checkpoints()[-1]
    assert newest.step == 30 and newest.manifest["parent"]["step"] == 20


def test_a_changed_run_whose_checkpoints_are_all_damaged_is_refused_and_says_so(place, toy):
    run = runs.Run(place, runs.job(toy, 1, train__steps=20), "mine")
    assert runs.weft("run", str(run.file)).code == 0
    (made,) = run.checkpoints()
    runs.damage(made.path)
    run.carry_on_as(runs.job(toy, 1, train__steps=30))
    end = runs.weft("run", str(run.file))
    told = "test has changed and was to continue from step 20, and none of its checkpoints can be used: step-00000020.a1/"
    assert end.code == 1 and told in end.err and "are gone" not in end.err and "--new" in end.err, end
    runs.damage(made.path)  # whole again
    assert runs.weft("run", str(run.file)).code == 0 and run.checkpoints()[-1].step == 30


LOST = {"gone": shutil.rmtree, "damaged": runs.damage}  # the newest checkpoint


@pytest.mark.parametrize("word, lose", LOST.items(), ids=LOST)
def test_a_run_that_lost_its_newest_checkpoint_is_refused_once_finished_and_else_says_so(place, toy, word, lose):
    run = runs.Run(place, runs.job(toy, 1, checkpoint__every=10, checkpoint__async=False), "mine")
    assert runs.weft("run", str(run.file)).code == 0
    lose(run.checkpoints()[-1].path)
    end = runs.weft("run", str(run.file))
    todo = ("  to do: put it back, give more train.steps to continue from step 20, which is left, or start over with --new "
            "(the old state is kept aside)\n")
    assert end.code == 1 and f"test was finished, and its result is {word}: " in end.err and todo in end.err, end
    end = runs.weft("run", str(run.file), "-s", "train.steps=40")
    told = f"continues from step-00000020.a1: the checkpoint of step 30 is {word}, so steps 21 to 30 are trained again (step 20)\n"
    assert end.code == 0 and end.out.count(told) == 1, end
    assert "it continues from step 20 with a changed job: train.steps from 30 to 40\n" in end.err, end
    assert [c.step for c in run.checkpoints() if c.attempt == 2] == [30, 40]


def lose_database(run):
    for name in ("weft.db", "weft.db-wal", "weft.db-shm"):
        (run.place / ".weft/test" / name).unlink(missing_ok=True)


def test_a_run_whose_database_is_lost_continues_in_its_folder_and_says_what_changed(place, toy):
    run = runs.Run(place, runs.job(toy, 1, train__steps=20), "mine")
    assert runs.weft("run", str(run.file)).code == 0
    lose_database(run)
    run.carry_on_as(runs.job(toy, 1, **LONGER))
    end = runs.weft("run", str(run.file))
    assert end.code == 0, end
    (told,) = (line for line in end.err.splitlines() if "changed job" in line)
    assert told.startswith("it continues from step 20 with a changed job: ") and "train.steps from 20 to 40" in told, end
    assert "restored: continues from step-00000020.a1 (step 20)\n" in end.out, end
    assert_went_on(run, place, toy)


def interrupt_once(run, what):
    """`weft run` of a job that trains on until it is stopped, when `what` has come true."""
    p = runs.watch_over(subprocess.Popen([runs.WEFT, "run", str(run.file)], stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE, text=True))  # fmt: skip
    assert run.wait_until(lambda: what() or p.poll() is not None)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=runs.WATCHDOG)
    assert p.returncode == 130, (out, err)
    return out, err


def test_an_unchanged_run_whose_database_is_lost_continues_too(place, noise):
    run = runs.Run(place, runs.busy_job(noise, 1, train__steps=100000), "mine")
    interrupt_once(run, lambda: run.stores() and run.checkpoints())
    saved = run.checkpoints()[-1]
    lose_database(run)
    out, err = interrupt_once(run, lambda: run.checkpoints()[-1].step > saved.step)
    assert f"restored: continues from {saved.path.name} " in out and "changed job" not in err, (out, err)
    assert len(run.stores()) == 1


def test_a_run_that_lost_its_cluster_too_is_refused_and_not_started_again(place, toy):
    run = runs.Run(place, runs.job(toy, 1, train__steps=20), "mine")
    assert runs.weft("run", str(run.file)).code == 0
    lose_database(run)
    (place / ".weft/test/cluster").unlink()
    end = runs.weft("run", str(run.file), "-s", "train.steps=40")
    assert end.code == 4 and "what the coordinator knew of this job is lost" in end.err and "--new" in end.err, end
    assert len(run.stores()) == 1 and run.checkpoints()[-1].step == 20


def test_weft_run_prints_paths_without_the_detours_of_the_job_file(place, toy):
    (place / "jobs").mkdir()
    run = runs.Run(place, runs.job(toy, 1, train__steps=2), "mine")
    for _ in range(2):
        end = runs.weft("run", str(run.file), "-s", "checkpoint.dir=jobs/../kept")
        assert end.code == 0 and f" {place.resolve()}/kept/" in end.out and ".." not in end.out, end


@contextlib.contextmanager
def one_core():
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def unpinned(run, data, **changes):
    run.carry_on_as(runs.job(data, 1, resources={"threads": 0}, checkpoint__every=5, **changes))


def test_the_first_start_of_a_run_decides_its_threads_and_later_ones_keep_them(place, toy):
    run = runs.Run(place, runs.job(toy, 1), "mine")
    unpinned(run, toy, train__steps=10)
    plan = runs.weft("plan", str(run.file), "--full")
    assert "threads of a device: decided when the job first starts" in plan.out, plan
    named = ("plan", str(run.file), "--full", "-s", "resources.threads=2")
    assert "a device uses 2 threads: resources.threads of the job\n" in runs.weft(*named).out
    told = json.loads(runs.weft(*named, "--json").out)
    assert (told["threads"], told["threads_why"]) == (2, None)
    with one_core():
        end = runs.weft("run", str(run.file))
    assert end.code == 0, end
    assert end.err.count("1 cpu device, 1 thread each (1 core of this machine divided by 1 device)") == 1, end
    unpinned(run, toy, train__steps=20)
    end = runs.weft("run", str(run.file))
    assert end.code == 0 and "1 cpu device, 1 thread each (it was started with as many)" in end.err, end
    newest = run.checkpoints()[-1]
    assert newest.step == 20 and newest.manifest["numerics"]["threads"] == 1
    assert [c["what"] for c in newest.manifest["changes"]] == ["train.steps from 10 to 20"]
    end = runs.weft("run", str(run.file), "-s", "train.steps=30", "-s", "resources.threads=2")
    assert end.code == 0 and "1 cpu device, 2 threads each (resources.threads)" in end.err, end
    newest = run.checkpoints()[-1]
    assert newest.manifest["numerics"]["threads"] == 2
    assert "resources.threads from 1 to 2" in newest.manifest["changes"][-1]["what"]


def test_a_served_job_continues_with_another_text_and_says_what_changed(one, place, toy):
    data = one.put_data(toy)
    job = one.submit(runs.job(data, 1, train__steps=20))
    one.succeed(job)
    for changes, words in (({"train__seed": 4}, "differs in train.seed"), ({"train__steps": 10}, "step 20 already")):
        text = runs.Run(place, runs.job(data, 1, **{**LONGER, **changes}), "refused")
        text.job["checkpoint"]["dir"] = "."
        text.file.write_text(json.dumps(text.job))
        end = one.weft("submit", str(text.file), "--continue", job)
        assert end.code == 4 and words in end.err, end
    assert one.status(job)["state"] == "SUCCEEDED"
    assert one.submit(runs.job(data, 1, **LONGER), "--continue", job) == job
    done = one.succeed(job)
    assert done["step"] == done["steps"] == 40
    (changed,) = (e for e in one.events(job) if e["kind"] == "changed")
    assert changed["step"] == 20 and "train.steps from 20 to 40" in changed["text"], changed
    newest = runs.checkpoints_of(one.store(job))[-1]
    assert newest.manifest["changes"][0]["step"] == 20
    assert newest.tensors() == by_hand(place, toy).final()


@pytest.mark.parametrize("word, lose", LOST.items(), ids=LOST)
def test_a_served_job_that_lost_its_newest_checkpoint_continues_from_an_older_one_and_says_so(one, toy, word, lose):
    data = one.put_data(toy)
    job = one.submit(runs.job(data, 1, checkpoint__every=10, checkpoint__async=False))
    one.succeed(job)
    lose(runs.checkpoints_of(one.store(job))[-1].path)
    refused = one.weft("resume", job)
    assert refused.code == 4 and "it has succeeded" in refused.err, refused
    one.submit(runs.job(data, 1, checkpoint__async=False, train__steps=40), "--continue", job)
    one.succeed(job)
    (restored,) = (e for e in one.events(job) if e["kind"] == "restored")
    told = f"continues from step-00000020.a1: the checkpoint of step 30 is {word}, so steps 21 to 30 are trained again"
    assert restored["text"] == told and restored["step"] == 20, restored


def test_a_served_job_that_was_changed_is_not_started_again_where_its_checkpoints_are_gone(one, place, toy):
    data = one.put_data(toy)
    job = one.submit(runs.job(data, 1, train__steps=20))
    one.succeed(job)
    store = one.store(job)
    store.rename(place / "aside")
    one.submit(runs.job(data, 1, train__steps=30), "--continue", job)
    why = "the folder holds no checkpoint, and the changed job was to continue from one"
    for _ in range(2):
        assert one.wait(job)["state"] == "FAILED" and why in one.why(job), one.why(job)
        assert not list(store.glob("step-*"))
        one.weft("resume", job)
    assert one.wait(job)["state"] == "FAILED"
    shutil.rmtree(store)
    (place / "aside").rename(store)
    assert one.weft("resume", job).code == 0
    assert one.succeed(job)["step"] == 30
    assert runs.checkpoints_of(store)[-1].manifest["parent"]["step"] == 20


def shown_threads(run, *flags):
    """What each status of `weft run --json` says of the threads, once."""
    lines = [json.loads(line) for line in runs.weft("run", str(run.file), "--json", *flags).out.splitlines()]
    return {(s["threads"], s["threads_why"]) for s in (line["status"] for line in lines) if s}


def test_a_run_says_who_decided_its_threads_as_long_as_it_continues(place, toy):
    run = runs.Run(place, runs.job(toy, 1), "mine")
    unpinned(run, toy, train__steps=10)
    shared = {(1, "1 core of this machine divided by 1 device")}
    with one_core():
        assert shown_threads(run) == shared
    assert shown_threads(run, "-s", "train.steps=20") == shared
    assert shown_threads(run, "-s", "train.steps=30", "-s", "resources.threads=1") == {(1, None)}


def test_the_first_placement_of_a_served_job_decides_its_threads(place, toy):
    run = runs.Run(place, runs.job(toy, 1), "mine")
    unpinned(run, toy, train__steps=2)
    here = int(re.search(r"1 cpu device, (\d+) thread", runs.weft("run", str(run.file)).err)[1])
    c = cluster.Cluster(place, devices=1)
    try:
        data = c.put_data(toy)
        job = c.submit(runs.job(data, 1, train__steps=20, resources={"threads": 0}))
        c.succeed(job)
        assert runs.checkpoints_of(c.store(job))[-1].manifest["numerics"]["threads"] == here
        why = rf"{here} cores? of w0 divided by 1 device"
        told = c.json("status", job)
        assert told["threads"] == here and re.fullmatch(why, told["threads_why"]), told
        assert re.search(rf"\nthreads: {here} a device: {why}\n", c.weft("why", job).out)
        c.submit(runs.job(data, 1, train__steps=40, resources={"threads": 0}), "--continue", job)
        c.succeed(job)
        newest = runs.checkpoints_of(c.store(job))[-1]
        assert newest.manifest["numerics"]["threads"] == here
        assert [x["what"] for x in newest.manifest["changes"]] == ["train.steps from 20 to 40"]
    finally:
        c.kill_all()
