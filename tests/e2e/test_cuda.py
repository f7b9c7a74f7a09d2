# SPDX-License-Identifier: Apache-2.0
"""Trainings on the CUDA backend against the same on the CPU, and how its failures end a rank.

The backend is by default its emulated twin (the real code over a CUDA runtime of the tests' own), so it
runs where no GPU is. WEFT_CUDA_DIR names the folder of a real libweft_cuda.so instead: then only what a
GPU can do is asked of it."""
import json
import math
import os
import pathlib
import re
import socket
import subprocess

import meshes
import pytest
import runs

REAL = os.environ.get("WEFT_CUDA_DIR")
CUDA = pathlib.Path(REAL or runs.BUILD / "tests" / "cuda")
pytestmark = pytest.mark.skipif(not (CUDA / "libweft_cuda.so").exists(), reason="SKIPPED: no libweft_cuda.so: built without CUDA's headers")
emulated = pytest.mark.skipif(bool(REAL), reason="failures are injected into the emulated twin")
WHOLE = REAL or runs.LONG  # decoders take the emulation long: without it each program, dtype and axis once or twice
STEPS = 50  # of a decoder without WHOLE: SOME
SOME = 15
LOSS = {"f32": 1e-3, "bf16": 2e-2}  # relative, of every step; of a loss that has nearly vanished, to 1/20 of the first


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setenv("WEFT_BACKEND_DIR", str(CUDA))
    monkeypatch.delenv("WEFT_FAKE_CUDA", raising=False)
    monkeypatch.setenv("WEFT_CUDA_GUARD", "1")
    return monkeypatch


def on(kind, job):
    return {**job, "resources": {"kind": kind}}


def pair(place, cuda, job, layout):
    """The same training on the GPU and on the CPU."""
    far = meshes.trained(place, on("cuda", job), layout, "far")
    cuda.delenv("WEFT_BACKEND_DIR")
    return far, meshes.trained(place, job, layout, "near")


def assert_losses_agree(far, near, tolerance):
    a, b = far.metrics(), near.metrics()
    assert len(a) == len(b)
    for x, y in zip(a, b):
        assert math.isclose(x["loss"], y["loss"], rel_tol=tolerance, abs_tol=tolerance * b[0]["loss"] / 20), (x, y)


def model(place, toy, kind, precision):
    if kind in meshes.DECODERS:
        meshes.put_text(place)
        job = meshes.decoder(kind)
        job["model"] = {**job["model"], "dropout_residual" if kind == "llama" else "dropout": 0.1}
        job["schedule"] = {**job["schedule"], "value": 0.001}  # steps that do not make rounding grow
    else:
        job = runs.job(toy, 1, model__activation="gelu") if kind == "mlp" else runs.job(toy, 1)
        job["schedule"] = {**job["schedule"], "value": 0.02}  # as above
        if kind == "vae":
            job["model"] = {"program": "vae", "inputs": toy.features, "hidden": [48], "latent": 4}
            job["data"].pop("eval", None)
            job["data"]["train"] = {"images": job["data"]["train"]["images"]}
            job["optimizer"] = {"kind": "adam", "clip_norm": 50}
            job["schedule"] = {"value": 0.003}
    job["train"] = {**job["train"], "steps": SOME if kind in meshes.DECODERS and not WHOLE else STEPS}
    return {**job, "precision": {"compute": precision}, "mesh": {"dp": 1}}


def decoder():
    job = meshes.decoder("gpt2")
    return job if WHOLE else {**job, "train": {**job["train"], "steps": 6}}


MODELS = [("mlp", "f32"), ("mlp", "bf16"), ("vae", "f32"), ("vae", "bf16"), ("gpt2", "f32"), ("llama", "bf16")]
if WHOLE:
    MODELS += [("gpt2", "bf16"), ("llama", "f32")]


