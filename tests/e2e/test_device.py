# SPDX-License-Identifier: Apache-2.0
"""A device that shares no memory with the host, from the job's `kind: cuda` to its checkpoints.

It is tests/support/late.c: by name a GPU, its memory out of the host's reach, its work put off until
somebody waits for it, its ops those of the CPU backend. So staged collectives, replayed steps, inputs
and checkpoints beside the computation must come to the very bits of the CPU."""
import json
import math
import os
import re
import signal
import subprocess

import cluster
import meshes
import pytest
import runs

LATE = str(runs.BUILD / "tests" / "late")
MESHES = [{"dp": 1}, {"dp": 2}, {"fsdp": 2}, {"tp": 2}, {"dp": 2, "tp": 2}]
if runs.LONG:
    MESHES += [{"fsdp": 2, "tp": 2}, {"dp": 3}, {"fsdp": 4}]


@pytest.fixture
def late(monkeypatch):
    monkeypatch.setenv("WEFT_BACKEND_DIR", LATE)
    monkeypatch.delenv("WEFT_LATE_FAIL", raising=False)
    return monkeypatch


def kind(job, name):
    return {**job, "resources": {"kind": name}}


def numbers(run):
    """All of the rows that is what training came to."""
    measured = ("attempt", "tokens_per_s", "samples_per_s", "flops_per_s", "mfu", "memory_bytes", "memory_planned_bytes")
    return [{k: v for k, v in r.items() if k not in measured and not k.endswith("_ms")} for r in run.metrics()]


def same_bits(one, other):
    assert numbers(one) == numbers(other)
    assert one.final() == other.final()


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_device_with_memory_of_its_own_trains_to_the_bits_of_the_cpu(place, toy, late, mesh):
    ranks = math.prod(mesh.values())
    job = runs.job(toy, ranks, mesh=mesh, eval__every=10, train__microbatches=2,
                   checkpoint={"dir": "ckpt", "every": 7, "keep": 2})
    far = runs.train(place, kind(job, "cuda"), "far")
    late.delenv("WEFT_BACKEND_DIR")
    same_bits(runs.train(place, job, "near"), far)
    assert "op by op" not in far.log(0)
    assert far.checkpoints()[-1].manifest["numerics"]["backend"] == "cuda"
    assert far.checkpoints()[-1].manifest["numerics"]["device"].startswith("late ")


# Every collective there is: sums and gathers of cut weights, messages between stages, exchanges between
# heads and sequence, one table on two stages; dropout counts on every mesh alike.
LAYOUTS = {
    "gpt2": [{"mesh": {"pp": 2}, "train": {"microbatches": 4}}, {"mesh": {"cp": 2, "tp": 2}}],
    "llama": [{"mesh": {"cp": 2, "fsdp": 2}, "train": {"microbatches": 2}}, {"mesh": {"dp": 2, "pp": 3}, "train": {"microbatches": 2}}],
}
if runs.LONG:
    LAYOUTS["gpt2"] += [{"mesh": {"dp": 2}, "sharding": {"optimizer": ["dp"]}}, {"mesh": {"fsdp": 2, "tp": 2}},
                        {"mesh": {"dp": 1}}, {"mesh": {"pp": 2, "tp": 2}, "pipeline": {"schedule": "gpipe"}, "train": {"microbatches": 2}}]
    LAYOUTS["llama"] += [{"mesh": {"dp": 2}, "sharding": {"optimizer": ["dp"], "grads": ["dp"]}}, {"mesh": {"dp": 1}},
                         # The device of the tests has the CPU's kernels: in bf16 none that are fused.
                         {"mesh": {"dp": 2}, "precision": {"compute": "bf16"}, "train": {"fuse": False}}]


@pytest.mark.parametrize("program, layout", [(p, y) for p in LAYOUTS for y in LAYOUTS[p]], ids=str)
def test_decoders_in_any_layout_come_to_the_bits_of_the_cpu(place, late, program, layout):
    meshes.put_text(place)
    job = meshes.decoder(program, eval={"every": 7, "batches": 2})
    job["data"]["eval"] = job["data"]["train"]
    job["model"] = {**job["model"], "dropout_residual" if program == "llama" else "dropout": 0.1}
    job["checkpoint"]["async"] = True
    far = meshes.trained(place, kind(job, "cuda"), layout, "far")
    late.delenv("WEFT_BACKEND_DIR")
    same_bits(meshes.trained(place, job, layout, "near"), far)


