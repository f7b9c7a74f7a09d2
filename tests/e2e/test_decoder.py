# SPDX-License-Identifier: Apache-2.0
"""Decoders trained on bytes of real text (Debian's licences), as ranks: a falling loss, the same on any
mesh, and the very bits after a kill."""
import math
import pathlib

import pytest
import runs

STEPS = 20
LICENCES = pathlib.Path("/usr/share/common-licenses")
SMALL = {"layers": 2, "embed": 32, "heads": 4, "seq": 32, "vocab": 250, "vocab_multiple": 256}
MODELS = {
    "gpt2": {**SMALL, "program": "gpt2"},
    "llama": {**SMALL, "program": "llama", "kv_heads": 2, "mlp": 64, "theta": 1000.0},
    "cookbook": {**SMALL, "program": "cookbook", "head_dim": 8},
}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    place = tmp_path_factory.mktemp("tokens")
    text = b"".join((LICENCES / n).read_bytes() for n in ("GPL-3", "Apache-2.0", "MPL-2.0"))
    assert max(text) < 250
    (place / "text").write_bytes(text)
    runs.put_tokens(place / "text", place / "tokens")
    return str(place / "tokens")


def job(tokens, model, mesh, /, **changes):
    made = {
        "name": "decoder",
        "model": MODELS[model],
        "mesh": mesh,
        "data": {"format": "tokens", "train": {"tokens": tokens}, "eval": {"tokens": tokens}, "batch": 8},
        "optimizer": {"kind": "adamw", "clip_norm": 1.0},
        "schedule": {"kind": "constant", "value": 0.003},
        "eval": {"batches": 2},
        "train": {"steps": STEPS, "seed": 3},
        "checkpoint": {"dir": "ckpt"},
    }
    for key, value in changes.items():
        made[key] = {**made[key], **value}
    return made


def assert_same_numbers(one, many):
    a, b = one.metrics(), many.metrics()
    assert len(a) == len(b) == STEPS
    for x, y in zip(a, b):
        assert math.isclose(x["loss"], y["loss"], rel_tol=2e-5), (x, y)
        assert math.isclose(x["grad_norm"], y["grad_norm"], rel_tol=2e-3), (x, y)
    assert math.isclose(a[-1]["eval_loss"], b[-1]["eval_loss"], rel_tol=2e-5)


@pytest.mark.parametrize("model", MODELS)
def test_the_loss_falls_alike_on_any_mesh(place, tokens, model):
    one = runs.train(place, job(tokens, model, {"dp": 1}), "one")
    rows = one.metrics()
    # It knows nothing yet. The cookbook is born with logits of variance 2, which cost half of that.
    guess = math.log(250) + (1 if model == "cookbook" else 0)
    assert abs(rows[0]["loss"] - guess) < (0.5 if model == "cookbook" else 0.3)
    assert rows[-1]["loss"] < rows[0]["loss"] - 1
    assert rows[-1]["eval_accuracy"] is None and rows[-1]["tokens_per_s"] > 0
    for i, mesh in enumerate([{"dp": 2}, {"fsdp": 2}, {"tp": 2}, {"cp": 2}, {"cp": 2, "tp": 2}]):
        assert_same_numbers(one, runs.train(place, job(tokens, model, mesh), f"many{i}"))


def test_sequence_parallel_microbatches_train_to_the_same_numbers(place, tokens):
    one = runs.train(place, job(tokens, "gpt2", {"dp": 1}), "one")
    made = job(tokens, "gpt2", {"fsdp": 2, "tp": 2}, train={"microbatches": 2})
    made["sharding"] = {"activations": {"act_seq": ["batch", ["seq", "tp"]]}}
    assert_same_numbers(one, runs.train(place, made, "many"))


@pytest.mark.parametrize("remat", ["block", "full"])
def test_what_is_made_again_has_the_same_bits(place, tokens, remat):
    made = [job(tokens, "llama", {"fsdp": 2}, train={"remat": r, "microbatches": 2}, model={"dropout": 0.1})
            for r in ("none", remat)]
    kept, again = (runs.train(place, m, f"run{i}") for i, m in enumerate(made))
    assert kept.losses() == again.losses()
    assert kept.final() == again.final()


def test_dropout_drops_alike_on_any_mesh_in_training_alone(place, tokens):
    rates = {"dropout": 0.2, "dropout_attention": 0.3}
    one = runs.train(place, job(tokens, "gpt2", {"dp": 1}, model=rates), "one")
    rows, without = one.metrics(), runs.train(place, job(tokens, "gpt2", {"dp": 1}), "without").metrics()
    assert abs(rows[0]["loss"] - without[0]["loss"]) > 1e-4
    assert rows[-1]["eval_loss"] < rows[-1]["loss"]  # which nothing is dropped of
    meshes = [({"dp": 2}, 1), ({"fsdp": 2}, 2), ({"tp": 2}, 1), ({"cp": 2}, 1), ({"pp": 2}, 4), ({"dp": 2, "tp": 2}, 2)]
    for i, (mesh, micro) in enumerate(meshes):
        made = job(tokens, "gpt2", mesh, model=rates, train={"microbatches": micro})
        made["train"]["remat"] = ["none", "block", "full"][i % 3]
        assert_same_numbers(one, runs.train(place, made, f"many{i}"))
    made = job(tokens, "gpt2", {"fsdp": 2, "tp": 2}, model=rates)
    made["sharding"] = {"activations": {"act_seq": ["batch", ["seq", "tp"]]}}
    assert_same_numbers(one, runs.train(place, made, "sequence"))


@pytest.mark.parametrize("mesh,remat", [({"dp": 2}, "none"), ({"fsdp": 2}, "block"), ({"cp": 2}, "full")], ids=str)
def test_killed_it_resumes_to_the_same_bits(place, tokens, mesh, remat):
    changes = {"train": {"steps": 60, "remat": remat}, "checkpoint": {"every": 5}, "model": {"dropout": 0.1}}
    calm = runs.train(place, job(tokens, "gpt2", mesh, **changes), "calm")
    runs.assert_killed_it_resumes(place, job(tokens, "gpt2", mesh, **changes), calm)


def test_an_id_beyond_the_vocabulary_ends_the_run_with_its_byte(place, tokens):
    made = job(tokens, "gpt2", {"dp": 1})
    made["model"] = {**MODELS["gpt2"], "vocab": 60}
    end = runs.Run(place, made).run()
    assert end.code == 65, end
    assert "is not in 0 … 59 (model.vocab: 60)" in end.err + end.out, end