@pytest.mark.parametrize("kind, precision", MODELS)
def test_the_steps_of_every_model_have_the_losses_of_the_cpu(place, toy, cuda, kind, precision):
    far, near = pair(place, cuda, model(place, toy, kind, precision), {})
    assert_losses_agree(far, near, LOSS[precision])
    assert far.metrics()[-1]["loss"] < far.metrics()[0]["loss"]
    assert far.checkpoints()[-1].manifest["numerics"]["backend"] == "cuda"


LAYOUTS = [{"mesh": {"fsdp": 2}}, {"mesh": {"tp": 2}}, {"mesh": {"pp": 2}, "train": {"microbatches": 4}}]
if WHOLE:
    LAYOUTS += [{"mesh": {"dp": 2}}, {"mesh": {"cp": 2}}]
if runs.LONG:
    LAYOUTS += [{"mesh": {"fsdp": 2, "tp": 2}}, {"mesh": {"cp": 2, "dp": 2}}]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_ranks_on_one_gpu_have_the_losses_of_the_cpu(place, cuda, layout):
    meshes.put_text(place)
    far, near = pair(place, cuda, decoder(), layout)
    assert_losses_agree(far, near, LOSS["f32"])


PACKED = [{"mesh": {"fsdp": 2}, "train": {"microbatches": 2}}, {"mesh": {"tp": 2}, "train": {"remat": "block"}}]


@pytest.mark.parametrize("layout", PACKED, ids=str)
def test_packed_heads_have_the_losses_of_the_cpu(place, cuda, layout):
    """In bf16 q, k and v lie in one row on the GPU, and not on the CPU."""
    meshes.put_text(place)
    far, near = pair(place, cuda, {**decoder(), "precision": {"compute": "bf16"}}, layout)
    assert_losses_agree(far, near, LOSS["bf16"])
    ways = [x for x in far.checkpoints()[-1].manifest["numerics"]["algorithms"].splitlines() if x.startswith("attention")]
    assert ways and all(" packed 3 " in x for x in ways), ways


def test_latent_attention_has_the_losses_of_the_cpu(place, cuda):
    """In bf16 its two pairs of scores, of 8 and 8 elements a head, are joined for the library on the GPU."""
    meshes.put_text(place)
    job = {**meshes.decoder("jaxformer"), "precision": {"compute": "bf16"}}
    job["train"] = {**job["train"], "steps": 4}
    far, near = pair(place, cuda, job, {"mesh": {"tp": 2}})
    assert_losses_agree(far, near, LOSS["bf16"])
    lines = far.checkpoints()[-1].manifest["numerics"]["algorithms"].splitlines()
    ways = [x for x in lines if x.startswith("attention") and "x8+8:8 " in x]
    assert len(ways) == 2 and all("= cudnn-" in x for x in ways), lines


def test_a_run_again_and_a_killed_run_come_to_the_same_bits(place, toy, cuda):
    job = on("cuda", model(place, toy, "mlp", "f32"))
    job["train"]["steps"] = 200
    first, again = meshes.trained(place, job, {}, "first"), meshes.trained(place, job, {}, "again")
    assert first.final() == again.final()
    killed = meshes.run_in(place, {**job, "checkpoint": {"every": 100}}, {}, "killed")
    parent = killed.start_held(110)
    assert killed.wait_until(killed.saved(0, 100), parent), "it ended before it could be killed"
    runs.kill_pid(killed.pids()[0])
    parent.wait()
    killed.finish()
    assert first.final() == killed.final()


