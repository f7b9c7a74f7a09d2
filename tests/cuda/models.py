#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trainings on a GPU where no CPU backend is: against losses that the CPU had elsewhere, and what a rank does without
memory or a device. Python's own library suffices for what runs there.

    models.py make FOLDER           here, with a built tree: jobs, their data, and the CPU's losses (WEFT_BUILD)
    models.py check FOLDER RANK     there: RANK is weft-rank, beside lead-ranks; WEFT_BACKEND_DIR says where libweft_cuda.so is
    models.py real RANK
    models.py faults RANK

check: 50 steps of every kind of model in f32 and bf16; meshes of several ranks on the one device; the same training
again, and killed and begun again, which have to come to the same bits. Tolerances are tests/e2e/test_cuda.py's, whose
trainings these are. GPU_TEST_ONLY: those trainings alone that have this in their names.

real: 20 steps of GPT-2 124M in bf16, 16 samples of 1024: attention by the library takes several turns over its scratch.
What one device may do in several ways has to come to one thing: ops fused and apart, sums in order and in any order, the
library's attention and our own.

GPU_TEST_TINY=1 is for the emulated twin: at a size for laptops, a few steps of each training, and the twin plays the
faults.
"""
import contextlib
import ctypes
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

LIMIT = 300  # seconds of one training; only a hang takes so long
KILL = "mlp-f32"  # the training that is killed; so many steps, so many between checkpoints
TINY = os.environ.get("GPU_TEST_TINY") == "1"
KILL_STEPS, KILL_EVERY = (60, 10) if TINY else (600, 100)
TINY_STEPS = 5  # of a training, of those that were recorded


# ---- here: what is recorded ----------------------------------------------------------------------


def cases(place, toy):
    import meshes
    import test_cuda

    for kind in ("mlp", "vae", "gpt2", "llama"):
        for precision in ("f32", "bf16"):
            yield f"{kind}-{precision}", test_cuda.model(place, toy, kind, precision), test_cuda.LOSS[precision]
    for layout in test_cuda.LAYOUTS:
        name = "gpt2-" + "-".join(f"{axis}{n}" for axis, n in layout["mesh"].items())
        yield name, meshes.laid_out(meshes.decoder("gpt2"), layout), test_cuda.LOSS["f32"]


def make(folder):
    tests = pathlib.Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(tests / "support"), str(tests / "e2e")]
    import solo

    folder.mkdir(parents=True)
    expected, only = {}, os.environ.get("GPU_TEST_ONLY", "")
    with tempfile.TemporaryDirectory() as scratch:
        for name, job, tolerance in cases(folder, solo.toy_set(folder)):
            if only not in name:
                continue
            near = json.loads(json.dumps(job).replace('"tokens": "tokens"', f'"tokens": "{folder}/tokens"'))
            run = solo.Run(pathlib.Path(scratch), near, name)
            run.finish()
            expected[name] = {"tolerance": tolerance, "losses": [row["loss"] for row in run.metrics()]}
            job = {**job, "resources": {"kind": "cuda"}, "checkpoint": {"dir": "ckpt"}}
            # Names of files are relative to the job's.
            (folder / f"{name}.yaml").write_text(json.dumps(job, indent=1).replace(f"{folder}/", ""))
    (folder / "expect.json").write_text(json.dumps(expected))
    (folder / "text").unlink(missing_ok=True)


# ---- there: trainings ----------------------------------------------------------------------------


class Training:
    def __init__(self, rank, job, place, *more, env=None):
        self.place = place
        beside = pathlib.Path(rank).resolve().parent
        lead = next(p for p in (beside / "lead-ranks", beside / "tests/lead-ranks") if p.exists())
        # All ranks of a training share the first device.
        self.command = [lead, place / "run", job, "--rank", rank, "--devices", "1", "-s", f"checkpoint.dir={place / 'ckpt'}", *more]
        self.env = {**os.environ, **(env or {})}

    def start(self, to=subprocess.PIPE):
        return subprocess.Popen(self.command, env=self.env, stdout=to, stderr=subprocess.STDOUT, text=True)

    def logs(self):
        return "".join(f.read_text() for f in sorted(self.place.glob("run/logs/*.log")))

    def run(self):
        """Exit code and all that was said."""
        p = self.start()
        try:
            said, _ = p.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            p.kill()
            return None, f"not done after {LIMIT} s"
        return p.returncode, said + self.logs()

    def finish(self):
        code, said = self.run()
        assert code == 0, f"exit {code}: {' | '.join(said.strip().splitlines()[-3:])[:400]}"
        return self.rows()

    def rows(self):
        with contextlib.suppress(OSError):
            text = (self.place / "run/metrics.jsonl").read_text()
            return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return []

    def final(self):
        """The bytes of the newest checkpoint's tensors."""
        newest = max(self.place.glob("ckpt/*/step-*"), key=lambda d: int(re.match(r"step-(\d+)", d.name)[1]))
        return {f.name: f.read_bytes() for f in newest.glob("shard-*")}


