# SPDX-License-Identifier: Apache-2.0
"""What passes or fails: the tests of ops, with and without NVIDIA's sanitizer; small trainings against losses that the CPU
had elsewhere (tests/cuda/models.py recorded them), killed and begun again; what a rank does without memory or a device;
collectives by NCCL (collectives.py). Each is a line of the result. What does not fit into the time is LEFT OUT."""
import ctypes
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from collectives import Collectives
from contestants import Ranks, numbers
from runner import Failed

HERE = pathlib.Path(__file__).resolve().parent
GOLDENS = (HERE.parent / "tests/parity/golden", HERE.parents[1] / "parity/golden", HERE)  # in a bundle, and in the tree
LIMIT = 900  # seconds of one program; only a hang takes so long
HANG, HANG_S = 1 / 4, 60  # of a test of ops: of what is left, and at least so many seconds
LEAST = 5  # seconds that must be left to begin with one
PROGRAMS = {"ops": ("tests/ops", "tests/ops/ops")}  # a room's program, in a bundle and in a build
REAL = ("test_huge", "test_large", "test_linears", "test_transformer", "test_numerics")  # shapes of real models: they come first
FUSED = ("test_fused_rows", "test_linears", "test_chain", "test_updates")  # what memcheck is for, where time is short
MOST_LINES = 100  # of what failed; the log has the whole
KILL, KILL_STEPS, KILL_EVERY = "mlp-f32", 6000, 1000  # the training that is killed; its steps, and those between checkpoints
# A failing program may have far more to say than anybody reads.
GIST = re.compile(r"ERROR|FAILED|failed|rror:|=========|Assertion|terminated")
DIED = re.compile(r"cudaError(IllegalAddress|MisalignedAddress|LaunchFailure|IllegalInstruction|InvalidPc|HardwareStackError)")
FAULTY = """{"name": "faults", "mesh": {"dp": 1}, "resources": {"kind": "cuda"},
 "model": {"program": "mlp", "inputs": 16, "hidden": [%d, %d], "classes": 4, "activation": "gelu"},
 "data": {"format": "idx", "train": {"images": "images", "labels": "labels"}, "batch": 4}, "train": {"steps": 2}}
"""


