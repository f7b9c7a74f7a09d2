# SPDX-License-Identifier: Apache-2.0
"""A variational autoencoder as ranks: its loss falls, no mesh changes its noise, a kill changes no bit."""
import math

import pytest
import runs

STEPS = 40


def job(toy, mesh, **changes):
    made = runs.job(toy, math.prod(mesh.values()), mesh=mesh, **{"train__steps": STEPS, "eval__every": 20, **changes})
    made["model"] = {"program": "vae", "inputs": toy.features, "hidden": [48], "latent": 4}
    made["optimizer"] = {"kind": "adam", "clip_norm": 50}
    made["schedule"] = {"value": 0.003}
    for part in ("train", "eval"):
        made["data"][part] = {"images": made["data"][part]["images"]}
    return made


@pytest.fixture(scope="module")
def alone(tmp_path_factory, toy):
    return runs.train(tmp_path_factory.mktemp("alone"), job(toy, {"dp": 1}), "one")


def test_the_loss_falls_and_its_parts_add_up_to_it(alone):
    rows = alone.metrics()
    assert rows[-1]["loss"] < rows[0]["loss"] - 3
    for r in rows:
        assert math.isclose(r["reconstruction"] + r["kl"], r["loss"], rel_tol=1e-5), r
        assert r["kl"] >= 0
    held_out = [r for r in rows if "eval_loss" in r]
    assert [r["step"] for r in held_out] == [20, 40]
    for r in held_out:
        assert math.isclose(r["eval_reconstruction"] + r["eval_kl"], r["eval_loss"], rel_tol=1e-5), r
    assert held_out[-1]["eval_loss"] < held_out[0]["eval_loss"]


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("mesh", [{"dp": 2}, {"dp": 3}, {"fsdp": 2}, {"data": 2, "model": 2}, {"pp": 2}], ids=str)
def test_any_mesh_draws_the_noise_of_one(place, toy, alone, mesh, micro):
    many = runs.train(place, job(toy, mesh, train__microbatches=micro), "many")
    for x, y in zip(alone.metrics(), many.metrics(), strict=True):
        for key in set(x) & {"loss", "reconstruction", "kl", "eval_loss", "eval_kl"}:
            assert math.isclose(x[key], y[key], rel_tol=5e-5, abs_tol=1e-6), (key, x, y)


def test_killed_it_resumes_to_the_same_bits(place, toy):
    changes = {"train__steps": 300, "eval__every": 0, "checkpoint": {"dir": "ckpt", "every": 10}}
    calm = runs.train(place, job(toy, {"dp": 2}, **changes), "calm")
    runs.assert_killed_it_resumes(place, job(toy, {"dp": 2}, **changes), calm, saved=30)
