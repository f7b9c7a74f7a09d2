# SPDX-License-Identifier: Apache-2.0
"""The result file: a head with date, commit, hardware and libraries, then tables; written again after each turn."""
import datetime
import os
import pathlib
import platform
import shutil
import statistics
import sys

from runner import output_of
from sizes import CLIP, DECAY, SIZES
from stages import IN_ORDER, SWEPT

HERE = pathlib.Path(__file__).resolve().parent
# FLOP/s of a dtype's products without sparsity, bytes/s of memory; by what the device's name holds.
RATES = {
    "H200": {"bf16": 989e12, "tf32": 494.7e12, "f32": 66.9e12, "bytes": 4.8e12},
    "H100": {"bf16": 989e12, "tf32": 494.7e12, "f32": 66.9e12, "bytes": 3.35e12},
    "A100": {"bf16": 312e12, "tf32": 156e12, "f32": 19.5e12, "bytes": 2.039e12},
}
# What is expected of kernels, in parts of those rates: kernels/README.md says why, and what step of 124M follows.
REACHED = {"product": 0.63, "short product": 0.475, "attention": 0.253, "attention_grad": 0.222, "bytes": 0.9}
SHORT, GAP_US = 1024, 2  # a product's sums; between two calls


class Result:
    def __init__(self, o, sampler, rates, hardware):
        self.o, self.sampler, self.rates, self.hardware = o, sampler, rates, hardware
        self.began = datetime.datetime.now(datetime.timezone.utc)
        self.commit = commit_of(o.bundle)
        parts = "".join(f"-{x}" for x in (o.stage if o.all_parts else o.parts))
        self.path = o.out / f"{self.began:%Y-%m-%d}-{self.commit}-gpu{parts}.txt"
        self.libraries, self.models, self.ops, self.choices, self.behind, self.sweeps = {}, {}, {}, {}, {}, {}
        self.loads, self.turns, self.tests, self.notes = [], [], [], []

    def trained(self, size, batch, who, turn):
        self.libraries[turn["library"]] = True
        self.models.setdefault((size, batch), {}).setdefault(who, []).append(turn)

    def failed(self, size, batch, who, why):
        self.models.setdefault((size, batch), {}).setdefault(who, []).append(why)

    def medians(self, size, batch):
        """Of each contestant that did not fail: its turns' milliseconds."""
        rows = self.models.get((size, batch), {})
        return {who: [statistics.median(t["ms"]) for t in turns] for who, turns in rows.items() if not any(isinstance(t, str) for t in turns)}

    def head(self):
        return [
            f"# date      {self.began:%Y-%m-%dT%H:%M:%SZ}", f"# commit    {self.commit}",
            *(f"# hardware  {line}" for line in self.hardware),
            f"# libraries {'; '.join(self.libraries) or 'none was asked'}; Python {sys.version.split()[0]}",
            *(f"# loads     {line}" for line in self.loads),
            f"# load      {' '.join(f'{x:.2f}' for x in os.getloadavg())} at the end",
            *(f"# switch    {key}={value}" for key, value in sorted(os.environ.items()) if key.startswith("WEFT_CUDA_")),
            "# command   " + " ".join(["bench.py BUNDLE OUT", *sys.argv[3:]]),
            f"# took      {(datetime.datetime.now(datetime.timezone.utc) - self.began).total_seconds():.0f} s "
            f"of {self.o.budget:.0f}",
        ]

    def turn_lines(self):
        """Free memory before a turn, at the least, and at its end: what a turn leaves behind shows in the next."""
        yield ""
        yield (f"{'turns':38} {'s':>6} {'MHz':>6} {'memory':>7} {'W most':>7} {'C most':>7}  MiB free before, least, after; clocks are the middle")
        for part, what, began, ended in self.turns:
            rows = self.sampler.between(began, ended)
            clock, memory = (f"{statistics.median(r[k] for r in rows):.0f}" if rows else "-" for k in (0, 1))
            watts, celsius = (f"{max(r[k] for r in rows):.0f}" if rows else "-" for k in (2, 3))
            free = [r[4] for r in rows]
            yield (f"{part + ' ' + what:38} {ended - began:6.1f} {clock:>6} {memory:>7} {watts:>7} {celsius:>7}  "
                   + (f"{free[0]:.0f} {min(free):.0f} {free[-1]:.0f}" if free else "nvidia-smi said nothing"))

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
                   f"{good[-1]['loss']:8.4f}  {' '.join(f'''{statistics.median(t['ms']):.3f}''' for t in good)}{differs}"
                   + "".join({f"; {t['like']}": 0 for t in good if "like" in t}))
        yield from (f"{who:22} FAILED: {t}" for t in turns if isinstance(t, str))

    def op_lines(self, part, what, batch, rows):
        dtype, in_order = what.split(",")[0], what == IN_ORDER
        step = sum(r["calls"] * r["p50"] for r in rows)
        yield ""
        yield (f"Ops of {SIZES[part.split('-', 1)[1]].name} {part.split('-', 1)[1]}'s step, {dtype}, {'in order' if in_order else 'any order'}, batch {batch}: us a call, alone; the limit is the later of "
               f"FLOPs at {rate_text(self.rates, dtype)} and bytes at {rate_text(self.rates, 'bytes')}, the gap what a step's calls take beyond it; expected, as kernels/README.md says")
        yield (f"{'op':58} {'dtype':5} {'calls':>5} {'p50 us':>10} {'p10':>10} {'p90':>10} {'TFLOP/s':>9} {'GB/s':>8} "
               f"{'of limit':>8} {'of step':>8} {'gap, ms':>9} {'expected':>9} {'over, ms':>9}")
        for r in sorted(rows, key=lambda r: (r["calls"] > 0, -r["calls"] * (r["p50"] or expected_us(self.rates, r, in_order) or 0))):
            share = f"{100 * r['calls'] * r['p50'] / step:7.2f}%" if r["calls"] and step else f"{'-':>8}"
            us = expected_us(self.rates, r, in_order)
            gap, over = (f"{r['calls'] * (r['p50'] - least) / 1000:9.3f}" if us and r["p50"] else f"{'-':>9}" for least in (us and limit_us(self.rates, r), us))
            yield (f"{r['name']:58} {r['dtype']:5} {r['calls']:5} {r['p50']:10.2f} {r['p10']:10.2f} {r['p90']:10.2f} "
                   f"{per_us(r['flops'], r, 1e6):>9} {per_us(r['bytes'], r, 1e3):>8} "
                   f"{of_limit(self.rates, r):>8} {share} {gap} {f'{us:.2f}' if us else '-':>9} {over}" + (f"  {r['how']}" if r["how"] == "queued" else ""))
        mine = [r for r in rows if r["calls"]]
        sums = [sum(r["calls"] * us for r, us in zip(mine, each)) / 1000 for each in (
            [expected_us(self.rates, r, in_order) for r in mine], [limit_us(self.rates, r) for r in mine])] if self.rates else []
        yield (f"all calls of a step, one after the other: {step / 1000:.3f} ms"
               + (f"; expected {sums[0]:.3f}; at the limit {sums[1]:.3f}" if sums else ""))

    def sweep_lines(self, part, kind, columns):
        """An op a line; its time under a value of the switch a column."""
        order = "in order" if SWEPT[kind].fixed == "true" else "any order"
        most = sorted(columns, key=lambda c: int(c.split()[0]))
        rows = {r["name"]: r["calls"] for mib in most for r in columns[mib]}
        us = {(mib, r["name"]): r["p50"] for mib in most for r in columns[mib]}
        yield ""
        yield (f"{SWEPT[kind].switch} of {kind} of {SIZES[part[6:]].name} {part[6:]}, sums {order}: us a call "
               "where so many MiB of scratch are offered; own: no library served it")
        yield f"{'op':58} {'calls':>5}" + "".join(f" {mib:>10}" for mib in most)
        for name, calls in rows.items():
            yield f"{name:58} {calls:5}" + "".join(f" {us[mib, name]:10.2f}" if (mib, name) in us else f" {'-':>10}" for mib in most)
        yield f"{'all of a step':64}" + "".join(f" {sum(r['calls'] * r['p50'] for r in columns[mib]):10.2f}" for mib in most)

    @staticmethod
    def behind_lines(part, what, rows):
        yield ""
        yield f"What follows products of {part} {what}: us a call in one kernel, and with a kernel of its own for it; none: the library has no such kernel"
        yield f"{'the library':>12} {'us':>10} {'apart':>10}  product and what follows"
        for key, verdict, us, apart in rows:
            yield f"{verdict:>12} {us:>10} {apart:>10}  {key}"

    @staticmethod
    def choice_lines(part, what, rows):
        yield ""
        yield (f"Choices of algorithms made by {part} {what}: the place among those that the library named, best first as it "
               "thinks, us a call, and us of the first of them that runs")
        yield f"{'place':>10} {'of':>3} {'us':>10} {'first':>10} {'gain':>6}  what and how"
        for key, place, of, us, first, algorithm in rows:
            gain = f"{100 * (float(first) / float(us) - 1):5.1f}%" if us not in ("-", "0.0") and first != "-" else f"{'-':>6}"
            yield f"{place:>10} {of:>3} {us:>10} {first:>10} {gain}  {key}: {algorithm}"

    def printed(self):
        """The file as it was written, what shows the most last: of what a lent machine prints only the end is sure to come back."""
        lines, choices = self.written
        rows = [line for (size, batch), rows in self.models.items() for who, turns in rows.items() for line in self.contestant_lines(SIZES[size], batch, who, turns)]
        return "\n".join([*choices, *lines, "", *rows])

    def write(self):
        lines, choices = self.written = self.lines()
        fresh = self.path.with_suffix(".new")
        fresh.write_text("\n".join(lines + choices) + "\n")
        fresh.replace(self.path)

    def lines(self):
        """Those of the file, and the choices that end it."""
        lines = [*self.head(), *(self.turn_lines() if self.turns else [])]
        for (size, batch), rows in self.models.items():
            lines += self.model_lines(size, batch, rows)
        for name, tables in ((self.behind_lines, self.behind), (self.op_lines, self.ops), (self.sweep_lines, self.sweeps)):
            for key, rows in tables.items():
                lines += name(*key, rows) if rows else []
        lines += ["", *self.tests] if self.tests else []
        lines += ["", *self.notes] if self.notes else []
        return lines, [line for key, rows in self.choices.items() for line in self.choice_lines(*key, rows)]


