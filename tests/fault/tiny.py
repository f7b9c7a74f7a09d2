# SPDX-License-Identifier: Apache-2.0
"""A tiny job run by real rank processes, each with its own faults, and what its folder holds afterwards."""
import glob
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import time

import runs

BUILD = pathlib.Path(os.environ.get("WEFT_BUILD", "build")).resolve()
LONG = bool(os.environ.get("WEFT_LONG"))
WATCHDOG_S = 180  # generous: what takes so long hangs

JOB = """name: tiny
model: {{program: mlp, inputs: 64, hidden: [32, 16], classes: 4, activation: relu}}
mesh: {{dp: {ranks}}}
data:
  format: idx
  train: {{images: {data}/images, labels: {data}/labels}}
  batch: 16
optimizer: {{kind: adamw, weight_decay: 0.01, clip_norm: 1.0}}
schedule: {{kind: warmup_cosine, peak: 1e-2, warmup: 2, end: 1e-4}}
train: {{steps: {steps}, seed: 7}}
checkpoint: {{every: {every}, keep: 2, dir: ckpt, async: {asynchronous}, patience: {patience}}}
"""


def make_data(folder):
    """256 images of 8×8 and their labels, from an arithmetic sequence."""
    folder.mkdir(parents=True, exist_ok=True)
    n = 256
    pixels = bytes((i * 7 + i // 64 * 13 + (i % 64) * (i // 64 % 4) * 3) % 256 for i in range(n * 64))
    (folder / "images").write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, n, 8, 8) + pixels)
    (folder / "labels").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, n) + bytes(i % 4 for i in range(n)))
    return folder


def shim(directory, **fault):
    """The environment of one rank with the fault shim: keys are FAULT_* in lower case."""
    env = {"LD_PRELOAD": str(BUILD / "libfaultshim.so"), "FAULT_DIR": str(pathlib.Path(directory).resolve())}
    env.update({"FAULT_" + k.upper(): str(v) for k, v in fault.items()})
    return env


RUNS = []


def kill_all():
    while RUNS:
        RUNS.pop().kill()


