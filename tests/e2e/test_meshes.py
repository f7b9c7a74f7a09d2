# SPDX-License-Identifier: Apache-2.0
"""Layouts as real rank processes: killed and started again they end with the same bits, and a checkpoint
of one mesh is the very same tensors on any other. make check-long runs the whole tables."""
import json
import math

import meshes
import numpy
import pytest
import runs

MICRO = {"train": {"microbatches": 2}}
OWN_NAMES = {
    "mesh": {"x": 2, "y": 2},
    "sharding": {
        "rules": {"batch": "x", "embed": "x", "mlp": "y"},
        "gather": ["x"],
        "activations": {"act_seq": ["batch", "y"]},
        "params": [{"match": "layers/1/weight", "spec": [["x", "y"]]}],
    },
}
SEQUENCE = {"mesh": {"fsdp": 2, "tp": 2}, "sharding": {"activations": {"act_seq": ["batch", ["seq", "tp"]]}}}

EXPERTS_SEQUENCE = {"activations": {"act_seq": ["batch", ["seq", "tp"]]}}
ZERO_2 = {"optimizer": ["dp"], "grads": ["dp"]}

# As its own system cuts (microbatch, batch, sequence): on pp, dp and tp, with weights cut on dp too.
JAXFORMER_CUTS = {
    "mesh": {"dp": 2, "pp": 2, "tp": 2},
    "sharding": {"rules": {"embed": "dp"}, "gather": ["dp"], **EXPERTS_SEQUENCE},
    **MICRO,
}

RESUMED = {
    "dp 3": ("mlp", {"mesh": {"dp": 3}}),
    "tp 4": ("mlp", {"mesh": {"tp": 4}}),
    "fsdp 2, tp 2, microbatches": ("mlp", {"mesh": {"fsdp": 2, "tp": 2}, **MICRO}),
    "names and specs of one's own": ("mlp", OWN_NAMES),
    "pp 2, fsdp 2": ("mlp", {"mesh": {"pp": 2, "fsdp": 2}, **MICRO}),
    "uneven stages, gpipe": ("mlp", {"mesh": {"dp": 2, "pp": 2},
                                     "pipeline": {"schedule": "gpipe", "stages": [3, 1]}, **MICRO}),
    "tied gpt2 on pp 2, tp 2": ("gpt2", {"mesh": {"pp": 2, "tp": 2}, **MICRO}),
    "gpt2, sequence parallel": ("gpt2", SEQUENCE),
    "llama on dp 2, pp 2, tp 2": ("llama", {"mesh": {"dp": 2, "pp": 2, "tp": 2}, **MICRO}),
    "llama on fsdp 2, pp 3": ("llama", {"mesh": {"fsdp": 2, "pp": 3}, **MICRO}),
    "llama on pp 3, cp 2": ("llama", {"mesh": {"pp": 3, "cp": 2}, **MICRO}),
    "gpt2 on dp 2, pp 2, ZeRO-2": ("gpt2", {"mesh": {"dp": 2, "pp": 2}, "sharding": ZERO_2, **MICRO}),
    "gpt2 on data 2, model 2, remat": ("gpt2", {"mesh": {"data": 2, "model": 2}, "train": {"remat": "block"}}),
    "mixtral on ep 2": ("mixtral", {"mesh": {"ep": 2}, **MICRO}),
    "mixtral on ep 4": ("mixtral", {"mesh": {"ep": 4}}),
    "mixtral on dp 2, ep 2": ("mixtral", {"mesh": {"dp": 2, "ep": 2}, **MICRO}),
    "mixtral on ep 2, tp 2": ("mixtral", {"mesh": {"ep": 2, "tp": 2}}),
    "mixtral, sequence parallel": ("mixtral", {"mesh": {"ep": 2, "tp": 2}, "sharding": EXPERTS_SEQUENCE}),
    "mixtral on fsdp 2, ep 2, remat": ("mixtral", {"mesh": {"fsdp": 2, "ep": 2}, "train": {"remat": "full"}}),
    "mixtral on cp 2, ep 2": ("mixtral", {"mesh": {"cp": 2, "ep": 2}}),
    "mixtral on dp 2, pp 2, ep 2": ("mixtral", {"mesh": {"dp": 2, "pp": 2, "ep": 2}, **MICRO}),
    "jaxformer on dp 2, pp 2, tp 2": ("jaxformer", JAXFORMER_CUTS),
}  # fmt: skip
RESUMED_SAMPLE = ["mixtral on dp 2, pp 2, ep 2", "jaxformer on dp 2, pp 2, tp 2", "uneven stages, gpipe",
                  "gpt2, sequence parallel", "llama on dp 2, pp 2, tp 2"]  # fmt: skip