def test_packed_heads_train_alike_with_ops_apart_and_continue_to_the_same_bits(place, cuda):
    """The resumed rank finds its choices of algorithms in its checkpoint alone."""
    meshes.put_text(place)
    cuda.setenv("XDG_CACHE_HOME", str(place / "cache"))  # what another run timed is not known here
    job = on("cuda", {**meshes.decoder("gpt2"), "mesh": {"dp": 1}, "precision": {"compute": "bf16"}, "restart": {"hang_after": "120s"}})
    job["train"] = {**job["train"], "steps": 8}
    whole = meshes.trained(place, job, {}, "whole")
    chosen = whole.checkpoints()[-1].manifest["numerics"]["algorithms"]
    assert " packed 3 " in chosen
    killed = meshes.run_in(place, {**job, "checkpoint": {"every": 3}}, {}, "killed")
    parent = killed.start_held(5)
    assert killed.wait_until(killed.saved(0, 3), parent), "it ended before it could be killed"
    runs.kill_pid(killed.pids()[0])
    parent.wait()
    cuda.setenv("XDG_CACHE_HOME", str(place / "no-cache"))
    killed.finish()
    before, after = (killed.checkpoints()[i].manifest["numerics"]["algorithms"] for i in (0, -1))
    assert whole.final() == killed.final() and before == after
    assert_losses_agree(meshes.trained(place, {**job, "train": {**job["train"], "fuse": False}}, {}, "apart"), whole, LOSS["bf16"])


def test_a_job_may_allow_what_gives_other_bits_the_next_time(place, cuda):
    """The promise is given up, the numbers are not: what CUDA's libraries then may do is in the record."""
    meshes.put_text(place)
    job = {**meshes.decoder("gpt2"), "mesh": {"dp": 1}, "precision": {"compute": "bf16", "deterministic": False},
           "restart": {"hang_after": "60s"}}  # the emulated cuDNN takes its time
    job["train"] = {**job["train"], "steps": 4}
    far, near = pair(place, cuda, job, {})
    assert_losses_agree(far, near, LOSS["bf16"])
    numerics = far.checkpoints()[-1].manifest["numerics"]
    (header,) = [x for x in numerics["algorithms"].splitlines() if x.startswith("algorithms ")]
    assert header.endswith(", not deterministic") and numerics["deterministic"] is False
    if not REAL:  # the emulated cuDNN's first engine is such a one
        assert "-varies" in numerics["algorithms"]
    assert near.checkpoints()[-1].manifest["numerics"]["deterministic"] is True


@emulated
@pytest.mark.parametrize("scene, say", [
    ("nodriver", "no NVIDIA driver on this host"),
    ("olddriver", "the NVIDIA driver is too old: it serves CUDA 12.2"),
    ("nodevice", "no NVIDIA device on this host"),
    ("badarch", "no kernel image is available"),
    ("oom:1", "out of memory"),
    ("sticky:400", "an illegal memory access was encountered"),
])
def test_a_gpu_that_fails_ends_the_rank_with_71_and_says_why(place, toy, cuda, scene, say):
    run = runs.Run(place, on("cuda", model(place, toy, "mlp", "f32")))
    cuda.setenv("WEFT_FAKE_CUDA", scene)
    end = run.run()
    said = end.err + run.log(0)
    assert end.code == 71 and say in said, (end, said)
    assert "rank 0" in said, said


@emulated
def test_a_plan_that_leaves_the_libraries_no_room_is_refused_as_weft_plan_refuses_it(place, toy, cuda):
    run = runs.Run(place, on("cuda", model(place, toy, "mlp", "f32")))
    arena = json.loads(runs.weft("plan", "--device", "h200", str(run.file), "--json").out)["memory"]["arena"]
    cuda.delenv("WEFT_CUDA_GUARD")
    for room, code in ((arena + (1536 << 20) - 1, 78), (arena + (1600 << 20), 0)):
        cuda.setenv("WEFT_FAKE_CUDA", f"memory:{room}")
        planned = runs.weft("plan", "--device", f"emulated:memory={room}B", str(run.file))
        end = run.run()
        assert (planned.code == 0, end.code) == (code == 0, code), (planned, end)
        assert not code or re.search(r"the plan needs 1\.5 GiB of device memory, 1\.5 of it for libraries, but this device has 1\.5 GiB", run.log(0))


