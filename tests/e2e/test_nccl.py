# SPDX-License-Identifier: Apache-2.0
"""Collectives from device to device, by NCCL: the real transport and backend over the tests' own CUDA and NCCL
(tests/cuda/fake_nccl.c), beside the same training whose collectives go through the hosts."""
import math
import mmap
import os
import pathlib
import json
import re
import sys

import meshes
import pytest
import runs

sys.path.append(str(runs.REPO / "tests/bench/gpu"))
from collectives import SWITCHES  # noqa: E402

CUDA = runs.BUILD / "tests" / "cuda"
LIBRARY = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "lib64/libnccl.so.2"
pytestmark = pytest.mark.skipif(not (CUDA / "libweft_cuda.so").exists(), reason="SKIPPED: no libweft_cuda.so: built without CUDA's headers")


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setenv("WEFT_BACKEND_DIR", str(CUDA))
    monkeypatch.setenv("WEFT_CUDA_GUARD", "1")
    monkeypatch.setenv("WEFT_FAKE_CUDA", "devices:4")
    return monkeypatch


def run_by(collectives, place, layout, name, program="gpt2", steps=3):
    meshes.put_text(place)
    job = {**meshes.decoder(program), "resources": {"kind": "cuda", "collectives": collectives}}
    job["train"] = {**job["train"], "steps": steps}
    run = meshes.run_in(place, job, layout, name)
    run.devices = run.ranks
    return run


def losses(run):
    return [(r["step"], r["loss"], r["grad_norm"]) for r in run.metrics()]


def test_two_ranks_have_the_losses_to_the_bit_that_they_have_through_their_hosts(place, cuda):
    """A sum of two has one order."""
    near, far = (run_by(by, place, {"mesh": {"dp": 2}}, by) for by in ("host", "nccl"))
    near.finish()
    far.finish()
    assert losses(near) == losses(far) and len(losses(far)) == 3
    assert "from device to device, by NCCL 2.28.9" in far.log(0)
    assert "NCCL" not in near.log(0)


CUTS = [("gpt2", {"mesh": {"fsdp": 2}})]
if runs.LONG:
    CUTS += [("gpt2", {"mesh": {"tp": 2}}), ("gpt2", {"mesh": {"dp": 2, "fsdp": 2}}), ("mixtral", {"mesh": {"ep": 2}}),
             ("llama", {"mesh": {"fsdp": 2}, "precision": {"compute": "bf16"}, "train": {"microbatches": 2}})]


@pytest.mark.parametrize("program, layout", CUTS, ids=str)
def test_every_way_to_cut_a_layer_has_the_losses_that_it_has_through_the_hosts(place, cuda, program, layout):
    near, far = (run_by(by, place, layout, by, program, steps=2) for by in ("host", "auto"))
    near.finish()
    far.finish()
    assert losses(near) == losses(far) and len(losses(far)) == 2
    assert "from device to device, by NCCL 2.28.9" in far.log(0)


@pytest.mark.skipif(not runs.LONG, reason="SKIPPED: WEFT_LONG: three runs of four ranks")
def test_four_ranks_have_the_bits_of_a_launch_a_tensor_in_groups(place, cuda):
    """More than two are summed in NCCL's own order, so the hosts' losses are near only."""
    layout = {"mesh": {"fsdp": 4}, "train": {"microbatches": 2}}
    alone, groups, near = (run_by(by, place, {**layout, "resources": {"bucket": size}}, f"{by}-{size}")
                           for by, size in (("nccl", 0), ("nccl", 16), ("host", 16)))
    for run in (alone, groups, near):
        run.finish()
    assert losses(alone) == losses(groups) and len(losses(groups)) == 3
    assert "from device to device" in alone.log(0) and "from device to device" in groups.log(0)
    for far, here in zip(losses(groups), losses(near)):
        assert far == pytest.approx(here, rel=1e-5)


def in_stages(mesh, schedule="1f1b", microbatches=4, **more):
    return {"mesh": mesh, "model": {"layers": 4}, "train": {"microbatches": microbatches}, "pipeline": {"schedule": schedule, **more}}


