#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs stages of the GPU's tests and benchmark within a budget of time and writes one result file. See lease.sh;
Python's own library suffices.

    bench.py BUNDLE OUT [--stage N,..] [--budget SECONDS] [--parts NAME,..] [--from TEST] [--only TEXT] [--choices FILE]
             [--python FILE] [--rates BF16,TF32,F32,BYTES] [--device cuda|cpu] [--scratch MIB] [--tiny] [--whole] [--check]

BUNDLE is `make gpu-bundle`'s folder, or a build's. What is to be done stands in stages.py, the most important first; what
is not expected to fit into the time that is left is left out, and the result says so (--whole: and the run fails). A
run that took longer than its time fails. A contestant that fails is a row that says why. The result is written again
after each turn, op and test, so that who is cut off has what came before.
Contestants take turns, each in a process of its own, so that each has the device's memory to itself. What compilers
keep on disk is empty at first and stays until the end, so that a second turn is a warm one. Chosen algorithms are those of
--choices (OUT's or BUNDLE's choices.tar), where there are some, and OUT/choices.tar holds them and what was chosen since.

A call of ours that a library was to serve and did not (FELL_BACK) is counted, and fails the run: such a time says
nothing of the design. So does a training of ours whose steps are not those of "weft" (contestants.py).

A fraction is of the vendor's dense rates, or of --rates (TFLOP/s, TB/s, or H100, ..); of a device without either none is
given. The stage `expected` needs no device.
--from TEST begins at that test of ops; --only: of tests, trainings and ops those with TEXT in their names. --tiny runs the
very stages at the sizes of TINY, for a try where no GPU is. --check does nothing but read the arguments.
"""
import argparse
import os
import pathlib
import sys
import tempfile
import time
import traceback

from checks import Checks
from contestants import WEFT, Weft, contestant, fields, instead_of
from result import RATES, Result, hardware_lines
from runner import Failed, Runner, Sampler
from sizes import SIZES, TINY, write_tokens
from stages import AGAIN, BUDGETS, IN_ORDER, SCRATCH, STAGES, SWEPT, Took, cost_of, expected_s, second_turns

SKIPPED = 77  # an exit code, for lease.sh
GRACE_S = 10  # within which what is cut off ends
NO_SIZE = ("tests", "device")  # parts that train nothing of their own


def options():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("bundle", type=pathlib.Path)
    a.add_argument("out", type=pathlib.Path)
    a.add_argument("--stage", type=lambda text: text.split(","), default=["a"], help="some of " + ", ".join(STAGES))
    a.add_argument("--budget", type=float, help="seconds; what is not given: the stages' own")
    a.add_argument("--parts", type=lambda text: text.split(","))
    a.add_argument("--from", dest="first", default="", help="the test of ops to begin at")
    a.add_argument("--only", default="", help="of tests, trainings and ops those with this in their names")
    a.add_argument("--choices", type=pathlib.Path, help="a choices.tar that came back")
    a.add_argument("--python", default="python3", help="an interpreter with torch and jax")
    a.add_argument("--rates", type=lambda text: RATES.get(text) or dict(zip(RATES["H200"], (1e12 * float(x) for x in text.split(",")))))
    a.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    a.add_argument("--scratch", type=int, default=0, help="MiB, resources.scratch of weft's jobs; 0: as usual")
    a.add_argument("--tiny", action="store_true")
    a.add_argument("--whole", action="store_true", help="what is left out fails the run")
    a.add_argument("--check", action="store_true")
    a.add_argument("--warm", type=int, default=10)
    a.add_argument("--steps", type=int, default=20)
    o = a.parse_args()
    unknown = [n for n in o.stage if n not in STAGES]
    if unknown:
        a.error(f"no stage is called {unknown[0]}: {', '.join(STAGES)}")
    o.order = [(tiny(part) if o.tiny else part, what, part) for n in o.stage for part, what in STAGES[n]]
    if o.first and not any(what == "ops" for _, what, _ in o.order):
        a.error("--from is of a stage with the tests of ops")
    if o.first:
        o.order = o.order[next(k for k, turn in enumerate(o.order) if turn[1] == "ops") :]
    o.budget = o.budget if o.budget is not None else sum(BUDGETS[n] for n in o.stage)
    known = list(dict.fromkeys(part for part, _, _ in o.order))
    o.all_parts, o.parts = not o.parts, o.parts or known
    unknown = [p for p in o.parts if p not in known]
    if unknown:
        a.error(f"no part is called {unknown[0]}: {', '.join(known)}")
    if o.warm < 1 or o.steps < 1:
        a.error("at least one step of each kind")
    o.bundle, o.out, o.began = o.bundle.resolve(), o.out.resolve(), time.monotonic()
    o.choices = o.choices or next((f for f in (o.out / "choices.tar", o.bundle / "choices.tar") if f.exists()), None)
    return o


def tiny(part):
    return part if part in NO_SIZE else part.replace(size_of(part), TINY[size_of(part)])


def size_of(part):
    return part.split("-", 1)[1] if part.startswith(("ops-", "list-", "sweep-")) else part


def op_rows(text):
    """Those of bench_ops' lines about ops that are whole."""
    keys = ["name", "dtype", "calls", "p50", "p10", "p90", "flops", "bytes", "how"]
    lines = (line.split("\t") for line in text.splitlines(keepends=True) if line.endswith("\n"))
    rows = [dict(zip(keys, [x.strip() for x in line[1:]])) for line in lines if line[0] == "op" and len(line) > len(keys)]
    for r in rows:
        r.update({k: float(r[k]) for k in ("p50", "p10", "p90", "flops", "bytes")}, calls=int(r["calls"]))
    return rows


