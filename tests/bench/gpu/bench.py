#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs stages of the GPU benchmark within a budget of time and writes one result file. See lease.sh; Python's own
library suffices.

    bench.py BUNDLE OUT [--stage N,..] [--budget SECONDS] [--parts NAME,..] [--python FILE] [--llmc FOLDER]
             [--rates BF16,TF32,F32,BYTES] [--device cuda|cpu] [--tiny]

BUNDLE is `make gpu-bundle`'s folder, or a build's. What is to be done stands in STAGES, the most important first; what
is not expected to fit into the time that is left is left out, and the result says so. A contestant that fails is a
row that says why. The result is written anew after each turn and each op, so that who is cut off has what came before.
Contestants take turns, each in a process of its own, so that each has the device's memory to itself. What compilers
and choices keep on disk is empty at first and stays until the end, so that a second turn is a warm one.

A call of ours that a library was to serve and did not (FELL_BACK) is counted, and fails the run: such a time says
nothing of the design.

A fraction is of the vendor's dense rates, or of --rates (TFLOP/s, TB/s); of a device without either none is given.
--tiny runs the very stages at the sizes of TINY, for a try where no GPU is.
"""
import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from sizes import BETAS, CLIP, DECAY, LR, SIZES, TINY, write_tokens

HERE = pathlib.Path(__file__).resolve().parent
# FLOP/s of a dtype's products without sparsity, bytes/s of memory; by what the device's name holds.
RATES = {
    "H200": {"bf16": 989e12, "tf32": 494.7e12, "f32": 66.9e12, "bytes": 4.8e12},
    "H100": {"bf16": 989e12, "tf32": 494.7e12, "f32": 66.9e12, "bytes": 3.35e12},
    "A100": {"bf16": 312e12, "tf32": 156e12, "f32": 19.5e12, "bytes": 2.039e12},
}
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
resources: {{devices: 1, kind: {kind}}}
"""
# Part, what, seconds it is expected to take; a second turn is expected to take what the first took. Stage 2 is of tests:
# lease.sh.
STAGES = {
    "1": [("ends-124m", "bf16", 20), ("ops-124m", "bf16", 60), ("124m", "weft, any order", 30), ("124m", "weft, early", 10),
          ("124m", "weft", 30)],
    "3": [
        ("124m", "weft, any order", 30), ("124m", "weft, early", 10), ("124m", "PyTorch", 100), ("124m", "llm.c", 60), ("124m", "PyTorch, autotuned", 150),
        ("124m", "weft, any order", 30), ("124m", "weft, early", 10), ("124m", "PyTorch", 100), ("124m", "llm.c", 60), ("124m", "PyTorch, autotuned", 150),
        ("124m", "JAX", 90), ("124m", "weft, any order", 30), ("124m", "weft, early", 10), ("124m", "JAX", 90),
    ],
    "4": [
        ("1558m", "weft, any order", 60), ("1558m", "PyTorch", 150), ("llama-1b", "weft, any order", 60), ("llama-1b", "PyTorch", 120),
        ("1558m", "weft, any order", 60), ("1558m", "PyTorch", 150), ("llama-1b", "weft, any order", 60), ("llama-1b", "PyTorch", 120),
        ("1558m", "JAX", 180), ("ops-1558m", "bf16", 90), ("ops-llama-1b", "bf16", 90),
    ],
}  # fmt: skip
BUDGETS = {"1": 150, "3": 560, "4": 560}  # seconds
# What kernels/cuda logs of it; who asked for it by a switch fell back on nothing.
FELL_BACK = re.compile(r"(our own kernels serve it|the library declined)(?!.*WEFT_CUDA_)")
WEFT = {  # precision.deterministic, which switch is in the environment
    "weft": ("true", {}),
    "weft, any order": ("false", {}),
    "weft, early": ("false", {"WEFT_CUDA_EARLY_LAUNCH": "1"}),  # any order, its choices
}
PEERS = {  # script, what it is told; what to try when it runs out of memory, and when it fails otherwise
    "PyTorch": ("peer_torch.py", ["--attention", "cudnn"], None, "PyTorch, flash"),
    "PyTorch, autotuned": ("peer_torch.py", ["--attention", "cudnn", "--mode", "autotune"], None, None),
    "PyTorch, flash": ("peer_torch.py", ["--attention", "flash"], None, "PyTorch, eager"),
    "PyTorch, eager": ("peer_torch.py", ["--attention", "flash", "--mode", "eager"], None, None),
    "JAX": ("peer_jax.py", ["--mode", "plain"], "JAX, forwards again", "JAX, xla"),
    "JAX, forwards again": ("peer_jax.py", ["--mode", "again"], None, None),
    "JAX, xla": ("peer_jax.py", ["--attention", "xla", "--mode", "again"], None, None),
}