def test_a_killed_rank_continues_to_the_same_bits(place, toy, late):
    job = kind(runs.busy_job(toy, 2, mesh={"fsdp": 2}), "cuda")
    whole = runs.train(place, job, "whole")
    run = runs.Run(place, job, "killed")
    for _ in range(3 if not runs.LONG else 10):
        p = run.start()
        step = run.checkpoints()[-1].step if run.dir.exists() and run.checkpoints() else 0
        if run.wait_until(lambda: run.pids() and run.at(1, step + 9)(), p):
            runs.kill_pid(run.pids().get(1, -1) if 1 in run.pids() else p.pid, signal.SIGKILL)
        p.wait()
    run.finish()
    same_bits(whole, run)


def test_what_cannot_be_captured_runs_op_by_op_and_says_so_once(place, toy, late):
    job = kind(runs.job(toy, 2, train__microbatches=2), "cuda")
    whole = runs.train(place, job, "whole")
    late.setenv("WEFT_LATE_FAIL", "capture")
    plain = runs.train(place, job, "plain")
    same_bits(whole, plain)
    assert plain.log(0).count("run op by op") == 1 and "run op by op" not in plain.log(1), plain.log(0)


def test_what_one_rank_cannot_capture_no_rank_replays_and_the_log_names_it(place, toy, late):
    job = kind(runs.job(toy, 2, train__microbatches=2, eval__every=5), "cuda")
    whole = runs.train(place, job, "whole")
    plain = runs.Run(place, job, "plain")
    plain.finish(*runs.on_rank(1, {"WEFT_LATE_FAIL": "capture"}))
    same_bits(whole, plain)
    assert re.search(r"train and later programs run op by op, as rank 1 must: instructions \d+ to \d+ cannot be captured: late: an injected fault", plain.log(0)), plain.log(0)
    assert plain.log(0).count("run op by op") == 1 and "run op by op" not in plain.log(1)


@pytest.mark.parametrize("fails", [None, "capture"], ids=["graphs", "op-by-op"])
def test_ranks_that_are_asked_replay_and_say_what_they_say_on_the_cpu(place, late, fails):
    meshes.put_text(place)
    run = meshes.trained(place, kind(meshes.decoder("gpt2", train={"steps": 3}), "cuda"), {"mesh": {"dp": 2}})

    def say(name):
        where = ["--mesh", "tp=2", "-s", f"resources.kind={name}"]
        end = runs.weft("generate", str(run.checkpoints()[-1].path), "--json", "--prompt", "A licence of", "--tokens", "9",
                        "--temperature", "1", "--samples", "3", *where)
        assert end.code == 0, end
        return [json.loads(line)["text"] for line in end.out.splitlines()]

    if fails:
        late.setenv("WEFT_LATE_FAIL", fails)
    far = say("cuda")
    late.delenv("WEFT_BACKEND_DIR")
    assert far == say("cpu") and len(set(far)) == 3


def test_a_fault_of_the_device_is_71_and_names_op_rank_and_device(place, toy, late):
    run = runs.Run(place, kind(runs.job(toy, 2), "cuda"))
    late.setenv("WEFT_LATE_FAIL", "op 300")
    end = run.run()
    assert end.code == 71, end
    said = end.err + run.log(0) + run.log(1)
    assert "an injected fault" in said and "cuda device 0 (late 0)" in said, said
    assert "rank 0, cuda device 0" in said or "rank 1, cuda device 1" in said, said


def test_memory_that_is_not_there_is_71_and_names_the_bytes(place, toy, late):
    run = runs.Run(place, kind(runs.job(toy, 1), "cuda"))
    late.setenv("WEFT_LATE_FAIL", "memory 1000")
    end = run.run()
    assert end.code == 71 and "rank 0, cuda device 0 (late 0)" in end.err + run.log(0), end
    assert "bytes left" in end.err + run.log(0)


def test_a_host_without_a_driver_or_a_backend_says_what_is_missing(place, toy, late):
    run = runs.Run(place, kind(runs.job(toy, 1), "cuda"))
    late.setenv("WEFT_LATE_FAIL", "driver")
    end = run.run()
    assert end.code == 71 and "there is no device 0" in end.err + run.log(0), end
    late.setenv("WEFT_BACKEND_DIR", str(place))
    if not (runs.BUILD / "libweft_cuda.so").exists():
        end = run.run()
        assert end.code == 78 and "libweft_cuda.so" in end.err + run.log(0), end