PIPES = [in_stages({"pp": 2}, "interleaved", chunks=2)]
if runs.LONG:
    PIPES += [in_stages({"pp": 2}), in_stages({"pp": 4}), in_stages({"pp": 2, "dp": 2}, microbatches=2), in_stages({"pp": 2}, "circular", chunks=2), in_stages({"pp": 2, "tp": 2}, "zero_bubble"), in_stages({"pp": 2}, "gpipe", stages=[1, 3])]


@pytest.mark.parametrize("layout", PIPES, ids=str)
def test_every_pipeline_has_the_losses_that_it_has_through_the_hosts(place, cuda, layout):
    """The first and the last stage of gpt2 sum the gradient of the embedding. The twin's devices do what is started strictly one after
    the other, and a send waits for its receiver: in another order they would hang. The norm sums over all ranks."""
    near, far = (run_by(by, place, layout, by, steps=2) for by in ("host", "auto"))
    near.finish()
    far.finish()
    assert [r[:2] for r in losses(near)] == [r[:2] for r in losses(far)] and len(losses(far)) == 2
    assert all(math.isclose(a[2], b[2], rel_tol=1e-6) for a, b in zip(losses(near), losses(far)))
    assert "from device to device, by NCCL 2.28.9" in far.log(0)


def small(place, toy, **resources):
    job = runs.job(toy, 2, train__steps=4)
    place.mkdir(exist_ok=True)
    job = {**job, "resources": {"kind": "cuda", **resources}}
    run = runs.Run(place, job)
    run.devices = 2
    return run


@pytest.mark.parametrize("scene, devices, say", [
    ("nccl_absent", 2, "there is no libnccl.so.2: install NCCL 2.27 or later"),
    ("nccl_version:22605", 2, "NCCL 22605 is too old"),
    ("devices:1", 1, "ranks 0 and 1 share the device 0000:1b:00.0, which NCCL refuses: let each worker of the host see other GPUs (CUDA_VISIBLE_DEVICES)"),
])
def test_where_nccl_cannot_be_used_that_is_said_before_the_first_step(place, toy, cuda, scene, devices, say):
    cuda.setenv("WEFT_FAKE_CUDA", f"devices:2,{scene}")
    asked = small(place, toy, collectives="nccl")
    asked.devices = devices
    end = asked.run()
    assert end.code == 78 and not (asked.dir / "metrics.jsonl").exists(), end
    assert f"resources.collectives is nccl: {'rank 0: ' if devices == 2 else ''}{say}" in asked.log(0), asked.log(0)
    usual = small(place / "usual", toy)
    usual.devices = devices
    usual.finish()
    assert f"through the hosts: {'rank 0: ' if devices == 2 else ''}{say}" in usual.log(0), usual.log(0)


@pytest.mark.parametrize("of_rank_1, say", [
    (["--env", "1:WEFT_FAKE_CUDA=devices:2,nccl_version:22703"], "rank 1 has NCCL 2.27.3, rank 0 2.28.9: install one version on all hosts"),
    (["--host", "1:other"], "NCCL encrypts nothing between hosts: resources.network: trusted allows that"),
    (["--host", "1:other", "--env", "0:NCCL_HOSTID=a", "--env", "1:NCCL_HOSTID=a"], "NCCL encrypts nothing between hosts: resources.network: trusted allows that"),
], ids=["version", "host", "host-by-another-name"])
def test_ranks_that_nccl_cannot_join_are_named(place, toy, cuda, of_rank_1, say):
    run = small(place, toy, collectives="nccl")
    end = run.run(*of_rank_1)
    assert end.code == 78 and f"resources.collectives is nccl: {say}" in run.log(0), (end, run.log(0))


@pytest.mark.parametrize("wish, result, code, say", [("auto", 2, 70, "unhandled system error"), ("nccl", 5, 78, "invalid usage")])
def test_communicators_that_cannot_be_opened_end_the_attempt_before_its_first_step(place, toy, cuda, wish, result, code, say):
    """What NCCL refuses it would refuse again: 78. What may pass ends as what the coordinator starts again, and counts: 70.
    At its exit() the device's libraries would wait for what was aborted."""
    run = small(place, toy, collectives=wish)
    end = run.run("--env", f"1:WEFT_FAKE_CUDA=devices:2,nccl_refuses:{result},nccl_spins")
    assert end.code == code and "rank 0 ended with 69" in end.out and not (run.dir / "metrics.jsonl").exists(), end
    assert re.search(rf"rank 1 cannot open its communicators: communicator \S+: ncclCommInitRankConfig: {say} .*"
                     r"NCCL_DEBUG=INFO .*; with resources.collectives: host it needs none", run.log(1)), run.log(1)


