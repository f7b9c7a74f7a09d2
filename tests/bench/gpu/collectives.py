# SPDX-License-Identifier: Apache-2.0
"""Collectives by NCCL between ranks that share the one GPU there is: the steps of a small GPT-2 beside those of the same
training through the hosts, and what a killed rank ends. NCCL refuses two ranks of one host on one device. So each rank says
that it is of a host of its own, and all bytes go through sockets: it shows that sums and ends are right, not how fast NVLink is."""
import math
import os
import re
import signal
import statistics
import time

from contestants import Ranks, Weft, cmdline, numbers
from runner import Failed
from sizes import SIZES, TINY, write_tokens

MESHES = {"dp 2": 2, "pp 2": 2, "tp 2": 2, "fsdp 2": 2, "dp 4": 4}  # what takes most to show first; ranks
BATCH, STEPS = (8, 4), (6, 3)  # and with --tiny; the rank is killed at half the steps
# A sum of two has one order. One of four rounds three times, by 2^-24 each, in another order than the hosts'; so does the
# loss, and some steps add some such: relative, of every step. Of the norm's square the parts may nearly cancel.
TOLERANCE = {"loss": 1e-6, "grad_norm": 1e-5}
MOST_S, EACH_S, END_S = 150, 40, 5  # of all; of a training; of the ranks' end behind the death of one
APART = {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1",
         "NCCL_NVLS_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0"}  # fmt: skip
SWITCHES = {**APART, "WEFT_CUDA_CANDIDATES": "8", "WEFT_CUDA_FINALISTS": "1",  # few algorithms are timed: no speed is looked at
            "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}  # the log has what NCCL says


class Collectives:
    def __init__(self, checks):
        self.checks, self.runner, self.tiny = checks, checks.runner, checks.o.tiny
        self.weft = Weft(checks.runner, checks.o)
        self.size, self.batch, self.steps = TINY["small"] if self.tiny else "small", BATCH[self.tiny], STEPS[self.tiny]
        tokens = checks.runner.scratch / f"{SIZES[self.size].vocab}.bin"
        if not tokens.exists():
            write_tokens(tokens, SIZES[self.size], 20_000)

    def run(self):
        """Who hangs takes no more than its part of the stage's time."""
        self.checks.ends = min(self.checks.ends, time.monotonic() + (math.inf if self.tiny else MOST_S))
        for mesh, ranks in MESHES.items():
            self.checks.one(f"nccl-{mesh.replace(' ', '')}", lambda limit, mesh=mesh, ranks=ranks: self.beside_hosts(limit, mesh, ranks))
            if mesh == "dp 2":
                self.checks.one("nccl-killed", self.killed)

    def ranks(self, mesh, n, by, steps):
        axis, size = mesh.split()
        own = [x for r in range(n) for x in ("--env", f"{r}:NCCL_HOSTID=r{r}")]
        said = {f"mesh.{axis}": size, "resources.devices": n, "resources.collectives": by, "train.steps": steps, "restart.hang_after": "15s",
                "train.microbatches": 2 if axis == "pp" else 1}  # fmt: skip
        return Ranks(self.runner, self.weft.job(self.size, self.batch, "f32", steps), [x for key, value in said.items() for x in ("-s", f"{key}={value}")] + own, SWITCHES)

    def limit(self, left):
        return left if self.tiny else min(left, EACH_S)

    def beside_hosts(self, limit, mesh, n):
        ends, rows, ms, version = time.monotonic() + limit, {}, {}, None
        for by in ("host", "nccl"):
            with self.ranks(mesh, n, by, self.steps) as ranks:
                rows[by] = ranks.finish(self.limit(ends - time.monotonic()))
                version = version_of(ranks.said)
            if len(rows[by]) != self.steps:
                raise Failed(f"{len(rows[by])} rows, not {self.steps}", ranks.said)
            ms[by] = statistics.median(r["step_ms"] for r in rows[by][1:])
        if not version:
            raise Failed("no log says that NCCL carried the collectives, and which", ranks.said)
        like = likeness(rows["nccl"], rows["host"], n == 2)
        return f"NCCL {version}, {self.steps} steps, {like}; {ms['nccl']:.1f} ms a step, through the hosts {ms['host']:.1f}"

    def killed(self, limit):
        """Rank 1, in the middle of its steps."""
        when, step = [], self.steps // 2
        with self.ranks("dp 2", 2, "nccl", 100_000) as ranks:

            def kill(rows):
                if len(rows) >= step and not when:
                    os.kill(pid_of(ranks, 1), signal.SIGKILL)
                    when.append(time.monotonic())

            code, said = ranks.train(self.limit(limit), seen=kill)
        if not when:
            raise Failed(f"it ended with {code} before a rank was killed", said)
        took = time.monotonic() - when[0]
        if "rank 0 ended with 69" not in said:
            raise Failed("the other rank did not end with 69", said)
        if took > (math.inf if self.tiny else END_S):
            raise Failed(f"{took:.1f} s passed until all had ended", said)
        return f"rank 1 was killed at step {step}, rank 0 ended with 69, all within {took:.1f} s"


def version_of(said):
    found = re.search(r"from device to device, by NCCL (\d+\.\d+\.\d+)", said)
    return found and found[1]


def likeness(rows, hosts, bits):
    """How far steps are from those through the hosts, in words; whoever is too far off fails."""
    worst = 0
    if bits and numbers(rows) != numbers(hosts):
        raise Failed(f"the numbers are {numbers(rows)}, through the hosts {numbers(hosts)}", "")
    for row, want in zip(rows, hosts):
        for name, tolerance in TOLERANCE.items():
            off = abs(row[name] - want[name]) / abs(want[name])
            if not off <= tolerance:
                raise Failed(f"step {row['step']}: {name} is {row[name]}, through the hosts {want[name]}, more than {tolerance:g} off", "")
            worst = max(worst, off)
    return "the numbers that they have through the hosts" if bits else f"at most {worst:.1e} off those through the hosts"


def pid_of(ranks, rank):
    """Of a rank of this training."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        words = cmdline(pid).split(b"\0")
        if any(str(ranks.place).encode() in word for word in words) and (b"--rank", b"%d" % rank) in zip(words, words[1:]):
            return int(pid)
    raise Failed(f"there is no rank {rank}", "")