class Failed(Exception):
    """Why, and what was said to stdout before."""


def options():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("bundle", type=pathlib.Path)
    a.add_argument("out", type=pathlib.Path)
    a.add_argument("--stage", type=lambda text: text.split(","), default=[*STAGES], help="some of " + ", ".join(STAGES))
    a.add_argument("--budget", type=float, help="seconds; what is not given: the stages' own")
    a.add_argument("--llmc", type=pathlib.Path, help="llm.c's sources, built where this runs")
    a.add_argument("--parts", type=lambda text: text.split(","))
    a.add_argument("--python", default="python3", help="an interpreter with torch and jax")
    a.add_argument("--rates", type=lambda text: dict(zip(RATES["H200"], (1e12 * float(x) for x in text.split(",")))))
    a.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    a.add_argument("--tiny", action="store_true")
    for size in TINY:
        a.add_argument(f"--batch-{size}", type=int, help=f"samples a step, {SIZES[size].batch}")
    a.add_argument("--warm", type=int, default=10)
    a.add_argument("--steps", type=int, default=20)
    o = a.parse_args()
    unknown = [n for n in o.stage if n not in STAGES]
    if unknown:
        a.error(f"no stage is called {unknown[0]}: {', '.join(STAGES)}")
    o.order = [(tiny(part) if o.tiny else part, what, expected) for n in o.stage for part, what, expected in STAGES[n]]
    o.budget = o.budget if o.budget is not None else sum(BUDGETS[n] for n in o.stage)
    known = list(dict.fromkeys(part for part, _, _ in o.order))
    o.all_parts, o.parts = not o.parts, o.parts or known
    unknown = [p for p in o.parts if p not in known]
    if unknown:
        a.error(f"no part is called {unknown[0]}: {', '.join(known)}")
    if o.warm < 1 or o.steps < 1:
        a.error("at least one step of each kind")
    o.bundle, o.out = o.bundle.resolve(), o.out.resolve()
    return o


def tiny(part):
    size = part.split("-", 1)[1] if part.startswith(("ops-", "ends-")) else part
    return part.replace(size, TINY[size])


# ---- processes -----------------------------------------------------------------------------------


