# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints a job has when it ends: checkpoint.first, keep: 1, checkpoint.best; and that a restart changes nothing."""
import json

import pytest
import runs

# Too great a step: the loss falls and rises again, so that the best is in the middle.
RISING = {"schedule": {"kind": "linear", "init": 0.02, "end": 3.0}, "train__steps": 40, "eval": {"every": 4}}


def saving(**keys):
    return {f"checkpoint__{k}": v for k, v in {"dir": "ckpt", "every": 4, "async": False, **keys}.items()}


def eval_losses(run):
    (store,) = run.stores()
    return {row["step"]: row["eval_loss"] for row in runs.rows_of(store) if "eval_loss" in row}


def run_to_end(place, job):
    run = runs.Run(place, job, "mine")
    end = runs.weft("run", str(run.file))
    assert end.code == 0, end
    return run


def test_the_first_checkpoint_is_what_training_begins_with(place, toy):
    run = runs.train(place, runs.job(toy, 2, **saving(first=True, keep=9), train__steps=8))
    before = run.final()
    assert [c.step for c in run.checkpoints()] == [0, 4, 8]
    first = run.checkpoints()[0]
    assert first.manifest["samples"] == 0 and first.manifest["updates"] == 0 and first.manifest["parent"] is None
    assert not any(v.any() for k, v in first.numbers().items() if k.startswith("momentum/"))
    run.forget(0)
    run.finish()
    assert run.checkpoints()[-1].attempt == 2 and run.final() == before


def test_a_run_may_go_back_to_step_0(place, toy):
    run = run_to_end(place, runs.job(toy, 2, **saving(first=True, keep=9), train__steps=8))
    before = run.final()
    back = runs.weft("run", str(run.file), "--from-step", "0")
    assert back.code == 0 and "it continues from step 0" in back.err, back
    assert [(c.step, c.attempt) for c in run.checkpoints()] == [(0, 1), (4, 2), (8, 2)], run.checkpoints()
    assert run.final() == before and sorted(run.stores()[0].glob("aside-*"))
    none = runs.weft("run", str(run.file), "--from-step", "-1")
    assert none.code == 2 and "--from-step takes a number from 0" in none.err, none


def test_keep_one_leaves_the_newest_alone(place, toy):
    run = run_to_end(place, runs.job(toy, 1, **saving(keep=1), train__steps=20))
    assert [c.step for c in run.checkpoints()] == [20]
    assert runs.weft("ckpt", "verify", str(run.stores()[0])).code == 0


def test_the_best_stays_and_is_shown(place, toy):
    run = run_to_end(place, runs.job(toy, 1, **RISING, **saving(keep=1, best="eval_loss")))
    losses = eval_losses(run)
    best = min(losses, key=losses.get)
    assert 4 <= best < 40, losses
    assert [c.step for c in run.checkpoints()] == [best, 40]
    assert run.checkpoints()[0].manifest["eval_loss"] == pytest.approx(losses[best], rel=1e-9)
    listed = json.loads(runs.weft("ckpt", "ls", "--json", str(run.stores()[0])).out)["checkpoints"]
    assert [(c["step"], c["best"]) for c in listed] == [(40, False), (best, True)]
    assert "(best)" in runs.weft("ckpt", "ls", str(run.stores()[0])).out
    shown = runs.weft("checkpoints", "--json", "--coordinator", str(run.place / ".weft" / "test"), "test")
    rows = json.loads(shown.out)["checkpoints"]
    assert [r["step"] for r in rows if r["best"]] == [best], rows


def test_the_best_is_shown_where_nothing_keeps_it(place, toy):
    run = run_to_end(place, runs.job(toy, 1, **RISING, **saving(keep=9)))
    losses = eval_losses(run)
    best = min(losses, key=losses.get)
    listed = json.loads(runs.weft("ckpt", "ls", "--json", str(run.stores()[0])).out)["checkpoints"]
    assert [c["step"] for c in listed if c["best"]] == [best] and len(listed) > 2, listed
    shown = runs.weft("checkpoints", "--json", "--coordinator", str(run.place / ".weft" / "test"), "test")
    assert [r["step"] for r in json.loads(shown.out)["checkpoints"] if r["best"]] == [best], shown


def test_the_best_is_known_to_a_run_that_continues(place, toy):
    half = runs.job(toy, 1, **{**RISING, "train__steps": 24}, **saving(keep=1, best="eval_loss"))
    run = run_to_end(place, half)
    before = eval_losses(run)
    whole = runs.job(toy, 1, **RISING, **saving(keep=1, best="eval_loss"))
    run.carry_on_as(whole)
    end = runs.weft("run", str(run.file))
    assert end.code == 0, end
    losses = {**before, **eval_losses(run)}
    best = min(losses, key=losses.get)
    assert [c.step for c in run.checkpoints()] == sorted({best, 40})
