# SPDX-License-Identifier: Apache-2.0
"""bf16 as ranks: a loss beside f32's, the same on any mesh within rounding, the very bits after a kill, f32
parameters in the checkpoint."""
import json
import math

import pytest
import runs
import test_vae as vae
from test_decoder import MODELS, tokens  # noqa: F401: a fixture

STEPS = 50
BF16 = {"compute": "bf16"}
MESHES = [
    {"dp": 2},
    {"fsdp": 2},
    {"tp": 2},
    {"fsdp": 2, "tp": 2},
]


def decoder(tokens, model, mesh, precision, **train):  # noqa: F811
    return {
        "name": "precision",
        "model": MODELS[model],
        "mesh": mesh,
        "precision": precision,
        "data": {"format": "tokens", "train": {"tokens": tokens}, "eval": {"tokens": tokens}, "batch": 8},
        "optimizer": {"kind": "adamw", "clip_norm": 1.0},
        "schedule": {"kind": "constant", "value": 0.001},
        "eval": {"batches": 2},
        "train": {"steps": STEPS, "seed": 3, **train},
        "checkpoint": {"dir": "ckpt"},
    }


def assert_near(one, many, tolerance):
    a, b = one.metrics(), many.metrics()
    assert len(a) == len(b) == one.job["train"]["steps"]
    for x, y in zip(a, b):
        assert math.isclose(x["loss"], y["loss"], rel_tol=tolerance), (x, y)
    assert math.isclose(a[-1]["eval_loss"], b[-1]["eval_loss"], rel_tol=tolerance)


@pytest.mark.parametrize("model", MODELS)
def test_decoders_learn_in_bf16_as_in_f32(place, tokens, model):  # noqa: F811
    wide = runs.train(place, decoder(tokens, model, {"dp": 1}, {}), "f32")
    half = runs.train(place, decoder(tokens, model, {"dp": 1}, BF16), "bf16")
    assert_near(wide, half, 0.02)
    assert wide.losses() != half.losses()  # it did round
    assert {t["dtype"] for t in half.checkpoints()[-1].manifest["tensors"]} == {"F32"}


def test_a_classifier_learns_in_bf16_as_in_f32(place, toy):
    trained = {}
    for compute in ("f32", "bf16"):
        job = runs.job(toy, 1, train__steps=STEPS, precision={"compute": compute})
        trained[compute] = runs.train(place, job, compute)
    a, b = (trained[k].metrics() for k in ("f32", "bf16"))
    for x, y in zip(a, b):
        # The loss falls to nothing: what is left of it is compared with what it was.
        assert math.isclose(x["loss"], y["loss"], rel_tol=0.02, abs_tol=0.02 * a[0]["loss"]), (x, y)
    assert math.isclose(a[-1]["eval_accuracy"], b[-1]["eval_accuracy"], abs_tol=0.02)


def test_random_draws_are_the_same_in_bf16(place, tokens, toy):  # noqa: F811
    """Dropout and a vae's noise: the masks and numbers of f32, so its losses too."""
    made = decoder(tokens, "gpt2", {"dp": 1}, {})
    made["model"] = {**made["model"], "dropout": 0.1}
    assert_near(runs.train(place, made, "f32"), runs.train(place, {**made, "precision": BF16}, "bf16"), 0.02)
    made = vae.job(toy, {"dp": 1})
    assert_near(runs.train(place, made, "vae32"), runs.train(place, {**made, "precision": BF16}, "vae16"), 0.02)


@pytest.mark.parametrize("precision", [BF16, {"compute": "bf16", "reduce": "bf16"}], ids=["f32 sums", "bf16 sums"])
def test_meshes_and_microbatches_differ_by_rounding_alone(place, tokens, precision):  # noqa: F811
    one = runs.train(place, decoder(tokens, "llama", {"dp": 1}, BF16), "one")
    for i, mesh in enumerate(MESHES if runs.LONG else MESHES[1::2]):
        made = decoder(tokens, "llama", mesh, precision, microbatches=2)
        assert_near(one, runs.train(place, made, f"many{i}"), 0.01)