def same_losses(rows, expected):
    losses, tolerance = expected["losses"], expected["tolerance"]
    assert len(rows) == len(losses), f"{len(rows)} rows, not {len(losses)}"
    worst = 0
    for row, want in zip(rows, losses):
        got = row["loss"]
        # Of a loss that has nearly vanished, to 1/20 of the first.
        assert got is not None and math.isclose(got, want, rel_tol=tolerance, abs_tol=tolerance * losses[0] / 20), \
            f"step {row['step']}: the loss is {got}, the CPU's was {want}"
        worst = max(worst, abs(got - want) / max(abs(want), losses[0] / 20))
    return f"{len(rows)} steps, at most {worst:.1e} off ({tolerance:g})"


def numbers(rows):
    return [(r["step"], r["loss"], r["grad_norm"]) for r in rows]


def same_bits(rank, job, place):
    more = ["-s", f"train.steps={KILL_STEPS}", "-s", f"checkpoint.every={KILL_EVERY}"]
    first, again, killed = (Training(rank, job, place / name, *more) for name in ("first", "again", "killed"))
    for t in (first, again, killed):
        t.place.mkdir()
    rows = first.finish()
    assert numbers(again.finish()) == numbers(rows), "the same training again had other numbers"
    assert again.final() == first.final(), "the same training again came to other bits"
    p = killed.start()
    while p.poll() is None and len(killed.rows()) < KILL_STEPS // 2:
        time.sleep(0.002)
    p.kill()  # its ranks die with it
    p.communicate()
    stood = len(killed.rows())
    assert stood < KILL_STEPS, "it ended before it was killed"
    assert numbers(killed.finish()) == numbers(rows) and killed.final() == first.final(), "killed, it came to other bits"
    return f"{KILL_STEPS} steps again, and killed at {stood}: the same bits"


def report(what, check):
    """One line; whether it went well."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        try:
            said = check(pathlib.Path(place))
        except (AssertionError, OSError, ValueError, KeyError) as e:
            print(f"FAILED  {what}: {e}", flush=True)
            return False
    print(f"ok      {what}: {said}, {time.monotonic() - began:.0f} s", flush=True)
    return True


def check(folder, rank):
    expected = json.loads((folder / "expect.json").read_text())
    only = os.environ.get("GPU_TEST_ONLY", "")

    def trained(name):
        job = folder / f"{name}.yaml"
        steps = min(TINY_STEPS, len(expected[name]["losses"])) if TINY else len(expected[name]["losses"])
        want = {**expected[name], "losses": expected[name]["losses"][:steps]}
        return report(name, lambda place: same_losses(Training(rank, job, place, "-s", f"train.steps={steps}").finish(), want))

    good = [trained(name) for name in expected if only in name]
    if only in f"{KILL}-killed":
        good.append(report(f"{KILL}-killed", lambda place: same_bits(rank, folder / f"{KILL}.yaml", place)))
    return all(good)


# ---- there: a model's own size -------------------------------------------------------------------

REAL = {"layers": 12, "embed": 768, "heads": 12, "seq": 1024, "vocab": 50257, "vocab_multiple": 128}
REAL_TINY = {"layers": 2, "embed": 32, "heads": 2, "seq": 16, "vocab": 250, "vocab_multiple": 128}
REAL_STEPS = 4 if TINY else 20
REAL_TOLERANCE = {"loss": 5e-3, "grad_norm": 5e-2}  # relative, of every step
SAME_BITS = ("in order, again", "in order, launched early")
WAYS = {  # what is set, which switch is in the environment; each is held against the first
    "in order": ({}, {}),
    "in order, again": ({}, {}),
    "in order, launched early": ({}, {"WEFT_CUDA_EARLY_LAUNCH": "1"}),
    "ops apart": ({"train.fuse": "false"}, {}),
    "heads apart": ({"train.pack_heads": "false"}, {}),
    "own attention": ({}, {"WEFT_CUDA_LIBRARY_ATTENTION": "0"}),
    "any order": ({"precision.deterministic": "false"}, {}),
    "any order, ops apart": ({"precision.deterministic": "false", "train.fuse": "false"}, {}),
}


def real_job(place):
    """The job's file. It has many more steps than are looked at: the checkpoint at its end is not asked for."""
    here = pathlib.Path(__file__).resolve().parent
    sys.path[:0] = [str(here / "bench"), str(here.parent / "bench/gpu")]
    import sizes

    model = REAL_TINY if TINY else REAL
    sizes.write_tokens(place / "tokens.bin", next(s for s in sizes.SIZES.values() if s.vocab == model["vocab"]))
    job = {"name": "real", "mesh": {"dp": 1}, "resources": {"kind": "cuda"}, "model": {"program": "gpt2", **model},
           "data": {"format": "tokens", "train": {"tokens": "tokens.bin"}, "batch": 2 if TINY else 16},
           "optimizer": {"kind": "adamw", "weight_decay": 0.1, "clip_norm": 1.0}, "schedule": {"kind": "constant", "value": 3e-4},
           "precision": {"compute": "bf16"}, "restart": {"hang_after": "DURATION"}, "train": {"steps": 100000}}
    (place / "job.yaml").write_text(json.dumps(job).replace('"DURATION"', "120s"))
    return place / "job.yaml"