LAYOUTS = {
    "one device": {"mesh": {"dp": 1}},
    "dp 2": {"mesh": {"dp": 2}},
    "dp 3": {"mesh": {"dp": 3}},
    "fsdp 4": {"mesh": {"fsdp": 4}},
    "tp 2": {"mesh": {"tp": 2}},
    "tp 4": {"mesh": {"tp": 4}},
    "fsdp 2, tp 2": {"mesh": {"fsdp": 2, "tp": 2}},
    "pp 2": {"mesh": {"pp": 2}, **MICRO},
    "pp 4": {"mesh": {"pp": 4}, **MICRO},
    "dp 2, pp 2": {"mesh": {"dp": 2, "pp": 2}, **MICRO},
    "pp 2, fsdp 2, tp 2": {"mesh": {"pp": 2, "fsdp": 2, "tp": 2}, **MICRO},
    "own names": OWN_NAMES,
    "dp 2, ZeRO-1": {"mesh": {"dp": 2}, "sharding": {"optimizer": ["dp"]}},
    "dp 4, ZeRO-2": {"mesh": {"dp": 4}, "sharding": ZERO_2},
}
MOVES = {  # each to fewer ranks and to more, where there are any
    "fsdp 2, tp 2": ["one device", "dp 3", "pp 2", "dp 2, pp 2", "pp 2, fsdp 2, tp 2"],
    "dp 2, pp 2": ["one device", "tp 2", "fsdp 4", "pp 4", "pp 2, fsdp 2, tp 2"],
    "pp 4": ["dp 3", "pp 2", "fsdp 2, tp 2", "own names", "pp 2, fsdp 2, tp 2"],
    "tp 2": ["one device", "dp 2", "fsdp 4", "pp 4", "own names"],
    "pp 2, fsdp 2, tp 2": ["one device", "dp 2", "tp 4", "own names", "dp 2, pp 2"],
    "dp 4, ZeRO-2": ["dp 2, ZeRO-1", "pp 2", "tp 4"],
}
PAIRS = [(a, b) for a, others in MOVES.items() for b in others]
PAIRS_SAMPLE = [("fsdp 2, tp 2", "dp 3"), ("pp 4", "own names"), ("pp 2, fsdp 2, tp 2", "dp 2"),
                ("dp 4, ZeRO-2", "tp 4")]  # fmt: skip


def long_job(data, kind):
    made = meshes.classifier() if kind == "mlp" else meshes.decoder(kind)
    made["data"]["train"] = {k: str(data / v) for k, v in made["data"]["train"].items()}
    made["train"]["steps"] = 60
    return made