def output_of(*command):
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False,
                              timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def reason(text):
    """The line of an output that says why; memory first, since what follows it are consequences."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    memory = [x for x in lines if "out of memory" in x.lower() or "RESOURCE_EXHAUSTED" in x or "device memory" in x]
    errors = [x for x in lines if "Error" in x or " error " in x or "error:" in x]
    said = (memory or errors[-1:] or lines[-1:] or ["it said nothing"])[0]
    return ("out of memory: " if memory else "") + said[:200]


def fallen(text):
    """The lines that tell of a call that the libraries did not serve."""
    return list(dict.fromkeys(line.strip() for line in text.splitlines() if FELL_BACK.search(line)))


class Runner:
    """Starts programs, keeps what they say in OUT's log, and ends those that take too long."""

    def __init__(self, o, scratch):
        self.o, self.scratch = o, scratch
        self.log = o.out / "gpu-bench-log.txt"
        cache = scratch / "cache"
        self.env = {**os.environ, "XDG_CACHE_HOME": str(cache), "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
                    "TRITON_CACHE_DIR": str(cache / "triton"), "JAX_COMPILATION_CACHE_DIR": str(cache / "jax"),
                    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "PYTHONUNBUFFERED": "1"}
        # CUDA's libraries for us alone: the peers know their own (tests/cuda/libraries.sh).
        ours = os.environ.get("WEFT_LIBRARIES")
        self.weft_env = {"WEFT_BACKEND_DIR": str(o.bundle), **self.env, **({"LD_LIBRARY_PATH": ours} if ours else {})}
        self.fell_back = []  # by the program that ran last
        cache.mkdir()

    def keep(self, command, text):
        with open(self.log, "a") as log:
            log.write(f"== {' '.join(map(str, command))}\n{text}\n")

    def run(self, command, limit, env, watch=None):
        """What it printed; its errors and a bad end are one. watch() is shown each second what came so far."""
        said = [self.scratch / "stdout", self.scratch / "stderr"]
        ends, late = time.monotonic() + limit, False
        with open(said[0], "wb") as out, open(said[1], "wb") as err:
            try:
                p = subprocess.Popen(command, env=env, cwd=self.scratch, stdout=out, stderr=err, start_new_session=True)
            except OSError as e:
                raise Failed(f"cannot start {command[0]}: {e.strerror}", "") from None
            while p.poll() is None and not late:
                late = time.monotonic() >= ends
                try:
                    p.wait(timeout=min(1, max(0.01, ends - time.monotonic())))
                except subprocess.TimeoutExpired:
                    if watch:
                        watch(said[0].read_text(errors="replace"))
            if p.poll() is None:
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()
        out, err = (f.read_text(errors="replace") for f in said)
        self.keep(command, out + err)
        self.fell_back = fallen(err)
        if late and p.returncode:
            raise Failed(f"not done after {limit:.0f} s", out)
        if p.returncode:
            raise Failed(reason(err or out), out)
        return out

    def program(self, *places):
        for place in places:
            if (self.o.bundle / place).exists():
                return self.o.bundle / place
        raise Failed(f"{self.o.bundle} has no {places[0]}", "")


# ---- contestants ---------------------------------------------------------------------------------


