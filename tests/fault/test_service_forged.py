# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of one job, put whole into the folder of another: the service tells whose it is and goes on without."""
import shutil

import cluster
import pytest
import solo


@pytest.fixture
def c(place):
    c = cluster.Cluster(place)
    yield c
    c.kill_all()


def test_a_checkpoint_of_another_job_is_told_and_not_used(c, toy):
    data = c.put_data(toy)

    def job(name, steps, seed):
        return solo.job(data, 2, name=name, train__steps=steps, train__seed=seed, checkpoint__every=10)
    mine, other = c.submit(job("mine", 20, 1)), c.submit(job("other", 30, 2))
    c.succeed(mine)
    c.succeed(other)
    foreign = solo.checkpoints_of(c.store(other))[-1].path
    assert foreign.name == "step-00000030.e1"
    shutil.copytree(foreign, c.store(mine) / foreign.name)

    c.submit(job("mine", 40, 1), "--continue", mine)
    c.succeed(mine)
    newest = solo.checkpoints_of(c.store(mine))[-1].manifest
    assert newest["step"] == 40 and newest["changes"] == [{"step": 20, "what": "train.steps from 20 to 40"}], newest
    (row,) = [x for x in c.json("checkpoints", mine)["checkpoints"] if (x["step"], x["epoch"]) == (30, 1)]
    assert row["bad"] and f"is not used: step-00000030.e1: MANIFEST.json is of job {other} " in c.why(mine)
