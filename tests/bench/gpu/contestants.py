# SPDX-License-Identifier: Apache-2.0
"""Who takes turns: weft, scripts of peers, llm.c. turn() trains and reports milliseconds of steps, loss, memory, and
seconds until the first step that counts; whoever cannot raises Failed."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

from runner import Failed, chosen, fallen, reason
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
    "weft, any order": ("false", {}, []),
    "weft, early": ("false", {"WEFT_CUDA_EARLY_LAUNCH": "1"}, []),  # any order, its choices
    "weft, heads apart": ("false", {}, ["-s", "train.pack_heads=false"]),  # any order
}
PEERS = {  # script, its arguments; what to try when it runs out of memory, and when it fails otherwise
    "PyTorch": ("peer_torch.py", ["--attention", "cudnn"], None, "PyTorch, flash"),
    "PyTorch, autotuned": ("peer_torch.py", ["--attention", "cudnn", "--mode", "autotune"], None, None),
    "PyTorch, flash": ("peer_torch.py", ["--attention", "flash"], None, "PyTorch, eager"),
    "PyTorch, eager": ("peer_torch.py", ["--attention", "flash", "--mode", "eager"], None, None),
    "JAX": ("peer_jax.py", ["--mode", "plain"], "JAX, forwards again", "JAX, xla"),
    "JAX, forwards again": ("peer_jax.py", ["--mode", "again"], None, None),
    "JAX, xla": ("peer_jax.py", ["--attention", "xla", "--mode", "again"], None, None),
}

LINKED = ("cublas", "cublasLt", "cudnn", "nvrtc")  # by llm.c; the last two only with cuDNN


class Weft:
    def __init__(self, runner, o, name="weft"):
        self.runner, self.o, (self.fixed, self.switches, self.settings) = runner, o, WEFT[name]

    def job(self, size, batch, dtype, steps, fixed="true", scratch=None):
        path = self.runner.scratch / f"{size}-{dtype}-{fixed}.yaml"
        path.write_text(JOB.format(s=SIZES[size], tokens=self.runner.scratch / f"{SIZES[size].vocab}.bin", batch=batch,
                                   b1=BETAS[0], b2=BETAS[1], decay=DECAY, clip=CLIP, lr=LR, dtype=dtype, steps=steps,
                                   fixed=fixed, kind=self.o.device, scratch=self.o.scratch if scratch is None else scratch))
        return path

    def ops(self, job, limit, *extra, watch=None, switches=None):
        command = [self.runner.program("bench/bench_ops", "tests/bench/gpu/bench_ops"),
                   "--cache", self.runner.scratch / "cache/weft", *extra, job]
        return self.runner.run(command, limit, {**self.runner.weft_env, **(switches or {})}, watch)

    def turn(self, size, batch, limit):
        """Trains until enough steps have their rows, then it is killed: the checkpoint at the end is not asked for."""
        began, wanted = time.monotonic(), self.o.warm + self.o.steps
        job = self.job(size, batch, "bf16", wanted + 100000, self.fixed)
        place = pathlib.Path(tempfile.mkdtemp(dir=self.runner.scratch)) / "solo"
        command = [self.runner.program("lead-ranks", "tests/lead-ranks"), place, job, *self.settings]
        with tempfile.TemporaryFile("w+") as said:
            p = subprocess.Popen(command, env={**self.runner.weft_env, **self.switches}, cwd=self.runner.scratch, stdout=said, stderr=said)
            rows, first = [], None
            while len(rows) < wanted and p.poll() is None and time.monotonic() - began < limit:
                time.sleep(0.1)
                rows = self.rows(place)
                first = first or (len(rows) >= self.o.warm and time.monotonic() - began) or None
            ended = p.poll()
            end_all(p, place)
            said.seek(0)
            text = "".join(f.read_text() for f in sorted(place.glob("logs/*.log"))) + said.read()  # the leader has the last word
        self.runner.keep(command, text)
        fell_back, choices = fallen(text), chosen(text)
        shutil.rmtree(place.parent, ignore_errors=True)
        if len(rows) < wanted:
            raise Failed(reason(text) if ended is not None else f"not done after {limit:.0f} s", "")
        about = {row[0]: row[1:] for row in fields(self.ops(job, 60, "--about", *self.settings))}
        counted = rows[self.o.warm : wanted]
        self.runner.fell_back, self.runner.chosen = fell_back, choices
        return {"library": "weft, " + about["device"][2], "ms": [r["step_ms"] for r in counted], "loss": counted[-1]["loss"],
                "gib": int(about["about"][1]) / 2**30, "parameters": int(about["about"][0]), "ready_s": first}

    @staticmethod
    def rows(place):
        try:
            text = (place / "metrics.jsonl").read_text()
        except OSError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def fields(text):
    return [line.split("\t") for line in text.splitlines()]


def end_all(parent, place):
    """The ranks die with their parent; the device's memory is free once they are gone."""
    parent.kill()
    parent.wait()
    for _ in range(300):
        if not any(str(place).encode() in cmdline(pid) for pid in os.listdir("/proc") if pid.isdigit()):
            return
        time.sleep(0.1)


