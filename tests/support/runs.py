# SPDX-License-Identifier: Apache-2.0
"""Drives ranks through lead-ranks (tests/support/lead_ranks.c): data sets and job files by hand, processes, and
what a run leaves behind (metrics, logs, checkpoints, progress pages). Checkpoints are read here by their own
reader, so that what is compared does not pass through the code under test.

A Run is one DIR with its job file; start() may be called again and again, as after a crash. Waits have
generous watchdogs: a test fails for what happened, not for how long it took."""
import contextlib
import fcntl
import hashlib
import json
import math
import os
import pathlib
import pty
import re
import shutil
import signal
import stat
import struct
import subprocess
import termios
import threading
import time

import numpy

REPO = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("WEFT_BUILD", REPO / "build"))
RANK, WEFT, LEAD = str(BUILD / "weft-rank"), str(BUILD / "weft"), str(BUILD / "tests/lead-ranks")
LONG = bool(os.environ.get("WEFT_LONG"))
SEED = int(os.environ.get("WEFT_SEED", 0))
WATCHDOG = 120.0  # seconds; only a hang takes so long
BUSY_STEPS = 150
STATES = ["starting", "ready", "running", "saving", "ended"]
PHASES = ["forward", "backward", "weights", "update"]  # weights: where a schedule has them apart


def seeds(few, many):
    """Of a storm: from WEFT_SEED on, so many, or WEFT_ROUNDS."""
    return range(SEED, SEED + int(os.environ.get("WEFT_ROUNDS", many if LONG else few)))


# ---- data ----------------------------------------------------------------------------------------


def write_idx(path, array):
    """The format of MNIST: big-endian magic, dimensions, elements."""
    code = {"uint8": 0x08, "int32": 0x0C, "float32": 0x0D}[str(array.dtype)]
    head = struct.pack(">BBBB", 0, 0, code, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    pathlib.Path(path).write_bytes(head + array.astype(array.dtype.newbyteorder(">")).tobytes())


class Set:
    def __init__(self, folder, images, labels, eval_images=None, eval_labels=None):
        self.features = int(numpy.prod(images.shape[1:]))
        self.classes = int(labels.max()) + 1
        self.train = {"images": str(folder / "train-images"), "labels": str(folder / "train-labels")}
        write_idx(self.train["images"], images)
        write_idx(self.train["labels"], labels)
        self.eval = None
        if eval_images is not None:
            self.eval = {"images": str(folder / "eval-images"), "labels": str(folder / "eval-labels")}
            write_idx(self.eval["images"], eval_images)
            write_idx(self.eval["labels"], eval_labels)


def toy_set(folder, n=480, held_out=96, classes=5, side=8, seed=11):
    rng = numpy.random.default_rng(seed)
    centres = rng.integers(0, 256, (classes, side, side))
    labels = rng.integers(0, classes, n + held_out).astype(numpy.uint8)
    clouds = centres[labels] + rng.normal(0, 40, (n + held_out, side, side))
    images = clouds.clip(0, 255).astype(numpy.uint8)
    return Set(folder, images[:n], labels[:n], images[n:], labels[n:])


def noise_set(folder, n=960, classes=7, side=16, seed=5):
    rng = numpy.random.default_rng(seed)
    images = rng.integers(0, 256, (n, side, side), dtype=numpy.uint8)
    labels = rng.integers(0, classes, n, dtype=numpy.uint8)
    labels[:classes] = range(classes)
    return Set(folder, images, labels)


# ---- jobs ----------------------------------------------------------------------------------------


def job(data, ranks, name="test", **changes):
    """A job as a dict; changes are sections or single keys ("train.steps"-style with __ for the dot)."""
    j = {
        "name": name,
        "model": {"program": "mlp", "inputs": data.features, "hidden": [32, 16], "classes": data.classes, "activation": "gelu"},
        "mesh": {"dp": ranks},
        "data": {"train": data.train, "batch": 24},
        "optimizer": {"kind": "momentum"},
        "schedule": {"kind": "constant", "value": 0.05},
        "train": {"steps": 30, "seed": 3},
        "checkpoint": {"dir": "ckpt"},
    }
    if data.eval:
        j["data"]["eval"] = data.eval
    j = json.loads(json.dumps(j))  # nothing shared with other jobs
    for key, value in changes.items():
        at, parts = j, key.split("__")
        for p in parts[:-1]:
            at = at.setdefault(p, {})
        at[parts[-1]] = value
    return pinned(j)


def pinned(job):
    """With one thread a device unless it says another number: runs are compared to the bit, whatever the cores."""
    return {**job, "resources": {"threads": 1, **job.get("resources", {})}}


def busy_job(data, ranks, **changes):
    """Steps of some milliseconds with a checkpoint every few: something to be killed in."""
    base = {
        "model__hidden": [384, 384],
        "data__batch": 96,
        "optimizer": {"kind": "adamw"},
        "schedule": {"kind": "warmup_cosine", "peak": 1e-3, "warmup": 5},
        "train__steps": BUSY_STEPS,
        "checkpoint": {"dir": "ckpt", "every": 7, "keep": 3},
    }
    return job(data, ranks, **{**base, **changes})


# ---- processes -----------------------------------------------------------------------------------


def watch_over(p):
    """Kills a process that hangs, so that who reads its pipes comes to their end."""
    timer = threading.Timer(WATCHDOG, p.kill)  # does nothing to one that was waited for
    timer.daemon = True
    timer.start()
    return p


def kill_pid(pid, sig=signal.SIGKILL):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sig)


