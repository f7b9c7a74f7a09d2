# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of one job, put whole into the folder of another: the service tells whose it is and goes on without."""
import hashlib
import json
import shutil
import time

import cluster
import pytest
import runs


@pytest.fixture
def c(place):
    c = cluster.Cluster(place)
    yield c
    c.kill_all()


def test_a_checkpoint_of_another_job_is_reported_and_not_used(c, toy):
    data = c.put_data(toy)

    def job(name, steps, seed):
        return runs.job(data, 2, name=name, train__steps=steps, train__seed=seed, checkpoint__every=10)
    mine, other = c.submit(job("mine", 20, 1)), c.submit(job("other", 30, 2))
    c.succeed(mine)
    c.succeed(other)
    foreign = runs.checkpoints_of(c.store(other))[-1].path
    assert foreign.name == "step-00000030.a1"
    shutil.copytree(foreign, c.store(mine) / foreign.name)

    c.submit(job("mine", 40, 1), "--continue", mine)
    c.succeed(mine)
    newest = runs.checkpoints_of(c.store(mine))[-1].manifest
    assert newest["step"] == 40 and newest["changes"] == [{"step": 20, "what": "train.steps from 20 to 40"}], newest
    assert (30, 1) not in [(x["step"], x["attempt"]) for x in c.json("checkpoints", mine)["checkpoints"]]
    assert f"is not used: step-00000030.a1: MANIFEST.json is of job {other} " in c.why(mine)


def test_a_checkpoint_that_was_put_into_the_folder_is_not_believed(c, toy):
    """Whoever may write to the folder, or answers for a host, names a checkpoint of the last step: nothing would be left
    to do. It is sound, and it is of this job; but no coordinator decided it."""
    job = c.submit(runs.job(c.put_data(toy), 2, name="mine", train__steps=20, checkpoint__every=10))
    c.succeed(job)
    store = c.store(job)
    c.submit(runs.job(c.put_data(toy), 2, name="mine", train__steps=40, checkpoint__every=10), "--continue", job)
    c.succeed(job)
    forged = store / "step-00000060.a2"
    shutil.copytree(runs.checkpoints_of(store)[-1].path, forged)
    manifest = json.loads((forged / "MANIFEST.json").read_text())
    (forged / "MANIFEST.json").write_text(json.dumps({**manifest, "step": 60}))
    digest = hashlib.sha256((forged / "MANIFEST.json").read_bytes()).hexdigest()
    (forged / "COMMIT").write_text(digest + "\n")
    c.submit(runs.job(c.put_data(toy), 2, name="mine", train__steps=60, checkpoint__every=10), "--continue", job)
    done = c.succeed(job)
    assert "step-00000060.a2 is not used: this coordinator never decided it" in c.why(job), c.why(job)
    assert done["attempt"] == 3 and "continues from step-00000040.a2" in c.why(job), c.why(job)


def rewrite_owner(store, old, new):
    owner = json.loads((store / "OWNER").read_text())
    assert old in owner["resolved"], owner
    (store / "OWNER").write_text(json.dumps({**owner, "resolved": owner["resolved"].replace(old, new, 1)}))


def test_a_found_job_whose_owner_was_changed_says_how_before_it_is_adopted(c, toy):
    """OWNER is sealed by nothing: after a lost database its text is held against the newest checkpoint's."""
    data = c.put_data(toy)
    rate, seed = (c.submit(runs.job(data, 2, name=name, train__steps=20)) for name in ("rate", "seed"))
    c.succeed(rate)
    c.succeed(seed)
    rewrite_owner(c.store(rate), "value: 0.05", "value: 0.5")
    rewrite_owner(c.store(seed), "seed: 3", "seed: 4")
    c.set_database(None)
    c.wait(rate, ("HELD",))
    c.wait(seed, ("HELD",))
    assert "differs from the newest checkpoint there: schedule.value" in c.why(rate), c.why(rate)
    assert c.weft("adopt", rate).code == 0  # such a key may change while a job trains
    assert "of another training than the newest checkpoint there, which differs in train.seed" in c.why(seed), c.why(seed)
    refused = c.weft("adopt", seed)
    assert refused.code == 4 and "differs in train.seed: put OWNER right" in refused.err, refused
    rewrite_owner(c.store(seed), "seed: 4", "seed: 3")
    c.coordinator.down()
    c.coordinator.up()
    c.wait_ready()
    assert c.wait(seed, ("HELD",))["found"]
    end = time.monotonic() + runs.WATCHDOG
    while c.weft("adopt", seed).code:  # its host is asked again
        assert time.monotonic() < end, c.why(seed)
        time.sleep(0.05)