def test_more_ranks_than_devices_share_them(place, toy, late):
    """dp 3 on two devices: ranks 0 and 2 on the first."""
    run, wide = (runs.Run(place, kind(runs.job(toy, 3), "cuda"), name) for name in ("run", "wide"))
    run.finish("--devices", "2")
    assert run.checkpoints()[-1].manifest["numerics"]["device"] == "late 0"
    late.setenv("WEFT_LATE_DEVICES", "3")
    wide.finish("--devices", "3")
    same_bits(run, wide)


def chosen(path):
    """{pid: {product: algorithm}} of the devices that were closed."""
    found = {}
    for line in path.read_text().splitlines():
        pid, rest = line.split(" ", 1)
        key, choice = rest.rsplit(" = ", 1)
        found.setdefault(int(pid), {})[key] = int(choice)
    return found


def recorded(checkpoint):
    lines = checkpoint.manifest["numerics"]["algorithms"].splitlines()
    at = lines.index("algorithms late")
    return {k: int(v) for k, v in (line.rsplit(" = ", 1) for line in lines[at + 1:])}


@pytest.mark.parametrize("mesh", [{"dp": 3}, {"pp": 2, "dp": 2}], ids=str)
def test_ranks_agree_on_algorithms_and_keep_them_over_a_restart(place, toy, late, mesh):
    """What each process finds the fastest differs; what was settled is one table, also next time."""
    late.setenv("WEFT_LATE_TOLD", str(place / "told"))
    late.setenv("WEFT_LATE_CHOICES", "1000")
    ranks = math.prod(mesh.values())
    job = kind(runs.job(toy, ranks, mesh=mesh, checkpoint={"dir": "ckpt", "every": 10, "async": False}), "cuda")
    run = runs.train(place, job, "run")
    tables = chosen(place / "told")
    first = recorded(run.checkpoints()[-1])
    assert len(tables) == ranks and first
    for table in tables.values():
        assert table and table.items() <= first.items()
    (place / "told").unlink()
    run.forget(20)
    end = run.finish()
    assert recorded(run.checkpoints()[-1]) == first
    assert "round" not in run.log(0) + end.err
    for table in chosen(place / "told").values():
        assert table.items() <= first.items()


def test_algorithms_that_are_gone_are_reported_as_a_change_of_numerics(place, toy, late):
    late.setenv("WEFT_LATE_CHOICES", "100000")
    job = kind(runs.job(toy, 2, checkpoint={"dir": "ckpt", "every": 10, "async": False}), "cuda")
    run = runs.train(place, job, "run")
    gone = recorded(run.checkpoints()[-1])
    late.setenv("WEFT_LATE_CHOICES", "1")
    assert all(gone.values())  # no process has the number 100000
    run.forget(20)
    run.finish()
    assert f"{len(gone)} of the checkpoint's algorithms cannot be had here" in run.log(0)


def test_algorithms_of_another_library_are_reported_as_a_change_of_numerics_and_not_taken(place, toy, late):
    job = kind(runs.job(toy, 2, checkpoint={"dir": "ckpt", "every": 10, "async": False}), "cuda")
    run = runs.train(place, job, "run")
    assert recorded(run.checkpoints()[-1]) and "another library" not in run.log(0)
    late.setenv("WEFT_LATE_LIBRARY", "2")
    run.forget(20)
    run.finish()
    assert "the checkpoint's algorithms were chosen on another device or with another library" in run.log(0)
    numerics = run.checkpoints()[-1].manifest["numerics"]
    headers = [line for line in numerics["algorithms"].splitlines() if line.startswith("algorithms ")]
    assert headers == ["algorithms late 2"]


def promising(job, deterministic):
    return {**job, "precision": {"deterministic": deterministic}}


@pytest.mark.parametrize("before", [False, True])
def test_a_checkpoint_of_another_promise_is_reported_and_its_algorithms_are_not_taken(place, toy, late, before):
    job = kind(runs.job(toy, 2, checkpoint={"dir": "ckpt", "every": 10, "async": False}), "cuda")
    other = ", not deterministic"
    run = runs.train(place, promising(job, before), "run")
    numerics = run.checkpoints()[-1].manifest["numerics"]
    assert numerics["deterministic"] is before
    assert f"algorithms late{'' if before else other}" in numerics["algorithms"].splitlines()
    assert "this one is" not in run.log(0)
    run.forget(20)
    run.finish()  # with the same promise nothing is told
    assert "round otherwise" not in run.log(0)
    run.forget(20)
    run.carry_on_as(promising(job, not before))
    run.finish()
    told = ("the checkpoint's run was deterministic, this one is not" if before else
            "the checkpoint's run was not deterministic, this one is")
    assert f"{told} (precision.deterministic)" in run.log(0)
    assert "cannot be had here" not in run.log(0) and "another device" not in run.log(0)
    numerics = run.checkpoints()[-1].manifest["numerics"]
    assert numerics["deterministic"] is not before
    headers = [line for line in numerics["algorithms"].splitlines() if line.startswith("algorithms ")]
    assert headers == [f"algorithms late{other if before else ''}"]


