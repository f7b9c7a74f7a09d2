# SPDX-License-Identifier: Apache-2.0
"""The same training whatever runs it: one rank or many, one host or two."""
import math

import pytest
import runs

STEPS = 30


def assert_same_numbers(one, many, tolerance=1e-5):
    a, b = one.metrics(), many.metrics()
    assert [r["step"] for r in a] == [r["step"] for r in b] == list(range(1, STEPS + 1))
    for x, y in zip(a, b):
        assert math.isclose(x["loss"], y["loss"], rel_tol=tolerance), (x, y)
        assert math.isclose(x["grad_norm"], y["grad_norm"], rel_tol=20 * tolerance), (x, y)
        assert x["lr"] == y["lr"]
        assert ("eval_loss" in x) == ("eval_loss" in y)
        if "eval_loss" in x:
            assert math.isclose(x["eval_loss"], y["eval_loss"], rel_tol=tolerance), (x, y)
            assert math.isclose(x["eval_accuracy"], y["eval_accuracy"], abs_tol=0.011), (x, y)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, toy):
    return runs.train(tmp_path_factory.mktemp("alone"), runs.job(toy, 1, eval__every=10), "one")


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_more_ranks_train_to_the_numbers_of_one(place, toy, alone, ranks):
    many = runs.train(place, runs.job(toy, ranks, eval__every=10), "many")
    assert_same_numbers(alone, many)
    assert [r["step"] for r in many.metrics() if "eval_loss" in r] == [10, 20, 30]
    assert len(many.checkpoints()[-1].manifest["files"]) == ranks
    assert not many.sockets()


MESHES = [{"fsdp": 2}, {"tp": 2}, {"dp": 2, "tp": 2}, {"data": 2, "model": 2}, {"fsdp": 2, "tp": 2},
          {"tensor": 2, "fsdp": 4}]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_any_mesh_trains_to_the_numbers_of_one(place, toy, alone, mesh):
    ranks = math.prod(mesh.values())
    many = runs.train(place, runs.job(toy, ranks, mesh=mesh, eval__every=10), "many")
    assert_same_numbers(alone, many)


@pytest.mark.parametrize("mesh", [{"fsdp": 2, "tp": 2}, {"dp": 2, "tp": 2}], ids=str)
def test_cut_weights_and_microbatches_do_not_change_the_numbers(place, toy, alone, mesh):
    job = runs.job(toy, 4, mesh=mesh, eval__every=10, train__microbatches=3)
    assert_same_numbers(alone, runs.train(place, job, "micro"))


def test_a_sharding_of_ones_own_trains_to_the_numbers_of_one(place, toy, alone):
    """Axes of any names, weights cut on a batch axis by declaration, residual activations cut too."""
    sharding = {
        "rules": {"batch": "x", "embed": "x", "mlp": "y"},
        "gather": ["x"],
        "activations": {"act_seq": ["batch", "y"]},
        "params": [{"match": "layers/2/weight", "spec": [["x", "y"]]}],
    }
    job = runs.job(toy, 4, mesh={"x": 2, "y": 2}, eval__every=10, sharding=sharding)
    many = runs.train(place, job, "own")
    assert_same_numbers(alone, many)
    specs = {t["name"]: t["spec"] for t in many.checkpoints()[-1].manifest["tensors"]}
    assert specs["layers/0/weight"] == ["x", "y"]
    assert specs["layers/2/weight"] == [["x", "y"], None]
    assert specs["layers/1/bias"] == [None]
    assert specs["momentum/layers/2/weight"] == [["x", "y"], None]


def test_cut_weights_between_hosts_give_the_bits_of_one_host(place, toy):
    job = runs.job(toy, 4, mesh={"fsdp": 2, "tp": 2}, eval__every=10)
    split = runs.Run(place, job, "split")
    split.finish(*runs.on_hosts("left", "right", "left", "right"))
    whole = runs.train(place, runs.job(toy, 4, mesh={"fsdp": 2, "tp": 2}, eval__every=10), "whole")
    assert whole.losses() == split.losses()
    assert whole.final() == split.final()