def cmdline(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


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
    """llm.c's trainer, built from sources that lie elsewhere: they are no part of this project, and are compiled as they
    are, behind llmc_cuda13.h. Its milliseconds are those of the device between a step's events; what its host does
    between two steps is not in them."""

    def __init__(self, runner, o, name):
        self.runner, self.o, self.name = runner, o, name
        self.folder = runner.scratch / "llmc"

    def build(self, limit):
        """With cuDNN if its frontend lies in the sources and that builds, else with llm.c's own attention."""
        sources, ends = self.o.llmc, time.monotonic() + limit
        if not sources or not (sources / "train_gpt2.cu").exists():
            raise Failed(f"{sources} has no train_gpt2.cu" if sources else "no sources were carried along (--llmc)", "")
        if (self.folder / "train_gpt2cu").exists():
            return
        shutil.copytree(sources, self.folder, dirs_exist_ok=True)
        if (self.folder / "cudnn-frontend/include").exists():
            try:
                self.make(limit / 2, True)
                return
            except Failed as e:
                print(f"llm.c does not build with cuDNN: {e.args[0]}", flush=True)
        self.make(ends - time.monotonic(), False)

    def environment(self):
        """In which compiler and linker find what our own programs find at run time. Where cuDNN is one of Python's packages
        its headers lie beside the folder of its libraries, and no library there has the name without a number that -l wants."""
        folders = [pathlib.Path(f) for f in os.environ.get("WEFT_LIBRARIES", "").split(":") if f]
        links = self.runner.scratch / "llmc-libraries"
        links.mkdir(exist_ok=True)
        for name in LINKED:
            found = [lib for f in folders for lib in sorted(f.glob(f"lib{name}.so*")) if lib.exists()]
            if found and not (links / f"lib{name}.so").exists():
                (links / f"lib{name}.so").symlink_to(found[0])
        headers = [f.parent / "include" for f in folders if (f.parent / "include").is_dir()]
        before = {name: [x for x in os.environ.get(name, "").split(":") if x] for name in ("CPATH", "LIBRARY_PATH")}
        return {**self.runner.weft_env, "CPATH": ":".join(map(str, before["CPATH"] + headers)),
                "LIBRARY_PATH": ":".join(map(str, [*before["LIBRARY_PATH"], links]))}

    def make(self, limit, cudnn):
        """What stands on make's command line takes the place of what llm.c's Makefile says: PFLAGS has its precision,
        NVCC_LDFLAGS its libraries. Of those nvidia-ml is not on every machine, and today's cudnn-frontend wants nvrtc."""
        nvcc = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin/nvcc"
        self.runner.run(["make", "-C", self.folder, "train_gpt2cu", "NO_MULTI_GPU=1", "NO_USE_MPI=1", f"USE_CUDNN={int(cudnn)}",
                         f"PFLAGS=-DENABLE_BF16 -include {HERE / 'llmc_cuda13.h'}",
                         "NVCC_LDFLAGS=" + " ".join(f"-l{name}" for name in (LINKED if cudnn else LINKED[:2])),
                         *([f"NVCC={nvcc}"] if nvcc.exists() else []),
                         *([f"GPU_COMPUTE_CAPABILITY={self.runner.arch}"] if self.runner.arch else [])],
                        limit, self.environment())
        (self.folder / "attention").write_text("cuDNN" if cudnn else "its own attention")

    def turn(self, size, batch, limit):
        began, s = time.monotonic(), SIZES[size]
        self.build(limit)
        tokens = self.runner.scratch / f"{s.vocab}.bin"
        # It divides by how many steps lie between validations; one batch of it comes first and last, beside the timing.
        flags = {"i": tokens, "j": tokens, "e": f"d{s.layers}", "b": batch, "t": s.seq, "x": self.o.warm + self.o.steps, "l": LR,
                "c": DECAY, "r": 0, "v": 10**6, "s": 0, "h": 0, "m": 1}
        command = [self.folder / "train_gpt2cu", *(str(x) for key, value in flags.items() for x in (f"-{key}", value))]
        started = time.monotonic()
        said = self.runner.run(command, limit - (started - began), self.runner.weft_env)
        steps = re.findall(r"^step .*?loss +([0-9.]+).*?([0-9.]+) ms", said, re.M)[self.o.warm :]
        mib = re.search(r"device memory usage: +([0-9]+) MiB", said)
        parts = re.search(r"num_parameters *[|:] *([0-9]+)", said)
        ms = [float(x) for _, x in steps]
        attention = (self.folder / "attention").read_text()
        return {"library": f"llm.c with {attention}, bf16 parameters over f32 masters", "ms": ms, "loss": float(steps[-1][0]),
                "gib": int(mib[1]) / 1024 if mib else 0, "parameters": int(parts[1]),
                "ready_s": time.monotonic() - started - sum(ms) / 1000,
                "built_s": started - began}


def contestant(runner, o, who):
    return (Weft if who in WEFT else LlmC if who == "llm.c" else Peer)(runner, o, who)


def instead_of(who, why):
    """Who else may do what this one could not; None: nobody."""
    if who not in PEERS or "No module named" in why or "not done after" in why:
        return None
    return PEERS[who][2 if "out of memory" in why else 3]
