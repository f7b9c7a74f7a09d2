# SPDX-License-Identifier: Apache-2.0
"""Every program that was made up for the tests as real rank processes: killed and started again it ends on the bits
of the run that nobody disturbed, as the programs that come with weft do (test_meshes.py)."""
import meshes
import numpy
import pytest
import runs

# Every program that was made up for the tests, its data, and the mesh on which `make test` kills it; make check-long
# does on all that it may have.
OWNS = {
    "biased": ("tokens", "dp 2, ep 2"),
    "by_hand": ("tokens", "cp 2, tp 2"),
    "capped": ("tokens", "fsdp 3, remat"),
    "drawn": ("tokens", "fsdp 2, pp 2"),
    "encoder": ("labelled", "pp 2, tp 2"),
    "headings": ("labelled", "interleaved"),
    "helped": ("tokens", "cp 2, tp 2"),
    "hyper": ("tokens", "pp 2, cp 2"),
    "mixer": ("labelled", "fsdp 2, tp 2"),
    "multiquery": ("tokens", "sequence parallel"),
    "no_attention": ("tokens", "dp 2, pp 2"),
    "ordered": ("tokens", "cp 2, tp 2"),
    "padded": ("tokens", "dp 2, tp 2"),
    "parallel": ("tokens", "tp 4"),
    "recurrent": ("labelled", "pp 2, ZeRO-2"),
    "soft_experts": ("tokens", "ep 2, tp 2"),
    "stacked": ("tokens", "zero-bubble"),
    "tied": ("images", "dp 2, tp 2"),
    "towers": ("tokens", "tp 4"),
    "two_losses": ("tokens", "pp 4"),
    "unet": ("images", "fsdp 2, tp 2"),
    "uneven": ("tokens", "pp 2, tp 2"),
}
SIZES = {"padded": {"multiple": 8}}  # without it nothing is padded
MICRO = {"train": {"microbatches": 4}}
ZERO_2 = {"optimizer": ["dp"], "grads": ["dp"]}
SEQUENCE = {"activations": {"act_seq": ["batch", ["seq", "tp"]]}}
MESHES = {  # what a program must have for it, and the layout
    "dp 2, tp 2": ("", {"mesh": {"dp": 2, "tp": 2}, **MICRO}),
    "fsdp 2, tp 2": ("", {"mesh": {"fsdp": 2, "tp": 2}, "train": {"microbatches": 2}}),
    "fsdp 3, remat": ("layers", {"mesh": {"fsdp": 3}, "train": {"remat": "block"}}),
    "tp 4": ("", {"mesh": {"tp": 4}}),
    "dp 2, pp 2": ("layers", {"mesh": {"dp": 2, "pp": 2}, **MICRO}),
    "pp 2, tp 2": ("layers", {"mesh": {"pp": 2, "tp": 2}, **MICRO}),
    "fsdp 2, pp 2": ("layers", {"mesh": {"fsdp": 2, "pp": 2}, **MICRO}),
    "pp 2, ZeRO-2": ("layers", {"mesh": {"dp": 2, "pp": 2}, "sharding": ZERO_2, **MICRO}),
    "pp 4": ("layers", {"mesh": {"pp": 4}, **MICRO}),
    "zero-bubble": ("layers", {"mesh": {"pp": 2}, "pipeline": {"schedule": "zero_bubble"}, **MICRO}),
    "interleaved": ("layers", {"mesh": {"pp": 2}, "pipeline": {"schedule": "interleaved", "chunks": 2}, **MICRO}),
    "sequence parallel": ("tokens", {"mesh": {"fsdp": 2, "tp": 2}, "sharding": SEQUENCE}),
    "cp 2, tp 2": ("tokens", {"mesh": {"cp": 2, "tp": 2}, **MICRO}),
    "pp 2, cp 2": ("tokens layers", {"mesh": {"pp": 2, "cp": 2}, **MICRO}),
    "dp 2, ep 2": ("experts", {"mesh": {"dp": 2, "ep": 2}, "train": {"microbatches": 2}}),
    "pp 2, ep 2": ("experts", {"mesh": {"pp": 2, "ep": 2}, **MICRO}),
    "ep 2, tp 2": ("experts", {"mesh": {"ep": 2, "tp": 2}, "sharding": SEQUENCE}),
}