class Weft:
    def __init__(self, runner, o, name="weft"):
        self.runner, self.o, (self.fixed, self.switches) = runner, o, WEFT[name]

    def job(self, size, batch, dtype, steps, fixed="true"):
        path = self.runner.scratch / f"{size}-{dtype}-{fixed}.yaml"
        path.write_text(JOB.format(s=SIZES[size], tokens=self.runner.scratch / f"{SIZES[size].vocab}.bin", batch=batch,
                                   b1=BETAS[0], b2=BETAS[1], decay=DECAY, clip=CLIP, lr=LR, dtype=dtype, steps=steps,
                                   fixed=fixed, kind=self.o.device))
        return path

    def ops(self, job, limit, *extra, watch=None):
        command = [self.runner.program("bench/bench_ops", "tests/bench/gpu/bench_ops"),
                   "--cache", self.runner.scratch / "cache/weft", *extra, job]
        return self.runner.run(command, limit, self.runner.weft_env, watch)

    def turn(self, size, batch, limit):
        """Trains until enough steps have their rows, then it is killed: the checkpoint at the end is not asked for."""
        began, wanted = time.monotonic(), self.o.warm + self.o.steps
        job = self.job(size, batch, "bf16", wanted + 100000, self.fixed)
        place = pathlib.Path(tempfile.mkdtemp(dir=self.runner.scratch)) / "solo"
        command = [self.runner.program("weft-rank"), "--solo", place, "--job", job]
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
            text = said.read() + "".join(f.read_text() for f in sorted(place.glob("logs/*.log")))
        self.runner.keep(command, text)
        fell_back = fallen(text)
        shutil.rmtree(place.parent, ignore_errors=True)
        if len(rows) < wanted:
            raise Failed(reason(text) if ended is not None else f"not done after {limit:.0f} s", "")
        about = {row[0]: row[1:] for row in fields(self.ops(job, 60, "--about"))}
        counted, self.runner.fell_back = rows[self.o.warm : wanted], fell_back
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
    """llm.c's trainer, built from sources that lie elsewhere: they are no part of this project. Its milliseconds are
    those of the device between a step's events; what its host does between two steps is not in them."""

    def __init__(self, runner, o, name):
        self.runner, self.o, self.name = runner, o, name
        self.folder = runner.scratch / "llmc"

    def build(self, limit):
        sources = self.o.llmc
        if not sources or not (sources / "train_gpt2.cu").exists():
            raise Failed(f"{sources} has no train_gpt2.cu" if sources else "no sources were carried along (--llmc)", "")
        if (self.folder / "train_gpt2cu").exists():
            return
        shutil.copytree(sources, self.folder, dirs_exist_ok=True)
        cudnn = (self.folder / "cudnn-frontend/include").exists()
        self.runner.run(["make", "-C", self.folder, "train_gpt2cu", "NO_MULTI_GPU=1", "NO_USE_MPI=1", f"USE_CUDNN={int(cudnn)}"],
                        limit, self.runner.weft_env)

    def turn(self, size, batch, limit):
        began, s = time.monotonic(), SIZES[size]
        self.build(limit)
        tokens = self.runner.scratch / f"{s.vocab}.bin"
        # It divides by how many steps lie between validations; one batch of it comes first and last, beside the timing.
        told = {"i": tokens, "j": tokens, "e": f"d{s.layers}", "b": batch, "t": s.seq, "x": self.o.warm + self.o.steps, "l": LR,
                "c": DECAY, "r": 0, "v": 10**6, "s": 0, "h": 0, "m": 1}
        command = [self.folder / "train_gpt2cu", *(str(x) for key, value in told.items() for x in (f"-{key}", value))]
        started = time.monotonic()
        said = self.runner.run(command, limit - (started - began), self.runner.weft_env)
        steps = re.findall(r"^step .*?loss +([0-9.]+).*?([0-9.]+) ms", said, re.M)[self.o.warm :]
        mib = re.search(r"device memory usage: +([0-9]+) MiB", said)
        parts = re.search(r"num_parameters *[|:] *([0-9]+)", said)
        ms = [float(x) for _, x in steps]
        attention = "cuDNN" if (self.folder / "cudnn-frontend/include").exists() else "its own attention"
        return {"library": f"llm.c with {attention}, bf16 parameters over f32 masters", "ms": ms, "loss": float(steps[-1][0]),
                "gib": int(mib[1]) / 1024 if mib else 0, "parameters": int(parts[1]),
                "ready_s": time.monotonic() - started - sum(ms) / 1000}


def contestant(runner, o, who):
    return (Weft if who in WEFT else LlmC if who == "llm.c" else Peer)(runner, o, who)


# ---- the result ----------------------------------------------------------------------------------