@emulated
def test_a_device_that_others_have_filled_but_for_the_plan_gets_a_warning(place, toy, cuda):
    for name, taken, warns in ("full", (8 << 30) - (200 << 20), True), ("empty", 0, False):
        run = runs.Run(place, on("cuda", model(place, toy, "mlp", "f32")), name)
        cuda.setenv("WEFT_FAKE_CUDA", f"taken:{taken}")
        run.finish()
        said = re.search(r"(\d+) MiB of the device are left for what its libraries load", run.log(0))
        assert bool(said) == warns and (not said or 0 < int(said[1]) < 200), run.log(0)


@emulated
def test_with_CUDA_LAUNCH_BLOCKING_ops_run_one_by_one_and_the_one_that_fails_is_named(place, toy, cuda):
    run = runs.Run(place, slow_job(place, toy, "60s", steps=1000))
    cuda.setenv("CUDA_LAUNCH_BLOCKING", "1")
    cuda.setenv("WEFT_FAKE_CUDA", "sticky:4000")
    assert run.run().code == 71 and len(run.metrics()) > 3
    said = run.log(0)
    assert "train and later programs run op by op, as rank 0 must" in said and "CUDA_LAUNCH_BLOCKING asks for one op at a time" in said, said
    assert re.search(r"cuda device 0: [\w ]+ behind op '\w+': an illegal memory access", said), said


@emulated
def test_who_asks_for_devices_does_not_wait_until_the_driver_lets_go_of_them(cuda):
    cuda.setenv("WEFT_FAKE_CUDA", "driver:1")
    with subprocess.Popen([runs.RANK, "--probe", "--kind", "cuda"], stdout=subprocess.PIPE, text=True) as p:
        assert json.loads(p.stdout.read())["devices"]
        with pytest.raises(subprocess.TimeoutExpired):
            p.wait(timeout=0.3)


@emulated
def test_a_rank_that_nobody_leads_waits_for_no_driver(place, cuda):
    cuda.setenv("WEFT_FAKE_CUDA", "driver:1000")
    leader, rank = socket.socketpair()
    leader.close()
    with rank:
        end = subprocess.run([runs.RANK, "--fd", str(rank.fileno()), "--dir", place, "--host", "here", "--kind", "cuda"],
                             pass_fds=[rank.fileno()], check=False, timeout=runs.WATCHDOG)
    assert end.returncode == 69, end


def slow_job(place, toy, hang_after, **train):
    job = on("cuda", model(place, toy, "mlp", "f32"))
    job["data"].pop("eval", None)
    job["train"] = {**job["train"], "microbatches": 8, **train}
    job.pop("eval", None)
    return {**job, "restart": {"hang_after": hang_after}}


@emulated
def test_steps_longer_than_hang_after_are_no_hang_while_the_gpu_moves(place, toy, cuda):
    """The first ones too, of which nobody knows how long they take; the page moves within a step."""
    run = runs.Run(place, slow_job(place, toy, "2s", steps=2))
    cuda.setenv("WEFT_FAKE_CUDA", "slow:35000")
    end = run.run()
    assert end.code == 0, end
    rows = run.metrics()
    assert len(rows) == 2 and rows[0]["step_ms"] > 2500, rows  # and hang_after is 2 s


@emulated
def test_a_gpu_that_stops_is_a_hang_and_named_with_where_it_stopped(place, toy, cuda):
    run = runs.Run(place, slow_job(place, toy, "2s", steps=1000))
    cuda.setenv("WEFT_FAKE_CUDA", "stop:2000")
    end = run.run()
    said = re.search(r"rank 0 on host \S+ \(running, step (\d+), (\w+) of microbatch (\d+)\) hangs: no progress", end.err)
    assert end.code == 69 and said, end
    page = run.page(0)
    assert (int(said[1]), said[2], int(said[3])) == (page.step, runs.PHASES[page.phase], page.microbatch)
    done = run.metrics()[-1]["step"]
    assert page.step == done + 1  # the device's, not that of the step which the host queued behind it
    assert "the device does not answer, so the process ends without closing it" in run.log(0)
