# SPDX-License-Identifier: Apache-2.0
"""weft delete: an ended job goes with its history and its checkpoints, and nothing else does."""
import json
import shutil
import signal
import time

import pytest
import runs


def delete_here(place, *args):
    """In the job file's folder, as a person would."""
    return runs.Process(["delete", *args], program=runs.WEFT, cwd=place).wait()


@pytest.fixture
def done(place, toy):
    run = runs.Run(place, runs.job(toy, 1, train__steps=4, checkpoint__every=2), "mine")
    end = runs.weft("run", str(run.file))
    assert end.code == 0, end
    return run


def test_a_run_goes_with_all_that_it_left(place, toy, done):
    other = runs.Run(place, runs.job(toy, 1, name="other", train__steps=2), "other")
    assert runs.weft("run", str(other.file)).code == 0
    (store,) = done.stores()
    (store / "step-00000002.a1").rename(store / "aside-step-00000002.a1")
    (store / ".trash-step-00000001.a1.abc").mkdir()
    (store / "link").symlink_to(other.stores()[0])
    refused = delete_here(place, "test")
    assert refused.code == 2 and "--yes" in refused.err and store.exists(), refused
    end = delete_here(place, "test", "--yes")
    assert end.code == 0 and end.out == "test: deleted\n", end
    assert not store.exists() and list(store.parent.iterdir()) == [] and not (place / ".weft" / "test").exists()
    assert (place / ".weft" / "other" / "weft.db").exists() and [c.step for c in other.checkpoints()] == [2]
    assert done.file.exists()
    again = runs.weft("run", str(done.file))
    assert again.code == 0 and [c.step for c in done.checkpoints()] == [2, 4], again
    assert json.loads(delete_here(place, "test", "-y", "--json").out) == {"verb": "delete", "target": "test", "text": "deleted"}


def test_of_several_names_each_is_looked_for_here(place, toy, done):
    other = runs.Run(place, runs.job(toy, 1, name="other", train__steps=2), "other")
    assert runs.weft("run", str(other.file)).code == 0
    end = delete_here(place, "test", "nowhere", "other", "--yes", "--json")
    assert [json.loads(line)["target"] for line in end.out.splitlines()] == ["test", "other"], end
    assert end.code == 3 and "nowhere" not in end.out, end  # no coordinator is there to ask
    assert not done.stores() and not other.stores() and not (place / ".weft").exists()


def test_a_run_that_is_under_way_is_not_deleted(place, noise):
    run = runs.Run(place, runs.busy_job(noise, 1, train__steps=100000), "mine")
    p = runs.Process(["run", str(run.file)], program=runs.WEFT)
    assert run.wait_until(run.checkpoints, p)
    end = delete_here(place, "test", "--yes")
    assert end.code == 4 and "stop it first" in end.err and run.checkpoints(), end
    p.signal(signal.SIGINT)
    p.wait()
    assert delete_here(place, "test", "--yes").code == 0 and not run.stores()


def test_in_a_copy_of_the_folder_the_originals_checkpoints_stay(place, toy):
    mine, copy = place / "mine", place / "copy"
    mine.mkdir()
    job = runs.job(toy, 1, train__steps=4, checkpoint={"dir": str(place / "elsewhere"), "every": 2})
    (mine / "job.yaml").write_text(json.dumps(job))
    end = runs.Process(["run", "job.yaml"], program=runs.WEFT, cwd=mine).wait()
    assert end.code == 0, end
    shutil.copytree(mine, copy, symlinks=True)
    assert delete_here(copy, "test", "--yes").code == 0
    (store,) = (place / "elsewhere").iterdir()
    assert not (copy / ".weft" / "test").exists() and (store / "step-00000004.a1" / "COMMIT").exists()
    assert delete_here(mine, "test", "--yes").code == 0 and list((place / "elsewhere").iterdir()) == []


def test_another_jobs_folder_is_left_alone(place, done):
    (store,) = done.stores()
    owner = store / "OWNER"
    text = json.loads(owner.read_text())
    owner.write_text(json.dumps({**text, "job": "f" * 32}))
    end = delete_here(place, "test", "--yes")
    assert end.code == 4 and "belongs to another job" in end.err and [c.step for c in done.checkpoints()] == [2, 4], end
    assert (place / ".weft" / "test" / "job").exists()


def test_a_deletion_that_was_cut_short_is_done_by_the_next(place, done):
    (store,) = done.stores()
    store.rename(store.parent / f".trash-{store.name}")
    assert delete_here(place, "test", "--yes").code == 0
    assert list(store.parent.iterdir()) == [] and not (place / ".weft").exists()


# ---- served jobs ---------------------------------------------------------------------------------


def gone(one, job):
    end = time.monotonic() + runs.WATCHDOG
    while one.weft("status", job).code != 4:
        assert time.monotonic() < end, one.weft("why", job)
        time.sleep(0.02)


def test_a_served_job_goes_with_its_folder(one, place, toy):
    data = one.put_data(toy)
    kept = one.submit(runs.job(data, 1, name="kept", train__steps=2))
    job = one.submit(runs.job(data, 1, train__steps=4, checkpoint__every=2))
    assert one.succeed(job)["step"] == 4 and one.succeed(kept)["step"] == 2
    store = one.store(job)
    (store / "step-00000002.a1").rename(store / "aside-step-00000002.a1")
    end = one.weft("delete", job, "--yes")
    assert end.code == 0 and "a worker removes its checkpoints, then it is forgotten" in end.out, end
    gone(one, job)
    assert not store.exists() and not list(store.parent.glob(".trash-*"))
    assert one.status(kept)["state"] == "SUCCEEDED" and one.store(kept).exists()
    assert one.weft("delete", job, "--yes").code == 4


def test_a_served_job_that_has_not_ended_is_not_deleted(one, place, noise):
    job = one.submit(runs.busy_job(one.put_data(noise), 1, train__steps=100000))
    one.wait(job, states=("RUNNING",), step=10)
    end = one.weft("delete", job, "--yes")
    assert end.code == 4 and "it has not ended: `weft cancel` it first" in end.err, end
    assert one.weft("cancel", job).code == 0 and one.wait(job)["state"] == "CANCELLED"
    store = one.store(job)
    assert one.weft("delete", job, "--yes").code == 0
    gone(one, job)
    assert not store.exists()


def test_a_folder_that_became_anothers_keeps_the_job(one, place, toy):
    job = one.submit(runs.job(one.put_data(toy), 1, train__steps=2))
    one.succeed(job)
    owner = one.store(job) / "OWNER"
    owner.write_text(json.dumps({**json.loads(owner.read_text()), "job": "f" * 32}))
    assert one.weft("delete", job, "--yes").code == 0
    end = time.monotonic() + runs.WATCHDOG
    while not any("it is not deleted" in e["text"] for e in one.events(job)):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert owner.exists() and one.status(job)["state"] == "SUCCEEDED"