class Result:
    def __init__(self, o, runner, rates, hardware):
        self.o, self.rates, self.hardware = o, rates, hardware
        self.began = datetime.datetime.now(datetime.timezone.utc)
        self.commit = commit_of(o.bundle)
        parts = "".join(f"-{x}" for x in (o.stage if o.all_parts else o.parts))
        self.path = o.out / f"{self.began:%Y-%m-%d}-{self.commit}-gpu{parts}.txt"
        self.libraries, self.models, self.ops, self.ends, self.notes = {}, {}, {}, {}, []

    def trained(self, size, batch, who, turn):
        self.libraries[turn["library"]] = True
        self.models.setdefault((size, batch), {}).setdefault(who, []).append(turn)

    def failed(self, size, batch, who, why):
        self.models.setdefault((size, batch), {}).setdefault(who, []).append(why)

    def head(self):
        return [
            f"# date      {self.began:%Y-%m-%dT%H:%M:%SZ}", f"# commit    {self.commit}",
            *(f"# hardware  {line}" for line in self.hardware),
            f"# libraries {'; '.join(self.libraries) or 'none was asked'}; Python {sys.version.split()[0]}",
            f"# load      {' '.join(f'{x:.2f}' for x in os.getloadavg())} at the end",
            *(f"# switch    {key}={value}" for key, value in sorted(os.environ.items()) if key.startswith("WEFT_CUDA_")),
            "# command   " + " ".join(["bench.py BUNDLE OUT", *sys.argv[3:]]),
            f"# took      {(datetime.datetime.now(datetime.timezone.utc) - self.began).total_seconds():.0f} s "
            f"of {self.o.budget:.0f}",
        ]

    def model_lines(self, size, batch, rows):
        s = SIZES[size]
        yield ""
        yield (f"{s.name} {size}: batch {batch}, {s.seq} tokens, bf16 over f32 parameters, vocabulary {s.vocab} padded to "
               f"{s.padded}, AdamW, decay {DECAY}, clip {CLIP}")
        yield (f"N {s.parameters}; a token is {s.formula} = {s.token_flops} FLOPs; MFU of "
               f"{rate_text(self.rates, 'bf16')}; {self.o.warm} steps before {self.o.steps} that count, a turn; "
               "ms between the ends of two steps")
        yield (f"{'':22} {'turns':>5} {'p50 ms':>9} {'p10':>9} {'p90':>9} {'tokens/s':>10} {'MFU':>7} {'GiB':>6} "
               f"{'ready s':>8} {'loss':>8}  of each turn, p50 ms")
        for who, turns in rows.items():
            yield from self.contestant_lines(s, batch, who, turns)
        yield "GiB: weft's arena; PyTorch's allocator and JAX's at most; llm.c's device. Loss: of the last step; each draws its own weights."

    def contestant_lines(self, s, batch, who, turns):
        good = [t for t in turns if isinstance(t, dict)]
        if good:
            ms = sorted(x for t in good for x in t["ms"])
            middle = statistics.median(ms)
            tokens = 1000 * batch * s.seq / middle
            mfu = f"{100 * tokens * s.token_flops / self.rates['bf16']:6.2f}%" if self.rates else f"{'-':>7}"
            differs = "" if all(t["parameters"] == s.parameters for t in good) else \
                f"  N DIFFERS: {[t['parameters'] for t in good]}"
            yield (f"{who:22} {len(good):5} {middle:9.3f} {ms[len(ms) // 10]:9.3f} {ms[len(ms) * 9 // 10]:9.3f} "
                   f"{tokens:10.0f} {mfu} {max(t['gib'] for t in good):6.1f} {good[0]['ready_s']:8.1f} "
                   f"{good[-1]['loss']:8.4f}  {' '.join(f'''{statistics.median(t['ms']):.3f}''' for t in good)}{differs}")
        yield from (f"{who:22} FAILED: {t}" for t in turns if isinstance(t, str))

    @staticmethod
    def end_lines(part, rows):
        yield ""
        yield f"What follows products of GPT-2 {part[5:]}, bf16: us a call as chosen, and with a kernel of its own for it"
        yield f"{'what follows':26} {'sums':10} {'the library':12} {'us':>10} {'apart':>10} {'off by':>9}"
        for name, sums, verdict, us, apart, off in rows:
            yield f"{name:26} {sums:10} {verdict:12} {us:>10} {apart:>10} {off:>9}"

    def op_lines(self, part, dtype, batch, rows):
        step = sum(r["calls"] * r["p50"] for r in rows)
        yield ""
        yield (f"Ops of {SIZES[part[4:]].name} {part[4:]}'s step, {dtype}, any order, batch {batch}: us a call, alone; the limit is the later of "
               f"FLOPs at {rate_text(self.rates, dtype)} and bytes at {rate_text(self.rates, 'bytes')}")
        yield (f"{'op':58} {'dtype':5} {'calls':>5} {'p50 us':>10} {'p10':>10} {'p90':>10} {'TFLOP/s':>9} {'GB/s':>8} "
               f"{'of limit':>8} {'of step':>8}")
        for r in sorted(rows, key=lambda r: (r["calls"] > 0, -r["calls"] * r["p50"])):
            share = f"{100 * r['calls'] * r['p50'] / step:7.2f}%" if r["calls"] and step else f"{'-':>8}"
            yield (f"{r['name']:58} {r['dtype']:5} {r['calls']:5} {r['p50']:10.2f} {r['p10']:10.2f} {r['p90']:10.2f} "
                   f"{number(r['flops'] / r['p50'] / 1e6):>9} {number(r['bytes'] / r['p50'] / 1e3):>8} "
                   f"{of_limit(self.rates, r):>8} {share}" + ("" if r["graph"] else "  queued, not captured"))
        yield f"all calls of a step, one after the other: {step / 1000:.3f} ms"

    def write(self):
        lines = self.head()
        for part, rows in self.ends.items():
            lines += self.end_lines(part, rows)
        for (size, batch), rows in self.models.items():
            lines += self.model_lines(size, batch, rows)
        for (part, dtype, batch), rows in self.ops.items():
            lines += self.op_lines(part, dtype, batch, rows)
        lines += ["", *self.notes] if self.notes else []
        fresh = self.path.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self.path)