@pytest.mark.parametrize("which", RESUMED if runs.LONG else RESUMED_SAMPLE)
def test_killed_it_resumes_to_the_same_bits(place, data, which):
    kind, layout = RESUMED[which]
    calm = meshes.trained(place, long_job(data, kind), layout, "calm")
    run = meshes.run_in(place, long_job(data, kind), layout, "killed")
    parent = run.start_held(16)  # no save is near, so the ranks stay in a step until the kill
    victim = run.ranks - 1
    assert run.wait_until(run.saved(victim, 10), parent), "it ended before it could be killed"
    runs.kill_pid(run.pids()[victim])
    run.let_go()
    assert parent.wait().code not in (0, 75)
    run.finish()
    assert len(run.losses()) == 60
    assert run.losses() == calm.losses()
    assert run.final() == calm.final()


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """A layout's run of 18 steps, by name: made once, with the checkpoint of step 12 the newest."""
    made = {}

    def of(name):
        if name not in made:
            place = tmp_path_factory.mktemp("origin")
            meshes.put_classifier(place)
            made[name] = meshes.trained(place, meshes.classifier(), LAYOUTS[name])
            made[name].forget(12)
        return made[name]

    return of


@pytest.mark.parametrize("first, then", PAIRS if runs.LONG else PAIRS_SAMPLE, ids=lambda n: n)
def test_a_checkpoint_is_the_same_tensors_on_another_mesh(place, origin, first, then):
    """With data that are no numbers no update is made: what the new mesh restored is what it saves. With
    the real ones it goes on as the old mesh did."""
    run = origin(first)
    tensors = run.checkpoints()[-1].tensors()
    still = meshes.moved(run, place / "still", meshes.classifier(), LAYOUTS[then])
    meshes.spoil(still)
    assert meshes.finish_spoilt(still, 15).tensors() == tensors
    assert [r["loss"] for r in still.metrics()][12:] == [None] * 6
    on = meshes.moved(run, place / "on", meshes.classifier(), LAYOUTS[then])
    on.finish()
    meshes.assert_same_numbers(run, on, rows=18)
    assert on.final() != tensors


EXPERTS_MOVES = {"ep 2": {"ep": 2}, "ep 4": {"ep": 4}, "dp 2, tp 2": {"dp": 2, "tp": 2}}


@pytest.mark.parametrize("then", EXPERTS_MOVES if runs.LONG else ["dp 2, tp 2"])
def test_a_checkpoint_of_experts_continues_across_ep_dp_and_tp(place, data, then):
    """Each expert of a checkpoint finds the device that has it on another mesh: the loss goes on as it did."""
    job = long_job(data, "mixtral")
    job["train"]["steps"] = 18
    run = meshes.trained(place, job, {"mesh": {"dp": 2, "ep": 2}})
    tokens = [row["expert_tokens"] for row in run.metrics()]
    assert all(sum(layer) == 8 * 32 * 2 for row in tokens for layer in row)
    assert all(0 < layer < math.log(4) for row in run.metrics() for layer in row["router_entropy"])
    assert all(0.9 < layer < 4 for row in run.metrics() for layer in row["expert_balance"])
    run.forget(12)
    on = meshes.moved(run, place / "on", job, {"mesh": EXPERTS_MOVES[then]})
    on.finish()
    meshes.assert_same_numbers(run, on, rows=18, tolerance=1e-3)
    assert math.isclose(run.metrics()[12]["loss"], on.metrics()[12]["loss"], rel_tol=2e-5)


def test_a_small_jaxformer_on_its_three_axes_trains_as_one_device_does(place, data):
    """Latent attention and experts with drops: the loss, its two parts and the gradients are the same until a
    score that rounding moves crosses another one."""
    job = long_job(data, "jaxformer")
    job["train"]["steps"] = 12
    one = meshes.trained(place, job, {"mesh": {"dp": 1}}, "one")
    many = meshes.trained(place, job, JAXFORMER_CUTS, "many")
    meshes.assert_same_numbers(one, many, rows=12)
    for a, b in zip(one.metrics(), many.metrics()):
        assert a["expert_tokens"] == b["expert_tokens"] and a["expert_dropped"] == b["expert_dropped"], (a, b)
        assert max(a["expert_dropped"]) > 0.4
        assert len(a["balance"]) == 2 and min(a["balance"]) > 0.005  # of a layer: 0.01 if experts are chosen alike
        assert math.isclose(a["loss"], a["cross_entropy"] + sum(a["balance"]), rel_tol=1e-6)
        assert math.isclose(a["cross_entropy"], b["cross_entropy"], rel_tol=2e-5)
        assert math.isclose(sum(a["balance"]), sum(b["balance"]), rel_tol=2e-5)


