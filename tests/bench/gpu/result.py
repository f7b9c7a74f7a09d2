# SPDX-License-Identifier: Apache-2.0
"""The result file: a head with date, commit, hardware and libraries, then tables; written again after each turn."""
import datetime
import os
import pathlib
import statistics
import sys

from runner import output_of
from sizes import CLIP, DECAY, SIZES
from stages import IN_ORDER, SWEPT

HERE = pathlib.Path(__file__).resolve().parent


class Result:
    def __init__(self, o, runner, rates, hardware):
        self.o, self.rates, self.hardware = o, rates, hardware
        self.began = datetime.datetime.now(datetime.timezone.utc)
        self.commit = commit_of(o.bundle)
        parts = "".join(f"-{x}" for x in (o.stage if o.all_parts else o.parts))
        self.path = o.out / f"{self.began:%Y-%m-%d}-{self.commit}-gpu{parts}.txt"
        self.libraries, self.models, self.ops, self.ends, self.choices, self.notes = {}, {}, {}, {}, {}, []
        self.sweeps = {}

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

    def op_lines(self, part, what, batch, rows):
        dtype, part_of = what.split(",")[0], what == IN_ORDER
        step = sum(r["calls"] * r["p50"] for r in rows)
        yield ""
        yield (f"Ops of {SIZES[part[4:]].name} {part[4:]}'s step, {dtype}, {'in order' if part_of else 'any order'}, batch {batch}: us a call, alone; the limit is the later of "
               f"FLOPs at {rate_text(self.rates, dtype)} and bytes at {rate_text(self.rates, 'bytes')}")
        yield (f"{'op':58} {'dtype':5} {'calls':>5} {'p50 us':>10} {'p10':>10} {'p90':>10} {'TFLOP/s':>9} {'GB/s':>8} "
               f"{'of limit':>8} {'of step':>8}")
        for r in sorted(rows, key=lambda r: (r["calls"] > 0, -r["calls"] * r["p50"])):
            share = f"{100 * r['calls'] * r['p50'] / step:7.2f}%" if r["calls"] and step and not part_of else f"{'-':>8}"
            yield (f"{r['name']:58} {r['dtype']:5} {r['calls']:5} {r['p50']:10.2f} {r['p10']:10.2f} {r['p90']:10.2f} "
                   f"{number(r['flops'] / r['p50'] / 1e6):>9} {number(r['bytes'] / r['p50'] / 1e3):>8} "
                   f"{of_limit(self.rates, r):>8} {share}" + ("" if r["graph"] else "  queued, not captured"))
        if not part_of:
            yield f"all calls of a step, one after the other: {step / 1000:.3f} ms"

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
    def choice_lines(part, what, rows):
        yield ""
        yield (f"Choices of algorithms made by {part} {what}: the place among those that the library named, best first as it "
               "thinks, us a call, and us of the first of them that runs")
        yield f"{'place':>10} {'of':>3} {'us':>10} {'first':>10} {'gain':>6}  what and how"
        for key, place, of, us, first, algorithm in rows:
            gain = f"{100 * (float(first) / float(us) - 1):5.1f}%" if us not in ("-", "0.0") and first != "-" else f"{'-':>6}"
            yield f"{place:>10} {of:>3} {us:>10} {first:>10} {gain}  {key}: {algorithm}"

    def write(self):
        lines = self.head()
        for part, rows in self.ends.items():
            lines += self.end_lines(part, rows)
        for (size, batch), rows in self.models.items():
            lines += self.model_lines(size, batch, rows)
        for (part, what, batch), rows in self.ops.items():
            lines += self.op_lines(part, what, batch, rows)
        for (part, kind), columns in self.sweeps.items():
            lines += self.sweep_lines(part, kind, columns)
        for (part, what), rows in self.choices.items():
            lines += self.choice_lines(part, what, rows)
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
    noted = bundle / "commit"
    if noted.exists():
        return noted.read_text().strip()
    commit = output_of("git", "-C", str(HERE), "rev-parse", "--short", "HEAD") or "none"
    return commit + ("-dirty" if output_of("git", "-C", str(HERE), "status", "--porcelain", "-uno") else "")


def hardware_lines(probe):
    query = "name,memory.total,driver_version,power.limit,clocks.max.sm,clocks.max.memory,clocks.sm,temperature.gpu"
    smi = output_of("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader")
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    return [*(f"{line} ({query})" for line in smi.splitlines()), f"weft-rank --probe: {probe}",
            f"{cpu}, {os.cpu_count()} cores, Linux {os.uname().release}"]
