# SPDX-License-Identifier: Apache-2.0
"""Runs that a weft of schema 1 began, when models were built in C, go on with today's programs.

old_runs.tar.xz was made by the binaries of commit 737c5ed: five tiny runs of six steps (a classifier on
{dp: 2}, a vae, gpt2 on {tp: 2} with dropout, llama with shared key heads, cookbook on {dp: 2} with
dropout), their `--solo` folders and the checkpoints of steps 3 and 6, undisturbed; and the state of a
coordinator in whose queue the classifier waits. What is held against them is thus the old program's own
numbers: to rounding, since kernels add in another order now than they did then."""
import json
import math
import pathlib
import re
import shutil
import tarfile

import cluster
import numpy
import pytest
import solo

RUNS = pathlib.Path(__file__).parent / "old_runs.tar.xz"
NAMES = ["mlp", "vae", "gpt2", "llama", "cookbook"]


@pytest.fixture
def old(place):
    with tarfile.open(RUNS) as runs:
        runs.extractall(place)
    return place


def new_spelling(place, name):
    """The job file as its user writes it today; returns its number of ranks."""
    job = json.loads((place / f"{name}.yaml").read_text())
    kind, preset = (job["model"].pop(key, None) for key in ("kind", "preset"))
    job["model"] = {"program": preset or kind or "mlp", **job["model"]}
    (place / f"{name}.yaml").write_text(json.dumps(job))
    return math.prod(job["mesh"].values())


def stores(place, name):
    (store,) = (place / "ckpt").glob(f"{name}-*")
    return solo.checkpoints_of(store)


def assert_same_but_for_rounding(now, then):
    was = then.numbers()
    assert now.numbers().keys() == was.keys()
    for tensor, values in now.numbers().items():
        numpy.testing.assert_allclose(values, was[tensor], rtol=1e-5, atol=1e-7, err_msg=tensor)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_begun_by_an_older_weft_ends_as_it_would_have(old, name):
    then = stores(old, name)[-1]
    assert then.step == 6
    shutil.move(then.path, old / "undisturbed")
    then.path = old / "undisturbed"
    ranks = new_spelling(old, name)
    end = solo.Process(["--solo", name, "--job", f"{name}.yaml", "--of", str(ranks)], cwd=old).wait()
    assert end.code == 0, end
    assert "resolved by another version of weft" in (old / name / "logs/rank-0000.log").read_text()
    now = stores(old, name)[-1]
    assert (now.step, now.epoch, now.manifest["parent"]["step"]) == (6, 2, 3)
    assert_same_but_for_rounding(now, then)


def born_as_then(place):
    """The cookbook's program but for its initialisers, which are its source's now; what says nothing is born
    as it was then."""
    text = solo.weft("model", "show", "cookbook").out
    old_text, n = re.subn(r" ~ truncated\(sqrt\((?:[^()]|\([^()]*\))*\)\)", "", text)
    assert n == 7, old_text
    old_text = old_text.replace("attn.out[heads, head_dim, embed]", "attn.out[heads, head_dim, embed] ~ normal(0.02 / sqrt(2 * layers))")
    old_text = old_text.replace("mlp.out[mlp, embed]", "mlp.out[mlp, embed] ~ normal(0.02 / sqrt(2 * layers))")
    (place / "old.model").write_text(old_text)
    return ["-s", "model.program=./old.model"]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_begun_today_is_the_one_that_an_older_weft_made(old, name):
    """From nothing: so parameters have the same paths, shapes and first values, and the data's order and
    the draws are the same."""
    thens = stores(old, name)
    assert [then.step for then in thens] == [3, 6]
    (old / "then").mkdir()
    for then in thens:
        shutil.move(then.path, old / "then" / then.path.name)
        then.path = old / "then" / then.path.name
    shutil.rmtree(old / "ckpt")
    shutil.rmtree(old / name)
    ranks = new_spelling(old, name)
    more = born_as_then(old) if name == "cookbook" else []
    end = solo.Process(["--solo", name, "--job", f"{name}.yaml", "--of", str(ranks), *more], cwd=old).wait()
    assert end.code == 0, end
    nows = stores(old, name)
    assert [(now.step, now.epoch) for now in nows] == [(3, 1), (6, 1)]
    for now, then in zip(nows, thens):
        assert now.tensors().keys() == then.tensors().keys()
        assert_same_but_for_rounding(now, then)


def test_a_job_that_waits_in_an_older_coordinators_database_is_run(old):
    c = cluster.Cluster(old, workers=0, start=False)
    for name in ("images", "labels"):
        shutil.copy(old / name, c.data)
    then = stores(old, "mlp")[-1]
    try:
        c.start_coordinator()
        c.start_worker(0)
        c.wait_ready()
        (job,) = c.json("jobs", "--all")["jobs"]
        c.succeed(job["job"])
        (store,) = (s for s in (c.ckpt / "ckpt").glob("mlp-*"))
        assert_same_but_for_rounding(solo.checkpoints_of(store)[-1], then)
    finally:
        c.stop()
        c.kill_all()


def test_another_job_is_still_refused(old):
    ranks = new_spelling(old, "mlp")
    end = solo.Process(
        ["--solo", "mlp", "--job", "mlp.yaml", "--of", str(ranks), "-s", "model.hidden=[5, 3]"], cwd=old
    ).wait()
    assert end.code != 0 and "belongs to another job" in end.err, end


def test_the_old_spelling_of_a_job_file_says_the_new_one(old):
    end = solo.weft("plan", str(old / "llama.yaml"))
    assert end.code == 2 and "models are programs now: write program: llama" in end.err, end


def test_a_weft_run_of_an_older_weft_is_known_by_its_store(old):
    ranks = new_spelling(old, "mlp")
    assert ranks == 2
    (store,) = (old / "ckpt").glob("mlp-*")
    owner = json.loads((store / "OWNER").read_text())
    record = old / ".weft/mlp/job"
    record.parent.mkdir(parents=True)
    record.write_text(
        f"request {32 * '0'}\nhash {64 * '0'}\njob {owner['job']}\nstate SUCCEEDED\nstore {store}\n"
    )
    changed = solo.weft("run", str(old / "mlp.yaml"), "-s", "train.seed=9")
    assert changed.code == 2 and "another training than was begun here, which differs in train.seed" in changed.err, changed
    same = solo.weft("run", str(old / "mlp.yaml"))
    assert same.code == 0 and str(store) in same.out, same