# The run is killed while row 10 waits to be written: no save is near, so the ranks stay in a step until then.
STEPS, EVERY, HELD = 15, 3, 10


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """{kind: a data section} with what the programs' defaults want: ids below 21; 24 features, 6 labels."""
    place = tmp_path_factory.mktemp("sets")
    rng = numpy.random.default_rng(7)
    ids = numpy.cumsum(rng.integers(0, 3, 24 * 240)) % 21  # a walk: what comes next can be learned
    (place / "ids").write_bytes(ids.astype("<u2").tobytes())
    runs.write_idx(place / "images", rng.random((240, 24), numpy.float32))
    runs.write_idx(place / "labels", rng.integers(0, 6, 240).astype(numpy.uint8))
    images = {"images": str(place / "images")}
    labelled = {**images, "labels": str(place / "labels")}
    of_images = {"format": "idx", "dtype": "f32", "batch": 24}
    return {
        "tokens": {"format": "tokens", "ids": "u16", "train": {"tokens": str(place / "ids")}, "batch": 24},
        "images": {**of_images, "train": images},
        "labelled": {**of_images, "train": labelled},
    }


def job(program, data):
    return {
        "name": program.replace("_", "-"),
        "model": {"program": str(meshes.PROGRAMS / f"{program}.model"), **SIZES.get(program, {})},
        "data": data,
        "optimizer": {"kind": "adamw", "clip_norm": 1.0},
        "schedule": {"kind": "constant", "value": 0.003},
        "train": {"steps": STEPS, "seed": 3},
        "checkpoint": {"dir": "ckpt", "every": EVERY, "keep": 9, "async": False},
        "restart": {"hang_after": "60s"},  # however long a busy machine takes to kill what is held
    }


def has(program):
    """What a mesh may ask of it."""
    layers = set() if program in ("tied", "helped", "padded") else {"layers"}  # none, and more while it trains
    experts = {"experts"} if program in ("biased", "soft_experts") else set()
    return {OWNS[program][0], *layers, *experts}


def parts_batch(layout):
    """towers holds the samples of a batch against each other: it has no microbatches."""
    return layout.get("train", {}).get("microbatches", 1) > 1


def all_pairs():
    # The layers of these do not divide into two stages of two chunks.
    uneven = {("recurrent", "interleaved"), ("unet", "interleaved")}
    return [
        (p, m)
        for p in OWNS
        for m, (wants, layout) in MESHES.items()
        if set(wants.split()) <= has(p) and (p, m) not in uneven and not (p == "towers" and parts_batch(layout))
    ]


PAIRS = all_pairs() if runs.LONG else [(program, mesh) for program, (_, mesh) in OWNS.items()]


def test_the_table_has_every_program():
    assert sorted(OWNS) == sorted(p.stem for p in meshes.PROGRAMS.glob("*.model") if not p.stem.startswith("example_"))
    assert {mesh for _, mesh in OWNS.values()} >= MESHES.keys() - {"pp 2, ep 2"}
    assert set(PAIRS) <= set(all_pairs())


@pytest.mark.parametrize("program, mesh", PAIRS)
def test_killed_it_resumes_to_the_same_bits(place, sets, program, mesh):
    made, (_, layout) = job(program, sets[OWNS[program][0]]), MESHES[mesh]
    calm = meshes.trained(place, made, layout, "calm")
    run = meshes.run_in(place, made, layout, "killed")
    victim = run.ranks - 1
    parent = run.start_held(HELD)
    assert run.wait_until(run.saved(victim, HELD - 2), parent), parent.wait()
    runs.kill_pid(run.pids()[victim])
    run.let_go()
    assert parent.wait().code not in (0, 75)
    run.finish()
    assert "attempt-2" in str(run.attempt_dir())
    assert len(run.losses()) == STEPS
    assert run.losses() == calm.losses()
    assert run.final() == calm.final()