@pytest.mark.parametrize("resources, scene, now", [({}, ",nccl_version:22805", "NCCL 2.28.5, pinned"), ({"collectives": "host"}, "", "hosts")],
                         ids=["version", "transport"])
def test_a_resume_by_other_collectives_says_so_once(place, toy, cuda, resources, scene, now):
    run = small(place, toy)
    run.save_job({**run.job, "train": {"steps": 2, "seed": 3}})
    run.finish()
    assert run.checkpoints()[-1].manifest["numerics"]["collectives"] == "NCCL 2.28.9, pinned"
    cuda.setenv("WEFT_FAKE_CUDA", "devices:2" + scene)
    run.save_job({**run.job, "train": {"steps": 4, "seed": 3}, "resources": {"kind": "cuda", **resources}})
    run.finish()
    said = f"the checkpoint's run had its collectives by NCCL 2.28.9, pinned, this one by {now}: from now on sums may round otherwise"
    assert (run.log(0) + run.log(1)).count(said) == 1, run.log(0)
    assert run.checkpoints()[-1].manifest["numerics"]["collectives"] == now


def test_what_nccl_takes_is_measured_kept_and_planned(place, toy, cuda):
    """The tests' NCCL takes 3 MiB for each communicator. That the plan is what was taken, to the byte, each rank checks."""
    cuda.setenv("XDG_CACHE_HOME", str(place / "cache"))
    cuda.delenv("WEFT_CUDA_GUARD")  # its zones take memory that no plan has
    run = small(place, toy, collectives="nccl")
    spoken = ["plan", "--device", "emulated:memory=8GiB,libraries=1B", str(run.file), "--json"]
    before = json.loads(runs.weft(*spoken).out)
    assert before["nccl"] == {"communicators": 1, "bytes_each": 384 << 20, "measured": False}
    run.finish()
    assert re.search(r"NCCL 2.28.9, pinned took 3.0 MiB of device memory for each of its communicators \(1\)", run.log(0)), run.log(0)
    plan = json.loads(runs.weft(*spoken).out)
    assert plan["nccl"] == {"communicators": 1, "bytes_each": 3 << 20, "measured": True}
    arena = plan["memory"]["arena"]
    assert plan["memory"]["nccl"] == 3 << 20 and arena == before["memory"]["arena"]
    text = runs.weft(*spoken[:-1]).out
    assert "NCCL: 1 communicator of about 3.0 MiB: measured on this host" in text, text
    for room, fits in ((arena + (3 << 20), True), (arena + (3 << 20) - 1, False)):
        one = runs.weft("plan", "--device", f"emulated:memory={room + 1}B,libraries=1B", spoken[3], "--json")
        assert (one.code == 0) is fits, one
    kept = place / "cache/weft/nccl-memory"
    kept.write_text(kept.read_text().replace(str(3 << 20), str(4 << 30)))  # as where others took memory meanwhile
    cuda.setenv("WEFT_FAKE_CUDA", f"devices:2,memory:{arena + (1600 << 20)}")  # libraries: 1.5 GiB
    again = small(place / "again", toy, collectives="nccl")
    again.finish()
    assert json.loads(runs.weft(*spoken).out)["nccl"] == {"communicators": 1, "bytes_each": 3 << 20, "measured": True}


def test_ranks_with_an_NCCL_HOSTID_each_may_share_a_device(place, toy, cuda):
    cuda.setenv("WEFT_FAKE_CUDA", "devices:1")
    run = small(place, toy, collectives="nccl")
    run.devices = 1
    end = run.run("--env", "0:NCCL_HOSTID=r0", "--env", "1:NCCL_HOSTID=r1")
    assert end.code == 0 and "from device to device, by NCCL" in run.log(0), (end, run.log(0))


def test_collectives_of_cpus_are_no_choice(place, toy):
    job = {**runs.job(toy, 2), "resources": {"collectives": "nccl"}}
    end = runs.Run(place, job).run()
    assert end.code == 78 and "resources.collectives" in end.err and "resources.kind" in end.err, end