def per_us(amount, row, unit):
    return f"{amount / row['p50'] / unit:.4g}" if amount and row["p50"] else "-"


def rate_text(rates, what):
    if not rates:
        return "a rate nobody named"
    return f"{rates[what] / 1e12:g} {'TB/s' if what == 'bytes' else 'TFLOP/s'}"


def limit_us(rates, row, flops=1, memory=1):
    """Of the device, or of so large a part of its rates."""
    return 1e6 * max(row["flops"] / rates.get(row["dtype"], rates["f32"]) / flops, row["bytes"] / rates["bytes"] / memory)


def of_limit(rates, row):
    return f"{100 * limit_us(rates, row) / row['p50']:.1f}%" if rates and row["p50"] else "-"


def expected_us(rates, row, in_order=False):
    """In order attention's gradient writes a bf16 for each score, and reads it again."""
    if not rates or not row["calls"]:
        return None
    name, shape = row["name"].split()[0].replace("_packed", ""), [*row["name"].split(), ""][1].split("x")
    short = row["flops"] and shape[-1].isdigit() and int(shape[-1]) < SHORT
    us = limit_us(rates, row, REACHED[name if name in REACHED else "short product" if short else "product"], REACHED["bytes"])
    scores = int(shape[0]) * int(shape[1]) ** 2 * int(shape[-2]) if in_order and name == "attention_grad" else 0
    return us + GAP_US + 1e6 * 4 * scores / rates["bytes"] / REACHED["bytes"]


def commit_of(bundle):
    noted = bundle / "commit"
    if noted.exists():
        return noted.read_text().strip()
    commit = output_of("git", "-C", str(HERE), "rev-parse", "--short", "HEAD") or "none"
    return commit + ("-dirty" if output_of("git", "-C", str(HERE), "status", "--porcelain", "-uno") else "")


def hardware_lines(probe):
    query = "name,memory.total,memory.free,driver_version,power.limit,clocks.max.sm,clocks.max.memory,clocks.sm,temperature.gpu"
    smi = output_of("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader")
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    home = f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin"
    tools = (shutil.which(name) or shutil.which(name, path=home) or f"no {name}" for name in ("gcc", "nvcc", "compute-sanitizer", "ncu"))
    return [*(f"{line} ({query})" for line in smi.splitlines()), f"weft-rank --probe: {probe}", f"{', '.join(tools)}; {' '.join(platform.libc_ver())}",
            f"{cpu}, {os.cpu_count()} cores, Linux {os.uname().release}"]