class Run:
    """One attempt, led by lead-ranks: each rank with its own faults."""

    def __init__(self, tiny, number, faults, extra, leader):
        self.tiny, self.victim = tiny, None
        RUNS.append(self)
        self.logs = tiny.outputs / f"attempt-{number}"
        self.logs.mkdir(parents=True)
        self.said = self.logs / "leader"
        own = [x for rank, env in faults.items() for x in runs.on_rank(rank, env)]
        env = {k: v for k, v in os.environ.items() if not k.startswith("FAULT_")}
        with open(self.said, "wb") as out:
            self.leader = subprocess.Popen(
                [runs.LEAD, tiny.dir, tiny.job, "--logs", self.logs, *own, *extra],
                env={**env, "WEFT_BACKEND_DIR": str(BUILD), **leader}, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def wait(self):
        """Exit codes of all ranks."""
        try:
            self.leader.wait(WATCHDOG_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("a rank does not end:\n" + self.text()) from None
        return self.codes()

    def printed(self):
        """What the leader has printed."""
        return self.said.read_text(errors="replace")

    def is_finished(self):
        """There was nothing to do any more."""
        return "the job is finished" in self.printed()

    def codes(self):
        if self.is_finished():
            return [0] * self.tiny.ranks
        ended = re.findall(r"^rank (\d+) ended with (\d+)$", self.printed(), re.M)
        ended = {int(rank): int(code) for rank, code in ended}
        return [ended.get(rank) for rank in range(self.tiny.ranks)]

    def kill(self):
        self.leader.kill()  # the ranks die with it
        self.leader.wait()

    def wait_until(self, what):
        end = time.monotonic() + WATCHDOG_S
        while not what():
            assert time.monotonic() < end and self.leader.poll() is None, "in vain:\n" + self.text()
            time.sleep(0.02)

    def terminate(self):
        self.leader.terminate()

    def pid(self, rank=0):
        for pid in runs.processes_naming(self.tiny.dir):
            args = runs.cmdline(pid)
            if b"--rank" in args and int(args[args.index(b"--rank") + 1]) == rank:
                return pid
        return None

    def wait_stopped(self, rank=0):
        """Returns once the shim has stopped the rank; false when the attempt ended instead."""
        end = time.monotonic() + WATCHDOG_S
        while time.monotonic() < end:
            if self.leader.poll() is not None:
                return False
            self.victim = self.pid(rank)
            if self.victim and runs.is_stopped(self.victim):
                return True
            time.sleep(0.005)
        raise AssertionError("the shim never stopped the rank:\n" + self.text())

    def stop_leader(self):
        self.leader.send_signal(signal.SIGSTOP)

    def resume(self):
        """Whoever was stopped."""
        self.leader.send_signal(signal.SIGCONT)
        os.kill(self.victim, signal.SIGCONT)

    def text(self, rank=None):
        files = [self.logs / f"rank-{r:04d}.log" for r in range(self.tiny.ranks) if rank in (None, r)]
        return "".join(f.read_text(errors="replace") for f in files if f.exists())

    def committed(self):
        return [int(s) for s in re.findall(r"checkpoint of step (\d+) committed", self.text(0))]

    def aborted(self):
        """Step → its log lines, of all ranks."""
        found = {}
        for line in self.text().splitlines():
            match = re.search(r"checkpoint of step (\d+) aborted", line)
            if match:
                found.setdefault(int(match[1]), []).append(line)
        return found


class Tiny:
    def __init__(self, home, data, ranks=2, steps=8, every=2, asynchronous=False, outputs=None, patience="1h"):
        self.home, self.ranks, self.steps, self.every = pathlib.Path(home), ranks, steps, every
        self.home.mkdir(parents=True, exist_ok=True)
        self.outputs = pathlib.Path(outputs) if outputs else self.home / "out"
        self.job, self.dir, self.ckpt = self.home / "job.yaml", self.home / "run", self.home / "ckpt"
        self.job.write_text(JOB.format(ranks=ranks, data=data, steps=steps, every=every,
                                       asynchronous=str(asynchronous).lower(), patience=patience))
        os.sync()  # the job file is the user's: it is there whatever happens later
        self.attempts = 0

    def copy(self, home):
        """The same job in the same state at another place."""
        other = object.__new__(Tiny)
        other.__dict__.update(self.__dict__)
        shutil.copytree(self.home, home, ignore=lambda folder, names: {n for n in names if n == "sock"})
        other.home = pathlib.Path(home)
        other.outputs, other.job = other.home / "out", other.home / "job.yaml"
        other.dir, other.ckpt = other.home / "run", other.home / "ckpt"
        return other

    def start(self, faults=None, *extra, leader=None):
        self.attempts += 1
        return Run(self, self.attempts, faults or {}, extra, leader or {})

    def run(self, faults=None, *extra, leader=None):
        run = self.start(faults, *extra, leader=leader)
        run.wait()
        return run

    # ---- the checkpoint directory ----
    def store(self):
        found = glob.glob(str(self.ckpt / "tiny-*"))
        assert len(found) == 1, found
        return pathlib.Path(found[0])

    def names(self):
        return sorted(p.name for p in self.store().iterdir())

    def committed(self):
        """(attempt, step) of everything under a final name, oldest first."""
        found = (re.fullmatch(r"step-(\d{8,})\.a(\d+)", n) for n in self.names())
        return sorted((int(m[2]), int(m[1])) for m in found if m)

    def path(self, attempt, step):
        return self.store() / f"step-{step:08d}.a{attempt}"

    def step_hashes(self):
        """Every committed file's SHA-256."""
        return {(e, s, p.name): hashlib.sha256(p.read_bytes()).hexdigest()
                for e, s in self.committed() for p in self.path(e, s).iterdir()}

    def restored(self):
        """The step that the newest attempt began with."""
        state = dict(line.split(" ", 1) for line in (self.dir / "state").read_text().splitlines())
        return int(state["step"])

    def final(self):
        """What the job came to: the bytes of the last step's shards and every step's loss."""
        attempt, step = self.committed()[-1]
        assert step == self.steps, self.names()
        shards = {p.name: hashlib.sha256(p.read_bytes()).hexdigest()
                  for p in self.path(attempt, step).iterdir() if p.name.startswith("shard-")}
        assert len(shards) == self.ranks
        return shards, self.losses()

    def losses(self):
        return [(row["step"], row["loss"], row["grad_norm"]) for row in runs.rows_of(self.dir)]


def weft(*args):
    done = subprocess.run([BUILD / "weft", *args], capture_output=True, text=True, timeout=WATCHDOG_S)
    return done.returncode, done.stdout + done.stderr


def ls(directory):
    code, out = weft("ckpt", "ls", "--json", directory)
    return code, json.loads(out)["checkpoints"]


def check_store(tiny, acknowledged):
    """I1, I3, I5, and nothing half shows as committed: what must hold at any moment, also after a crash."""
    there = tiny.committed()
    code, listed = ls(tiny.store())
    assert code == 0, listed
    assert sorted((c["attempt"], c["step"]) for c in listed if c["committed"]) == there
    for c in listed:
        assert c["committed"] == (".tmp-" not in c["dir"]) and (c["ok"] or not c["committed"]), c
    if there:
        code, out = weft("ckpt", "verify", tiny.store())
        assert code == 0, out
    for one in acknowledged:  # two are kept
        newer = [other for other in there if other > one]
        assert one in there or len(newer) >= 2, f"{one} was acknowledged and is gone: {tiny.names()}"
    for attempt, step in there:
        manifest = json.loads((tiny.path(attempt, step) / "MANIFEST.json").read_text())
        assert (manifest["attempt"], manifest["step"]) == (attempt, step)


def check_continues(tiny, acknowledged, reference, whole_metrics=True):
    """A new attempt takes the newest good checkpoint and comes to the numbers of a run never disturbed."""
    before, newest = tiny.step_hashes(), tiny.committed()
    run = tiny.run()
    assert run.codes() == [0] * tiny.ranks, run.text()
    assert tiny.restored() == (newest[-1][1] if newest else 0)
    assert tiny.restored() >= max([step for _, step in acknowledged], default=0)
    shards, losses = tiny.final()
    assert shards == reference[0]
    if whole_metrics:
        assert losses == reference[1], "rows of metrics.jsonl are lost or repeated"
    else:  # rows of a file that nobody synced may have gone with the power
        assert losses == reference[1][-len(losses):] or set(losses) <= set(reference[1])
    after = tiny.step_hashes()
    assert all(before[k] == after[k] for k in before.keys() & after.keys()), "a committed file changed"
    left = [n for n in tiny.names() if not re.fullmatch(r"OWNER|attempt-\d+|step-\d+\.a\d+", n)]
    assert not left and len(tiny.committed()) == 2, f"not cleaned up: {tiny.names()}"
    return run


def enumerate_save(tiny, step, rank=0):
    """The calls of one save as the shim saw them in an undisturbed run: [(number, kind, path)]."""
    log = tiny.home / "calls"
    run = tiny.run({rank: shim(tiny.ckpt, log=log, arm=f"step-{step:08d}")})
    assert run.codes() == [0] * tiny.ranks, run.text()
    calls = []
    for line in log.read_text().splitlines():
        number, kind, path = line.split(" ", 2)
        calls.append((int(number), kind, path))
    end = next((i for i, c in enumerate(calls) if f".tmp-step-{step + tiny.every:08d}" in c[2]), len(calls))
    return calls[:end]
