# SPDX-License-Identifier: Apache-2.0
"""Pipelines as real rank processes: the numbers of one device in every schedule, each rank with its own
stage's parameters only, the same bits after a kill, and checkpoints that know no stages."""
import json

import meshes
import pytest
import runs

MICRO = {"train": {"microbatches": 4}}
STAGED = {
    "pp 2, gpipe": {"mesh": {"pp": 2}, "pipeline": {"schedule": "gpipe"}, **MICRO},
    "pp 2": {"mesh": {"pp": 2}, "pipeline": {"schedule": "1f1b"}, **MICRO},
    "dp 2, pp 2": {"mesh": {"dp": 2, "pp": 2}, "pipeline": {"schedule": "1f1b"}, **MICRO},
    "pp 4": {"mesh": {"pp": 4}, **MICRO},
    "pp 2, one microbatch": {"mesh": {"pp": 2}},
    "uneven stages": {"mesh": {"pp": 2}, "pipeline": {"stages": [1, 3]}, "train": {"microbatches": 2}},
    "pp 2, zero bubble": {"mesh": {"pp": 2}, "pipeline": {"schedule": "zero_bubble"}, **MICRO},
    "pp 4, zero bubble": {"mesh": {"pipeline": 4}, "pipeline": {"schedule": "zero_bubble"}, **MICRO},
    "pp 2, interleaved": {"mesh": {"pp": 2}, "pipeline": {"schedule": "interleaved", "chunks": 2}, **MICRO},
    "dp 2, pp 2, circular": {"mesh": {"dp": 2, "pp": 2}, "pipeline": {"schedule": "circular", "chunks": 2}, **MICRO},
}


def job(data, kind, **keys):
    """A job that reads its data where they lie."""
    made = meshes.classifier(**keys) if kind == "mlp" else meshes.decoder(kind, **keys)
    made["data"]["train"] = {k: str(data / v) for k, v in made["data"]["train"].items()}
    made["data"]["eval"] = made["data"]["train"]
    made["eval"] = {"every": 9, "batches": 2}
    return made


@pytest.mark.parametrize("layout", STAGED.values(), ids=STAGED)
def test_stages_train_to_the_numbers_of_one_device(place, data, layout):
    one = meshes.trained(place, job(data, "mlp"), {"mesh": {"dp": 1}}, "one")
    many = meshes.trained(place, job(data, "mlp"), layout, "many")
    meshes.assert_same_numbers(one, many, rows=18)
    assert [r["step"] for r in many.metrics() if "eval_loss" in r] == [9, 18]
    assert not many.sockets()


FOUR = {"pipeline": {"schedule": "1f1b"}, "mesh": {"pp": 4}, **MICRO}
HIDDEN = [32, 16, 16, 16, 16, 16, 16]
DEEP = {"model": {"program": "mlp", "inputs": 64, "hidden": HIDDEN, "classes": 4, "activation": "gelu"}}


@pytest.mark.parametrize("schedule", ["gpipe", "zero_bubble", "interleaved", "circular"])
def test_no_schedule_changes_a_bit_of_what_four_stages_train(place, data, schedule):
    """Eight layers over four stages. Every gradient is a sum over the microbatches in their order. Only their norm
    adds up stage by stage, and stages of chunks have other layers."""
    plain = meshes.trained(place, job(data, "mlp", **DEEP), FOUR, "1f1b")
    chunks = 2 if schedule in ("interleaved", "circular") else 1
    pipeline = {"pipeline": {"schedule": schedule, "chunks": chunks}}
    other = meshes.trained(place, job(data, "mlp", **DEEP), {**FOUR, **pipeline}, schedule)
    if chunks == 1:
        assert other.losses() == plain.losses()
    assert [loss[:2] for loss in other.losses()] == [loss[:2] for loss in plain.losses()]
    assert other.final() == plain.final()


@pytest.mark.parametrize("program, mesh", [("gpt2", {"pp": 2, "tp": 2}), ("llama", {"pp": 3})], ids=str)
def test_a_decoder_in_stages_trains_to_the_numbers_of_one_device(place, data, program, mesh):
    """GPT-2's head is its embedding: the table lies on both ends of the pipeline and stays the same there."""
    one = meshes.trained(place, job(data, program), {"mesh": {"dp": 1}}, "one")
    many = meshes.trained(place, job(data, program), {"mesh": mesh, "train": {"microbatches": 2}}, "many")
    meshes.assert_same_numbers(one, many, rows=18)
    assert set(one.final()) == set(many.final())


@pytest.mark.parametrize("frozen", ["layers/[01]/*", "layers/3/*"])
def test_a_stage_whose_parameters_are_all_frozen_only_passes_on(place, data, frozen):
    """It has no update, or no cotangent to send."""
    made = job(data, "mlp")
    made["optimizer"] = {**made["optimizer"], "groups": [{"match": frozen, "freeze": True}]}
    one = meshes.trained(place, made, {"mesh": {"dp": 1}}, "one")
    for stages in (2, 4):
        many = meshes.trained(place, made, {"mesh": {"pp": stages}, **MICRO}, f"many{stages}")
        meshes.assert_same_numbers(one, many, rows=18)


SEQUENCE = {"activations": {"act_seq": ["batch", ["seq", "tp"]]}}
WITH_MORE = {  # decoder, what its job says more, layout, tolerance
    "dropout": ("gpt2", {"model": {"dropout": 0.1}}, {"mesh": {"pp": 2, "dp": 2}, **MICRO}, 2e-5),
    "context parallel": ("llama", {}, {"mesh": {"pp": 3, "cp": 2}, **MICRO}, 2e-5),
    "remat": ("llama", {}, {"mesh": {"pp": 3, "fsdp": 2}, "train": {"microbatches": 2, "remat": "full"}}, 2e-5),
    "sequence parallel": ("gpt2", {}, {"mesh": {"pp": 2, "tp": 2}, "sharding": SEQUENCE, **MICRO}, 2e-5),
    "bf16": ("llama", {"precision": {"compute": "bf16", "reduce": "bf16"}},
             {"mesh": {"dp": 2, "pp": 3}, "train": {"microbatches": 2}}, 0.02),
}  # fmt: skip