def test_on_a_cpu_every_run_is_deterministic(place, toy):
    job = runs.job(toy, 2)
    loose = runs.train(place, promising(job, False), "loose")
    same_bits(runs.train(place, job, "strict"), loose)
    assert loose.checkpoints()[-1].manifest["numerics"]["deterministic"] is True
    end = runs.weft("plan", str(loose.file))
    assert "on the CPU a step run twice gives the same bits all the same" in end.out + end.err, end


def test_the_probe_describes_a_device_of_its_kind(late):
    out = subprocess.run([runs.RANK, "--probe", "--kind", "cuda"], capture_output=True, text=True, check=True)
    told = json.loads(out.stdout)
    assert told["kind"] == "cuda" and [d["model"] for d in told["devices"]] == ["late 0", "late 1"]
    assert {"isa", "driver", "pci", "uuid", "peers"} <= told["devices"][0].keys()
    env = {**os.environ, "WEFT_LATE_FAIL": "driver"}
    out = subprocess.run([runs.RANK, "--probe", "--kind", "cuda"], capture_output=True, text=True, env=env)
    assert out.returncode == 71 and "no driver" in out.stderr


# ---- through the service -------------------------------------------------------------------------


@pytest.fixture
def host(place, late):
    """One worker with a CPU and two devices that are GPUs by name."""
    c = cluster.Cluster(place, devices=1)
    yield c
    c.kill_all()


def test_a_job_goes_to_devices_of_its_kind(host, toy):
    (worker,) = host.json("workers")["workers"]
    assert [(d["device"]["kind"], d["device"]["model"]) for d in worker["devices"]] == [("cpu", "cpu"), ("cuda", "late 0"), ("cuda", "late 1")]
    assert {"isa", "driver", "pci", "uuid", "peers"} <= worker["devices"][1]["device"].keys()
    assert "1 cpu + 1 late 0" in host.weft("workers").out
    data = host.put_data(toy)
    far = host.submit(kind(runs.job(data, 2, name="far"), "cuda"))
    near = host.submit(runs.job(data, 1, name="near"))
    host.succeed(far)
    host.succeed(near)
    manifest = runs.checkpoints_of(host.store(far))[-1].manifest
    assert manifest["numerics"]["device"] == "late 0"  # the second device of the worker, the first of its kind
    assert runs.checkpoints_of(host.store(near))[-1].manifest["numerics"]["device"] == "cpu"


def test_a_kind_that_no_host_has_is_waited_for_by_name(host, toy):
    host.workers[0].stop()
    host.workers.clear()
    host.start_worker(0, "--cuda-devices", "0")
    host.wait_ready()
    job = host.submit(kind(runs.job(host.put_data(toy), 2), "cuda"))
    assert host.status(job)["state"] == "QUEUED"
    assert "no known host has a cuda device, it needs 2 (w0: its worker was started with --cuda-devices 0): " in host.why(job)
    host.weft("cancel", job)


def test_a_worker_that_promises_too_many_is_refused(place, late):
    out = subprocess.run([cluster.WORKER, "--state", str(place / "w"), "--coordinator", f"unix:{place}/none",
                          "--cuda-devices", "3"], capture_output=True, text=True)
    assert out.returncode == 78 and "--cuda-devices 3: this host has 2" in out.stderr, out.stderr


def test_weft_run_trains_on_devices_of_the_kind(place, toy, late):
    job = {**kind(runs.job(toy, 2), "cuda"), "name": "far"}
    (place / "far.yaml").write_text(json.dumps(job))
    end = runs.weft("run", str(place / "far.yaml"))
    assert end.code == 0, end
    (store,) = {p.parent for p in (place / "ckpt").glob("*/OWNER")}
    assert runs.checkpoints_of(store)[-1].manifest["numerics"]["device"] == "late 0"


def test_doctor_lists_the_devices(place, late):
    end = runs.weft("doctor", "--json", "--dir", str(place))
    (found,) = [c for c in json.loads(end.out)["checks"] if c["name"] == "cuda"]
    assert found["state"] == "ok" and "0: late 0" in found["text"] and "1: late 1" in found["text"], found