ADAM = {"optimizer": {"kind": "adamw"}, "schedule": {"kind": "constant", "value": 0.005}}


@pytest.mark.parametrize(
    "first, then",
    [({"fsdp": 2, "tp": 2}, {"dp": 3}), ({"dp": 2}, {"tp": 2, "fsdp": 2}), ({"tp": 2}, {"fsdp": 4})],
    ids=str,
)
def test_a_checkpoint_continues_on_another_mesh(place, toy, first, then):
    """Parameters and both moments, cut in one way, are read in another: the run goes on to the numbers
    of one that was never moved."""
    straight = runs.train(place, runs.job(toy, 1, **ADAM), "straight")
    moved = runs.train(place, runs.job(toy, 0, mesh=first, checkpoint__every=12, **ADAM), "moved")
    moved.forget(12)
    before = moved.checkpoints()[-1].tensors()
    moved.carry_on_as(runs.job(toy, 0, mesh=then, checkpoint__every=12, **ADAM))
    moved.finish()
    a, b = straight.metrics(), moved.metrics()
    assert [r["step"] for r in b] == list(range(1, STEPS + 1))
    assert all(math.isclose(x["loss"], y["loss"], rel_tol=1e-4) for x, y in zip(a, b))
    assert moved.final() != before
    assert set(moved.final()) == set(before) == set(straight.final())


@pytest.mark.parametrize("ranks, microbatches", [(1, 4), (2, 3), (3, 2)])
def test_microbatches_do_not_change_the_numbers(place, toy, alone, ranks, microbatches):
    job = runs.job(toy, ranks, eval__every=10, train__microbatches=microbatches)
    assert_same_numbers(alone, runs.train(place, job, "micro"))


def test_it_learns(alone):
    rows = alone.metrics()
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"]
    assert rows[-1]["eval_accuracy"] > 0.8  # chance is 0.2


def test_twice_the_same_run_gives_the_same_bits(place, toy):
    first = runs.train(place, runs.job(toy, 2), "first")
    second = runs.train(place, runs.job(toy, 2), "second")
    assert first.losses() == second.losses()
    assert first.final() == second.final()


def test_another_seed_gives_other_numbers(place, toy):
    first = runs.train(place, runs.job(toy, 2), "first")
    second = runs.train(place, runs.job(toy, 2, train__seed=4), "second")
    assert first.metrics()[0]["loss"] != second.metrics()[0]["loss"]
    assert first.final() != second.final()


def assert_bits_of_one_host(place, toy, split):
    whole = runs.train(place, runs.job(toy, 4, eval__every=10), "whole")
    assert whole.losses() == split.losses()
    evals = [[r["eval_loss"] for r in x.metrics() if "eval_loss" in r] for x in (whole, split)]
    assert len(evals[0]) == 3 and evals[0] == evals[1]
    assert whole.final() == split.final()


def test_two_and_two_on_hosts_of_other_names_give_the_bits_of_one_host(place, toy):
    """Over TCP on the loopback: what needs no privileges."""
    split = runs.Run(place, runs.job(toy, 4, eval__every=10), "split")
    split.finish(*runs.on_hosts("left", "left", "right", "right"))
    assert_bits_of_one_host(place, toy, split)


def test_interleaved_hosts_give_the_bits_of_one_host(place, toy):
    split = runs.Run(place, runs.job(toy, 4, eval__every=10), "split")
    split.finish(*runs.on_hosts("left", "right", "left", "right"))
    assert_bits_of_one_host(place, toy, split)


def test_two_and_two_in_network_namespaces_give_the_bits_of_one_host(place, toy, cable):
    """Nothing but the cable between them."""
    split = runs.Run(place, runs.job(toy, 4, eval__every=10), "split")
    split.finish(*runs.on_cable(cable, [0, 0, 1, 1]))
    assert_bits_of_one_host(place, toy, split)