class Bench:
    def __init__(self, o, runner, result):
        self.o, self.runner, self.result = o, runner, result
        self.weft, self.checks = Weft(runner, o), Checks(o, runner, result)
        self.ends = o.began + o.budget
        self.took, self.lost, self.start_s = {}, {}, 0

    def ops(self, part, what, limit):
        batch = SIZES[size_of(part)].batch
        job = self.weft.job(size_of(part), batch, "bf16", 10, "true" if what == IN_ORDER else "false")
        extra = ["--list"] if part.startswith("list-") else ["--only", self.o.only] if self.o.only else []

        def take(rows):
            self.result.ops[part, what, batch] = rows
            self.result.write()

        self.time_ops(part, what, limit, job, [*extra, *(["--square", "32"] if self.o.tiny else [])], take)

    def sweep(self, part, what, limit):
        kind, _, mib = what.partition(", ")
        swept = SWEPT[kind]
        mib = int(mib) // (swept.less if self.o.tiny else 1)
        job = self.weft.job(size_of(part), SIZES[size_of(part)].batch, "bf16", 10, swept.fixed, SCRATCH // (64 if self.o.tiny else 1))

        def take(rows):
            own = any("our own kernels serve it" in line for line in self.runner.fell_back)
            self.result.sweeps.setdefault((part, kind), {})[f"{mib}{' own' if own else ''}"] = [r for r in rows if r["calls"]]
            self.result.write()

        self.time_ops(part, what, limit, job, ["--only", swept.only, "--square", "0"], take, {swept.switch: str(mib)})
        self.runner.fell_back = []  # it is an answer here

    def time_ops(self, part, what, limit, job, extra, take, switches=None):
        tiny = ["--runs", "3", "--run-ms", "0"] if self.o.tiny else []

        def watch(text):
            rows = op_rows(text)
            if rows and not switches:  # of a sweep the whole is taken: who served it is known at its end
                take(rows)

        failed = []
        try:
            text = self.weft.ops(job, limit, *tiny, *extra, watch=watch, switches=switches)
        except Failed as e:  # what came before counts
            text, failed = e.args[1], [f"FAILED  {part} {what}: {e.args[0]}"]
        rows = op_rows(text)
        if rows:
            take(rows)
        if "--only" in extra and not failed and not any(r["calls"] for r in rows):
            failed = [f"FAILED  {part} {what}: no op of the step is called {extra[extra.index('--only') + 1]}"]
        lines = fields(text)
        self.result.notes += failed + [f"FAILED  {part} {what}: {line[1]}: {line[2]}" for line in lines if line[0] == "failed"]
        self.result.libraries.update({"weft, " + line[3]: True for line in lines if line[0] == "device"})

    def train(self, size, who, limit):
        """What to try in its place, if it failed."""
        batch = SIZES[size].batch
        try:
            turn = contestant(self.runner, self.o, who).turn(size, batch, limit)
            self.start_s = turn["ready_s"]
            self.result.trained(size, batch, who, turn)
            return None
        except (Failed, ValueError, KeyError, IndexError, TypeError) as e:
            why = e.args[0] if isinstance(e, Failed) else f"what it said cannot be read: {e!r}"
            self.result.failed(size, batch, who, why)
            self.lost[size, who] = instead_of(who, why)
            return self.lost[size, who]

    def one(self, part, what, cost):
        """One turn, if there is time; what to do next instead of nothing."""
        if (part, what) in self.lost:
            return self.lost[part, what]  # it would fail again
        left, expected = self.ends - time.monotonic(), expected_s(cost, self.took.get((part, what)))
        if expected > left:
            self.result.notes.append(f"LEFT OUT  {part} {what}: expected to take {expected:.0f} s, {left:.0f} were left")
            return None
        began, instead, self.start_s = time.monotonic(), None, 0
        most = float("inf") if self.o.tiny else expected  # what is expected is a GPU's
        self.runner.fell_back, self.runner.chosen = [], []
        try:
            if part == "tests":
                self.checks.run(what, self.ends)
            elif part == "device":
                self.result.loads = self.runner.libraries()
            elif part.startswith(("ops-", "list-")):
                self.ops(part, what, min(left, 1.5 * most))  # the rows that came in time count
            elif part.startswith("sweep-"):
                self.sweep(part, what, min(left, 2 * most))
            else:
                instead = self.train(part, what, min(left, 3 * most + 30))
        except Exception as e:  # whatever it is: the turns behind it are to be seen
            self.result.notes.append(f"FAILED  {part} {what}: {e!r}")
            self.runner.keep([part, what], traceback.format_exc())
        if lines := self.runner.fell_back:
            self.result.notes += [f"FELL BACK  {part} {what}: {len(lines)}:", *(f"    {line[:200]}" for line in lines)]
        if self.runner.chosen and not part.startswith("sweep-"):  # those are no choices of a training
            self.result.choices.setdefault((part, what), {}).update(dict.fromkeys(self.runner.chosen))  # each once
            self.result.behind.setdefault((part, what), {}).update(dict.fromkeys(self.runner.behind))
        self.took[part, what] = Took(time.monotonic() - began, self.start_s)
        self.result.turns.append((part, what, began, time.monotonic()))
        self.runner.keep_choices()
        return instead

    def all(self):
        """The stages' turns; those that a stage leaves to what was seen so far are put in when they come up."""
        order, before = [turn for turn in self.o.order if turn[0] in self.o.parts], None
        while order:
            part, what, real = order.pop(0)
            if what == AGAIN:
                seen = self.result.medians(part, SIZES[part].batch)
                order[:0] = [(part, who, real) for who in second_turns(seen, before)]
                continue
            cost, before = cost_of(real, what), what
            while what:
                print(f"{self.ends - time.monotonic():6.0f} s left: {part} {what}", flush=True)
                what = self.one(part, what, cost)
                self.result.write()
        if self.o.only and not self.checks.named and not self.result.ops:
            self.result.notes.append(f"LEFT OUT  no name holds '{self.o.only}'")


def probe(runner, o):
    """What the device says of itself, and why it cannot be opened, None if it can."""
    if o.stage == ["expected"]:
        return "no device was asked for", None
    try:
        return runner.run([runner.program("weft-rank"), "--probe", "--kind", o.device], 120, runner.weft_env).strip(), None
    except Failed as e:
        return "-", e.args[0]


def unopened(o, runner, result, why):
    """A GPU that cannot be opened is no missing one. Where one is to be there the result has what is to be known of the machine."""
    there = os.path.exists("/dev/nvidiactl")
    said = f"there is a GPU and it cannot be opened: {why}" if there else f"no GPU was opened: {why}"
    if not there and os.environ.get("WEFT_REQUIRE_GPU") != "1":
        print(f"SKIPPED: {said}")
        return SKIPPED
    result.loads = runner.libraries()
    result.notes = [f"FAILED  {said}", *(f"LEFT OUT  {part} {what}" for part, what, _ in o.order if part in o.parts)]
    result.write()
    print(result.printed())
    print(f"FAILED: {said}; written to {result.path}")
    return 1


def main():
    o = options()
    if o.check:
        return 0
    o.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="weft-gpu-bench-") as name, Sampler(pathlib.Path(name)) as sampler:
        scratch = pathlib.Path(name)
        runner = Runner(o, scratch)
        said, why = probe(runner, o)
        rates = o.rates or next((r for name, r in RATES.items() if name in said), None)
        result = Result(o, sampler, rates, hardware_lines(said))
        if why:
            return unopened(o, runner, result, why)
        bench = Bench(o, runner, result)
        for vocab in {SIZES[size_of(p)].vocab for p in o.parts if p not in NO_SIZE}:
            write_tokens(scratch / f"{vocab}.bin", next(s for s in SIZES.values() if s.vocab == vocab))
        bench.all()
        late = time.monotonic() - bench.ends
        result.notes += [f"FAILED  it took {late:.0f} s longer than the {o.budget:.0f} s it had"] if late > GRACE_S else []
        result.write()
    print(result.printed())
    print(f"written to {result.path}")
    failed = [who for _, who in bench.lost if who in WEFT]
    wrong = ("FAILED", "FELL BACK", "LEFT OUT") if o.whole else ("FAILED", "FELL BACK")
    return 1 if failed or any(n.startswith(wrong) for n in [*result.notes, *result.tests]) else 0


if __name__ == "__main__":
    sys.exit(main())