BIASED = {
    "ep 2": {"mesh": {"ep": 2}, **MICRO},
    "dp 2, tp 2": {"mesh": {"dp": 2, "tp": 2}},
    "fsdp 2, ep 2": {"mesh": {"fsdp": 2, "ep": 2}},
    "cp 2, ep 2": {"mesh": {"cp": 2, "ep": 2}},
    "pp 2": {"mesh": {"pp": 2}, **MICRO},
}


@pytest.mark.parametrize("mesh", BIASED if runs.LONG else ["ep 2"])
def test_the_bias_of_experts_has_the_same_bits_on_every_mesh(place, data, mesh):
    """It moves by whole rates, as whole numbers of choices say: as long as rounding moves no score across
    another, nothing of the mesh is in it. From 0 on it is what the rows of metrics tell."""
    job = long_job(data, "biased")
    job["train"]["steps"] = 6
    one = meshes.trained(place, job, {"mesh": {"dp": 1}}, "one")
    many = meshes.trained(place, job, BIASED[mesh], "many")
    assert [r["expert_tokens"] for r in one.metrics()] == [r["expert_tokens"] for r in many.metrics()]
    mean = 8 * 32 * 2 / 4  # choices of an expert in a step
    for layer in range(2):
        want = numpy.zeros(4, numpy.float32)
        for row in one.metrics():
            want += numpy.float32(0.01) * numpy.sign(mean - numpy.array(row["expert_tokens"][layer])).astype(numpy.float32)
        for run in (one, many):
            assert (run.checkpoints()[-1].numbers()[f"layers/{layer}/moe/busy"] == want).all()
    assert (want != 0).any()


def test_a_router_whose_scores_are_no_numbers_ends_the_job_as_any_such_loss(place, data):
    """Every token still has its experts, each chosen once at most, and the run its reason."""
    job = long_job(data, "mixtral")
    job |= {"optimizer": {"kind": "adamw", "weight_decay": 1.0}, "schedule": {"kind": "constant", "value": 1e6}}
    run = meshes.run_in(place, job, {"mesh": {"ep": 2}})
    end = run.run()
    assert end.code == 65 and "not finite for 10 steps in a row" in end.err, end
    last = run.metrics()[-1]
    assert last["loss"] is None and last["router_entropy"] == [None, None]
    assert last["expert_tokens"] == [[8 * 32, 8 * 32, 0, 0]] * 2  # of equals the first ones


@pytest.mark.parametrize("mesh", [{"dp": 2}, {"fsdp": 2, "tp": 2}], ids=str)
def test_buckets_change_no_bit_and_a_run_that_began_without_them_resumes_with_them(place, data, mesh):
    job = long_job(data, "gpt2")
    job["train"]["steps"] = 12
    alone = meshes.trained(place, job, {"mesh": mesh, "resources": {"bucket": 0}, **MICRO}, "alone")
    together = meshes.trained(place, job, {"mesh": mesh, **MICRO}, "together")
    assert len(alone.losses()) == 12 and alone.losses() == together.losses()
    assert alone.final() == together.final()
    plans = [json.loads(runs.weft("plan", "--json", run.file).out) for run in (alone, together)]
    assert [p["memory"]["grads"] for p in plans] == [plans[0]["memory"]["grads"]] * 2
    assert plans[1]["sent"]["launches"] < plans[0]["sent"]["launches"] == sum(c["count"] for c in plans[0]["collectives"])
    alone.forget(6)
    on = meshes.moved(alone, place / "on", job, {"mesh": mesh, **MICRO})
    on.finish()
    assert on.losses() == together.losses() and on.final() == together.final()