@pytest.mark.parametrize("axis", ["dp", "pp"] if runs.LONG else ["dp"])
def test_a_rank_that_is_killed_ends_the_other_and_the_next_start_resumes(place, toy, cuda, axis):
    """Behind the loss a kernel stays on the other's device that never ends: what frees memory, or waits, waits for it, as NCCL's
    own abort does. The rank ends without all that."""
    cuda.setenv("WEFT_FAKE_CUDA", "devices:2,nccl_spins,nccl_sticks")
    run = small(place, toy, collectives="nccl")
    run.save_job({**run.job, "mesh": {axis: 2}, "train": {"steps": 400, "seed": 3}, "checkpoint": {"dir": "ckpt", "every": 2}})
    parent = run.start()
    assert run.wait_until(run.saved(1, 2), parent), parent.wait()
    runs.kill_pid(run.pids()[1])
    end = parent.wait()
    assert end.code == 137 and "rank 0 ended with 69" in end.out, end
    assert "the device does not answer" not in run.log(0)
    cuda.setenv("WEFT_FAKE_CUDA", "devices:2")
    run.save_job({**run.job, "train": {"steps": run.checkpoints()[-1].step + 2, "seed": 3}})
    run.finish()


def test_what_one_rank_cannot_capture_no_rank_replays(place, toy, cuda):
    """The graph of rank 1 finds no memory: that step is right, and both run op by op from then on."""
    usual, run = (small(place / name, toy, collectives="nccl") for name in ("usual", "plain"))
    usual.finish()
    run.finish("--env", "1:WEFT_FAKE_CUDA=devices:2,graph:2")
    assert losses(usual) == losses(run) and len(losses(run)) == 4
    assert "run op by op" not in usual.log(0)
    assert "train and later programs run op by op, as rank 1 must: instructions" in run.log(0) and "out of memory" in run.log(0), run.log(0)


def test_a_rank_that_is_killed_while_others_wait_for_its_graphs_ends_them(place, toy, cuda):
    run = small(place, toy, collectives="nccl")
    parent = run.start("--env", "1:WEFT_FAKE_CUDA=devices:2,graph_hang:1")
    assert run.wait_until(lambda: (p := run.page(0)) and p.collective == "graphs of train", parent), parent.wait()
    runs.kill_pid(run.pids()[1])
    end = parent.wait()
    assert end.code == 137 and "rank 0 ended with 69" in end.out, end


def test_an_error_that_nccl_reports_ends_all_ranks(place, toy, cuda):
    cuda.setenv("WEFT_FAKE_CUDA", "devices:2,nccl_remote:6")
    run = small(place, toy, collectives="nccl")
    end = run.run()
    assert end.code == 69 and "remote process exited or there was a network error" in run.log(0) + run.log(1), end


def test_a_collective_that_hangs_ends_the_attempt_and_is_named(place, toy, cuda):
    """Rank 1 never comes out of a call that rank 0 waits for too; the devices' marks say which call it is."""
    run = small(place, toy, collectives="nccl")
    run.save_job({**run.job, "restart": {"hang_after": "2s"}})
    end = run.run("--env", "1:WEFT_FAKE_CUDA=devices:2,nccl_hang:6")
    said = re.search(r"rank (\d) on host \S+ \(running, step \d, [^,]+, in collective (\d+) \((\S+)(?: and \d+ more)?\)\) hangs: no progress", end.err)
    assert end.code == 69 and said, end
    assert int(said[2]) > 2 and said[3] not in ("dp", ""), said[0]  # the first are of the hosts, when they meet


@pytest.mark.skipif(not LIBRARY.exists(), reason="SKIPPED: no libnccl.so.2 beside CUDA: it was not looked at whether it knows our switches")
def test_nccl_knows_every_switch_that_is_set():
    """By the product, and by the stage for a lent GPU: of one that is misspelt nobody would hear."""
    ours = re.findall(r'"(NCCL_[A-Z_]+)"', (runs.REPO / "kernels/cuda/cuda_collectives.c").read_text())
    names = {*ours, *(name for name in SWITCHES if name.startswith("NCCL_")), "NCCL_HOSTID"}
    with open(LIBRARY, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as text:
        unknown = [name for name in sorted(names) if text.find(b"\0" + name.encode() + b"\0") < 0]
    assert len(ours) >= 6 and not unknown, unknown
