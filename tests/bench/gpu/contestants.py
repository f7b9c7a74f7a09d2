# SPDX-License-Identifier: Apache-2.0
"""Who takes turns: weft, scripts of peers, llm.c. turn() trains and reports milliseconds of steps, loss, memory, and
seconds until the first step that counts; whoever cannot raises Failed. Of weft all train the same: the steps of each are
held against those of the first."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time

from runner import Failed, reason
from sizes import BETAS, CLIP, DECAY, LR, SIZES

HERE = pathlib.Path(__file__).resolve().parent
JOB = """name: bench
model:
  {{program: {s.program}, layers: {s.layers}, embed: {s.embed}, heads: {s.heads}, {s.keys}seq: {s.seq}, vocab: {s.vocab}, vocab_multiple: 128}}
mesh: {{dp: 1}}
data: {{format: tokens, train: {{tokens: {tokens}}}, batch: {batch}}}
optimizer: {{kind: adamw, betas: [{b1}, {b2}], weight_decay: {decay}, clip_norm: {clip}}}
schedule: {{kind: constant, value: {lr}}}
precision: {{compute: {dtype}, deterministic: {fixed}}}
train: {{steps: {steps}}}
restart: {{hang_after: 300s}}
resources: {{devices: 1, kind: {kind}, scratch: {scratch}}}
"""
WEFT = {  # precision.deterministic, which switch is in the environment, what else the job says
    "weft": ("true", {}, []),
    "weft, again": ("true", {}, []),
    "weft, early, in order": ("true", {"WEFT_CUDA_EARLY_LAUNCH": "1"}, []),
    "weft, ops apart": ("true", {}, ["-s", "train.fuse=false"]),
    "weft, heads apart": ("true", {}, ["-s", "train.pack_heads=false"]),
    "weft, own attention": ("true", {"WEFT_CUDA_LIBRARY_ATTENTION": "0"}, []),
    "weft, any order": ("false", {}, []),
    "weft, early": ("false", {"WEFT_CUDA_EARLY_LAUNCH": "1"}, []),
    "weft, heads apart, any order": ("false", {}, ["-s", "train.pack_heads=false"]),
}
SAME_BITS = ("weft", "weft, again", "weft, early, in order")  # all others to a tolerance
TOLERANCE = {"loss": 5e-3, "grad_norm": 5e-2}  # relative, of every step
PEERS = {  # script, its arguments; what to try when it runs out of memory, and when it fails otherwise
    "PyTorch": ("peer_torch.py", ["--attention", "cudnn"], None, "PyTorch, flash"),
    "PyTorch, autotuned": ("peer_torch.py", ["--attention", "cudnn", "--mode", "autotune"], None, None),
    "PyTorch, flash": ("peer_torch.py", ["--attention", "flash"], None, "PyTorch, eager"),
    "PyTorch, eager": ("peer_torch.py", ["--attention", "flash", "--mode", "eager"], None, None),
    "JAX": ("peer_jax.py", ["--mode", "plain"], "JAX, forwards again", "JAX, xla"),
    "JAX, forwards again": ("peer_jax.py", ["--mode", "again"], None, None),
    "JAX, xla": ("peer_jax.py", ["--attention", "xla", "--mode", "again"], None, None),
}


class Ranks:
    """The ranks of one job, all on the first device, in a folder that goes with them."""

    def __init__(self, runner, job, settings=(), switches=None):
        self.runner, self.folder = runner, tempfile.TemporaryDirectory(dir=runner.scratch)
        self.place = pathlib.Path(self.folder.name)
        self.command = [runner.program("lead-ranks", "tests/lead-ranks"), self.place / "run", job, "--rank", runner.program("weft-rank"),
                        "--devices", "1", "-s", f"checkpoint.dir={self.place / 'ckpt'}", *settings]
        self.env, self.said = {**runner.weft_env, **(switches or {})}, ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def rows(self):
        try:
            text = (self.place / "run/metrics.jsonl").read_text()
        except OSError:
            return []
        held = {}  # of a step the row of the newest attempt; a newer attempt begins where its first row is
        for row in (json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")):
            held = {step: r for step, r in held.items() if step < row["step"]} | {row["step"]: row}
        return list(held.values())

    def train(self, limit, wanted=None, seen=lambda rows: None):
        """Until they end, or have so many rows: then they are killed. Exit code, null of who was killed; all that was said."""
        began = time.monotonic()
        with open(self.place / "said", "w+") as said:
            p = subprocess.Popen(self.command, env=self.env, cwd=self.runner.scratch, stdout=said, stderr=said)
            while p.poll() is None and time.monotonic() - began < limit and (wanted is None or len(self.rows()) < wanted):
                time.sleep(0.02)
                seen(self.rows())
            code = p.poll()
            p.kill()
            p.wait()
            for _ in range(300):  # the ranks die with their parent; the device's memory is free once they are gone
                if not any(str(self.place).encode() in cmdline(pid) for pid in os.listdir("/proc") if pid.isdigit()):
                    break
                time.sleep(0.1)
            said.seek(0)
            text = "".join(f.read_text() for f in sorted(self.place.glob("run/logs/*.log"))) + said.read()  # the leader has the last word
        self.runner.keep(self.command, text)
        self.runner.heed(text)
        if code is None and (wanted is None or len(self.rows()) < wanted):
            raise Failed(f"not done after {limit:.0f} s", text)
        return code, text

    def finish(self, limit):
        code, self.said = self.train(limit)
        if code:
            raise Failed(f"exit {code}: {reason(self.said)}", self.said)
        return self.rows()


def cmdline(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def numbers(rows):
    return [(r["step"], r["loss"], r["grad_norm"]) for r in rows]


def likeness(rows, first, bits):
    """How far they are from those of another training, in words; whoever is too far off fails."""
    worst = 0
    for row, want in zip(rows, first):
        for name, tolerance in TOLERANCE.items():
            off = abs(row[name] - want[name]) / abs(want[name]) / tolerance
            if not off <= (0 if bits else 1):
                raise Failed(f"step {row['step']}: {name} is {row[name]}, not {want[name]} as in the first training", "")
            worst = max(worst, off)
    return "the same bits" if bits else f"{worst:.2f} of the tolerance"


class Weft:
    def __init__(self, runner, o, name="weft"):
        self.runner, self.o, self.name, (self.fixed, self.switches, self.settings) = runner, o, name, WEFT[name]

    def job(self, size, batch, dtype, steps, fixed="true", scratch=None):
        path = self.runner.scratch / f"{size}-{dtype}-{fixed}.yaml"
        path.write_text(JOB.format(s=SIZES[size], tokens=self.runner.scratch / f"{SIZES[size].vocab}.bin", batch=batch,
                                   b1=BETAS[0], b2=BETAS[1], decay=DECAY, clip=CLIP, lr=LR, dtype=dtype, steps=steps,
                                   fixed=fixed, kind=self.o.device, scratch=self.o.scratch if scratch is None else scratch))
        return path

    def ops(self, job, limit, *extra, watch=None, switches=None):
        command = [self.runner.program("bench/bench_ops", "tests/bench/gpu/bench_ops"),
                   "--cache", self.runner.cache / "weft", *extra, job]
        return self.runner.run(command, limit, {**self.runner.weft_env, **(switches or {})}, watch)

    def turn(self, size, batch, limit):
        """Trains until enough steps have their rows; the checkpoint at the end is not asked for."""
        began, wanted, first = time.monotonic(), self.o.warm + self.o.steps, []
        job = self.job(size, batch, "bf16", wanted + 100000, self.fixed)

        def seen(rows):
            if len(rows) >= self.o.warm and not first:
                first.append(time.monotonic() - began)

        with Ranks(self.runner, job, self.settings, self.switches) as ranks:
            code, text = ranks.train(limit, wanted, seen)
            rows = ranks.rows()[:wanted]
        if len(rows) < wanted:
            raise Failed(reason(text), text)
        odd = next((r for r in rows if r["loss"] is None or r["grad_norm"] is None), None)
        if odd:
            raise Failed(f"step {odd['step']}: the loss is {odd['loss']}, the gradient's norm {odd['grad_norm']}; None: it is not finite", text)
        if size == "124m" and not rows[-1]["loss"] < rows[0]["loss"]:  # a tiny one hardly begins to in its few steps
            raise Failed(f"it does not learn: its loss is {rows[0]['loss']} at first and {rows[-1]['loss']} after {wanted} steps", text)
        about = {row[0]: row[1:] for row in fields(self.ops(job, 60, "--about", *self.settings))}
        self.runner.heed(text)
        counted = rows[self.o.warm :]
        turn = {"library": "weft, " + about["device"][2], "ms": [r["step_ms"] for r in counted], "loss": counted[-1]["loss"],
                "gib": int(about["about"][1]) / 2**30, "parameters": int(about["about"][0]), "ready_s": first[0] if first else 0}
        other = self.runner.firsts.setdefault((size, batch), (self.name, rows))
        if other[1] is not rows:
            turn["like"] = f"beside {other[0]}: " + likeness(rows, other[1], self.name in SAME_BITS and other[0] in SAME_BITS)
        return turn


def fields(text):
    return [line.split("\t") for line in text.splitlines()]


class Peer:
    def __init__(self, runner, o, name):
        self.runner, self.o, self.name = runner, o, name

    def turn(self, size, batch, limit):
        script, extra = PEERS[self.name][:2]
        command = [self.o.python, HERE / script, "--size", size, "--batch", str(batch), "--warm", str(self.o.warm),
                   "--steps", str(self.o.steps), "--tokens", self.runner.scratch / f"{SIZES[size].vocab}.bin",
                   *extra, *(["--cpu"] if self.o.device == "cpu" or self.o.tiny else [])]
        return json.loads(self.runner.run(command, limit, self.runner.env).splitlines()[-1])


class LlmC:
    """llm.c's trainer, which bundle.sh built from its sources: they are no part of this project. Its milliseconds are those
    of the device between a step's events; what its host does between two steps is not in them."""

    def __init__(self, runner, o, name):
        self.runner, self.o, self.name = runner, o, name

    def turn(self, size, batch, limit):
        s, folder = SIZES[size], self.o.bundle / "llmc"
        if not (folder / "train_gpt2cu").exists():
            raise Failed("it is not in the bundle: make gpu-bundle LLMC=ITS-SOURCES", "")
        tokens = self.runner.scratch / f"{s.vocab}.bin"
        # It divides by how many steps lie between validations; one batch of it comes first and last, beside the timing.
        flags = {"i": tokens, "j": tokens, "e": f"d{s.layers}", "b": batch, "t": s.seq, "x": self.o.warm + self.o.steps, "l": LR,
                "c": DECAY, "r": 0, "v": 10**6, "s": 0, "h": 0, "m": 1}
        command = [folder / "train_gpt2cu", *(str(x) for key, value in flags.items() for x in (f"-{key}", value))]
        started = time.monotonic()
        said = self.runner.run(command, limit, self.runner.weft_env)
        steps = re.findall(r"^step .*?loss +([0-9.]+).*?([0-9.]+) ms", said, re.M)[self.o.warm :]
        mib = re.search(r"device memory usage: +([0-9]+) MiB", said)
        parts = re.search(r"num_parameters *[|:] *([0-9]+)", said)
        ms = [float(x) for _, x in steps]
        return {"library": f"llm.c with {(folder / 'attention').read_text().strip()}, bf16 parameters over f32 masters", "ms": ms, "loss": float(steps[-1][0]),
                "gib": int(mib[1]) / 1024 if mib else 0, "parameters": int(parts[1]), "ready_s": time.monotonic() - started - sum(ms) / 1000}


def contestant(runner, o, who):
    return (Weft if who in WEFT else LlmC if who == "llm.c" else Peer)(runner, o, who)


def instead_of(who, why):
    """Who else may do what this one could not; None: nobody."""
    if who not in PEERS or "No module named" in why or "not done after" in why:
        return None
    return PEERS[who][2 if "out of memory" in why else 3]
