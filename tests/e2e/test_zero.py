# SPDX-License-Identifier: Apache-2.0
"""Optimiser state and gradients cut over the data axis, by real ranks: the numbers of one rank, checkpoints
that hold each shard by its own spec, and go on after a kill and on other meshes. And frozen parameters."""
import math

import pytest
import runs
import test_ranks

STEPS = test_ranks.STEPS
ADAM = test_ranks.ADAM
ZERO_1 = {"optimizer": ["dp"]}
ZERO_2 = {"grads": ["dp"], "optimizer": ["dp"]}


def cut_job(toy, mesh, sharding, **changes):
    base = {
        "optimizer": {"kind": "adamw", "clip_norm": 0.5},
        "schedule": {"kind": "linear", "init": 0.005, "end": 0.001, "steps": 25},
        "eval__every": 10,
        "train__microbatches": 2,
    }
    return runs.job(toy, 0, mesh=mesh, sharding=sharding, **{**base, **changes})


@pytest.fixture(scope="module")
def alone(tmp_path_factory, toy):
    return runs.train(tmp_path_factory.mktemp("alone"), cut_job(toy, {"dp": 1}, {}), "one")


@pytest.mark.parametrize(
    "mesh, sharding",
    [({"dp": 4}, ZERO_1), ({"dp": 2}, ZERO_2), ({"dp": 2, "fsdp": 2}, ZERO_1), ({"dp": 2, "tp": 2}, ZERO_2)],
    ids=str,
)
def test_state_cut_over_the_ranks_trains_to_the_numbers_of_one(place, toy, alone, mesh, sharding):
    many = runs.train(place, cut_job(toy, mesh, sharding), "many")
    test_ranks.assert_same_numbers(alone, many)
    assert many.metrics()[24]["lr"] > many.metrics()[25]["lr"] == many.metrics()[29]["lr"] == 0.001
    specs = {t["name"]: t["spec"] for t in many.checkpoints()[-1].manifest["tensors"]}
    assert "'dp'" not in str(specs["layers/1/weight"])
    assert "'dp'" in str(specs["m/layers/1/weight"]) and specs["m/layers/1/weight"] == specs["v/layers/1/weight"]
    assert set(many.final()) == set(alone.final())


def test_gradients_that_travel_narrow_are_scattered_too(place, toy):
    narrow = {"compute": "bf16", "reduce": "bf16"}
    one = runs.train(place, cut_job(toy, {"dp": 1}, {}, precision=narrow), "one")
    many = runs.train(place, cut_job(toy, {"dp": 2, "fsdp": 2}, ZERO_1, precision=narrow), "many")
    first = one.metrics()[0]["loss"]
    for x, y in zip(one.metrics(), many.metrics()):
        assert math.isclose(x["loss"], y["loss"], rel_tol=0.01, abs_tol=0.01 * first), (x, y)


@pytest.mark.parametrize("sharding", [ZERO_1, ZERO_2], ids=str)
def test_killed_it_resumes_to_the_same_bits(place, toy, sharding):
    calm = runs.train(place, runs.busy_job(toy, 2, sharding=sharding), "calm")
    runs.assert_killed_it_resumes(place, runs.busy_job(toy, 2, sharding=sharding), calm)


@pytest.mark.parametrize(
    "first, cut, then, again",
    [
        ({"dp": 4}, ZERO_1, {"fsdp": 2, "tp": 2}, {}),
        ({"tp": 2}, {}, {"dp": 3}, ZERO_2),
        ({"dp": 2, "fsdp": 2}, ZERO_1, {"dp": 2}, ZERO_1),
    ],
    ids=str,
)
def test_cut_state_continues_on_another_mesh(place, toy, first, cut, then, again):
    straight = runs.train(place, runs.job(toy, 1, **ADAM), "straight")
    half = runs.job(toy, 0, mesh=first, sharding=cut, checkpoint__every=12, **ADAM)
    moved = runs.train(place, half, "moved")
    moved.forget(12)
    moved.carry_on_as(runs.job(toy, 0, mesh=then, sharding=again, checkpoint__every=12, **ADAM))
    moved.finish()
    assert "mesh from {" in moved.checkpoints()[-1].manifest["changes"][0]["what"]
    a, b = straight.metrics(), moved.metrics()
    assert [r["step"] for r in b] == list(range(1, STEPS + 1))
    assert all(math.isclose(x["loss"], y["loss"], rel_tol=1e-4) for x, y in zip(a, b))
    assert set(moved.final()) == set(straight.final())


def test_frozen_parameters_stay_and_leave_no_state(place, toy):
    optimizer = {"kind": "adamw", "groups": [{"match": "layers/0/*", "freeze": True}]}
    one = cut_job(toy, {"dp": 2}, ZERO_1, optimizer=optimizer, train__steps=1)
    begin = runs.train(place, one, "begin")
    end = runs.train(place, cut_job(toy, {"dp": 2}, ZERO_1, optimizer=optimizer), "end")
    first, last = begin.final(), end.final()
    assert first["layers/0/weight"] == last["layers/0/weight"]
    assert first["layers/1/weight"] != last["layers/1/weight"]
    assert "m/layers/1/weight" in last
    assert not [n for n in last if n.startswith(("m/layers/0", "v/layers/0"))]
    assert end.metrics()[-1]["loss"] < begin.metrics()[0]["loss"]