def first_steps(rank, job, place, settings, env):
    """The rows of the first steps. Whoever falls back on a kernel that was not asked for has failed."""
    import runner

    place.mkdir()
    t = Training(rank, job, place, *(x for name, value in settings.items() for x in ("-s", f"{name}={value}")), env=env)
    ends = time.monotonic() + LIMIT
    with open(place / "said", "w+") as said:
        p = t.start(said)
        while p.poll() is None and len(t.rows()) < REAL_STEPS and time.monotonic() < ends:
            time.sleep(0.05)
        p.kill()
        p.wait()
        said.seek(0)
        text = said.read() + t.logs()
    rows = t.rows()[:REAL_STEPS]
    assert len(rows) == REAL_STEPS, f"{len(rows)} steps, then exit {p.returncode}: {runner.reason(text)}"
    fell = runner.fallen(text)
    assert not fell, f"FELL BACK: {fell[0][:300]}"
    return rows


def same_rows(rows, first):
    """How far the worst is off, in parts of what is allowed."""
    worst = 0
    for row, want in zip(rows, first):
        for name, tolerance in REAL_TOLERANCE.items():
            off = abs(row[name] - want[name]) / abs(want[name]) / tolerance
            assert off <= 1, f"step {row['step']}: {name} is {row[name]}, not {want[name]}"
            worst = max(worst, off)
    return worst


def real(rank):
    with tempfile.TemporaryDirectory() as scratch:
        job, rows, only = real_job(pathlib.Path(scratch)), {}, os.environ.get("GPU_TEST_ONLY", "")

        def way(name, place):
            rows[name] = first_steps(rank, job, place / "way", *WAYS[name])
            first = rows["in order"]
            assert first[-1]["loss"] < first[0]["loss"], "nothing is learned"
            if name in SAME_BITS:
                assert numbers(rows[name]) == numbers(first), "the same training had other numbers"
            return f"{REAL_STEPS} steps, loss {rows[name][-1]['loss']:.4f}, {same_rows(rows[name], first):.2f} of the tolerance"

        return all([report(f"real size, {name}", lambda place, name=name: way(name, place))
                    for name in WAYS if only in name or name == "in order"])


# ---- there: faults -------------------------------------------------------------------------------

JOB = """{"name": "faults", "mesh": {"dp": 1}, "resources": {"kind": "cuda"},
 "model": {"program": "mlp", "inputs": 16, "hidden": [%d, %d], "classes": 4, "activation": "gelu"},
 "data": {"format": "idx", "train": {"images": "images", "labels": "labels"}, "batch": 4}, "train": {"steps": 2}}
"""


def faulty(rank, place, width, env, *wanted):
    (place / "images").write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 8, 0, 0, 0, 16]) + bytes(range(128)))
    (place / "labels").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 8, 0, 1, 2, 3, 0, 1, 2, 3]))
    (place / "job.yaml").write_text(JOB % (width, width))
    code, said = Training(rank, place / "job.yaml", place, env=env).run()
    assert code == 71, f"exit {code}, not 71: {said[-300:]}"
    for text in wanted:
        assert text in said, f"'{text}' is not in what it said: {said[-300:]}"
    line = next(line for line in said.splitlines() if wanted[0] in line)
    return f"exit 71, \"{line.strip()[-120:]}\""


def hog(leave):
    """Takes all but so many bytes of the first device until its input ends, through the driver alone."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, free, total, p = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0 and cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(free.value - leave)) == 0
    print("taken", flush=True)
    sys.stdin.read()


def without_memory(rank, place):
    """Its plan, some 4 GiB, fits the device, but somebody else left 2."""
    with subprocess.Popen([sys.executable, __file__, "hog", str(2 << 30)], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout.readline() == b"taken\n", "the device's memory could not be taken"
            return faulty(rank, place, 16384, {}, "out of memory", "rank 0")
        finally:
            other.send_signal(signal.SIGKILL)


def faults(rank):
    hidden = {"WEFT_FAKE_CUDA": "nodevice"} if TINY else {"CUDA_VISIBLE_DEVICES": ""}

    def no_memory(place):
        return faulty(rank, place, 8, {"WEFT_FAKE_CUDA": "oom:1"}, "out of memory", "rank 0") if TINY else without_memory(rank, place)

    return all([
        report("no device", lambda place: faulty(rank, place, 8, hidden, "no NVIDIA device", "rank 0")),
        report("no memory", no_memory),
    ])


def main():
    what, *rest = sys.argv[1:]
    if what == "make":
        make(pathlib.Path(rest[0]).resolve())
    elif what == "hog":
        hog(int(rest[0]))
    else:
        paths = [pathlib.Path(x).resolve() for x in rest]
        sys.exit(not {"check": check, "real": real, "faults": faults}[what](*paths))


if __name__ == "__main__":
    main()
