# SPDX-License-Identifier: Apache-2.0
"""What rows of metrics say beside the losses: norms of weights and updates by group."""
import math
import re

import meshes
import pytest
import runs


def group_of(param):
    layer = re.match(r"(.*?layers/\d+)(/|$)", param)
    return layer[1] if layer else param.split("/")[0]


def norms(tensors):
    squares = {}
    for name, numbers in tensors.items():
        squares[group_of(name)] = squares.get(group_of(name), 0) + float((numbers**2).sum())
    return {name: math.sqrt(s) for name, s in squares.items()}


def params_of(checkpoint):
    return {n: x for n, x in checkpoint.numbers().items() if not n.startswith(("m/", "v/", "momentum/"))}


@pytest.mark.parametrize("optimizer", [{"kind": "adamw", "clip_norm": 1.0}, {"kind": "sgd"}], ids=["adamw", "sgd"])
@pytest.mark.parametrize("layout", [{"mesh": {"dp": 1}}, {"mesh": {"dp": 2, "tp": 2}}, {"mesh": {"fsdp": 2}},
                                    {"mesh": {"pp": 2, "dp": 2}, "train": {"microbatches": 2}}], ids=str)  # fmt: skip
def test_norms_by_group_are_those_of_the_checkpoints(place, layout, optimizer):
    meshes.put_text(place)
    job = meshes.decoder("gpt2", optimizer=optimizer, train={"steps": 6, "seed": 3},
                         checkpoint={"dir": "ckpt", "every": 1, "keep": 9, "async": False})  # fmt: skip
    plain = meshes.trained(place, job, layout, "plain")
    run = meshes.trained(place, job, {**layout, "metrics": {"detail": 2}}, "detailed")
    assert run.losses() == plain.losses() and run.final() == plain.final()
    assert {r["step"]: r["detail"]["step"] for r in run.metrics() if "detail" in r} == {3: 2, 5: 4}
    saved = {c.step: params_of(c) for c in run.checkpoints()}
    for row in run.metrics():
        if "detail" not in row:
            continue
        step, groups = row["detail"]["step"], row["detail"]["groups"]
        weights = norms(saved[step])
        updates = norms({n: x - saved[step - 1][n] for n, x in saved[step].items()})
        assert set(groups) == set(weights) and {"layers/0", "layers/1"} < set(groups), groups
        for name, one in groups.items():
            assert math.isclose(one["weight_norm"], weights[name], rel_tol=1e-5), (name, one, weights)
            assert math.isclose(one["update_norm"], updates[name], rel_tol=1e-5) and updates[name] > 0, (name, one, updates)


def test_a_detail_waits_for_the_next_row_and_a_resume_takes_none_of_before(place, toy):
    job = runs.job(toy, 2, train__steps=12, train__log_every=5, metrics={"detail": 3}, checkpoint={"dir": "ckpt", "every": 6})
    run = runs.train(place, job, "apart")
    rows = {r["step"]: r.get("detail", {}).get("step") for r in run.metrics()}
    assert rows == {5: 3, 10: 9, 12: None}
    run.forget(6)
    run.finish()
    assert [(r["step"], r["attempt"]) for r in run.metrics()] == [(5, 1), (10, 2), (12, 2)]
    assert [r.get("detail", {}).get("step") for r in run.metrics()] == [3, 9, None]