@pytest.mark.parametrize("precision", [BF16, {"compute": "bf16", "reduce": "bf16"}], ids=["f32 sums", "bf16 sums"])
def test_killed_it_resumes_to_the_same_bits(place, tokens, precision):  # noqa: F811
    def made(name):
        job = decoder(tokens, "gpt2", {"fsdp": 2}, precision, steps=40)
        return {**job, "name": name, "checkpoint": {"dir": "ckpt", "every": 5}}

    calm = runs.train(place, made("calm"), "calm")
    runs.assert_killed_it_resumes(place, made("killed"), calm, saved=15)


COPIED = [{"dp": 1}, {"fsdp": 2}, {"fsdp": 2, "tp": 2}]


@pytest.mark.parametrize("mesh", COPIED if runs.LONG else COPIED[1:2], ids=str)
def test_copies_that_the_update_writes_change_no_bit(place, tokens, mesh):  # noqa: F811
    """With fusion the update writes what the next step and an evaluation read; without it they cast."""
    def made(fuse):
        job = decoder(tokens, "gpt2", mesh, BF16, fuse=fuse, steps=20, microbatches=2)
        frozen = [{"match": "layers/0/norm1/*", "freeze": True}]
        job["optimizer"] = {**job["optimizer"], "groups": frozen}
        return {**job, "eval": {"batches": 2, "every": 5, "sample": {"prompt": "the ", "tokens": 8}}}

    trained = {fuse: runs.train(place, made(fuse), f"fuse-{fuse}") for fuse in (True, False)}
    plans = [runs.weft("plan", "--json", str(trained[fuse].file)) for fuse in (True, False)]
    memory, plain = (json.loads(end.out)["memory"] for end in plans)
    assert 2 * memory["copies"] == memory["params"] and plain["copies"] == 0
    a, b = trained[True], trained[False]
    assert a.losses() == b.losses()
    evaluated = [[(r["eval_loss"], r["samples"]) for r in x.metrics() if "eval_loss" in r] for x in (a, b)]
    assert len(evaluated[0]) == 4 and evaluated[0] == evaluated[1]
    assert a.final() == b.final()


def test_a_checkpoint_in_bf16_continues_on_another_mesh(place, tokens):  # noqa: F811
    """It has no copies: they are made of the parameters wherever it is restored. One more step on the same
    mesh is the very step of the run that went through; on another it differs by rounding."""
    def made(mesh):
        return {**decoder(tokens, "llama", mesh, BF16, steps=20), "checkpoint": {"dir": "ckpt", "every": 10}}

    straight = runs.train(place, made({"fsdp": 2}), "straight")
    for i, (mesh, tolerance) in enumerate([({"fsdp": 2}, 0), ({"tp": 2}, 0.01), ({"dp": 2}, 0.01)]):
        moved = runs.train(place, made({"fsdp": 2}), f"moved{i}")
        moved.forget(10)
        moved.carry_on_as(made(mesh))
        moved.finish()
        for x, y in zip(straight.metrics(), moved.metrics()):
            assert math.isclose(x["loss"], y["loss"], rel_tol=tolerance, abs_tol=0), (mesh, x, y)
        assert set(moved.final()) == set(straight.final())
        assert not [n for n in moved.final() if n.startswith("bf16/")]
    assert len(straight.metrics()) == 20


def test_a_dtype_nobody_computes_in_is_refused_with_the_line(place):
    job = place / "job.yaml"
    job.write_text("name: x\nmodel: {program: mlp, inputs: 4, hidden: [4], classes: 2}\nprecision: {compute: f16}\n"
                   "data: {train: {images: i, labels: l}, batch: 2}\ntrain: {steps: 1}\n")
    end = runs.weft("plan", str(job))
    assert end.code == 2 and "job.yaml:3:" in end.err and "bf16" in end.err, end