class Checks:
    def __init__(self, o, runner, result):
        self.o, self.runner, self.result, self.ends = o, runner, result, 0
        self.named = False  # whether --only is in a name of those that came up
        self.env = {**runner.weft_env, "WEFT_RIG": "cuda", "WEFT_GOLDEN": str(next(f for f in GOLDENS if f.exists()))}

    def run(self, what, ends):
        self.ends, (kind, _, some) = ends, what.partition(", ")
        {"ops": self.ops, "memcheck": self.sanitize, "racecheck": self.sanitize, "trainings": self.trainings, "killed": self.killed,
         "faults": self.faults, "nccl": self.nccl}[kind](*([kind, some] if kind.endswith("check") else []))
        self.runner.heed("")  # tests try what falls back, and choose for small shapes

    def one(self, name, check, part=1.0):
        """check() is given its limit, of a part of what is left, and returns what it has to say, or fails. Of who failed: what it said."""
        left, began, told = self.ends - time.monotonic(), time.monotonic(), ""
        if self.o.only not in name:
            return ""
        self.named = True
        try:
            limit = min(left, LIMIT, LIMIT if self.o.tiny else max(HANG_S, part * left))
            said = check(limit) if left >= LEAST else None
            first, *more = said.splitlines() if said is not None else [""]
            line = f"LEFT OUT {name}: {left:.0f} s were left" if said is None else \
                "\n        ".join([f"ok       {name}: {first}, {time.monotonic() - began:.0f} s", *more])
        except (Failed, OSError, ValueError, KeyError) as e:
            told = e.args[1] if isinstance(e, Failed) else ""
            said = told.splitlines()
            gist = list(dict.fromkeys(x[:600] for x in said if GIST.search(x)))[:MOST_LINES] + [x[:200] for x in said[-4:]]
            line = "\n".join([f"FAILED   {name}: {e.args[0] if isinstance(e, Failed) else repr(e)}", *(f"        {x}" for x in gist)])
        print(line, flush=True)
        self.result.tests.append(line)
        self.result.write()
        return told

    # ---- programs ----

    def tests(self):
        """Name and command of each, those of real shapes first."""
        tests = [line.rpartition(":") for line in (self.o.bundle / "tests/list").read_text().split()]
        for program, _, name in sorted(tests, key=lambda t: REAL.index(t[2]) if t[2] in REAL else len(REAL)):
            yield name, [self.runner.program(*PROGRAMS.get(program, (f"tests/{name}", f"tests/parity/{name}"))), *(["--group", name] if program else [])]

    def program(self, name, command, part=1.0):
        """A case that hangs or ends the program is the end of that case: the rest is run behind it. What was said by what failed."""
        behind, told = None, ""
        while True:
            more = {"WEFT_TEST_AFTER": behind} if behind else {}
            said = self.one_program(f"{name} behind {behind}" if behind else name, command, more, part)
            told, ended_in = told + said, unfinished(said)
            if ended_in in (None, behind):
                return told
            behind = ended_in

    def one_program(self, name, command, more, part):
        def check(limit):
            said = self.runner.run(command, limit, {**self.env, **more})
            skipped = sorted({line[:160] for line in said.splitlines() if "SKIP" in line})[:20]
            return "\n".join([f"{said.count('[       OK ]')} cases", *skipped])

        return self.one(name, check, part)

    def ops(self):
        known = list(self.tests())
        names = [name for name, _ in known]
        if self.o.first and self.o.first not in names:
            self.result.notes.append(f"FAILED  no test is called {self.o.first}: {' '.join(names)}")
            return
        for name, command in known[names.index(self.o.first) if self.o.first else 0 :][: 3 if self.o.tiny else None]:
            checked = sanitizer("memcheck")
            if DIED.search(self.program(name, command, HANG)) and checked:  # by which kernel, thread and address
                self.program(f"{name} under memcheck", [*checked, *command], HANG)

    def sanitize(self, tool, some):
        checked = sanitizer(tool)
        if not checked:
            line = f"{tool}: compute-sanitizer is not installed: it comes with CUDA (CUDA_HOME=)"
            self.result.tests.append(("FAILED   " if "sanitize" in self.o.stage else "SKIPPED  ") + line)  # the stage has nothing else
            return
        for name, command in sorted(self.tests(), key=lambda t: t[0] not in FUSED):
            if not some or name in FUSED:
                self.program(f"{name} under {tool}", [*checked, *command])

    # ---- trainings ----

    def trainings(self):
        """Tolerances are tests/e2e/test_cuda.py's, whose trainings these are; with --tiny a few steps of each."""
        for name, expected in (self.recorded("trainings") or {}).items():
            losses, tolerance = expected["losses"][: 5 if self.o.tiny else None], expected["tolerance"]

            def check(limit, name=name, losses=losses, tolerance=tolerance):
                with Ranks(self.runner, self.o.bundle / f"models/{name}.yaml", ["-s", f"train.steps={len(losses)}"]) as ranks:
                    rows = ranks.finish(limit)
                if len(rows) != len(losses):
                    raise Failed(f"{len(rows)} rows, not {len(losses)}", "")
                for row, want in zip(rows, losses):  # of a loss that has nearly vanished, to 1/20 of the first
                    if row["loss"] is None or not math.isclose(row["loss"], want, rel_tol=tolerance, abs_tol=tolerance * losses[0] / 20):
                        raise Failed(f"step {row['step']}: the loss is {row['loss']}, the CPU's was {want}", "")
                worst = max(abs(row["loss"] - want) / max(abs(want), losses[0] / 20) for row, want in zip(rows, losses))
                return f"{len(rows)} steps, at most {worst:.1e} off ({tolerance:g})"

            self.one(name, check)

    def recorded(self, kind):
        try:
            return json.loads((self.o.bundle / "models/expect.json").read_text())
        except FileNotFoundError:
            self.result.notes.append(f"LEFT OUT  {kind}: no trainings were recorded: no python3-pytest and python3-numpy where the bundle was made")
            return None

    def killed(self):
        if self.recorded("killed") is not None:
            self.one(f"{KILL}-killed", self.same_bits)

    def same_bits(self, limit):
        """The same training again, and killed and begun again: the same numbers, and the same bytes in the last checkpoint."""
        steps, every = (60, 10) if self.o.tiny else (KILL_STEPS, KILL_EVERY)
        settings = {"train.steps": steps, "checkpoint.every": every}
        if self.o.tiny:  # its few steps end before a slow disk has the first
            settings["checkpoint.async"] = "false"

        def training():
            return Ranks(self.runner, self.o.bundle / f"models/{KILL}.yaml", [x for key, value in settings.items() for x in ("-s", f"{key}={value}")])

        with training() as first, training() as again, training() as killed:
            rows = first.finish(limit)
            limit = self.ends - time.monotonic()
            if numbers(again.finish(limit / 3)) != numbers(rows) or final(again) != final(first):
                raise Failed("the same training again came to other numbers or bits", "")
            killed.train(limit / 3, steps // 2)
            stood = len(killed.rows())
            if stood >= steps:
                raise Failed("it ended before it was killed", "")
            if numbers(killed.finish(limit / 3)) != numbers(rows) or final(killed) != final(first):
                raise Failed("killed and begun again it came to other numbers or bits", "")
            resumed = int(re.search(r"^step (\d+)$", (killed.place / "run/state").read_text(), re.M)[1])
            if not 0 < resumed < steps:  # else no checkpoint was restored
                raise Failed(f"killed at step {stood} it resumed from step {resumed}", "")
        return f"{steps} steps again, and killed at {stood} and resumed from {resumed}: the same bits"

    # ---- faults ----

    def faults(self):
        """The twin plays them. The plan of the second, some 4 GiB, fits the device, but somebody else left 2."""
        hidden = {"WEFT_FAKE_CUDA": "nodevice"} if self.o.tiny else {"CUDA_VISIBLE_DEVICES": ""}
        self.one("no device", lambda limit: self.faulty(limit, 8, hidden, "no NVIDIA device"))
        if self.o.tiny:
            self.one("no memory", lambda limit: self.faulty(limit, 8, {"WEFT_FAKE_CUDA": "oom:1"}, "out of memory"))
            return
        if self.o.only not in "no memory":
            return
        with subprocess.Popen([sys.executable, __file__, str(2 << 30)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hog:
            if hog.stdout.readline() == "taken\n":
                self.one("no memory", lambda limit: self.faulty(limit, 16384, {}, "out of memory"))
            else:
                self.result.notes.append("FAILED  no memory: the device's memory could not be taken")
            hog.kill()

    def faulty(self, limit, width, env, wanted):
        with tempfile.TemporaryDirectory(dir=self.runner.scratch) as name:
            place = pathlib.Path(name)
            (place / "images").write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 8, 0, 0, 0, 16]) + bytes(range(128)))
            (place / "labels").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 8, 0, 1, 2, 3, 0, 1, 2, 3]))
            (place / "job.yaml").write_text(FAULTY % (width, width))
            with Ranks(self.runner, place / "job.yaml", switches=env) as ranks:
                code, said = ranks.train(limit)
        if code != 71 or wanted not in said or "rank 0" not in said:
            raise Failed(f"exit {code}, not 71, or it did not say '{wanted}' and 'rank 0'", said)
        return f"exit 71, \"{next(line for line in said.splitlines() if wanted in line).strip()[-120:]}\""

    # ---- NCCL ----

    def nccl(self):
        Collectives(self).run()


def sanitizer(tool):
    """The command that checks another, if it is installed. What a call returns is looked at by who calls: NVIDIA's libraries and some
    tests try what fails."""
    found = shutil.which("compute-sanitizer") or f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin/compute-sanitizer"
    how = ["--report-api-errors", "no"] if tool == "memcheck" else []
    return [found, "--tool", tool, *how, "--error-exitcode", "9"] if os.path.exists(found) else None


def unfinished(said):
    """The case that a program of tests began last, if it did not end it."""
    *_, last = [None, *re.findall(r"^\[ RUN      \] (\w+)$", said, re.M)]
    ended = last and re.search(rf"^\[ +(OK|FAILED|ERROR|SKIPPED) +\] {last}$", said, re.M)
    return None if ended else last


def final(ranks):
    """The bytes of the newest checkpoint's tensors."""
    newest = max(ranks.place.glob("ckpt/*/step-*"), key=lambda d: int(re.match(r"step-(\d+)", d.name)[1]))
    return {f.name: f.read_bytes() for f in newest.glob("shard-*")}


def hog(leave):
    """Takes all but so many bytes of the first device until its input ends, through the driver alone."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, free, total, p = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0 and cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(free.value - leave)) == 0
    print("taken", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    hog(int(sys.argv[1]))