@pytest.mark.parametrize("what", WITH_MORE if runs.LONG else ["dropout", "context parallel", "bf16"])
def test_what_else_a_job_asks_for_holds_in_stages(place, data, what):
    program, more, layout, tolerance = WITH_MORE[what]
    made = meshes.laid_out(job(data, program), more)
    one = meshes.trained(place, made, {"mesh": {"dp": 1}}, "one")
    meshes.assert_same_numbers(one, meshes.trained(place, made, layout, "many"), 18, tolerance)


def writers(checkpoint):
    """{tensor: the ranks that wrote it}"""
    return {t["name"]: {int(s["file"].split("-")[1]) for s in t["slices"]} for t in checkpoint.manifest["tensors"]}


def test_each_stage_writes_its_own_parameters(place, data):
    run = meshes.trained(place, job(data, "gpt2"), {"mesh": {"pp": 2, "tp": 2}, "train": {"microbatches": 2}})
    ranks = writers(run.checkpoints()[-1])
    first, last = {0, 1}, {2, 3}  # {pp: 2, tp: 2}: rank = 2 pp + tp
    assert ranks["layers/0/mlp/in/weight"] == ranks["layers/0/attn/qkv/weight"] == first
    assert ranks["layers/1/mlp/in/weight"] == ranks["layers/1/attn/qkv/weight"] == last
    assert ranks["embed/positions"] <= first and ranks["norm/weight"] <= last
    assert ranks["embed/tokens"] <= first | last  # both stages hold it, whoever writes it


def test_a_stage_reserves_the_memory_of_its_own_only(place, data):
    made = place / "job.yaml"
    made.write_text(json.dumps(meshes.laid_out(job(data, "gpt2"), STAGED["pp 2"])))
    plan = json.loads(runs.weft("plan", "--json", str(made)).out)
    assert len(plan["memory_by_stage"]) == 2
    stages = {p["name"]: p["stages"] for p in plan["params"]}
    assert stages["layers/0/mlp/in/weight"] == [0] and stages["layers/1/mlp/in/weight"] == [1]
    assert stages["embed/tokens"] == [0, 1]


@pytest.mark.parametrize(
    "kind, layout, victim",
    [("mlp", STAGED["pp 2"], 1), ("mlp", STAGED["dp 2, pp 2"], 0),
     ("gpt2", {"mesh": {"pp": 2, "tp": 2}, **MICRO}, 3),
     ("mlp", STAGED["pp 2, interleaved"], 0), ("mlp", STAGED["dp 2, pp 2, circular"], 3),
     ("gpt2", {"mesh": {"pp": 2, "fsdp": 2}, "pipeline": {"schedule": "zero_bubble"}, **MICRO}, 1),
     ("mlp", STAGED["pp 4, zero bubble"], 2)],
    ids=["pp 2", "dp 2, pp 2", "tied decoder on pp 2, tp 2", "interleaved", "circular",
         "tied decoder, zero bubble", "zero bubble on pp 4"],
)
def test_killed_a_pipeline_resumes_to_the_same_bits(place, data, kind, layout, victim):
    long = job(data, kind, train={"steps": 120, "seed": 3})
    calm = meshes.trained(place, long, layout, "calm")
    run = meshes.run_in(place, long, layout, "killed")
    parent = run.start_held(25)
    assert run.wait_until(run.saved(victim, 20), parent), "it ended before it could be killed"
    runs.kill_pid(run.pids()[victim])
    run.let_go()
    end = parent.wait()
    assert end.code not in (0, 75), end
    assert f"rank {victim}" in end.err + end.out + run.log(0), end
    run.finish()
    assert run.losses() == calm.losses()
    assert run.final() == calm.final()


@pytest.mark.parametrize("elsewhere", [{"mesh": {"dp": 2}}, {"mesh": {"dp": 1}}], ids=["dp 2", "one device"])
def test_a_checkpoint_leaves_its_stages_and_comes_back(tmp_path_factory, data, elsewhere):
    """Stages → no stages → stages: parameters and both moments are the very same tensors all the way."""
    places = [tmp_path_factory.mktemp(n) for n in ("first", "elsewhere", "back")]
    meshes.put_classifier(places[0])
    short = meshes.classifier()
    run = meshes.trained(places[0], short, STAGED["dp 2, pp 2"])
    run.forget(12)
    tensors = run.checkpoints()[-1].tensors()
    for i, layout in enumerate((elsewhere, STAGED["pp 2"])):
        longer = meshes.classifier(train={**short["train"], "steps": 18 + 3 * i})
        run = meshes.moved(run, places[i + 1], longer, layout)
        meshes.spoil(run)
        newest = meshes.finish_spoilt(run, 15 + 3 * i)
        assert [c["what"][:11] for c in newest.manifest["changes"]] == ["mesh from {"] * (i + 1)
        assert newest.tensors() == tensors


def test_weft_run_trains_a_pipeline_to_the_bits_of_solo(place, data):
    here = meshes.run_in(place, job(data, "mlp"), STAGED["dp 2, pp 2"], "here")
    end = runs.weft("run", str(here.file))
    assert end.code == 0, end
    alone = meshes.trained(place, job(data, "mlp"), STAGED["dp 2, pp 2"], "alone")
    assert here.final() == alone.final()