def cmdline(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def is_stopped(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False


def processes_naming(folder):
    """Pids of our binaries whose arguments lie in `folder`, except for the dead."""
    inside = os.fsencode(str(folder))
    found = []
    for name in os.listdir("/proc"):
        args = cmdline(name) if name.isdigit() else []
        if args and (b"weft" in args[0] or b"lead-ranks" in args[0]) and any(inside in a for a in args) and alive(name):
            found.append(int(name))
    return found


def ranks_of(process):
    """Pids of the living ranks of a `weft run`."""
    children = [int(p) for p in os.listdir("/proc") if p.isdigit() and cmdline(p)[:1]
                and cmdline(p)[0].endswith(b"weft-rank") and str(process.pid).encode() in cmdline(p)]  # fmt: skip
    return [p for p in children if alive(p)]


class Page:
    """A copy of a rank's progress page (worker/collective/collective.h)."""

    LAYOUT = struct.Struct("<IIiiqiii4xQQQQ64sQ")

    def __init__(self, raw):
        if len(raw) < self.LAYOUT.size:
            raise ValueError("a page that is being made")
        v = self.LAYOUT.unpack(raw[: self.LAYOUT.size])
        self.magic, _, self.rank, self.pid, self.step = v[:5]
        self.phase, self.microbatch = v[5:7]
        self.state = STATES[v[7]] if 0 <= v[7] < len(STATES) else str(v[7])
        self.ops, self.entered, self.left = v[8:11]
        self.collective = v[12].split(b"\0")[0].decode(errors="replace")


def next_line(p):
    """The next line that a process says, empty at its end; communicate() has all that follows it.

    p.stdout.readline() reads ahead, and communicate() does not return what was read so.
    """
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(p.stdout.fileno(), 1)):
        line += byte
    return line.decode()


class Ended:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def codes(self):
        """Of the ranks of a lead-ranks."""
        return [int(code) for _, code in sorted(re.findall(r"^rank (\d+) ended with (\d+)$", self.out, re.M))]

    def __repr__(self):
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class Process:
    """A lead-ranks with its ranks, or another of our programs."""

    def __init__(self, args, program=LEAD, cwd=None, env=None):
        self.out, self.err = b"", b""
        self.p = subprocess.Popen(
            [program, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd,
            env={**os.environ, **(env or {})},
        )  # fmt: skip
        self.pid = self.p.pid

    def signal(self, sig):
        self.p.send_signal(sig)

    def running(self):
        return self.p.poll() is None

    def wait(self, timeout=WATCHDOG):
        try:
            out, err = self.p.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.p.kill()
            out, err = self.p.communicate()
            raise AssertionError(f"did not end within {timeout} s\n{out.decode()}\n{err.decode()}") from None
        return Ended(self.p.returncode, out.decode(), err.decode())


def on_rank(rank, env):
    """Flags of lead-ranks that put this into the environment of one rank."""
    return [x for k, v in env.items() for x in ("--env", f"{rank}:{k}={v}")]


def on_hosts(*names, listen=None):
    """Flags by which rank r is of the host names[r]: ranks of different names reach each other by TCP alone."""
    flags = [x for r, name in enumerate(names) for x in ("--host", f"{r}:{name}")]
    return [*flags, *(x for r, at in enumerate(listen or []) for x in ("--listen", f"{r}:{at}:0"))]


def on_cable(cable, sides):
    """Flags by which rank r runs in the network namespace sides[r], a host of its own."""
    inside = [x for r, s in enumerate(sides) for x in on_rank(r, {"WEFT_RANK_WRAPPER": " ".join(cable.enter[s])})]
    return [*inside, *on_hosts(*(f"side{s}" for s in sides), listen=[cable.address[s] for s in sides])]


def rows_of(store):
    """The rows of a job's metrics that hold: a row makes those before it at its step or later void (it is of a newer
    attempt, which resumed there), one of an older attempt behind it counts for nothing, nor does half a line."""
    rows = []
    for line in (store / "metrics.jsonl").read_text().split("\n")[:-1]:  # the last one may be in the writing
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if rows and row["attempt"] < rows[-1]["attempt"]:
            continue
        while rows and rows[-1]["step"] >= row["step"]:
            rows.pop()
        rows.append(row)
    return rows


class Run:
    devices = 1  # of a job on CUDA: GPUs of the host, which its ranks take in turn

    def __init__(self, place, job_dict, name="run"):
        self.place = pathlib.Path(place)
        self.dir = self.place / name
        self.file = self.place / f"{name}.yaml"
        self.gate = self.place / f"{name}-gate"
        self.ranks = math.prod(job_dict["mesh"].values())
        self.save_job(job_dict)

    def save_job(self, job_dict):
        self.job = job_dict
        job_dict["checkpoint"]["dir"] = f"{self.dir.name}-ckpt"
        job_dict["resources"] = pinned(job_dict)["resources"]
        text = json.dumps(job_dict, indent=1)  # JSON is YAML, but a duration stands without quotes
        self.file.write_text(re.sub(r'"(\d+s)"', r"\1", text))

    def carry_on_as(self, job_dict):
        """The job file says another layout: the next start goes on from the newest checkpoint in it."""
        self.ranks = math.prod(job_dict["mesh"].values())
        self.save_job(job_dict)

    def forget(self, step):
        """Takes away the checkpoints after `step`: what a crash there would have left."""
        for c in self.checkpoints():
            if c.step > step:
                shutil.rmtree(c.path)
        assert self.checkpoints()[-1].step == step

    # -- starting
    def args(self, *more):
        shared = ["--devices", str(self.devices)] if self.job["resources"].get("kind") == "cuda" else []
        return [str(self.dir), str(self.file), *shared, *more]

    def start(self, *more):
        return Process(self.args(*more))

    def start_held(self, row):
        """As start(), but rank 0 does not write row `row` of its metrics before let_go(): so the run is in its
        middle for as long as the test wants, however quick it is. Its checkpoints before that are committed."""
        env = {"LD_PRELOAD": str(BUILD / "libfaultshim.so"), "FAULT_DIR": str(self.dir.resolve()), "FAULT_KIND": "write",
               "FAULT_MATCH": "metrics.jsonl", "FAULT_AT": str(row), "FAULT_DO": "wait", "FAULT_UNTIL": str(self.gate)}
        self.gate.unlink(missing_ok=True)
        return self.start(*on_rank(0, env))

    def let_go(self):
        self.gate.touch()

    def run(self, *more):
        return self.start(*more).wait()

    def finish(self, *more):
        """Runs to the good end."""
        end = self.run(*more)
        assert end.code == 0, end
        return end

    # -- looking at it while it runs
    def pids(self):
        """{rank: pid} of the living ranks of this DIR."""
        found = {}
        for pid in processes_naming(self.dir):
            args = cmdline(pid)
            if b"--rank" in args:
                found[int(args[args.index(b"--rank") + 1])] = pid
        return found

    def attempt_dir(self):
        dirs = [d for d in self.dir.glob("attempt-*") if d.name[8:].isdigit()]
        return max(dirs, key=lambda d: int(d.name[8:]), default=None)

    def page(self, rank):
        """The newest attempt's page of a rank, None while there is none."""
        folder = self.attempt_dir()
        try:
            raw = (folder / f"page-{rank:04d}").read_bytes() if folder else b""
        except OSError:
            return None
        return Page(raw) if len(raw) >= Page.LAYOUT.size and raw[:4] == b"tfew" else None

    def wait_until(self, what, process=None, timeout=WATCHDOG):
        """Polls `what` until it is true, and returns it; False when the process ended before that."""
        end = time.monotonic() + timeout
        while (begun := time.monotonic()) < end:
            value = what()
            if value:
                return value
            if process is not None and not process.running():
                return False
            time.sleep(max(0.0005, time.monotonic() - begun))
        raise AssertionError("waited in vain")

    def at(self, rank, step=0, state="running", phase=None):
        """A condition: this rank (alive) is at `step` or later, in `state`, in `phase`."""

        def reached():
            p = self.page(rank)
            return (
                p is not None
                and alive(p.pid)
                and p.state == state
                and p.step >= step
                and (phase is None or p.phase == PHASES.index(phase))
                and p
            )

        return reached

    def saved(self, rank, step=0):
        """A condition: a checkpoint is committed, and the rank runs on at `step` or later."""
        running = self.at(rank, step)
        return lambda: running() and self.checkpoints()

    # -- what it left
    def metrics(self):
        return rows_of(self.dir)

    def losses(self):
        return [(r["step"], r["loss"], r["grad_norm"]) for r in self.metrics()]

    def log(self, rank):
        path = self.dir / "logs" / f"rank-{rank:04d}.log"
        return path.read_text() if path.exists() else ""

    def stores(self):
        return sorted(d.parent for d in (self.place / f"{self.dir.name}-ckpt").glob("*/OWNER"))

    def checkpoints(self):
        """Committed ones, newest last, as Checkpoint."""
        return checkpoints_of(*self.stores())

    def final(self):
        newest = self.checkpoints()[-1]
        assert newest.step == self.job["train"]["steps"]
        return newest.tensors()

    def sockets(self):
        return [p for p in self.dir.rglob("*") if stat.S_ISSOCK(p.lstat().st_mode)]


def train(place, job_dict, name="run"):
    """A run of this job from its beginning to its end, undisturbed."""
    run = Run(place, job_dict, name)
    run.end = run.finish()
    return run


def assert_killed_it_resumes(place, job_dict, calm, saved=20):
    """Its rank 1 is killed once a checkpoint of so many steps is there; the next run ends as the calm one, to the bit."""
    run = Run(place, {**job_dict, "name": "killed"}, "killed")
    parent = run.start_held(saved + 5)
    assert run.wait_until(run.saved(1, saved), parent), parent.wait()
    kill_pid(run.pids()[1])
    run.let_go()
    parent.wait()
    run.finish()
    assert run.losses() == calm.losses()
    assert run.final() == calm.final()
    return run


def checkpoints_of(*stores):
    found = []
    for store in stores:
        for d in pathlib.Path(store).iterdir():
            m = re.fullmatch(r"step-(\d+)\.a(\d+)", d.name)
            try:
                if m:
                    found.append(Checkpoint(d, int(m[1]), int(m[2])))
            except FileNotFoundError:
                assert not d.exists(), f"{d} has no manifest"  # else a run that goes on has deleted it
    return sorted(found, key=lambda c: (c.attempt, c.step))


class Checkpoint:
    def __init__(self, path, step, attempt):
        self.path, self.step, self.attempt = path, step, attempt
        self.manifest = json.loads((path / "MANIFEST.json").read_text())

    def raw(self):
        """{name: (type, bytes of every element)}, put together from the slices: who wrote what is no matter."""
        sizes = {"F32": 4, "I32": 4, "U8": 1, "BF16": 2}
        found = {}
        for t in self.manifest["tensors"]:
            size = sizes[t["dtype"]]
            whole = numpy.zeros([*t["shape"], size], numpy.uint8)
            seen = 0
            for s in t["slices"]:
                with open(self.path / s["file"], "rb") as f:
                    f.seek(s["offset"])
                    raw = f.read(s["bytes"])
                box = tuple(slice(a, a + n) for a, n in zip(s["start"], s["shape"]))
                whole[box] = numpy.frombuffer(raw, numpy.uint8).reshape([*s["shape"], size])
                seen += len(raw)
            assert seen == whole.size, f"{t['name']}: slices of {seen} bytes for {whole.size}"
            found[t["name"]] = (t["dtype"], whole)
        return found

    def tensors(self):
        """{name: digest of the whole tensor}"""
        return {name: hashlib.sha256(whole.tobytes()).hexdigest() for name, (_, whole) in self.raw().items()}

    def numbers(self):
        """{name: array of doubles} of the tensors of f32"""
        return {
            name: whole.view(numpy.float32)[..., 0].astype(numpy.float64)
            for name, (dtype, whole) in self.raw().items()
            if dtype == "F32"
        }


def damage(path):
    """Changes one byte of a checkpoint's tensors."""
    with open(sorted(path.glob("shard-*"))[0], "r+b") as f:
        f.seek(-1, os.SEEK_END)
        (byte,) = f.read(1)
        f.seek(-1, os.SEEK_END)
        f.write(bytes([byte ^ 1]))


def put_tokens(text, to):
    """The file's bytes as token ids, u16 without a header."""
    pathlib.Path(to).write_bytes(numpy.frombuffer(pathlib.Path(text).read_bytes(), "u1").astype("<u2").tobytes())


def verbs():
    return re.findall(r"^  weft ([a-z]+) ", weft("help").out, re.M)


def on_terminal(argv, columns=80, rows=24, env=None, cwd=None, act=None):
    """What a command writes to a terminal of this size, and its exit code. `act(process, said, fd)` is called after
    each piece that was read."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def take_terminal():
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    p = watch_over(subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm", **(env or {})},
                                    cwd=cwd, preexec_fn=take_terminal))  # fmt: skip
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # EIO: nobody has the other end
        while piece := os.read(ours, 65536):
            said += piece
            if act:
                act(p, said, ours)
    code = p.wait(timeout=WATCHDOG)
    os.close(ours)
    return Ended(code, said.decode(errors="replace").replace("\r\n", "\n"), "")


def weft(*args, cwd=None):
    p = subprocess.run([WEFT, *args], capture_output=True, text=True, timeout=WATCHDOG, check=False, cwd=cwd)
    return Ended(p.returncode, p.stdout, p.stderr)