def number(x):
    return f"{x:.4g}" if x else "-"


def rate_text(rates, what):
    if not rates:
        return "a rate nobody named"
    return f"{rates[what] / 1e12:g} {'TB/s' if what == 'bytes' else 'TFLOP/s'}"


def of_limit(rates, row):
    if not rates:
        return "-"
    flops = rates.get(row["dtype"], rates["f32"])
    return f"{100 * max(row['flops'] / flops, row['bytes'] / rates['bytes']) / (row['p50'] / 1e6):.1f}%"


def commit_of(bundle):
    told = bundle / "commit"
    if told.exists():
        return told.read_text().strip()
    commit = output_of("git", "-C", str(HERE), "rev-parse", "--short", "HEAD") or "none"
    return commit + ("-dirty" if output_of("git", "-C", str(HERE), "status", "--porcelain", "-uno") else "")


def hardware_lines(probe):
    query = "name,memory.total,driver_version,power.limit,clocks.max.sm,clocks.max.memory,clocks.sm,temperature.gpu"
    smi = output_of("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader")
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    return [*(f"{line} ({query})" for line in smi.splitlines()), f"weft-rank --probe: {probe}",
            f"{cpu}, {os.cpu_count()} cores, Linux {os.uname().release}"]


# ---- the run -------------------------------------------------------------------------------------


def instead_of(who, why):
    """Who else may do what this one could not; None: nobody."""
    if who not in PEERS or "No module named" in why or "not done after" in why:
        return None
    return PEERS[who][2 if "out of memory" in why else 3]


class Bench:
    def __init__(self, o, runner, result):
        self.o, self.runner, self.result = o, runner, result
        self.weft = Weft(runner, o)
        self.ends = time.monotonic() + o.budget
        self.took, self.lost = {}, {}

    def batch(self, size):
        return getattr(self.o, "batch_" + size.replace("-", "_"), None) or SIZES[size].batch

    def probe_ends(self, part, limit):
        size = SIZES[part[5:]]
        command = [self.runner.program("bench/bench_ends", "tests/bench/gpu/bench_ends"), "--rows", str(self.batch(part[5:]) * size.seq),
                   "--width", str(size.embed), self.o.device]

        def told(text):
            self.result.ends[part] = [line[1:7] for line in fields(text) if line[0] == "end" and len(line) == 7]
            self.result.write()

        try:
            told(self.runner.run(command, limit, self.runner.weft_env, told))
        except Failed as e:
            told(e.args[1])
            self.result.notes.append(f"FAILED  {part}: {e.args[0]}")

    def ops(self, part, dtype, limit):
        size = part[4:]
        batch = self.batch(size)
        job = self.weft.job(size, batch, dtype, 10, "false")  # any order of sums, as the training that is to be fast
        tiny = ["--runs", "3", "--run-ms", "0", "--square", "32"] if self.o.tiny else []
        failed = []
        try:
            text = self.weft.ops(job, limit, *tiny, watch=lambda text: self.op_rows(part, dtype, batch, text))
        except Failed as e:  # what came before counts
            text, failed = e.args[1], [f"FAILED  {part} {dtype}: {e.args[0]}"]
        self.op_rows(part, dtype, batch, text)
        lines = fields(text)
        self.result.notes += failed + [f"FAILED  {part} {dtype}: {line[1]}: {line[2]}" for line in lines if line[0] == "failed"]
        self.result.libraries.update({"weft, " + line[3]: True for line in lines if line[0] == "device"})

    def op_rows(self, part, dtype, batch, text):
        keys = ["name", "dtype", "calls", "p50", "p10", "p90", "flops", "bytes", "how"]
        lines = (line.split("\t") for line in text.splitlines(keepends=True) if line.endswith("\n"))
        rows = [dict(zip(keys, [x.strip() for x in line[1:]])) for line in lines if line[0] == "op" and len(line) > len(keys)]
        for r in rows:
            r.update({k: float(r[k]) for k in ("p50", "p10", "p90", "flops", "bytes")}, calls=int(r["calls"]),
                     graph=r["how"] == "graph")
        if rows:
            self.result.ops[part, dtype, batch] = rows
            self.result.write()

    def train(self, size, who, limit):
        """What to try in its place, if it failed."""
        batch = self.batch(size)
        try:
            self.result.trained(size, batch, who, contestant(self.runner, self.o, who).turn(size, batch, limit))
            return None
        except (Failed, ValueError, KeyError, IndexError, TypeError) as e:
            why = e.args[0] if isinstance(e, Failed) else f"what it said cannot be read: {e!r}"
            self.result.failed(size, batch, who, why)
            self.lost[size, who] = instead_of(who, why)
            return self.lost[size, who]

    def one(self, part, what, expected):
        """One turn, if there is time; what to do next instead of nothing."""
        left = self.ends - time.monotonic()
        expected = self.took.get((part, what), expected)
        if (part, what) in self.lost:
            return self.lost[part, what]  # it would fail again
        if expected > left:
            self.result.notes.append(f"LEFT OUT  {part} {what}: expected to take {expected:.0f} s, {left:.0f} were left")
            return None
        began, instead, self.runner.fell_back = time.monotonic(), None, []
        if part.startswith("ends-"):
            self.probe_ends(part, min(left, 3 * expected))
        elif part.startswith("ops-"):
            self.ops(part, what, min(left, 1.5 * expected))  # the rows that came in time count
        else:
            instead = self.train(part, what, min(left, 3 * expected + 30))
        fell = self.runner.fell_back
        self.result.notes += [f"FELL BACK  {part} {what}: {len(fell)}:", *(f"    {line[:200]}" for line in fell)] if fell else []
        self.took[part, what] = time.monotonic() - began
        return instead

    def all(self):
        for part, what, expected in self.o.order:
            if part not in self.o.parts:
                continue
            while what:
                print(f"{self.ends - time.monotonic():6.0f} s left: {part} {what}", flush=True)
                what = self.one(part, what, expected)
                self.result.write()


def probe(runner, o):
    command = [runner.program("weft-rank"), "--probe", "--kind", o.device]
    try:
        return runner.run(command, 120, runner.weft_env).strip()
    except Failed as e:
        there = os.path.exists("/dev/nvidiactl")  # a GPU that cannot be opened is no missing one
        print(f"FAILED: there is a GPU and it cannot be opened: {e.args[0]}" if there else f"SKIPPED: no GPU: {e.args[0]}")
        sys.exit(there or os.environ.get("WEFT_REQUIRE_GPU") == "1")


def main():
    o = options()
    o.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="weft-gpu-bench-") as name:
        scratch = pathlib.Path(name)
        runner = Runner(o, scratch)
        said = probe(runner, o)
        rates = o.rates or next((r for name, r in RATES.items() if name in said), None)
        result = Result(o, runner, rates, hardware_lines(said))
        bench = Bench(o, runner, result)
        for vocab in {SIZES[p.removeprefix("ops-").removeprefix("ends-")].vocab for p in o.parts}:
            write_tokens(scratch / f"{vocab}.bin", next(s for s in SIZES.values() if s.vocab == vocab))
        bench.all()
    print(result.path.read_text(), end="")
    print(f"written to {result.path}")
    failed = [who for _, who in bench.lost if who in WEFT]
    return 1 if failed or any(n.startswith(("FAILED", "FELL BACK")) for n in result.notes) else 0


if __name__ == "__main__":
    sys.exit(main())
